"""Raw CSV files by columns give what they give row by row, problems and all. [ME-14, UX-3]"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from rapport.core.errors import Problem
from rapport.site import recordings
from rapport.site.recordings import recordings_in_site
from rapport.site.site import load_site

SITE = """
[concepts.station.attributes]
position = "point"
[tables.names]
csv = "names.csv"
key = "tag"
[sources.masts]
concept = "station"
attribute = "position"
interpretation = "masts"
key = "tag"
value = ["x", "y"]
events = "masts.csv"
[interpretations.masts]
identity = { field = "tag", lookup = { table = "names", column = "station" } }
time = { field = "when", format = "%d.%m.%Y %H%M", zone = "UTC" }
value = { x = { field = "east", unit = "ft" }, y = { field = "north", unit = "km" } }
[interpretations.masts.format]
name = "csv"
delimiter = "DELIMITER"
decimal = "comma"
encoding = "latin-1"
nulls = ["", "-"]
join = { when = "{day} {hour:04}" }
"""
ODD = ("", "-", " 7,5 ", "1.5", "7,", ",5", "+3", "1e3", "nan", "x", "٣", "-0", "1" * 320)


@pytest.fixture(params=[";", "tab", "sniffed"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "site.toml").write_text(SITE.replace("DELIMITER", request.param))
    (tmp_path / "names.csv").write_text("tag,station\nt1,Köln\nt2,Bonn\n", encoding="utf-8")
    return tmp_path


def found(site: Path) -> tuple[list[dict[str, object]], list[tuple[int, str, str]]]:
    loaded = load_site(site)
    problems: list[Problem] = []
    [item] = recordings_in_site(loaded)
    rows = [
        row
        for batch in item.batches(loaded.ontology, 1_000, problems.append)
        for row in batch.to_pylist()
    ]
    return rows, sorted((one.line, one.code, one.message) for one in problems)


def by_rows(site: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    with monkeypatch.context() as patch:
        patch.setattr(recordings, "is_plain", lambda _path: False)
        return found(site)


def write(site: Path, lines: list[list[str]], end: str = "\n") -> None:
    sign = "\t" if '"tab"' in (site / "site.toml").read_text() else ";"
    text = "".join(
        sign.join(line) + end for line in [["day", "hour", "tag", "east", "north"], *lines]
    )
    (site / "masts.csv").write_bytes(text.encode("latin-1", "replace"))


def usual(place: int) -> list[str]:
    return ["02.01.2026", str(place // 40), f"t{1 + place % 2}", f"{place % 7},25", f"-{place % 3}"]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows of each block were looked at one by one."""
    seen: list[int] = []
    convert = recordings.Columns.convert

    def watched(*given: object, **named: object) -> object:
        made = convert(*given, **named)  # type: ignore[arg-type]
        seen.append(0 if made is not None else 1)
        return made

    monkeypatch.setattr(recordings.Columns, "convert", watched)
    return seen


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_file_in_order_goes_by_columns_and_comes_out_the_same(
    site: Path, monkeypatch: pytest.MonkeyPatch, counted: list[int], end: str
) -> None:
    write(site, [usual(place) for place in range(2_000)], end)
    rows, problems = quick = found(site)
    assert counted == [0]
    assert len(rows) == 2_000
    assert problems == []
    assert rows[1]["key"] == "Bonn"
    assert rows[1]["id"] == "masts.csv:3"
    assert quick == by_rows(site, monkeypatch)


@pytest.mark.parametrize("seed", range(4))
def test_odd_cells_come_out_as_they_do_row_by_row(
    site: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(recordings, "_BLOCK_BYTES", 4_000)
    lines = [usual(place) for place in range(1_500)]
    for _ in range(chance.choice((1, 30))):
        line = chance.choice(lines)
        line[chance.randrange(5)] = chance.choice((*ODD, "32.01.2026", "t9"))
    if seed % 2:
        lines[chance.randrange(700, 1_500)].pop()
        lines[chance.randrange(700, 1_500)][2:2] = ["", ""]
    write(site, lines)
    quick = found(site)
    assert quick[1]
    assert quick == by_rows(site, monkeypatch)


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines.insert(900, []),
        lambda lines: lines[900].__setitem__(2, '"t1"'),
        lambda lines: lines[900].__setitem__(2, "t1\x1f"),
        lambda lines: lines[900].append(""),
        lambda lines: lines.append(["broken"]),
    ],
)
def test_lines_that_are_none_are_numbered_as_they_are_row_by_row(
    site: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[list[list[str]]], None]
) -> None:
    lines = [usual(place) for place in range(1_500)]
    change(lines)
    write(site, lines)
    assert found(site) == by_rows(site, monkeypatch)


def test_times_that_are_all_different_go_row_by_row(
    site: Path, monkeypatch: pytest.MonkeyPatch, counted: list[int]
) -> None:
    write(site, [["02.01.2026", f"{p // 60}{p % 60:02}", "t1", "1", "2"] for p in range(1_000)])
    quick = found(site)
    assert counted == [1]
    assert quick == by_rows(site, monkeypatch)
