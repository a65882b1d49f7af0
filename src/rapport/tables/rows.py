"""Rows of text below headings, the form that every kind of source is read into; and their typed
columns: numbers, booleans, points, rectangles and areas. Faults have their place. [PO-2]
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from rapport.core.errors import InvalidInput, Problem, SiteError, did_you_mean
from rapport.core.schema import AREAS, PARTS, AttributeType
from rapport.tables.declaration import AreaForm
from rapport.units.areas import Area, check_position, circle, parse_area, rectangle

MAX_FAULTS = 20
"""Most faults of one kind that are reported of one table."""
MOST_ROWS = 5_000_000


class RowFile:
    """The rows of a table by column. Subclasses know the lines of rows."""

    fixed_headings = True
    """False: the headings are those that some row has."""

    def __init__(self, name: str, header: list[str], rows: list[list[str]], digest: str) -> None:
        self.name, self.header, self._rows = name, header, rows
        self.digest = digest
        """Identifies the content."""

    def __len__(self) -> int:
        return len(self._rows)

    def column(self, name: str) -> list[str]:
        """The fields below a heading, top to bottom."""
        index = self.header.index(name)
        return [row[index] for row in self._rows]

    def all_rows(self) -> list[list[str]]:
        """Every row, in the order of the headings."""
        return self._rows

    def add_headings(self, names: Sequence[str]) -> None:
        """Adds empty columns, for headings that rows had before and may have again."""
        missing = [name for name in names if name not in self.header]
        if missing:
            self.header = [*self.header, *missing]
            self._rows = [[*row, *([""] * len(missing))] for row in self._rows]

    def line_of(self, row: int) -> int:
        """The line of a row; 0 when the source has none. Slow, for faults only."""
        return 0

    def shown(self, row: int) -> str:
        """The place of a row for messages."""
        line = self.line_of(row)
        return f"line {line}" if line else f"row {row + 1}"

    def problem(self, row: int, column: str, code: str, message: str, hint: str = "") -> Problem:
        """A problem at a field; its column is the number of the heading, counted from 1."""
        line = self.line_of(row)
        return Problem(
            file=self.name,
            line=line,
            column=self.header.index(column) + 1 if line else 0,
            code=code,
            message=message if line else f"row {row + 1}, {column}: {message}",
            hint=hint,
        )


class LooseRows(RowFile):
    """Rows of JSON or XML, whose headings are those that some of them have."""

    fixed_headings = False


def content_digest(*parts: bytes) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def rows_digest(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return content_digest(msgspec.msgpack.encode(header), msgspec.msgpack.encode(rows))


def field_text(value: Any) -> str:
    """A value as the field of a table.

    >>> [field_text(one) for one in (None, True, 2.5, "open", [1, 2.5])]
    ['', 'true', '2.5', 'open', '1 2.5']
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict) or _is_deep(value):
        return msgspec.json.encode(value).decode()
    if isinstance(value, (list, tuple)):
        return " ".join(field_text(one) for one in value)
    return str(value)


def _is_deep(value: Any) -> bool:
    """Whether it is a list of lists of lists: several outlines, which a plain list of numbers would
    make one."""
    for _ in range(2):
        if not isinstance(value, (list, tuple)) or not value:
            return False
        value = value[0]
    return isinstance(value, (list, tuple))


def check_heading(file: RowFile, column: str) -> Problem | None:
    """The problem when a column is missing, with the nearest heading; otherwise None."""
    if column in file.header:
        return None
    hint = did_you_mean(column, file.header, f"columns are {', '.join(file.header[:8])}")
    if len(file.header) == 1 and ";" in file.header[0]:
        hint = "the columns seem to be separated by ';'; separate them by ','"
    return Problem(
        file=file.name,
        line=1 if file.fixed_headings else 0,
        code="tables.missing_column",
        message=f"there is no column {column!r}",
        hint=hint,
    )


def repeated_headings(name: str, header: Sequence[str]) -> list[Problem]:
    """A problem for each repeated heading."""
    seen: set[str] = set()
    faults = []
    for number, heading in enumerate(header, start=1):
        if heading in seen:
            faults.append(
                Problem(
                    file=name,
                    line=1,
                    column=number,
                    code="tables.repeated_column",
                    message=f"the column {heading!r} appears twice",
                    hint="give each column a name of its own",
                )
            )
        seen.add(heading)
    return faults


def check_size(name: str, rows: int) -> None:
    """Raises SiteError when there are too many rows."""
    if rows > MOST_ROWS:
        message = f"there are more than {MOST_ROWS:,} rows"
        raise unusable_table(name, "tables.too_many_rows", message, "select fewer")


def unusable_table(
    name: str, code: str, message: str, hint: str = "", *, line: int = 0
) -> SiteError:
    """The error for a table that cannot be read at all."""
    return SiteError([Problem(file=name, line=line, code=code, message=message, hint=hint)])


