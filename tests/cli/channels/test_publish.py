"""`rapport publish --source`: a source that the site does not declare is taken, and told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rapport.cli.main import run
from rapport.testing.processes.node import NodeProcess

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
def test_an_unknown_source_is_published_with_a_warning_that_names_the_nearest(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["publish", str(site / "rows.jsonl"), "--site", str(site)]
    with NodeProcess(site) as node:
        node.start()
        assert node.doors is not None
        monkeypatch.setenv("RAPPORT_PORT", str(node.doors[1]))
        assert run([*words, "--source", "raeders"]) == 0
        unknown = capsys.readouterr()
        assert run([*words, "--source", "readers"]) == 0
        known = capsys.readouterr()
    assert json.loads(unknown.out) == {"published": 1, "duplicates": 0}
    assert unknown.err.startswith("warning[source.unbound] ")
    assert "'raeders'" in unknown.err
    assert "hint: did you mean 'readers'?" in unknown.err
    assert known.err == ""


@pytest.mark.parametrize(
    ("words", "is_told"),
    [
        (["--source", "wind"], True),
        (["--source", "readers"], False),
        (["--channel", "wind"], False),
        (["--source", "wind", "--url", "http://127.0.0.1:9"], False),  # another node's sources
    ],
)
def test_only_what_the_own_site_does_not_declare_is_told(
    words: list[str], is_told: bool, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["publish", str(site / "rows.jsonl"), "--site", str(site), *words]) == 1
    told = capsys.readouterr().err
    assert ("warning[source.unbound] " in told) == is_told
    assert not is_told or "[sources.NAME]" in told
    assert "error[node.unreachable] " in told
