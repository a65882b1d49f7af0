"""Files of bronze: which of them hold certain positions, and their rows, checked. [PI-3]

A damaged, empty or foreign file is told by a `FileFault` that names it; it never stops the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rapport.core.errors import Corrupt
from rapport.pipeline.datasource.rows import CHANNEL_SCHEMA
from rapport.pipeline.lake.places import channel_folder, data_files, position_range

_REQUIRED = ("position", "received", "time", "source", "id", "type", "data")

BAD_FILE = "lake.bad_file"
FOREIGN_FILE = "lake.foreign_file"


class FileFault(Corrupt):
    """A file that cannot be used; the others can."""

    def __init__(self, path: Path, message: str, *, code: str, hint: str) -> None:
        super().__init__(f"{path} {message}", code=code, hint=hint)
        self.path = path


def bad_file(path: Path, error: object) -> FileFault:
    """The fault of a damaged or half-written file."""
    return FileFault(
        path,
        f"cannot be read: {error}",
        code=BAD_FILE,
        hint="put a sound copy in its place: it is read at the next run; or move it aside",
    )


def foreign_file(path: Path, what: str) -> FileFault:
    """The fault of a file that is sound but none of the lake's."""
    return FileFault(
        path, f"is no file of the lake: {what}", code=FOREIGN_FILE, hint="move it out of the lake"
    )


def bronze_files(lake: Path, channel: str, after: int, upto: int) -> list[Path]:
    """The files of a channel that may hold positions in (after, upto], in the order of positions;
    files with names that are not ours are left out.
    """
    found = []
    for path in data_files(channel_folder(lake, channel)):
        held = position_range(path)
        if held is not None and held[1] > after and held[0] <= upto:
            found.append((held, str(path), path))
    return [path for _held, _name, path in sorted(found)]


def strange_files(lake: Path, channel: str) -> list[Path]:
    """Files in a channel's folders whose names tell no positions."""
    found = data_files(channel_folder(lake, channel))
    return [path for path in found if position_range(path) is None]


def bronze_rows(path: Path, after: int, upto: int) -> Iterator[pa.RecordBatch]:
    """The rows at positions in (after, upto], with the columns of a channel; other parts of the
    file are not read. Raises FileFault.
    """
    try:
        with pq.ParquetFile(path) as file:
            _check_columns(path, file.schema_arrow)
            for group in range(file.num_row_groups):
                if _may_hold(file, group, after, upto):
                    rows = file.read_row_group(group, columns=CHANNEL_SCHEMA.names)
                    yield from _chosen(path, rows, after, upto)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, EOFError) as error:
        raise bad_file(path, error) from None


def rows_up_to(path: Path, position: int) -> int:
    """How many rows a file has up to a position, mostly by its footer alone; raises FileFault."""
    held = position_range(path)
    try:
        with pq.ParquetFile(path) as file:
            _check_columns(path, file.schema_arrow)
            if held is not None and held[1] <= position:
                return int(file.metadata.num_rows)
            places = file.read(columns=["position"])["position"]
            return int(pc.sum(pc.less_equal(places, position)).as_py() or 0)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, EOFError) as error:
        raise bad_file(path, error) from None


def _check_columns(path: Path, schema: pa.Schema) -> None:
    missing = [name for name in CHANNEL_SCHEMA.names if name not in schema.names]
    if missing:
        raise foreign_file(path, f"it has no column {missing[0]!r}")


def _may_hold(file: pq.ParquetFile, group: int, after: int, upto: int) -> bool:
    metadata = file.metadata.row_group(group)
    place = file.schema_arrow.names.index("position")
    column = metadata.column(place)
    if column.path_in_schema != "position" or not column.is_stats_set:
        return True
    told = column.statistics
    return not told.has_min_max or (told.max > after and told.min <= upto)


def _chosen(path: Path, rows: pa.Table, after: int, upto: int) -> Iterator[pa.RecordBatch]:
    try:
        rows = rows.cast(CHANNEL_SCHEMA)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise foreign_file(path, f"its columns have other types: {error}") from None
    for name in _REQUIRED:
        if rows.column(name).null_count:
            raise foreign_file(path, f"rows without {name!r}")
    wanted = pc.and_(
        pc.greater(rows["position"], pa.scalar(after)),
        pc.less_equal(rows["position"], pa.scalar(upto)),
    )
    yield from rows.filter(wanted).combine_chunks().to_batches()
