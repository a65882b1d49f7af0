"""Grids of experiments: one pure function at many points, spread over the cores or the cluster;
their results are tables of the lake. [PI-8, PI-3]

`gold/<name>` has the rows of every point that was made. The commit of a point carries its id as a
writer's progress, so a run that was ended goes on where it was, and no point stands there twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.errors import Conflict
from rapport.core.event import content_id
from rapport.lake.places import GOLD, Lake
from rapport.lake.table import Table, field
from rapport_lab.spread import spread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Point = TypeVar("Point", bound=msgspec.Struct)
_POINT = "point"


def run_grid(
    spark: SparkSession | None,
    points: Sequence[Point],
    work: Callable[[Point], pa.Table],
    *,
    lake: Path,
    name: str,
    processes: int = 1,
) -> pa.Table:
    """The rows of all points, in their order; those that the lake has already are not made again.

    `work` depends on its point alone (its seed is in it) and is a function of a module, which
    Spark's workers import. A new `name` for a changed experiment makes everything anew. Without
    Spark the points are made here, in so many processes, with the same rows; points that cost most
    should come first. On a cluster the lake must be shared. The table `gold/<name>` has the points
    of all runs; readers see each as soon as it is made.
    """
    table = _table(lake, name)
    by_id = {_id(name, point): point for point in points}
    missing = [
        (id, point) for id, point in by_id.items() if table is None or table.progress(id) is None
    ]
    make = partial(_make, work, str(lake), name)
    spread(spark, make, missing, doing=f"running {name}", processes=processes)
    table = _table(lake, name)
    assert table is not None
    rows = table.read(where=pc.field(_POINT).isin(list(by_id)))
    own = {id: rows.filter(pc.equal(rows[_POINT], id)).drop_columns([_POINT]) for id in by_id}
    return pa.concat_tables([own[_id(name, point)] for point in points]).combine_chunks()


def count_made(lake: Path, name: str, points: Sequence[msgspec.Struct]) -> int:
    """How many of the points are made, also while `run_grid` runs elsewhere."""
    table = _table(lake, name)
    if table is None:
        return 0
    return sum(table.progress(_id(name, point)) is not None for point in points)


def _make(work: Callable[[Point], pa.Table], lake: str, name: str, task: tuple[str, Point]) -> None:
    id, point = task
    rows = work(point)
    of_the_point = set(point.__struct_fields__)
    fields = [
        field(
            one.name, one.type, meaning="set by the point" if one.name in of_the_point else "found"
        )
        for one in rows.schema
    ]
    schema = pa.schema([*fields, field(_POINT, pa.string(), meaning="id of the point")])
    table = Table.ensure(
        Lake.at(lake).table_uri(GOLD, name),
        schema,
        description="results of experiments, each point of the grid once",
    )
    if table.progress(id) is not None:
        return  # a task that ran twice
    marked = rows.append_column(_POINT, pa.array([id] * rows.num_rows, pa.string()))
    try:
        table.append(marked.cast(schema), progress={id: 1})
    except Conflict:
        if table.refresh().progress(id) is None:
            raise


def _table(lake: Path, name: str) -> Table | None:
    place = Lake.at(lake)
    return place.open(GOLD, name) if place.has(GOLD, name) else None


def _id(name: str, point: msgspec.Struct) -> str:
    return content_id(name, msgspec.json.encode(point).decode())
