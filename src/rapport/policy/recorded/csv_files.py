"""Recorded events as CSV with a heading. [PO-2]"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from rapport.core.errors import Problem
from rapport.policy.recorded.columns import convert_columns
from rapport.policy.recorded.rows import (
    CellError,
    FieldMapping,
    Report,
    as_batch,
    check_fields,
    nothing_in,
    row_values,
)

_BLOCK_BYTES = 1 << 20
_ROWS_AT_ONCE = 10_000
_LONGEST_CELL = 1 << 20


def csv_batches(path: Path, wanted: FieldMapping, report: Report) -> Iterator[pa.RecordBatch]:
    """The rows of a file: fast as long as everything is in order, then row by row from there on."""
    heading = _heading(path)
    check_fields(path, wanted, heading, line=1)
    done = 0
    for rows in _while_in_order(path, wanted):
        converted = convert_columns(rows, wanted)
        if converted is None:
            break
        done += len(rows)
        yield converted
    yield from _slow(path, wanted, heading, done, report)


def _heading(path: Path) -> list[str]:
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        heading = next(csv.reader(file), None)
    if not heading:
        raise nothing_in(path)
    return heading


def _while_in_order(path: Path, wanted: FieldMapping) -> Iterator[pa.RecordBatch]:
    """Blocks of text columns up to the first ragged row or one that is not UTF-8."""
    try:
        yield from _fast(path, wanted)
    except pa.ArrowInvalid:
        return  # found again row by row, with its line


def _fast(path: Path, wanted: FieldMapping) -> Iterator[pa.RecordBatch]:
    names = list(dict.fromkeys(wanted.fields()))
    options = pyarrow.csv.ConvertOptions(
        include_columns=names,
        column_types=dict.fromkeys(names, pa.string()),
        strings_can_be_null=False,
    )
    reading = pyarrow.csv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=False)
    with pyarrow.csv.open_csv(path, read_options=reading, convert_options=options) as reader:
        yield from reader


def _slow(
    path: Path, wanted: FieldMapping, heading: list[str], skip: int, report: Report
) -> Iterator[pa.RecordBatch]:
    csv.field_size_limit(_LONGEST_CELL)
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.reader(file)
        next(reader, None)
        rows = ((reader.line_num, row) for row in reader if row)
        places = [heading.index(field) for field in wanted.fields()]
        good: list[tuple[Any, ...]] = []
        try:
            for line, row in islice(rows, skip, None):
                values = _csv_row(path, wanted, heading, places, line, row, report)
                if values is not None:
                    good.append(values)
                if len(good) >= _ROWS_AT_ONCE:
                    yield as_batch(wanted, good)
                    good = []
        except csv.Error as error:
            report(_csv_problem(path, reader.line_num, 0, "events.bad_row", str(error)))
        if good:
            yield as_batch(wanted, good)


def _csv_row(
    path: Path,
    wanted: FieldMapping,
    heading: list[str],
    places: list[int],
    line: int,
    row: list[str],
    report: Report,
) -> tuple[Any, ...] | None:
    if len(row) != len(heading):
        message = f"the row has {len(row)} cells, the heading has {len(heading)}"
        report(_csv_problem(path, line, 0, "events.bad_row", message))
        return None
    try:
        cells = [row[place] for place in places]
        for field, cell in zip(wanted.fields(), cells, strict=True):
            if not cell.isascii():
                _check_text(field, cell)
        return row_values(wanted, cells)
    except CellError as error:
        column = heading.index(error.field) + 1
        report(_csv_problem(path, line, column, error.code, error.message, error.hint))
        return None


def _check_text(field: str, cell: str) -> None:
    """Bytes that are not UTF-8 were let through as lone surrogates, to be found here."""
    try:
        cell.encode("utf-8")
    except UnicodeEncodeError:
        raise CellError(
            field, f"{field!r} is not UTF-8 text", "events.not_utf8", "save it as UTF-8"
        ) from None


def _csv_problem(
    path: Path, line: int, column: int, code: str, message: str, hint: str = ""
) -> Problem:
    """A problem of a row; `column` counts cells from 1."""
    return Problem(file=path.name, line=line, column=column, code=code, message=message, hint=hint)
