"""Grids of experiments: one pure function at many points, spread over the cores or the cluster;
their results are tables of the lake. [PI-8, PI-3]

`gold/grid=<name>/` has a file for each point, so a run that was ended goes on where it was, and
beside them what the points were (`_manifest.json`) and what the columns are (`_table.json`).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from rapport.channel.export.lake_export import FORMAT, check_format
from rapport.channel.export.parquet_files import replaced_file
from rapport.core.errors import Corrupt
from rapport.core.ids import content_id
from rapport.pipeline.lake.places import GOLD, MANIFEST, SIDECAR, grid_folder, point_name
from rapport.pipeline.lake.sidecars import Column, TableNotes, write_notes
from rapport_lab.spread import spread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Point = TypeVar("Point", bound=msgspec.Struct)


class GridManifest(msgspec.Struct, kw_only=True):
    """What a grid knows about itself: its points by their id, in the order they were asked for.

    The files are the truth of what is made; a point that has none yet is still to be made.
    """

    format: int = FORMAT
    grid: str
    points: dict[str, msgspec.Raw] = {}


class TakenOver(msgspec.Struct, frozen=True):
    """What became of results that lay outside of a lake."""

    points: int = 0
    """Now in the lake."""
    known: int = 0
    """Were in the lake before."""
    damaged: tuple[str, ...] = ()
    """Files that cannot be read; their points are made again."""


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
    folder = grid_folder(lake, name)
    folder.mkdir(parents=True, exist_ok=True)
    _remember(folder, name, points)
    parts = {part_of(lake, name, point): point for point in points}
    missing = [(part, point) for part, point in parts.items() if not part.exists()]
    doing = f"running {name}"
    spread(spark, partial(_make_part, work), missing, doing=doing, processes=processes)
    rows = pa.concat_tables([_read(part_of(lake, name, point)) for point in points])
    _note(folder, name, points, rows.schema)
    return rows


def count_made(lake: Path, name: str, points: Sequence[msgspec.Struct]) -> int:
    """How many of the points are made, also while `run_grid` runs elsewhere."""
    return sum(part_of(lake, name, point).exists() for point in points)


def part_of(lake: Path, name: str, point: msgspec.Struct) -> Path:
    """The file of a point: its name follows from everything the point says."""
    return grid_folder(lake, name) / point_name(_id(name, point))


def read_grid_manifest(lake: Path, name: str) -> GridManifest:
    """What a grid was asked for, nothing when there is none; raises Corrupt when it cannot be
    read.
    """
    path = grid_folder(lake, name) / MANIFEST
    try:
        found = msgspec.json.decode(path.read_bytes(), type=GridManifest)
    except FileNotFoundError:
        return GridManifest(grid=name)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"the manifest {path} cannot be read: {error}",
            code="lake.bad_manifest",
            hint="remove it: the next run writes it again, and what is made stays",
        ) from None
    check_format(path, found.format)
    return found


def take_over(lake: Path, name: str, folder: Path) -> TakenOver:
    """Copies results of a grid that were kept in a folder of their own (`<name>-<point>.parquet`,
    as versions before did) into the lake; the folder stays as it is.
    """
    known: int = 0
    taken: int = 0
    damaged: list[str] = []
    pattern = re.compile(re.escape(name) + r"-([0-9a-f]{32})\.parquet\Z")
    for path in sorted(folder.glob(f"{_as_pattern(name)}-*.parquet")):
        found = pattern.match(path.name)
        if found is None:
            continue
        target = grid_folder(lake, name) / point_name(found[1])
        if target.exists():
            known += 1
        elif not _is_sound(path):
            damaged.append(str(path))
        else:
            with replaced_file(target) as temporary:
                shutil.copyfile(path, temporary)
            taken += 1
    return TakenOver(taken, known, tuple(damaged))


def _id(name: str, point: msgspec.Struct) -> str:
    return content_id(name, msgspec.json.encode(point).decode())


def _remember(folder: Path, name: str, points: Sequence[msgspec.Struct]) -> None:
    """Adds the points to the manifest. Of two runs at once the later one's may be all that is
    said; the results of both are there.
    """
    manifest = read_grid_manifest(folder.parent.parent, name)
    asked = {_id(name, point): msgspec.Raw(msgspec.json.encode(point)) for point in points}
    if asked.keys() <= manifest.points.keys():
        return
    manifest.points = {**manifest.points, **asked}
    with replaced_file(folder / MANIFEST) as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2))


def _note(folder: Path, name: str, points: Sequence[msgspec.Struct], schema: pa.Schema) -> None:
    """What people read about the table."""
    of_the_point = set(points[0].__struct_fields__)
    notes = TableNotes(
        table=f"{GOLD}/{name}",
        meaning="results of experiments, each point of the grid once",
        columns=[
            Column(
                name=field.name,
                type=str(field.type),
                meaning="set by the point" if field.name in of_the_point else "found",
            )
            for field in schema
        ],
    )
    with replaced_file(folder / SIDECAR) as temporary:
        write_notes(temporary, notes)


def _make_part(work: Callable[[Point], pa.Table], task: tuple[Path, Point]) -> None:
    part, point = task
    rows = work(point)
    with replaced_file(part) as temporary:
        pq.write_table(rows, temporary, compression="zstd")


def _read(part: Path) -> pa.Table:
    try:
        # Not by the directories' names: `grid` is no column.
        return pq.ParquetFile(part).read()
    except (pa.ArrowInvalid, OSError) as broken:
        raise Corrupt(
            f"{part} is damaged: {broken}",
            code="lake.bad_file",
            hint="delete it; the next run makes it again",
        ) from broken


def _is_sound(path: Path) -> bool:
    try:
        pq.read_metadata(path)
    except (pa.ArrowInvalid, OSError, EOFError):
        return False
    return True


def _as_pattern(name: str) -> str:
    return re.sub(r"([\[\]*?])", r"[\1]", name)
