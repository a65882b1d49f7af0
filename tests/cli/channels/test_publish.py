"""`rapport publish --source`: each line is a reading; an unknown source is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rapport.cli.main import run
from support.processes.node import NodeProcess

SITE = """
[site]
name = "x"
[node]
port = 9
[concepts.person.attributes]
status = "text"
[sources.readers]
concept = "person"
attribute = "status"
key = "tag"
value = "status"
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "site.toml").write_text(SITE)
    (tmp_path / "rows.jsonl").write_text('{"tag": "7"}\n')
    return tmp_path


@pytest.mark.slow
def test_an_unknown_source_is_refused_with_the_nearest_name(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["publish", str(site / "rows.jsonl"), "--site", str(site)]
    with NodeProcess(site) as node:
        node.start()
        assert node.doors is not None
        monkeypatch.setenv("RAPPORT_PORT", str(node.doors[1]))
        assert run([*words, "--source", "raeders"]) == 2
        unknown = capsys.readouterr()
        assert run([*words, "--source", "readers"]) == 0
        known = capsys.readouterr()
        assert run([*words, "--source", "readers"]) == 0
        again = capsys.readouterr()
    assert unknown.out == ""
    assert unknown.err.startswith("error[source.unknown] ")
    assert "hint: did you mean 'readers'?" in unknown.err
    assert json.loads(known.out) == json.loads(again.out) == {"published": 1, "duplicates": 0}
    assert known.err == ""
