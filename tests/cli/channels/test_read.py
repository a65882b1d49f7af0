"""`rapport read`: the present content of a channel, beside a running node and without one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rapport.cli.main import run
from support.processes.node import NodeProcess

SITE = """
[site]
name = "x"
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
    return tmp_path


def _import(site: Path, rows: str) -> None:
    (site / "rows.jsonl").write_text(rows)
    assert (
        run(["import", str(site / "rows.jsonl"), "--source", "readers", "--site", str(site)]) == 0
    )


def _read(site: Path, *words: str) -> int:
    return run(["read", *words, "--site", str(site)])


@pytest.mark.slow
def test_a_running_node_is_read_like_a_stopped_one_also_before_its_first_event(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with NodeProcess(site) as node:
        node.start()
        assert _read(site, "events") == 0
        empty = capsys.readouterr()
        assert node.doors is not None
        url = f"http://{node.doors[0]}:{node.doors[1]}"
        (site / "rows.jsonl").write_text('{"tag": "7", "status": "guest"}\n')
        words = ["publish", str(site / "rows.jsonl"), "--source", "readers", "--url", url]
        assert run([*words, "--site", str(site)]) == 0
        capsys.readouterr()
        assert _read(site, "raw.readers", "--json") == 0
        beside = capsys.readouterr().out
    assert _read(site, "raw.readers", "--json") == 0
    assert capsys.readouterr().out == beside
    assert json.loads(beside)["data"]["tag"] == "7"
    assert empty.err == "nothing is in 'events' yet\n"
    assert empty.out == "position\ttime\tsource\tid\ttype\tdata\n"


def test_a_channel_that_the_site_will_fill_is_empty_and_any_other_is_unknown(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _import(site, '{"tag": "7"}\n')
    for channel in ("events", "detections", "quarantine", "log"):
        assert _read(site, channel, "--json") == 0
    assert _read(site, "evnets") == 2
    told = capsys.readouterr().err
    assert "nothing is in 'detections' yet" in told
    assert "error[name.unknown] there is no channel named 'evnets'" in told


def test_what_lies_beyond_the_limit_is_counted_with_the_command_that_reads_on(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _import(site, '{"tag": "1"}\n{"tag": "2"}\n{"tag": "3"}\n')
    capsys.readouterr()
    assert _read(site, "raw.readers", "--limit", "1", "--json") == 0
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 1
    assert shown.err == "2 more: rapport read raw.readers --after 1\n"
