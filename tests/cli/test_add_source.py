"""`rapport add`: from a stranger's file to the first back-test in three commands. [CN-6, UX-3]"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from rapport.cli.main import run

Read = pytest.CaptureFixture[str]
KITCHEN = """freezer_id;Zeit;Temperatur (°C);Feuchte in Prozent;note
f1;02.03.2026 20:00;-18,5;40;ok
f1;02.03.2026 20:05;-11,0;41;ok
f1;02.03.2026 20:30;-10,5;42;ok
f2;02.03.2026 20:30;-19,5;43;ok
f1;02.03.2026 24:00;-20,5;42;ok
"""


@pytest.fixture
def kitchen(tmp_path: Path) -> Path:
    file = tmp_path / "kitchen.csv"
    file.write_text(KITCHEN, encoding="utf-8")
    return file


@pytest.fixture
def empty(tmp_path: Path, capsys: Read) -> Path:
    site = tmp_path / "site"
    assert run(["init", str(site), "--template", "empty"]) == 0
    capsys.readouterr()
    return site


def test_three_commands_lead_from_a_strangers_file_to_the_first_back_test(
    tmp_path: Path, kitchen: Path, capsys: Read
) -> None:
    site = str(tmp_path / "house")
    assert run(["init", site, "--template", "home"]) == 0
    assert run(["add", str(kitchen), "--site", site]) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) <= 10
    assert "kitchen: 5 rows of csv, about freezer" in said
    assert run(["backtest", "too-warm", "--site", site, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert '"f1"' in json.dumps(found)


def test_undo_leaves_the_site_file_byte_for_byte(empty: Path, kitchen: Path, capsys: Read) -> None:
    before = (empty / "site.toml").read_bytes()
    assert run(["add", str(kitchen), "--site", str(empty), "--yes", "--name", "cellar"]) == 0
    assert b"[sources.cellar]" in (empty / "site.toml").read_bytes()
    assert run(["check", "--site", str(empty)]) == 0
    assert run(["add", "--undo", "cellar", "--site", str(empty)]) == 0
    assert (empty / "site.toml").read_bytes() == before
    assert run(["add", "--undo", "cellar", "--site", str(empty)]) == 2
    assert "source.not_added" in capsys.readouterr().err


def test_without_a_terminal_nothing_is_written_before_all_is_said(
    empty: Path, kitchen: Path, capsys: Read
) -> None:
    before = (empty / "site.toml").read_bytes()
    assert run(["add", str(kitchen), "--site", str(empty)]) == 2
    said = capsys.readouterr().err
    assert "source.no_zone" in said
    assert "--zone Europe/Berlin" in said
    assert (empty / "site.toml").read_bytes() == before
    assert run(["add", str(kitchen), "--site", str(empty), "--zone", "Europe/Berlin"]) == 0
    assert "at 2026-03-02T19:00:00.000Z" in capsys.readouterr().out


class Terminal(io.StringIO):
    """Somebody who answers."""

    def isatty(self) -> bool:
        return True


def test_on_a_terminal_only_what_the_data_do_not_say_is_asked(
    empty: Path, tmp_path: Path, capsys: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "garden.csv"
    file.write_text("when,temp,rain (mm)\n2026-03-02 20:00,21.5,0\n2026-03-02 21:00,22.5,1\n")
    monkeypatch.setattr(sys, "stdin", Terminal("=rose\nEurope/Berlin\n\n"))
    assert run(["add", str(file), "--site", str(empty)]) == 0
    said = capsys.readouterr()
    assert said.err.count("?") == 3
    assert "temp from 21.5 to 22.5 looks like celsius" in said.err
    assert "first reading: garden.temperature of rose is 21.5 at 2026-03-02T19:00" in said.out


def test_wrong_words_are_refused_and_a_broken_site_is_left_alone(
    empty: Path, kitchen: Path, tmp_path: Path, capsys: Read
) -> None:
    site = ["--site", str(empty)]
    assert run(["add", *site]) == 2
    assert run(["add", str(kitchen), "--unit", "temp", *site]) == 2
    assert run(["add", str(tmp_path / "nowhere.csv"), *site]) == 2
    with (empty / "site.toml").open("a") as file:
        file.write('\n[sources.broken]\nconcept = "nothing"\nattribute = "x"\n')
    before = (empty / "site.toml").read_bytes()
    capsys.readouterr()
    assert run(["add", str(kitchen), "--yes", *site]) == 1
    assert "nothing" in capsys.readouterr().err
    assert (empty / "site.toml").read_bytes() == before
