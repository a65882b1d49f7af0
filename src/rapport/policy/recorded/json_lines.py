"""Recorded events as JSON lines: one object per line, fields by name or dotted path. [PO-2]"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from rapport.core.errors import Problem, nearest_names
from rapport.policy.recorded.rows import CellError, FieldMapping, Report, as_batch, row_values

_ROWS_AT_ONCE = 10_000
_LONGEST_LINE = 1 << 22
_READ = msgspec.json.Decoder(dict[str, Any])
_ABSENT = object()


def json_batches(path: Path, wanted: FieldMapping, report: Report) -> Iterator[pa.RecordBatch]:
    """The rows of a file; faulty lines are reported and left out. Empty lines do not count."""
    with path.open("rb") as file:
        numbered = enumerate(iter(lambda: file.readline(_LONGEST_LINE), b""), start=1)
        while lines := list(islice(numbered, _ROWS_AT_ONCE)):
            rows = [_json_row(path, wanted, number, line, report) for number, line in lines]
            yield as_batch(wanted, [row for row in rows if row is not None])


def _json_row(
    path: Path, wanted: FieldMapping, number: int, line: bytes, report: Report
) -> tuple[Any, ...] | None:
    line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
    if not line.strip():
        return None
    try:
        found = _READ.decode(line)
        return row_values(wanted, [_pick(found, field) for field in wanted.fields()])
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        message = f"the line is not a JSON object: {error}"
        report(Problem(file=path.name, line=number, code="events.bad_row", message=message))
    except CellError as error:
        report(_json_problem(path, number, line, error))
    return None


def _pick(found: dict[str, Any], field: str) -> Any:
    """The value of a field; `position.x` also finds x of the object position, `value.0` the first
    of a list.
    """
    if field in found:
        return found[field]
    value: Any = found
    for name in field.split("."):
        value = _below(value, name)
    if value is _ABSENT:
        nearest = nearest_names(field, list(found), 1)
        hint = (
            f"did you mean {nearest[0]!r}?"
            if nearest
            else f"there are: {', '.join(list(found)[:12])}"
        )
        raise CellError(field, f"there is no field {field!r}", "events.missing_column", hint)
    return value


def _below(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return value.get(name, _ABSENT)
    if isinstance(value, list) and name.isdecimal() and len(name) < 10 and int(name) < len(value):
        return value[int(name)]
    return _ABSENT


def _json_problem(path: Path, number: int, line: bytes, error: CellError) -> Problem:
    column = line.find(b'"' + error.field.encode() + b'"') + 1
    return Problem(
        file=path.name,
        line=number,
        column=column,
        code=error.code,
        message=error.message,
        hint=error.hint,
    )
