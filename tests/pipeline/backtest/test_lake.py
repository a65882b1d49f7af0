"""A lake as history: bronze and silver give what recorded files give. [PI-9, PI-3]"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from rapport.channel.backends.local import open_memory
from rapport.core.errors import InvalidInput, RapportError
from rapport.core.event import Event
from rapport.kernel.clock import ManualClock
from rapport.lake.bronze import export_channels
from rapport.lake.maintenance import compact
from rapport.pipeline.backtest.contenders import choose
from rapport.pipeline.backtest.contest import BackTestRequest, make
from rapport.pipeline.backtest.execution import (
    BackTestFound,
    BackTestWork,
    run_here,
    run_on_spark,
)
from rapport.pipeline.backtest.find_history import check_history, find_history
from rapport.pipeline.drawing.calendar import Calendar
from rapport.pipeline.lake.silver import update_silver
from rapport.site.site import Site
from support.silver_lake import SilverLake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUSY = "2025-01-07"


@pytest.fixture(scope="module")
def rows(site: Site, week: Path) -> pa.Table:
    """The readings around the findings of a day, few enough for the log."""
    history = find_history(site, str(week / "history" / f"{BUSY}.parquet"))
    plan = choose(site, "alone", list).plan
    found = run_here(BackTestWork.of(site, [plan], history)).columns.of("alone", None, None)
    first = int(found.times()[0])
    table = pq.read_table(week / "history" / f"{BUSY}.parquet")
    near = pc.less(pc.abs(pc.subtract(table.column("time"), first)), 120_000)
    return table.filter(near)


def event(row: dict[str, object], **headers: str) -> Event:
    return Event(
        source="positions",
        id=str(row["id"]),
        type="person.position",
        subject=f"person/{row['person']}",
        time=int(str(row["time"])),
        data=msgspec.json.encode({"key": row["person"], "value": [row["x"], row["y"]]}),
        headers=headers,
    )


def exported(events: list[Event], lake: Path) -> None:
    async def work() -> None:
        channels = open_memory(ManualClock(1_740_000_000_000))
        await channels.channel("events").append(events)
        await export_channels(channels, lake, rows_at_once=100)
        await channels.close()

    asyncio.run(work())


@pytest.fixture(scope="module")
def lake(rows: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lake")
    exported([event(row) for row in rows.to_pylist()], folder)
    return folder


def found_in(site: Site, path: Path, policy: str = "alone") -> tuple[str, bytes, int | None]:
    history = find_history(site, str(path))
    plan = choose(site, policy, list).plan
    found = run_here(BackTestWork.of(site, [plan], history))
    lines = b"".join(found.columns.of(policy, None, None).lines(policy))
    return history.kind, lines, found.events


def test_bronze_gives_what_the_recorded_file_gives(
    site: Site, rows: pa.Table, lake: Path, tmp_path: Path
) -> None:
    pq.write_table(rows, tmp_path / "same.parquet")
    _kind, expected, events = found_in(site, tmp_path)
    assert expected
    assert found_in(site, lake) == ("bronze", expected, events)


def test_bronze_gives_the_situations_of_the_recorded_file(
    site: Site, rows: pa.Table, lake: Path, tmp_path: Path
) -> None:
    pq.write_table(rows, tmp_path / "same.parquet")
    _kind, expected, events = found_in(site, tmp_path, "lasting")
    assert expected
    assert found_in(site, lake, "lasting") == ("bronze", expected, events)


def test_a_reading_from_the_future_spoils_nothing_in_bronze(
    site: Site, rows: pa.Table, lake: Path, tmp_path: Path
) -> None:
    """As in the node, which sets it aside: it would make all that follows late."""
    ahead = rows.to_pylist()[0] | {"id": "ahead", "time": 1_740_000_000_000 + 90_000}
    exported([event(ahead), *(event(row) for row in rows.to_pylist())], tmp_path)
    assert found_in(site, tmp_path) == found_in(site, lake)
    plan = choose(site, "alone", list).plan
    found = run_here(BackTestWork.of(site, [plan], find_history(site, str(tmp_path))))
    assert [(one.first.code, one.count) for one in found.faulty] == [("policy.ahead_of_clock", 1)]


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_silver_is_preferred_gives_the_same_and_tells_when_it_lags_behind(
    spark: SparkSession, site: Site, rows: pa.Table, lake: Path, tmp_path: Path
) -> None:
    _kind, expected, _events = found_in(site, lake)
    filled = SilverLake(tmp_path)
    *first, last = (event(row) for row in rows.to_pylist())
    filled.fill(*first)
    update_silver(spark, tmp_path, site.ontology)
    filled.fill(last)
    plans = [choose(site, "alone", list).plan]
    (problem,) = check_history(find_history(site, str(tmp_path)), plans, None)
    assert (problem.code, problem.severity) == ("backtest.silver_behind", "warning")
    update_silver(spark, tmp_path, site.ontology)
    kind, lines, _events = found_in(site, tmp_path)
    assert (kind, lines) == ("silver", expected)
    _kind, lasting, _events = found_in(site, lake, "lasting")
    assert found_in(site, tmp_path, "lasting")[:2] == ("silver", lasting)
    work = BackTestWork.of(
        site, [choose(site, "lasting", list).plan], find_history(site, str(tmp_path))
    )
    on_spark = run_on_spark(spark, work, partitions=2).columns.of("lasting", None, None)
    assert b"".join(on_spark.lines("lasting")) == lasting
    assert check_history(find_history(site, str(tmp_path)), plans, None) == []


def test_of_a_corrected_reading_only_the_newest_form_counts(
    site: Site, rows: pa.Table, tmp_path: Path
) -> None:
    given = rows.to_pylist()
    events = [event(row) for row in given]
    fixed = dict(given[5], id=f"{given[5]['id']}~2", x=-20.0)
    events.append(event(fixed, corrects=str(given[5]["id"])))
    exported(events, tmp_path)
    history = find_history(site, str(tmp_path))
    found = run_here(BackTestWork.of(site, [choose(site, "alone", list).plan], history))
    assert found.events == len(given)


def test_a_damaged_file_of_the_lake_is_named(site: Site, rows: pa.Table, tmp_path: Path) -> None:
    exported([event(row) for row in rows.slice(0, 20).to_pylist()], tmp_path)
    (file,) = (tmp_path / "bronze").glob("events/day=*/*.parquet")
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(RapportError, match=file.name):
        found_in(site, tmp_path)


def test_a_lake_without_readings_says_what_it_has(site: Site, tmp_path: Path) -> None:
    other = Event(
        source="s", id="1", type="machine.state", subject="m/1", time=1, data=b"{}", headers={}
    )
    exported([other], tmp_path)
    with pytest.raises(InvalidInput) as caught:
        find_history(site, str(tmp_path))
    assert caught.value.code == "backtest.no_readings"
    assert "machine.state" in caught.value.hint


def test_a_back_test_goes_on_while_the_lake_is_compacted(
    site: Site, rows: pa.Table, lake: Path, tmp_path: Path
) -> None:
    exported([event(row) for row in rows.to_pylist()], tmp_path)
    contender = choose(site, "alone", list)
    work = BackTestWork.of(site, [contender.plan], find_history(site, str(tmp_path)))

    def run(work: BackTestWork) -> BackTestFound:
        assert compact(tmp_path, fewest=2).tables == 1
        return run_here(work)

    made = make(work, [contender], [], run, Calendar(), BackTestRequest())
    assert made.told.tallies[0].detections > 0
    assert found_in(site, tmp_path) == found_in(site, lake)
