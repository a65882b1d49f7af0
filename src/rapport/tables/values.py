"""From fields of text to typed columns: numbers, truths, points and rectangles; faults with their
place. [PO-2]"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from rapport.core.errors import Problem
from rapport.core.schema import PARTS, AttributeType
from rapport.tables.row_file import MAX_FAULTS, RowFile

_TRUTHS = {"": None, "true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_BETWEEN_PARTS = {".": re.compile(r"[\s,;]+"), ",": re.compile(r"[\s;]+")}


def typed_column(
    file: RowFile,
    columns: tuple[str, ...],
    kind: AttributeType,
    problems: list[Problem],
    *,
    decimal: str = ".",
) -> npt.NDArray[Any]:
    """The values of one attribute in the form `Instances` promises; faults are added to
    `problems`. A point or rectangle may stand in one column, its parts separated by spaces, commas
    or semicolons."""
    if kind == "text":
        return _objects([field or None for field in file.column(columns[0])])
    if kind == "boolean":
        return _objects(_truths(file, columns[0], problems))
    if kind == "number":
        return numbers(file, columns[0], problems, decimal=decimal)
    if len(columns) == 1:
        values = _parts_of_one(file, columns[0], kind, problems, decimal)
    else:
        parts = [numbers(file, column, problems, decimal=decimal) for column in columns]
        values = np.stack(parts, axis=1)
    if kind == "rectangle":
        _check_corners(file, columns, values, problems)
    return values


def empty_column(kind: AttributeType, rows: int) -> npt.NDArray[Any]:
    """A column of missing values."""
    if kind in ("text", "boolean"):
        return np.full(rows, None, object)
    width = len(PARTS[kind])
    return np.full(rows if kind == "number" else (rows, width), np.nan)


def numbers(
    file: RowFile, column: str, problems: list[Problem], *, decimal: str = "."
) -> npt.NDArray[np.float64]:
    """The numbers of a column, NaN where it is empty; faults are added to `problems`."""
    values = []
    faults = 0
    for row, field in enumerate(file.column(column)):
        number = _number(field, decimal)
        if number is None:
            number = math.nan
            faults += 1
            if faults <= MAX_FAULTS:
                problems.append(_no_number(file, row, column, field, decimal))
        values.append(number)
    return np.array(values, np.float64)


def _objects(values: list[Any]) -> npt.NDArray[Any]:
    column = np.empty(len(values), object)
    column[:] = values
    return column


def _no_number(file: RowFile, row: int, column: str, field: str, decimal: str) -> Problem:
    hint = "leave it empty if it is unknown"
    if decimal == "." and "," in field:
        hint = 'use a decimal point, or add decimal = "," to the table'
    message = f"{field[:40]!r} is not a number"
    return file.problem(row, column, "tables.bad_number", message, hint)


def _number(field: str, decimal: str) -> float | None:
    if not field:
        return math.nan
    if decimal == ",":
        field = field.replace(",", ".") if "." not in field else "?"
    try:
        number = float(field)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in field else None


def _parts_of_one(
    file: RowFile, column: str, kind: AttributeType, problems: list[Problem], decimal: str
) -> npt.NDArray[Any]:
    width = len(PARTS[kind])
    values = np.full((len(file), width), np.nan)
    faults = 0
    for row, field in enumerate(file.column(column)):
        texts = _BETWEEN_PARTS[decimal].split(field.strip()) if field.strip() else []
        parts = [_number(text, decimal) for text in texts]
        if not parts:
            continue
        if len(parts) == width and None not in parts:
            values[row] = parts
            continue
        faults += 1
        if faults <= MAX_FAULTS:
            message = f"{field[:40]!r} is not a {kind}"
            hint = f"write its {width} numbers ({', '.join(PARTS[kind])}) with spaces between"
            problems.append(file.problem(row, column, "tables.bad_number", message, hint))
    return values


def _truths(file: RowFile, column: str, problems: list[Problem]) -> list[bool | None]:
    values = []
    faults = 0
    for row, field in enumerate(file.column(column)):
        if field.lower() not in _TRUTHS:
            faults += 1
            if faults <= MAX_FAULTS:
                message = f"{field[:40]!r} is neither true nor false"
                hint = "write true or false"
                problems.append(file.problem(row, column, "tables.bad_boolean", message, hint))
        values.append(_TRUTHS.get(field.lower()))
    return values


def _check_corners(
    file: RowFile, columns: tuple[str, ...], values: npt.NDArray[Any], problems: list[Problem]
) -> None:
    with np.errstate(invalid="ignore"):
        wrong = (values[:, 0] > values[:, 2]) | (values[:, 1] > values[:, 3])
    for row in np.flatnonzero(wrong)[:MAX_FAULTS].tolist():
        message = "the rectangle's first corner is not below and left of its second"
        named = columns if len(columns) == 4 else PARTS["rectangle"]
        hint = f"{named[0]} <= {named[2]} and {named[1]} <= {named[3]}"
        problems.append(file.problem(row, columns[0], "tables.bad_rectangle", message, hint))