_TRUTHS = {"": None, "true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_BETWEEN_PARTS = {".": re.compile(r"[\s,;]+"), ",": re.compile(r"[\s;]+")}


def typed_column(
    file: RowFile,
    columns: tuple[str, ...],
    kind: AttributeType,
    problems: list[Problem],
    *,
    decimal: str = ".",
    forms: Mapping[AreaForm, tuple[str, ...]] | None = None,
) -> npt.NDArray[Any]:
    """The values of one attribute in the form of `Instances`; adds faults to `problems`. A point or
    rectangle may stand in one column, its parts separated by spaces, commas or semicolons.

    `forms`: the columns of an area by form; None: one column of polygons.
    """
    if kind in AREAS:
        geographic = kind == "geo_area"
        return AreaRows(file, problems, decimal, geographic).texts(forms or {"polygon": columns})
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
    if kind == "geo_point":
        _check_positions(file, columns, values, problems)
    return values


def empty_column(kind: AttributeType, rows: int) -> npt.NDArray[Any]:
    """A column of missing values."""
    if kind in ("text", "boolean") or kind in AREAS:
        return np.full(rows, None, object)
    width = len(PARTS[kind])
    return np.full(rows if kind == "number" else (rows, width), np.nan)


def numbers(
    file: RowFile, column: str, problems: list[Problem], *, decimal: str = "."
) -> npt.NDArray[np.float64]:
    """The numbers of a column, NaN where it is empty; adds faults to `problems`."""
    fields = file.column(column)
    values = [_number(field, decimal) for field in fields]
    for row in [row for row, value in enumerate(values) if value is None][:MAX_FAULTS]:
        hint = "leave it empty if it is unknown"
        if decimal == "." and "," in fields[row]:
            hint = 'use a decimal point, or add decimal = "," to the table'
        message = f"{fields[row][:40]!r} is not a number"
        problems.append(file.problem(row, column, "tables.bad_number", message, hint))
    return np.array([math.nan if value is None else value for value in values], np.float64)


def _objects(values: list[Any]) -> npt.NDArray[Any]:
    column = np.empty(len(values), object)
    column[:] = values
    return column


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
    fields = [field.lower() for field in file.column(column)]
    for row in [row for row, field in enumerate(fields) if field not in _TRUTHS][:MAX_FAULTS]:
        message = f"{file.column(column)[row][:40]!r} is neither true nor false"
        hint = "write true or false"
        problems.append(file.problem(row, column, "tables.bad_boolean", message, hint))
    return [_TRUTHS.get(field) for field in fields]


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


def _check_positions(
    file: RowFile, columns: tuple[str, ...], values: npt.NDArray[Any], problems: list[Problem]
) -> None:
    with np.errstate(invalid="ignore"):
        wrong = (np.abs(values[:, 0]) > 180) | (np.abs(values[:, 1]) > 90)
    for row in np.flatnonzero(wrong)[:MAX_FAULTS].tolist():
        lon, lat = values[row].tolist()
        message = f"{lon:g} {lat:g} is no longitude and latitude"
        hint = check_position(lon, lat)
        problems.append(file.problem(row, columns[0], "tables.bad_position", message, hint))


class AreaRows:
    """The areas of the rows of a table."""

    def __init__(
        self, file: RowFile, problems: list[Problem], decimal: str, geographic: bool
    ) -> None:
        self._file, self._problems, self._decimal = file, problems, decimal
        self._geographic = geographic
        self._faults = 0

    def texts(self, forms: Mapping[AreaForm, tuple[str, ...]]) -> npt.NDArray[Any]:
        """The canonical text of each row's area, None where it has none; adds faults."""
        found: list[str | None] = [None] * len(self._file)
        filled_by: dict[int, AreaForm] = {}
        for form, columns in forms.items():
            fields = [self._file.column(column) for column in columns]
            for row, own in enumerate(zip(*fields, strict=True)):
                if not any(own):
                    continue
                if row in filled_by:
                    message = f"the row gives a {filled_by[row]} and a {form}"
                    hint = "leave the columns of one of them empty"
                    self._fault(row, columns[0], message, hint)
                    continue
                filled_by[row] = form
                area = self._area(row, form, columns, own)
                found[row] = None if area is None else area.text
        return _objects(found)

    def _area(
        self, row: int, form: AreaForm, columns: tuple[str, ...], own: tuple[str, ...]
    ) -> Area | None:
        try:
            if form == "polygon":
                return parse_area(own[0], geographic=self._geographic, decimal=self._decimal)
            numbers = [_number(field, self._decimal) for field in own]
            for column, field, number in zip(columns, own, numbers, strict=True):
                if number is None or math.isnan(number):
                    message = f"{field[:40]!r} is not a number of the {form}"
                    self._fault(row, column, message, f"a {form} needs {', '.join(columns)}")
                    return None
            make: Callable[..., Area] = circle if form == "circle" else rectangle
            return make(*numbers, geographic=self._geographic)
        except InvalidInput as error:
            self._fault(row, columns[0], error.message, error.hint)
            return None

    def _fault(self, row: int, column: str, message: str, hint: str) -> None:
        self._faults += 1
        if self._faults <= MAX_FAULTS:
            self._problems.append(self._file.problem(row, column, "tables.bad_area", message, hint))
