"""Profiles of the columns of a sample. Pure. [ME-11, ME-13]"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from rapport.units.quantities import DecimalMark

ColumnKind = Literal["number", "text", "boolean", "list", "empty"]
ColumnPathName = tuple[str, ...]

_NUMBER = re.compile(r"[+-]?(?:\d+(?:[.,]\d*)?|[.,]\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:([.,'\u00a0 ])\d{3})(?:\1\d{3})*(?:([.,])\d+)?", re.ASCII)
_EITHER = re.compile(r"[+-]?[1-9]\d{0,2}[.,]\d{3}", re.ASCII)
"""Ambiguous: thousands separator or decimal mark."""
_NULLS = ("-", "--", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "none", "//", "///")
_SENTINELS = ("-9999", "-999", "-99999", "9999", "99999", "-9999.0", "-9999,0")
_MARK_NAMES = {".": "point", ",": "comma", " ": "space", "\u00a0": "space", "'": "apostrophe"}
_MOST_TEXTS = 1_000
_DEEPEST = 6


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """A column, or a field at any depth of an object."""

    path: ColumnPathName
    kind: ColumnKind
    rows: int
    """The total number of rows."""
    filled: int
    distinct: int
    """The number of different values, up to a thousand."""
    examples: tuple[str, ...] = ()
    values: tuple[Any, ...] = ()
    """The values without nulls."""
    low: float = 0.0
    high: float = 0.0
    is_text: bool = False
    """Numbers that are texts."""
    whole: bool = False
    """Numbers without a fraction."""
    unit: str = ""
    """The unit in the data if there is only one."""
    units: tuple[str, ...] = ()
    """All units in the data."""

    @property
    def is_mixed(self) -> bool:
        """Whether only some of its numbers are texts."""
        return self.is_text and not all(isinstance(value, str) for value in self.values)

    @property
    def name(self) -> str:
        return ".".join(self.path)


class NumberMarks(msgspec.Struct, frozen=True):
    """The notation of numbers in the texts of one source."""

    decimal: DecimalMark = "point"
    thousands: str = "none"
    doubt: str = ""
    """Why it is ambiguous; empty if it is not."""


def flattened(
    row: Mapping[str, Any], above: ColumnPathName = ()
) -> Iterator[tuple[ColumnPathName, Any]]:
    """The scalars and lists of a row with their paths."""
    for name, value in row.items():
        path = (*above, name)
        if isinstance(value, dict) and len(path) < _DEEPEST:
            yield from flattened(value, path)
        else:
            yield path, value


def columns_of(
    rows: Sequence[Mapping[str, Any]], marks: NumberMarks, units: Mapping[str, Iterable[str]]
) -> tuple[Column, ...]:
    """A profile of every column, in order of appearance; `units`: units in the data by name."""
    found: dict[ColumnPathName, list[Any]] = {}
    for row in rows:
        for path, value in flattened(row):
            found.setdefault(path, []).append(value)
    return tuple(
        _column(path, values, len(rows), marks, tuple(sorted(units.get(".".join(path), ()))))
        for path, values in found.items()
    )


def null_texts(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Texts that mean null among numbers: `-`, `NaN`, or `-9999` far below all others."""
    texts: dict[str, Counter[str]] = {}
    for row in rows:
        for name, value in row.items():
            if isinstance(value, str):
                texts.setdefault(name, Counter())[value] += 1
    found: set[str] = set()
    for counts in texts.values():
        numbers = [text for text in counts if _NUMBER.fullmatch(text)]
        plain = [float(text.replace(",", ".")) for text in numbers if text not in _SENTINELS]
        if not plain:
            continue
        found |= {text for text in counts if text in _NULLS}
        limit = 2 * max(max(map(abs, plain)), 100.0)
        found |= {
            text
            for text in numbers
            if text in _SENTINELS and abs(float(text.replace(",", "."))) > limit
        }
    return tuple(sorted(found))


def number_marks(rows: Iterable[Mapping[str, Any]]) -> NumberMarks:
    """The decimal mark and thousands separator of numbers written as text."""
    points = commas = either = 0
    grouping: Counter[tuple[str, str]] = Counter()
    for row in rows:
        for value in row.values():
            if not isinstance(value, str):
                continue
            if _NUMBER.fullmatch(value):
                sign = "," if "," in value else "."
                is_open = bool(_EITHER.fullmatch(value))
                either += is_open
                points += sign == "." and "." in value and not is_open
                commas += sign == "," and not is_open
            elif (group := _GROUPED.fullmatch(value)) and (group[2] or value.count(group[1]) > 1):
                grouping[group[1], group[2] or ""] += 1
    return _weighed(points, commas, either, grouping)


def _weighed(
    points: int, commas: int, either: int, grouping: Counter[tuple[str, str]]
) -> NumberMarks:
    (parting, mark), many = grouping.most_common(1)[0] if grouping else (("", ""), 0)
    if many:
        is_comma = mark == "," or (not mark and (parting == "." or commas > points))
        decimal: DecimalMark = "comma" if is_comma else "point"
        return NumberMarks(decimal, _MARK_NAMES[parting])
    if either and not points and not commas:
        return NumberMarks("point", doubt="numbers such as 1.234 or 1,234 may be parted thousands")
    if points and commas:
        doubt = f"{commas} numbers have a comma and {points} a point"
        return NumberMarks("comma" if commas > points else "point", doubt=doubt)
    return NumberMarks("comma" if commas else "point")


def _column(
    path: ColumnPathName, values: list[Any], rows: int, marks: NumberMarks, units: tuple[str, ...]
) -> Column:
    filled = [value for value in values if value is not None and value != ""]
    kind = _kind(filled)
    numbers = [_number(value, marks) for value in filled] if kind == "number" else []
    known = [number for number in numbers if number is not None]
    if kind == "number" and len(known) < len(filled):
        kind = "text"
    texts = dict.fromkeys(str(value)[:80] for value in filled[:_MOST_TEXTS])
    return Column(
        path=path,
        kind=kind,
        rows=rows,
        filled=len(filled),
        distinct=len(texts),
        examples=tuple(texts)[:3],
        values=tuple(filled),
        low=min(known, default=0.0),
        high=max(known, default=0.0),
        is_text=any(isinstance(value, str) for value in filled),
        whole=all(number.is_integer() for number in known),
        unit=units[0] if len(units) == 1 else "",
        units=units,
    )


def _kind(values: list[Any]) -> ColumnKind:
    if not values:
        return "empty"
    if any(isinstance(value, (list, dict)) for value in values):
        return "list"
    if all(isinstance(value, bool) for value in values):
        return "boolean"
    could_be = all(
        isinstance(value, (int, float, str)) and not isinstance(value, bool) for value in values
    )
    return "number" if could_be else "text"


def _number(value: Any, marks: NumberMarks) -> float | None:
    if not isinstance(value, str):
        return float(value) if abs(value) < 1e300 else None
    sign = "," if marks.decimal == "comma" else "."
    if _NUMBER.fullmatch(value) and ("," if sign == "." else ".") not in value:
        found = float(value.replace(",", "."))
        return found if abs(found) < 1e300 else None
    return None
