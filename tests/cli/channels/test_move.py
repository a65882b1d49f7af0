"""`rapport channel move`: what it tells, and nothing beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rapport.cli.main import run


@pytest.fixture
def site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """One that has a reading in `raw.readers`."""
    directory, file = tmp_path / "site", tmp_path / "rows.jsonl"
    run(["init", str(directory)])
    file.write_text('{"badge": "7"}\n')
    assert run(["import", str(file), "--source", "readers", "--site", str(directory)]) == 0
    capsys.readouterr()
    return directory


def test_a_move_that_fails_shows_the_error_and_nothing_before_it(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["channel", "move", "raw.raeders", "--to", "embedded", "--site", str(site)]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error[channel.unknown] ")
    assert "hint: did you mean 'raw.readers'?" in told


def test_a_move_that_is_done_is_told_in_one_line(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["channel", "move", "raw.readers", "--to", "embedded", "--site", str(site)]) == 0
    assert capsys.readouterr().err == "raw.readers is in embedded\n"


def test_a_site_without_a_log_is_told_how_to_get_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site"
    run(["init", str(site)])
    capsys.readouterr()
    assert run(["channel", "move", "events", "--to", "embedded", "--site", str(site)]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error[channel.no_log] ")
    assert f"hint: run it first: rapport up --site {site}" in told
