"""`rapport pipeline mediate` at the terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pyarrow.dataset as ds
import pytest

from rapport.cli.main import run
from support.servers.spark import QUICK_START

SITE = """
[concepts.person.attributes]
place = "point"

[sources.badges]
concept = "person"
attribute = "place"
interpretation = "badges"
time = "t"

[interpretations.badges]
time     = { field = "t", format = "iso8601" }
identity = { field = "who" }
value.x  = { field = "x", unit = "ft" }
value.y  = { field = "y", unit = "m" }
"""
ROWS = (
    '{"t": "2026-03-02T09:14:05Z", "who": "anna", "x": 10, "y": 2}\n'
    '{"t": "2026-03-02T09:14:06Z", "who": "ben", "x": 20, "y": 3}\n'
    '{"t": "2026-03-02T09:14:07Z", "who": "carl", "x": "far", "y": 3}\n'
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    directory = tmp_path / "site"
    directory.mkdir()
    (directory / "site.toml").write_text(SITE, encoding="utf-8")
    (tmp_path / "badges.jsonl").write_text(ROWS, encoding="utf-8")
    return directory


def test_it_tells_which_steps_are_columns_without_starting_spark(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pipeline", "mediate", "--explain", "--site", str(site)]) == 0
    told = capsys.readouterr().out
    assert "badges (badges): native" in told
    assert "x: number, x * 0.3048" in told


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        (["badge=x.jsonl", "--into", "made"], "source.unbound", "badges"),
        (["badges=none.jsonl", "--into", "made"], "cli.no_file", ""),
        (["badges", "badges=badges.jsonl", "--into", "made"], "cli.wrong_use", "badges=FILE"),
        (["badges"], "cli.wrong_use", "--into"),
    ],
)
def test_wrong_use_is_told_before_spark_starts(
    site: Path,
    words: list[str],
    code: str,
    hint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(site.parent)
    assert run(["pipeline", "mediate", *words, "--site", str(site)]) != 0
    told = capsys.readouterr().err
    assert code in told
    assert hint in told


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_recorded_files_become_readings_in_the_units_of_the_site(
    spark: object, site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    into = tmp_path / "mediated"
    words = ["pipeline", "mediate", f"badges={tmp_path / 'badges.jsonl'}", "--into", str(into)]
    done = in_a_process(*words, "--json", "--site", str(site))
    assert done.returncode == 1, "one row has no meaning"
    told = msgspec.json.decode(done.stdout)
    assert told["readings"] == {"person.place": 2}
    assert list(told["rejected"].values()) == [1]
    rows = ds.dataset(into / "readings", partitioning="hive").to_table().sort_by("time").to_pylist()
    assert [(row["key"], round(row["x"], 3), row["y"]) for row in rows] == [
        ("anna", 3.048, 2.0),
        ("ben", 6.096, 3.0),
    ]
    (rejected,) = ds.dataset(into / "rejected").to_table().to_pylist()
    assert rejected["position"] == 3
    assert run([*words, "--site", str(site)]) != 0
    assert "mediate.not_empty" in capsys.readouterr().err


def in_a_process(*words: str) -> subprocess.CompletedProcess[bytes]:
    """A command starts and ends a session of its own; tests of this process share another."""
    command = (sys.executable, "-m", "rapport.cli.main", *words)
    quick = {**os.environ, **QUICK_START}
    return subprocess.run(command, capture_output=True, check=False, timeout=300, env=quick)
