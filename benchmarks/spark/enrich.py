"""How fast readings get the attributes of their instances on Spark. [PI-5, UX-3]"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.policy.building import Building
from benchmarks.results import Result
from benchmarks.spark.parts import Goals, require, timed, told
from benchmarks.spark.workload import Recorded, building
from rapport.pipeline.history.native.enrich import enriched

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROUNDS = 3


def enrichment(spark: SparkSession, recorded: Recorded, goals: Goals) -> list[Result]:
    """Every column of every reading with its person's status, read from files and given to a sink
    that lets go of them; the first round and the best one. What is joined is checked by sums.
    """
    people = building()
    rows = _joined(spark, people, recorded.folder)
    _, first = timed(lambda: _drain(rows))
    best = min((timed(lambda: _drain(rows))[1] for _ in range(_ROUNDS)), key=lambda one: one.wall)
    require(_sums(rows) == _expected(people, recorded.folder), "enrichment join")
    name = f"enrichment join, {recorded.events:,} events from Parquet, all columns and the status"
    return [
        told(f"{name}, first", first, recorded.events, goals),
        told(f"{name}, warm", best, recorded.events, goals, 5_000_000),
    ]


def _joined(spark: SparkSession, people: Building, folder: Path) -> DataFrame:
    readings = spark.read.parquet(str(folder))
    return enriched(readings, people.instances("person"), ["status"], key="person")


def _drain(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _sums(rows: DataFrame) -> list[tuple[Any, ...]]:
    """Of each status how many readings, and sums that every one of them moves: positions are in
    64ths, so that no order of adding changes them."""
    from pyspark.sql import functions as sql

    totals = ("count(*)", "sum(time)", "sum(x * 64)", "sum(y * 64)", "sum(CAST(id AS BIGINT))")
    summed = rows.groupBy("status").agg(*(sql.expr(total) for total in totals)).collect()
    return sorted(tuple(row) for row in summed)


def _expected(people: Building, folder: Path) -> list[tuple[Any, ...]]:
    """The same by Arrow."""
    known = people.instances("person")
    readings = pq.read_table(folder)
    places = pc.index_in(readings.column("person"), pa.array(known.ids))
    status = pa.array(known.columns["status"].tolist()).take(places.combine_chunks())
    columns = {
        "status": status,
        "time": readings.column("time"),
        "x": pc.multiply(readings.column("x"), 64.0),
        "y": pc.multiply(readings.column("y"), 64.0),
        "id": readings.column("id").cast(pa.int64()),
    }
    wanted: list[tuple[str, str]] = [("time", "count")]
    wanted += [(name, "sum") for name in ("time", "x", "y", "id")]
    rows = pa.table(columns).group_by("status").aggregate(wanted)
    ordered = ["status", "time_count", "time_sum", "x_sum", "y_sum", "id_sum"]
    return sorted(tuple(row[name] for name in ordered) for row in rows.to_pylist())
