"""`rapport pipeline silver|compact|expire|tables|query` at the terminal."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from rapport.channel.backends.local import open_embedded
from rapport.cli.local_site import data_directory
from rapport.cli.main import run
from rapport.core.event import make_event
from rapport.kernel.clock import ManualClock
from rapport.lake.places import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEGIN = 1_772_409_600_000


@pytest.fixture
def site(checks: Path, tmp_path: Path, clock: ManualClock) -> Path:
    """A site whose log has three readings, one of them no reading at all."""
    directory = tmp_path / "site"
    shutil.copytree(checks / "secure-building", directory)

    async def fill() -> None:
        channels = open_embedded(data_directory(directory) / "log", clock)
        values: list[object] = [[1, 2], [3, 4], ["x"]]
        events = [
            make_event(
                source="positions",
                id=str(number),
                type="person.position",
                time=BEGIN + number,
                data={"key": "5", "value": value},
            )
            for number, value in enumerate(values)
        ]
        await channels.channel("events").append(events)
        await channels.close()

    asyncio.run(fill())
    return directory


def ask(site: Path, *words: str) -> int:
    return run(["pipeline", *words, "--site", str(site)])


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_a_lake_is_made_looked_at_and_asked(
    spark: SparkSession, site: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert ask(site, "export") == 0
    capsysbinary.readouterr()
    assert ask(site, "silver", "--dry-run", "--json") == 0
    assert msgspec.json.decode(capsysbinary.readouterr().out)["positions"] == {"events": 3}
    assert ask(site, "silver", "--master", "local[2]", "--json") == 0
    done = msgspec.json.decode(capsysbinary.readouterr().out)
    assert (done["readings"], done["quarantined"]) == (2, 1)
    assert ask(site, "tables") == 0
    lines = capsysbinary.readouterr().out.decode().splitlines()
    names = [line.split("\t")[:3] for line in lines]
    assert names == [
        ["table", "in SQL", "rows"],
        ["bronze/events", "events", "3"],
        ["silver/person.position", "person_position", "2"],
        ["silver/quarantined", "quarantined", "1"],
    ]
    assert ask(site, "tables", "person_position") == 0
    assert b"time\ttimestamp[us, tz=UTC]\t\tevent time" in capsysbinary.readouterr().out
    question = "SELECT id, x, time FROM person_position ORDER BY id"
    assert ask(site, "query", question, "--format", "csv") == 0
    assert capsysbinary.readouterr().out.decode().splitlines() == [
        "id,x,time",
        "0,1.0,2026-03-02T00:00:00.000",
        "1,3.0,2026-03-02T00:00:00.001",
    ]
    assert ask(site, "query", "SELECT reason, headers FROM quarantined", "--format", "json") == 2
    capsysbinary.readouterr()
    assert ask(site, "query", "SELECT id, headers FROM events LIMIT 1", "--format", "json") == 0
    assert msgspec.json.decode(capsysbinary.readouterr().out) == [{"id": "0", "headers": []}]


def test_mistakes_are_told_with_the_nearest_name(
    site: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    ask(site, "export")
    capsysbinary.readouterr()
    assert ask(site, "query", "SELECT * FROM event") == 2
    told = capsysbinary.readouterr().err.decode()
    assert "lake.unknown_table" in told
    assert "did you mean 'events'?" in told
    assert ask(site, "query", "DROP VIEW events") == 2
    assert b"lake.not_a_question" in capsysbinary.readouterr().err
    assert ask(site, "tables", "evnts") == 2
    assert ask(site, "expire", "--keep", "nonsense") == 2


def test_care_of_the_lake(site: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    ask(site, "export")
    capsysbinary.readouterr()
    assert ask(site, "compact", "--json") == 0
    assert msgspec.json.decode(capsysbinary.readouterr().out)["tables"] == 0
    assert ask(site, "expire", "--keep", "bronze=0", "--dry-run", "--json") == 0
    told = capsysbinary.readouterr()
    assert msgspec.json.decode(told.out)["files"] == 0
    assert b"silver has not taken all of it" in told.err


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_how_long_the_lake_is_kept_may_stand_in_the_site_file(
    spark: SparkSession, site: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    ask(site, "export")
    assert ask(site, "silver", "--master", "local[2]") == 0
    capsysbinary.readouterr()
    assert ask(site, "expire") == 2
    assert b"lake.no_rules" in capsysbinary.readouterr().err
    with (site / "site.toml").open("a", encoding="utf-8") as file:
        file.write('\n[pipeline.keep]\n"bronze/*" = 0\n')
    assert ask(site, "expire", "--json") == 0
    assert msgspec.json.decode(capsysbinary.readouterr().out)["files"] == 1
    assert Lake.at(data_directory(site) / "lake").open("bronze", "events").rows() == 0


def test_a_damaged_table_is_named(site: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    ask(site, "export")
    log = data_directory(site) / "lake/bronze/events/_delta_log"
    (log / f"{1:020d}.json").write_bytes(b"{")
    capsysbinary.readouterr()
    assert ask(site, "tables") == 1
    assert b"lake.bad_table" in capsysbinary.readouterr().err
    assert ask(site, "query", "SELECT count(*) FROM events") != 0
    assert b"lake.bad_table" in capsysbinary.readouterr().err


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_a_report_is_one_screen_and_a_page(
    spark: SparkSession, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(site, "report") == 0
    lines = capsys.readouterr().out.splitlines()
    page = data_directory(site) / "report.html"
    assert len(lines) <= 20
    assert lines[-1] == f"Tables and plots: {page}"
    assert "What happened at" in page.read_text(encoding="utf-8")
    page.unlink()
    assert ask(site, "report", "--no-export", "--json") == 0
    assert msgspec.json.decode(capsys.readouterr().out)["readings"] == 3
    assert not page.exists()
