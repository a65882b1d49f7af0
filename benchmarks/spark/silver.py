"""How fast silver is made of bronze, beside the same job by hand. [LK-4, UX-3]"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from benchmarks.results import Result
from benchmarks.spark.parts import Goals, require, timed, told
from rapport.lake.bronze import DAY_MS, PARTITION_BY, SCHEMA, TIME, WRITER
from rapport.lake.places import BRONZE, SILVER, Lake
from rapport.lake.table import Table, write_files
from rapport.pipeline.lake.silver import update_silver
from rapport.pipeline.lake.spark_tables import read_table
from rapport.policy.ontology import Ontology, PushSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROUNDS, _PER_FILE, _DAYS, _SEED = 3, 500_000, 2, 7
_BEGIN = 1_772_409_600_000
_STREAMS = ("person.position", "room.warmth")


def silver(spark: SparkSession, folder: Path, events: int, goals: Goals) -> list[Result]:
    """Points and numbers of two days, none repeated; best of alternating rounds."""
    lake = Lake.at(folder)
    fill_bronze(lake, events)
    hand, ours = [], []
    for _round in range(_ROUNDS):
        hand.append(timed(lambda: _by_hand(spark, lake, folder / "hand"))[1])
        shutil.rmtree(folder / SILVER, ignore_errors=True)
        done, took = timed(lambda: update_silver(spark, lake, ontology()))
        require(done.readings == events, "silver")
        ours.append(took)
    best, other = (min(one, key=lambda took: took.wall) for one in (ours, hand))
    name = f"silver of {events:,} events"
    return [
        told(f"{name}, ours", best, events, goals, 500_000),
        told(f"{name}, by hand: from_json, dropDuplicates, Parquet", other, events, goals),
        goals.limit(f"{name}, time of ours to by hand", best.wall / other.wall, "times", 1.5),
    ]


def _by_hand(spark: SparkSession, lake: Lake, folder: Path) -> None:
    from pyspark.sql import functions as F

    data = F.from_json("data", "key STRING, value ARRAY<DOUBLE>")
    rows = read_table(spark, lake, BRONZE, "events").withColumn("read", data)
    rows = rows.select(
        *("time", "id", "source", "position", "received", "type"),
        F.col("read.key").alias("key"),
        F.get("read.value", F.lit(0)).alias("x"),
        F.get("read.value", F.lit(1)).alias("y"),
        F.to_date("time").alias("event_day"),
    ).dropDuplicates(["source", "id"])
    writer = rows.write.mode("overwrite").partitionBy("type", "event_day")
    writer.option("compression", "zstd").parquet(str(folder))


def ontology() -> Ontology:
    """The two streams of the workload."""
    named = [stream.split(".") for stream in _STREAMS]
    sources = {
        f"{concept}_{attribute}": PushSource(
            name=f"{concept}_{attribute}",
            concept=concept,
            attribute=attribute,
            key="key",
            value=("value",),
        )
        for concept, attribute in named
    }
    return Ontology(
        concepts={"person": {"position": "point"}, "room": {"warmth": "number"}},
        relationships={},
        sources=sources,
    )


def fill_bronze(lake: Lake, events: int) -> None:
    """Points and numbers of two days as a node would have exported them."""
    table = Table.ensure(lake.table_uri(BRONZE, "events"), SCHEMA, partition_by=PARTITION_BY)
    for first in range(0, events, _PER_FILE):
        rows = _rows(first, min(_PER_FILE, events - first), events)
        table.commit(
            write_files(table.uri, rows, PARTITION_BY), progress={WRITER: first + len(rows)}
        )


def _rows(first: int, count: int, events: int) -> pa.Table:
    positions = np.arange(first + 1, first + count + 1)
    times = _BEGIN + positions * DAY_MS * _DAYS // events
    values = np.round(np.random.default_rng(_SEED + first).random((count, 2)) * 100, 2).tolist()
    is_number = positions % 3 == 0
    data = [
        f'{{"key":"{position % 500}","value":[{x}]}}'
        if alone
        else f'{{"key":"{position % 500}","value":[{x},{y}]}}'
        for position, (x, y), alone in zip(positions, values, is_number, strict=True)
    ]
    instants = pa.array(times * 1_000).cast(TIME)
    columns = {
        "day": pa.array((times // DAY_MS).astype(np.int32)).cast(pa.date32()),
        "position": positions,
        "received": instants,
        "time": instants,
        "source": np.where(is_number, "room_warmth", "person_position"),
        "id": [f"{number:016x}" for number in (positions * 2654435761 % 2**40).tolist()],
        "type": np.where(is_number, "room.warmth", "person.position"),
        "subject": [""] * count,
        "headers": pa.array([[]] * count, pa.map_(pa.string(), pa.string())),
        "data": data,
        "time_ms": pa.nulls(count, pa.int64()),
        "data_bytes": pa.nulls(count, pa.binary()),
    }
    return pa.table(columns, schema=SCHEMA)
