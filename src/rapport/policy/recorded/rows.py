"""One row of a recorded file as values, or the problem with it; shared by all file formats.
[PO-2]
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from rapport.core.errors import InvalidInput, Problem, SiteError, nearest_names
from rapport.core.schema import PARTS, AttributeType
from rapport.core.times import parse_time
from rapport.policy.ontology import PushSource
from rapport.policy.readings import FARTHEST_MS, part_type
from rapport.units.timeformats import from_iso

Report = Callable[[Problem], None]
_YES, _NO = ("true", "1", "yes"), ("false", "0", "no")
_SHOWN = 40
_DIGITS = re.compile(r"-?\d{1,19}")


class FieldMapping(msgspec.Struct, frozen=True):
    """The fields a source names, and the type its value has."""

    id: str
    time: str
    key: str
    value: tuple[str, ...]
    kind: AttributeType
    zone: str = ""
    """Of local times; empty: a recorded file without an offset is in UTC."""

    @staticmethod
    def of(source: PushSource, kind: AttributeType) -> FieldMapping:
        """What must be read for a source."""
        return FieldMapping(source.id, source.time, source.key, source.value, kind, source.zone)

    def fields(self) -> tuple[str, ...]:
        """The names of the fields: time, id, key, parts."""
        return (self.time, self.id, self.key, *self.value)

    def schema(self) -> pa.Schema:
        """The columns every file reader gives: time, id, key, part0, part1, ..."""
        parts = [(f"part{place}", part_type(self.kind)) for place in range(len(PARTS[self.kind]))]
        return pa.schema([("time", pa.int64()), ("id", pa.string()), ("key", pa.string()), *parts])


class CellError(InvalidInput):
    """A value that cannot be used; `field` names which."""

    def __init__(self, field: str, message: str, code: str, hint: str = "") -> None:
        super().__init__(message, code=code, hint=hint)
        self.field = field


def row_values(wanted: FieldMapping, cells: Sequence[Any]) -> tuple[Any, ...]:
    """Time, id, key and parts from the raw cells of one row, in that order; raises Cell."""
    time = _time_cell(wanted.time, cells[0], wanted.zone)
    id, key = _name_cell(wanted.id, cells[1]), _name_cell(wanted.key, cells[2])
    parts = (
        _value_cell(wanted.kind, field, cell)
        for field, cell in zip(wanted.value, cells[3:], strict=True)
    )
    return (time, id, key, *parts)


def as_batch(wanted: FieldMapping, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Rows of `row_values` as columns."""
    schema = wanted.schema()
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def check_fields(path: Path, wanted: FieldMapping, known: Sequence[str], *, line: int) -> None:
    """Raises SiteError naming every field that is missing, with the nearest that is there."""
    problems = []
    for field in dict.fromkeys(wanted.fields()):
        if field in known:
            continue
        nearest = nearest_names(field, known, 1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are: {', '.join(known[:12])}"
        message = f"there is no column {field!r}"
        problems.append(
            Problem(
                file=path.name, line=line, code="events.missing_column", message=message, hint=hint
            )
        )
    if problems:
        raise SiteError(problems)


def unreadable(path: Path, error: OSError) -> Problem:
    """The problem of a file the machine will not give."""
    message = f"cannot read {path}: {error.strerror or error}"
    return Problem(file=path.name, code="events.unreadable", message=message)


def nothing_in(path: Path) -> SiteError:
    """The error of a file without even a heading."""
    problem = Problem(
        file=path.name,
        line=1,
        code="events.empty",
        message="the file is empty",
        hint="the first line names the columns",
    )
    return SiteError([problem])


def _time_cell(field: str, cell: Any, zone: str) -> int:
    if cell is None or cell == "":
        raise CellError(field, "the time is missing", "events.missing_value")
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    try:
        is_local = zone and isinstance(cell, str) and not _DIGITS.fullmatch(cell.strip())
        time = from_iso(cell, zone) if is_local else parse_time(cell)
    except InvalidInput as error:
        raise CellError(field, error.message, "events.bad_time", error.hint) from None
    if not -FARTHEST_MS < time < FARTHEST_MS:
        raise CellError(field, f"the time {time} is out of range", "events.bad_time")
    return time


def _name_cell(field: str, cell: Any) -> str:
    if isinstance(cell, str) and cell:
        return cell
    if isinstance(cell, int) and not isinstance(cell, bool):
        return str(cell)
    if cell is None or cell == "":
        raise CellError(field, f"{field!r} is missing", "events.missing_value")
    raise CellError(
        field, f"{_shown(cell)} is not an id", "events.bad_id", "ids are text or integers"
    )


def _value_cell(kind: AttributeType, field: str, cell: Any) -> Any:
    if cell is None or cell == "":
        raise CellError(field, f"{field!r} is missing", "events.missing_value")
    if kind == "text":
        return str(cell)
    if kind == "boolean":
        return _boolean(field, cell)
    return _number(field, cell)


def _boolean(field: str, cell: Any) -> bool:
    text = str(cell).strip().lower()
    if text in _YES or text in _NO:
        return text in _YES
    raise CellError(field, f"{_shown(cell)} is not true or false", "events.bad_value")


def _number(field: str, cell: Any) -> float:
    hint = ""
    try:
        number = math.nan if isinstance(cell, bool) else float(cell)
        if "_" in str(cell):
            number = math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
        if isinstance(cell, str) and "," in cell:
            hint = "write a decimal point; decimal commas are for an interpretation"
    if not math.isfinite(number):
        raise CellError(field, f"{_shown(cell)} is not a number", "events.bad_number", hint)
    return number


def _shown(cell: Any) -> str:
    text = str(cell)
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
