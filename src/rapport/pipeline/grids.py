"""Grids of experiments: one pure function at many points, spread over the cores or the cluster.
[PI-8]

Each point leaves a Parquet file, so a run that was ended goes on where it was, and the folder is a
table of the lake.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from rapport.channel.export.files import replaced_file
from rapport.core.errors import Corrupt
from rapport.core.ids import content_id
from rapport.pipeline.lake.spread import spread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Point = TypeVar("Point", bound=msgspec.Struct)


def run_grid(
    spark: SparkSession | None,
    points: Sequence[Point],
    work: Callable[[Point], pa.Table],
    *,
    folder: Path,
    name: str,
    processes: int = 1,
) -> pa.Table:
    """The rows of all points, in their order; those that `folder` has already are not made again.

    `work` depends on its point alone (its seed is in it) and is a function of a module, which
    Spark's workers import. A new `name` for a changed experiment makes everything anew. Without
    Spark the points are made here, in so many processes, with the same rows; points that cost most
    should come first. On a cluster the folder must be shared.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = {part_of(folder, name, point): point for point in points}
    missing = [(part, point) for part, point in parts.items() if not part.exists()]
    doing = f"running {name}"
    spread(spark, partial(_make_part, work), missing, doing=doing, processes=processes)
    return pa.concat_tables([_read(part_of(folder, name, point)) for point in points])


def count_made(folder: Path, name: str, points: Sequence[msgspec.Struct]) -> int:
    """How many of the points are made, also while `run_grid` runs elsewhere."""
    return sum(part_of(folder, name, point).exists() for point in points)


def part_of(folder: Path, name: str, point: msgspec.Struct) -> Path:
    """The file of a point: its name follows from everything the point says."""
    return folder / f"{name}-{content_id(name, msgspec.json.encode(point).decode())}.parquet"


def _make_part(work: Callable[[Point], pa.Table], task: tuple[Path, Point]) -> None:
    part, point = task
    rows = work(point)
    with replaced_file(part) as temporary:
        pq.write_table(rows, temporary, compression="zstd")


def _read(part: Path) -> pa.Table:
    try:
        return pq.read_table(part)
    except (pa.ArrowInvalid, OSError) as broken:
        raise Corrupt(
            f"{part} is damaged: {broken}",
            code="lake.bad_file",
            hint="delete it; the next run makes it again",
        ) from broken
