"""From fields of text to typed columns: numbers, truths, points and rectangles; faults with their
place. [PO-2]"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from rapport.core.errors import Problem
from rapport.core.schema import PARTS, AttributeType
from rapport.tables.csv_file import MAX_FAULTS, CsvFile

_TRUTHS = {"": None, "true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def typed_column(
    file: CsvFile, columns: tuple[str, ...], kind: AttributeType, problems: list[Problem]
) -> npt.NDArray[Any]:
    """The values of one attribute in the form `Instances` promises; faults are added to
    `problems`."""
    if kind == "text":
        return _objects([field or None for field in file.column(columns[0])])
    if kind == "boolean":
        return _objects(_truths(file, columns[0], problems))
    parts = [_numbers(file, column, problems) for column in columns]
    if kind == "number":
        return parts[0]
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


def _objects(values: list[Any]) -> npt.NDArray[Any]:
    column = np.empty(len(values), object)
    column[:] = values
    return column


def _numbers(file: CsvFile, column: str, problems: list[Problem]) -> npt.NDArray[np.float64]:
    values = []
    faults = 0
    for row, field in enumerate(file.column(column)):
        number = _number(field)
        if number is None:
            number = math.nan
            faults += 1
            if faults <= MAX_FAULTS:
                hint = "use a decimal point" if "," in field else "leave it empty if it is unknown"
                message = f"{field[:40]!r} is not a number"
                problems.append(file.problem(row, column, "tables.bad_number", message, hint))
        values.append(number)
    return np.array(values, np.float64)


def _number(field: str) -> float | None:
    if not field:
        return math.nan
    try:
        number = float(field)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in field else None


def _truths(file: CsvFile, column: str, problems: list[Problem]) -> list[bool | None]:
    values = []
    for row, field in enumerate(file.column(column)):
        if field.lower() not in _TRUTHS and len(problems) < MAX_FAULTS:
            message = f"{field[:40]!r} is neither true nor false"
            hint = "write true or false"
            problems.append(file.problem(row, column, "tables.bad_boolean", message, hint))
        values.append(_TRUTHS.get(field.lower()))
    return values


def _check_corners(
    file: CsvFile, columns: tuple[str, ...], values: npt.NDArray[Any], problems: list[Problem]
) -> None:
    with np.errstate(invalid="ignore"):
        wrong = (values[:, 0] > values[:, 2]) | (values[:, 1] > values[:, 3])
    for row in np.flatnonzero(wrong)[:MAX_FAULTS].tolist():
        message = "the rectangle's first corner is not below and left of its second"
        hint = f"{columns[0]} <= {columns[2]} and {columns[1]} <= {columns[3]}"
        problems.append(file.problem(row, columns[0], "tables.bad_rectangle", message, hint))
