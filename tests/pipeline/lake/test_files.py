"""The lake is read whole and exactly, and a damaged file is named."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from rapport.channel.backends.local import open_memory
from rapport.channel.export.lake_export import export_channels
from rapport.core.errors import Corrupt
from rapport.core.event import make_event
from rapport.kernel.clock import ManualClock
from rapport.pipeline.errors import spark_errors
from rapport.pipeline.lake.catalogue import describe, lake_tables, table_named
from rapport.pipeline.lake.files import (
    channel_folders,
    read_bronze,
    read_gold,
    spark_path,
    write_gold,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ODD_TYPE = "größe/5 = 100%" + "x" * 230


@pytest.fixture
def lake(clock: ManualClock, tmp_path: Path) -> Path:
    """A lake of three channels in a directory with an awkward name."""
    directory = tmp_path / "a [lake]{1}*"

    async def fill() -> None:
        channels = open_memory(clock)
        for name, kind in (("raw.a", "12"), ("raw.b", "t"), ("events", ODD_TYPE)):
            event = make_event(source="s", id="1", type=kind, time=7, data={"k": "ü"})
            await channels.channel(name).append([event])
        await export_channels(channels, directory)

    asyncio.run(fill())
    return directory


def test_folders_are_found_by_name_and_by_prefix(lake: Path) -> None:
    def found(*names: str) -> list[str]:
        return [folder.name for folder in channel_folders(lake, names)]

    assert found("events", "log") == ["channel=events"]
    assert found("raw.*") == ["channel=raw.a", "channel=raw.b"]
    assert found("raw") == []
    assert channel_folders(lake / "missing", ["*"]) == []


def test_the_catalogue_counts_rows_and_files(lake: Path) -> None:
    write_gold(lake, "totals", pa.table({"n": [1, 2]}))
    described = [describe(table) for table in lake_tables(lake)]
    tables = [(table.name, table.rows, table.files) for table in described]
    assert tables == [
        ("bronze/events", 1, 1),
        ("bronze/raw.a", 1, 1),
        ("bronze/raw.b", 1, 1),
        ("gold/totals", 2, 1),
    ]
    assert lake_tables(lake / "missing") == []


def test_a_result_table_is_replaced_whole(lake: Path) -> None:
    assert read_gold(lake, "totals") is None
    write_gold(lake, "totals", pa.table({"n": [1, 2]}))
    write_gold(lake, "totals", pa.table({"n": [3]}))
    assert read_gold(lake, "totals").to_pydict() == {"n": [3]}


def test_a_damaged_result_table_is_named(lake: Path) -> None:
    path = write_gold(lake, "totals", pa.table({"n": [1]}))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(Corrupt, match=r"totals\.parquet") as caught:
        read_gold(lake, "totals")
    assert caught.value.code == "lake.bad_file"
    (problem,) = describe(table_named(lake, "totals")).problems
    assert (problem.code, problem.file) == ("lake.bad_file", str(path))


def test_a_path_is_given_to_spark_as_it_is() -> None:
    assert spark_path(Path("/a=b/c d/[e]*")) == r"file:/a=b/c d/\[e\]\*"


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_spark_reads_every_column_exactly(spark: SparkSession, lake: Path) -> None:
    (row,) = read_bronze(spark, lake, "events").toArrow().to_pylist()
    assert row["type"] == ODD_TYPE
    assert (row["channel"], row["position"], row["time"]) == ("events", 1, 7)
    assert row["data"] == '{"k":"ü"}'
    rows = read_bronze(spark, lake, "raw.*").select("type").toArrow()["type"].to_pylist()
    assert sorted(rows) == ["12", "t"]
    assert read_bronze(spark, lake, "log").count() == 0


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("kept", [0, 3, -9])
def test_a_half_written_file_is_named(spark: SparkSession, lake: Path, kept: int) -> None:
    (path,) = lake.glob("bronze/channel=raw.a/**/*.parquet")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(Corrupt) as caught, spark_errors("reading"):
        read_bronze(spark, lake, "raw.a").toArrow()
    assert str(path) in caught.value.message
    assert caught.value.code == "lake.bad_file"
