"""The file formats of recorded events: CSV, JSON lines and Parquet as columns of time, id, key and
value parts. [PO-2]

Columns are converted in bulk; when a value does not fit, the rows are converted one by one and
faulty ones are reported.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from rapport.core.errors import InvalidInput, Problem, SiteError, nearest_names
from rapport.core.schema import PARTS, AttributeType
from rapport.core.times import from_iso, parse_time
from rapport.policy.ontology import PushSource
from rapport.policy.readings import FARTHEST_MS, are_on_earth, part_type
from rapport.units.areas import check_position

Report = Callable[[Problem], None]
_YES, _NO = ("true", "1", "yes"), ("false", "0", "no")
_SHOWN = 40
_DIGITS = re.compile(r"-?\d{1,19}")
_BLOCK_BYTES = 1 << 20
_ROWS_AT_ONCE = 10_000
_LONGEST_CELL = 1 << 20
_LONGEST_LINE = 1 << 22
_READ = msgspec.json.Decoder(dict[str, Any])
_ABSENT = object()


class FieldMapping(msgspec.Struct, frozen=True):
    """The fields that a source names, and the type of its value."""

    id: str
    time: str
    key: str
    value: tuple[str, ...]
    kind: AttributeType
    zone: str = ""
    """Zone of local times; empty: times without an offset are UTC."""

    @staticmethod
    def of(source: PushSource, kind: AttributeType) -> FieldMapping:
        return FieldMapping(source.id, source.time, source.key, source.value, kind, source.zone)

    def fields(self) -> tuple[str, ...]:
        """The field names: time, id, key, parts."""
        return (self.time, self.id, self.key, *self.value)

    def schema(self) -> pa.Schema:
        """The columns of every reader: time, id, key, part0, part1, ..."""
        parts = [(f"part{place}", part_type(self.kind)) for place in range(len(PARTS[self.kind]))]
        return pa.schema([("time", pa.int64()), ("id", pa.string()), ("key", pa.string()), *parts])


class CellError(InvalidInput):
    """An unusable value of a field."""

    def __init__(self, field: str, message: str, code: str, hint: str = "") -> None:
        super().__init__(message, code=code, hint=hint)
        self.field = field

    def problem(self, path: Path, line: int, column: int) -> Problem:
        """`column` counts cells of CSV and Parquet, bytes of JSON lines, from 1."""
        return Problem(
            file=path.name,
            line=line,
            column=column,
            code=self.code,
            message=self.message,
            hint=self.hint,
        )


def row_values(mapping: FieldMapping, cells: Sequence[Any]) -> tuple[Any, ...]:
    """Time, id, key and parts from the cells of one row; raises CellError."""
    time = _time_cell(mapping.time, cells[0], mapping.zone)
    id, key = _name_cell(mapping.id, cells[1]), _name_cell(mapping.key, cells[2])
    parts = tuple(
        _value_cell(mapping.kind, field, cell)
        for field, cell in zip(mapping.value, cells[3:], strict=True)
    )
    if mapping.kind == "geo_point":
        lon, lat = parts
        if hint := check_position(lon, lat):
            shown = f"{lon:g} {lat:g} is no longitude and latitude"
            raise CellError(mapping.value[0], shown, "events.bad_position", hint)
    return (time, id, key, *parts)


def as_batch(mapping: FieldMapping, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    schema = mapping.schema()
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def check_fields(path: Path, mapping: FieldMapping, known: Sequence[str], *, line: int) -> None:
    """Raises SiteError naming every missing field, with the nearest existing one."""
    problems = [
        Problem(
            file=path.name,
            line=line,
            code="events.missing_column",
            message=f"there is no column {field!r}",
            hint=_nearest_hint(field, known),
        )
        for field in dict.fromkeys(mapping.fields())
        if field not in known
    ]
    if problems:
        raise SiteError(problems)


def _nearest_hint(field: str, known: Sequence[str]) -> str:
    nearest = nearest_names(field, known, 1)
    return f"did you mean {nearest[0]!r}?" if nearest else f"there are: {', '.join(known[:12])}"


def unreadable(path: Path, error: OSError) -> Problem:
    message = f"cannot read {path}: {error.strerror or error}"
    return Problem(file=path.name, code="events.unreadable", message=message)


def nothing_in(path: Path) -> SiteError:
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


def convert_columns(rows: pa.RecordBatch, mapping: FieldMapping) -> pa.RecordBatch | None:
    """Converts columns in bulk; None when a value needs conversion by row."""
    try:
        arrays = [
            _time_column(rows.column(mapping.time)),
            _name_column(rows.column(mapping.id)),
            _name_column(rows.column(mapping.key)),
            *(_value_column(mapping, rows.column(field)) for field in mapping.value),
        ]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    if len(arrays) != 3 + len(PARTS[mapping.kind]) or any(array.null_count for array in arrays):
        return None
    if mapping.kind == "geo_point" and not are_on_earth(*(one.to_numpy() for one in arrays[3:])):
        return None
    return pa.RecordBatch.from_arrays(arrays, schema=mapping.schema())


def in_ms(column: pa.Array) -> pa.Array:
    """Truncates timestamps to milliseconds, as for ISO 8601 text; other columns are unchanged."""
    if not pa.types.is_timestamp(column.type):
        return column
    return column.cast(pa.timestamp("ms", column.type.tz), safe=False)


def _time_column(column: pa.Array) -> pa.Array:
    times = in_ms(column).cast(pa.int64())
    if times.null_count:
        raise pa.ArrowInvalid("a time is missing")
    if (
        len(times)
        and not -FARTHEST_MS < pc.min(times).as_py() <= pc.max(times).as_py() < FARTHEST_MS
    ):
        raise pa.ArrowInvalid("a time is out of range")
    return times


def _name_column(column: pa.Array) -> pa.Array:
    if not (pa.types.is_integer(column.type) or _is_text(column.type)):
        raise pa.ArrowInvalid("not an id")
    names = column.cast(pa.string())
    if pc.any(pc.equal(names, "")).as_py():
        raise pa.ArrowInvalid("an id is empty")
    return names


def _value_column(mapping: FieldMapping, column: pa.Array) -> pa.Array:
    if mapping.kind == "text":
        values = column.cast(pa.string())
        if pc.any(pc.equal(values, "")).as_py():
            raise pa.ArrowInvalid("a value is missing")
        return values
    if mapping.kind == "boolean":
        return (
            pc.utf8_lower(column).cast(pa.bool_())
            if _is_text(column.type)
            else column.cast(pa.bool_())
        )
    if pa.types.is_boolean(column.type):
        raise pa.ArrowInvalid("not a number")
    numbers = column.cast(pa.float64())
    if not pc.all(pc.is_finite(numbers)).as_py():
        raise pa.ArrowInvalid("a number is not finite")
    return numbers


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def csv_batches(path: Path, mapping: FieldMapping, report: Report) -> Iterator[pa.RecordBatch]:
    """Reads in bulk while everything is in order, then row by row."""
    heading = _heading(path)
    check_fields(path, mapping, heading, line=1)
    done = 0
    for rows in _while_in_order(path, mapping):
        converted = convert_columns(rows, mapping)
        if converted is None:
            break
        done += len(rows)
        yield converted
    yield from _slow(path, mapping, heading, done, report)


def _heading(path: Path) -> list[str]:
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        heading = next(csv.reader(file), None)
    if not heading:
        raise nothing_in(path)
    return heading


def _while_in_order(path: Path, mapping: FieldMapping) -> Iterator[pa.RecordBatch]:
    """Blocks of text columns up to the first ragged or non-UTF-8 row."""
    try:
        yield from _fast(path, mapping)
    except pa.ArrowInvalid:
        return  # found again row by row, with its line


def _fast(path: Path, mapping: FieldMapping) -> Iterator[pa.RecordBatch]:
    names = list(dict.fromkeys(mapping.fields()))
    options = pyarrow.csv.ConvertOptions(
        include_columns=names,
        column_types=dict.fromkeys(names, pa.string()),
        strings_can_be_null=False,
    )
    reading = pyarrow.csv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=False)
    with pyarrow.csv.open_csv(path, read_options=reading, convert_options=options) as reader:
        yield from reader


def _slow(
    path: Path, mapping: FieldMapping, heading: list[str], skip: int, report: Report
) -> Iterator[pa.RecordBatch]:
    csv.field_size_limit(_LONGEST_CELL)
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.reader(file)
        next(reader, None)
        rows = ((reader.line_num, row) for row in reader if row)
        places = [heading.index(field) for field in mapping.fields()]
        good: list[tuple[Any, ...]] = []
        try:
            for line, row in islice(rows, skip, None):
                values = _csv_row(path, mapping, heading, places, line, row, report)
                if values is not None:
                    good.append(values)
                if len(good) >= _ROWS_AT_ONCE:
                    yield as_batch(mapping, good)
                    good = []
        except csv.Error as error:
            report(_bad_row(path, reader.line_num, str(error)))
        if good:
            yield as_batch(mapping, good)


def _csv_row(
    path: Path,
    mapping: FieldMapping,
    heading: list[str],
    places: list[int],
    line: int,
    row: list[str],
    report: Report,
) -> tuple[Any, ...] | None:
    if len(row) != len(heading):
        message = f"the row has {len(row)} cells, the heading has {len(heading)}"
        report(_bad_row(path, line, message))
        return None
    try:
        cells = [row[place] for place in places]
        for field, cell in zip(mapping.fields(), cells, strict=True):
            if not cell.isascii():
                _check_text(field, cell)
        return row_values(mapping, cells)
    except CellError as error:
        report(error.problem(path, line, heading.index(error.field) + 1))
        return None


def _check_text(field: str, cell: str) -> None:
    """Finds bytes that are not UTF-8; they were decoded as lone surrogates."""
    try:
        cell.encode("utf-8")
    except UnicodeEncodeError:
        raise CellError(
            field, f"{field!r} is not UTF-8 text", "events.not_utf8", "save it as UTF-8"
        ) from None


def _bad_row(path: Path, line: int, message: str) -> Problem:
    return Problem(file=path.name, line=line, code="events.bad_row", message=message)


def json_batches(path: Path, mapping: FieldMapping, report: Report) -> Iterator[pa.RecordBatch]:
    """Faulty lines are reported and left out; empty lines do not count."""
    with path.open("rb") as file:
        numbered = enumerate(iter(lambda: file.readline(_LONGEST_LINE), b""), start=1)
        while lines := list(islice(numbered, _ROWS_AT_ONCE)):
            rows = [_json_row(path, mapping, number, line, report) for number, line in lines]
            yield as_batch(mapping, [row for row in rows if row is not None])


def _json_row(
    path: Path, mapping: FieldMapping, number: int, line: bytes, report: Report
) -> tuple[Any, ...] | None:
    line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
    if not line.strip():
        return None
    try:
        found = _READ.decode(line)
        return row_values(mapping, [_pick(found, field) for field in mapping.fields()])
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        report(_bad_row(path, number, f"the line is not a JSON object: {error}"))
    except CellError as error:
        report(error.problem(path, number, line.find(b'"' + error.field.encode() + b'"') + 1))
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
        hint = _nearest_hint(field, list(found))
        raise CellError(field, f"there is no field {field!r}", "events.missing_column", hint)
    return value


def _below(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return value.get(name, _ABSENT)
    if isinstance(value, list) and name.isdecimal() and len(name) < 10 and int(name) < len(value):
        return value[int(name)]
    return _ABSENT


def parquet_batches(
    path: Path, mapping: FieldMapping, report: Report, groups: Sequence[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a file, or of consecutive row groups; `line` of a problem is the row, from 1."""
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            check_fields(path, mapping, file.schema_arrow.names, line=0)
            before = range(0 if not groups else groups[0])
            done = sum(file.metadata.row_group(number).num_rows for number in before)
            columns = list(dict.fromkeys(mapping.fields()))
            for rows in file.iter_batches(columns=columns, row_groups=groups):
                yield usable_rows(path, mapping, rows, done, file.schema_arrow.names, report)
                done += len(rows)
    except pa.ArrowInvalid as error:
        message = f"this is not a Parquet file: {error}"
        raise SiteError(
            [Problem(file=path.name, code="events.bad_file", message=message)]
        ) from None


def usable_rows(
    path: Path,
    mapping: FieldMapping,
    rows: pa.RecordBatch,
    done: int,
    names: list[str],
    report: Report,
) -> pa.RecordBatch:
    """The usable rows of a batch that starts at row `done`; others are reported. `names`: all
    columns of the file.
    """
    converted = convert_columns(rows, mapping)
    if converted is not None:
        return converted
    good: list[tuple[Any, ...]] = []
    columns = [in_ms(rows.column(field)).to_pylist() for field in mapping.fields()]
    for place, cells in enumerate(zip(*columns, strict=True)):
        try:
            good.append(row_values(mapping, [_plain(cell) for cell in cells]))
        except CellError as error:
            report(error.problem(path, done + place + 1, names.index(error.field) + 1))
    return as_batch(mapping, good)


def _plain(cell: Any) -> Any:
    return cell.isoformat() if isinstance(cell, datetime) else cell
