"""What the footers of Parquet files tell of their rows: how many, and from when to when. [PI-5]"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet

from rapport.core.errors import Problem, SiteError, nearest_names
from rapport.policy.readings import FARTHEST_MS
from rapport.policy.recordings.formats import unreadable


class RowGroup(msgspec.Struct, frozen=True, array_like=True):
    """A part of a Parquet file that is read as a whole."""

    rows: int
    first: int | None = None
    """The smallest time of its rows, None when there is none or nobody knows it yet."""
    last: int | None = None
    """The largest."""
    is_known: bool = False
    """Whether rows, first and last are to be relied on."""


def read_footer(path: Path, columns: Sequence[str], time: str) -> tuple[int, tuple[RowGroup, ...]]:
    """The size of a file in bytes and its row groups; raises SiteError for a file that is missing,
    damaged or half written, or without one of the columns.
    """
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            _check_columns(path, columns, file.schema_arrow.names)
            kind = file.schema_arrow.field(time).type
            return path.stat().st_size, tuple(_groups(file.metadata, time, kind))
    except (OSError, pa.ArrowException) as error:
        raise cannot_read(path, error) from None


def cannot_read(path: Path, error: Exception) -> SiteError:
    """The error of a file that the machine does not give, or that Arrow does not understand; the
    latter is an OSError too, but one without a number.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return SiteError([unreadable(path, error)])
    return bad_file(path, error)


def bad_file(path: Path, error: Exception) -> SiteError:
    """The error of a file that is not what its name says, or only a part of it."""
    said = str(error).strip().rstrip(".")
    problem = Problem(
        file=path.name,
        code="events.bad_file",
        message=f"{path} cannot be read; it is damaged or half written: {said}",
        hint="move the file aside, or write it again",
    )
    return SiteError([problem])


def _check_columns(path: Path, columns: Sequence[str], known: Sequence[str]) -> None:
    problems = []
    for name in dict.fromkeys(columns):
        if name not in known:
            nearest = nearest_names(name, known, 1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are: {known[:12]}"
            problems.append(
                Problem(
                    file=path.name,
                    code="events.missing_column",
                    message=f"there is no column {name!r}",
                    hint=hint,
                )
            )
    if problems:
        raise SiteError(problems)


def _groups(metadata: Any, time: str, kind: pa.DataType) -> Iterator[RowGroup]:
    place = _place(metadata, time)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if not group.num_rows:
            yield RowGroup(0, None, None, True)
            continue
        span = None if place is None else _span(group.column(place).statistics, kind)
        if span is None:
            yield RowGroup(group.num_rows)
        else:
            yield RowGroup(group.num_rows, *span, True)


def _place(metadata: Any, name: str) -> int | None:
    """Which column of the footer has this name; one inside another has a longer path."""
    schema = metadata.schema
    places = [place for place in range(len(schema)) if schema.column(place).path == name]
    return places[0] if places else None


def _span(statistics: Any, kind: pa.DataType) -> tuple[int, int] | None:
    """The smallest and largest time, None where the footer does not say it in milliseconds."""
    if statistics is None or not statistics.has_min_max or statistics.null_count:
        return None
    if not (pa.types.is_integer(kind) or pa.types.is_timestamp(kind)):
        return None
    ends = pa.array([statistics.min, statistics.max], kind)
    if pa.types.is_timestamp(kind):
        ends = ends.cast(pa.timestamp("ms", kind.tz), safe=False)
    first, last = ends.cast(pa.int64()).to_pylist()
    if not -FARTHEST_MS < first <= last < FARTHEST_MS:
        return None
    return first, last
