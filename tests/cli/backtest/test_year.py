"""`rapport demo year`: a made-up history that is the same every time and goes on after a stop.
[PI-9, UX-7]
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from rapport.cli.main import OK, PROBLEMS, WRONG_USE, run
from rapport.scenarios.year import Year, day_table, write_year
from rapport.site.site import check_site

SMALL = Year(readings=30_000, days=9, first="2025-03-01")


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((directory / "history").iterdir())}


def test_the_same_numbers_give_the_same_files_and_another_seed_others(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_year(tmp_path / name, SMALL)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    other = Year(readings=30_000, days=9, first="2025-03-01", seed=2)
    assert not day_table(other, 3, other.pairs()).equals(day_table(SMALL, 3, SMALL.pairs()))


def test_a_run_that_was_stopped_goes_on_with_the_missing_days(tmp_path: Path) -> None:
    write_year(tmp_path / "whole", SMALL)
    write_year(tmp_path / "part", SMALL)
    for day in (2, 7):
        (tmp_path / "part" / "history" / f"2025-03-0{day}.parquet").unlink()
    (tmp_path / "part" / "history" / ".2025-03-07.parquet.tmp").write_bytes(b"half")
    told: list[tuple[int, int]] = []
    written = write_year(tmp_path / "part", SMALL, lambda rows, days: told.append((rows, days)))
    assert (written.files, written.kept_files) == (2, 7)
    assert told[-1] == (written.rows, 9)
    assert files(tmp_path / "part").keys() >= files(tmp_path / "whole").keys()
    for name, content in files(tmp_path / "whole").items():
        assert files(tmp_path / "part")[name] == content


def test_the_site_has_no_mistakes_and_about_as_many_readings_as_asked(tmp_path: Path) -> None:
    written = write_year(tmp_path / "site", SMALL)
    assert check_site(tmp_path / "site") == []
    assert 0.75 * SMALL.readings < written.rows < 1.25 * SMALL.readings


def test_days_have_their_rhythm_and_rows_their_order_of_arrival() -> None:
    year = Year(readings=6_000_000, days=28, first="2025-06-02")
    pairs = year.pairs()
    monday, sunday = day_table(year, 0, pairs), day_table(year, 6, pairs)
    assert len(monday) > 5 * len(sunday)
    hours = np.bincount(monday.column("time").to_numpy() // 3_600_000 % 24, minlength=24)
    assert hours[10] > 10 * max(hours[2], 1)
    times = monday.column("time").to_numpy()
    newest = np.maximum.accumulate(times)
    assert 0 < (times < newest).mean() < 0.9  # not in order of time
    late = (newest - times > 2_000).sum()
    assert 0 < late < len(times) / 5_000
    ids = monday.column("id").to_numpy()
    assert len(np.unique(ids)) == len(ids)
    assert str(ids[0]).startswith("20250602")
    people = pc.count_distinct(monday.column("person")).as_py()
    assert people > 20


def test_nobody_is_in_two_places_at_once() -> None:
    year = Year(readings=1_000_000, days=5)
    table = day_table(year, 2, year.pairs())
    slot = pc.divide(table.column("time"), 300_000)
    rooms = pc.binary_join_element_wise(
        pc.floor(pc.divide(table.column("x"), 16.0)).cast("int64").cast("string"),
        pc.floor(pc.divide(table.column("y"), 16.0)).cast("int64").cast("string"),
        ":",
    )
    grouped = (
        table.append_column("slot", slot)
        .append_column("room", rooms)
        .filter(pc.greater_equal(table.column("x"), 0.0))
        .group_by(["slot", "person"])
        .aggregate([("room", "count_distinct")])
    )
    assert pc.max(grouped.column("room_count_distinct")).as_py() == 1


def test_the_command_writes_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = str(tmp_path / "year")
    assert run(["demo", "year", directory, "--readings", "9000", "--days", "2", "--json"]) == OK
    assert '"files":2' in capsys.readouterr().out
    assert run(["demo", "year", directory, "--readings", "9001", "--days", "2"]) == PROBLEMS
    assert "other numbers" in capsys.readouterr().err
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    assert run(["demo", "year", str(tmp_path / "full")]) == PROBLEMS
    assert run(["demo", "year", str(tmp_path / "a"), "--days", "0"]) == WRONG_USE
    assert run(["demo", "year", str(tmp_path / "a"), "--readings", "5"]) == WRONG_USE
    assert run(["demo", "year", str(tmp_path / "a"), "--first", "soon"]) == WRONG_USE
    assert not (tmp_path / "a").exists()
    assert pq.read_metadata(tmp_path / "year" / "history" / "2025-01-02.parquet").num_rows > 0
