"""Guesses the meaning of a sample: its time, key, values and units. Pure. [ME-11, ME-13]"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from rapport.mediation.formats.csv_format import csv_options, joins_of
from rapport.mediation.guessing.columns import Column, ColumnPathName, NumberMarks, columns_of
from rapport.mediation.guessing.sample import Sample
from rapport.mediation.guessing.time_columns import TimeGuess, guess_time
from rapport.mediation.plausibility import plausible_column
from rapport.units.catalogue import BY_NAME

_STRONG = re.compile(
    r"(^|[^a-z])(id|key|tag|imei|mac|device|dev|station|stationcode|codigo|code|sensor|serial|"
    r"entity|node|meter|vehicle|badge|camera|reader)([^a-z]|$)|(?-i:[a-z](?:Id|Code))$",
    re.IGNORECASE,
)
_WEAK = re.compile(
    r"name|nom|estacao|site|location|place|ref|door|city|address",
    re.IGNORECASE,
)
_NO_KEY = re.compile(r"region|regiao|^uf$|country|state|type|version|postal|zip", re.IGNORECASE)
_LONGEST = 100


class KeyGuess(msgspec.Struct, frozen=True):
    """The field that identifies the subject of a row."""

    field: ColumnPathName
    because: str
    doubts: tuple[str, ...] = ()


def guess_key(columns: Sequence[Column], taken: Collection[ColumnPathName]) -> KeyGuess | None:
    """The best guess; None if no column looks like an identifier."""
    ranked = [
        (_rank(column), -index, column)
        for index, column in enumerate(columns)
        if column.path not in taken and _can_be_key(column)
    ]
    ranked = [each for each in ranked if each[0] > 0]
    if not ranked:
        return None
    _score, _index, column = max(ranked, key=lambda each: each[:2])
    values = "1 value" if column.distinct == 1 else f"{column.distinct} values"
    doubts = []
    if column.distinct == column.filled and column.filled > 1:
        doubts.append("no value comes twice: it may name the row and not the thing")
    if not _STRONG.search(column.path[-1]):
        doubts.append("its name does not say that it identifies anything")
    if column.filled < column.rows:
        doubts.append(f"{column.rows - column.filled} of {column.rows} rows have none")
    return KeyGuess(column.path, f"{values} in {column.rows} rows", tuple(doubts))


def _can_be_key(column: Column) -> bool:
    if column.kind not in ("text", "number") or not column.filled:
        return False
    if column.kind == "number" and not (column.whole and _STRONG.search(column.path[-1])):
        return False
    return all(len(example) < _LONGEST for example in column.examples)


def _rank(column: Column) -> int:
    name = column.path[-1]
    if _NO_KEY.search(name):
        return 0
    base = 4 if _STRONG.search(name) else 2 if _WEAK.search(name) else 0
    if not base:
        return 0
    repeats = column.distinct < column.filled or column.rows == 1
    return base + repeats + (column.filled == column.rows)


_BRACKETS = re.compile(r"[(\[]\s*([^()\[\]]{1,20}?)\s*[)\]]")
_LAST_WORD = re.compile(r"(?:[_\s.-]|(?<=[a-z])(?=[A-Z]))([A-Za-z%°]{1,10})$")
_LIKELY = re.compile(r"unit = [\"'](.+)[\"']$")
"""Extracts the unit from a hint."""
_TWO_MEANINGS = frozenset(
    ("min", "in", "d", "h", "a", "A", "l", "L", "s", "m", "g", "V", "W", "J", "C", "day", "hour")
)
"""Last words of names that are often not a unit: `temperature_min`, `checked_in`, `part_a`."""
_SURE_LETTERS = frozenset(("m", "s", "h", "g", "V", "W", "J"))
"""Of these, units after an underscore: `x_m`, `power_W`."""


class UnitGuess(msgspec.Struct, frozen=True):
    """`unit` is empty if unknown; `because` then has a hint."""

    unit: str
    because: str
    sure: bool
    likely: str = ""
    """The likely unit, to be confirmed."""


def guess_unit(column: Column) -> UnitGuess:
    """The unit in the data or the name; else none, with a likely one as a hint."""
    if len(column.units) > 1:
        return UnitGuess("", f"the data say several units: {', '.join(column.units)}", False)
    if column.unit in BY_NAME:
        return UnitGuess(column.unit, f"the data say {column.unit}", True)
    if column.unit:
        return UnitGuess("", f"the data say {column.unit!r}, which is no known unit", False)
    name = column.path[-1]
    bracketed = _BRACKETS.findall(name)
    known = [text for text in bracketed if text in BY_NAME]
    if known:
        return UnitGuess(known[-1], f"the name says ({known[-1]})", True)
    if suffix := _suffix(name):
        return UnitGuess(suffix, f"the name ends with {suffix}", True)
    if bracketed:
        because = f"the name says ({bracketed[-1]}), which is no known unit"
        return UnitGuess("", because, False)
    likely = plausible_column(name, column.low, column.high)
    unit = _LIKELY.search(likely)
    return UnitGuess("", likely or "the unit is not known", False, unit[1] if unit else "")


def _suffix(name: str) -> str:
    found = _LAST_WORD.search(name)
    if found is None or found[1] not in BY_NAME:
        return ""
    word = found[1]
    if word in _TWO_MEANINGS and not (word in _SURE_LETTERS and name.endswith(f"_{word}")):
        return ""
    return word


_PLACE = re.compile(r"^(lat|latitude|lon|lng|long|longitude|altitude)$", re.IGNORECASE)
_LONGEST_NAME = 256
_GEOMETRY = ("coordinates",)


class ValueGuess(msgspec.Struct, frozen=True):
    """A column of numbers that may be readings."""

    column: Column
    unit: UnitGuess


class Guess(msgspec.Struct, frozen=True, kw_only=True):
    """The proposal with its reasons."""

    format: str
    options: dict[str, Any]
    because: str
    doubts: tuple[str, ...]
    marks: NumberMarks
    rows: int
    columns: tuple[Column, ...]
    time: TimeGuess | None
    timed: bool
    """The format itself has a time."""
    key: KeyGuess | None
    values: tuple[ValueGuess, ...]
    uses: dict[str, str]
    """The use of each column by name."""


def guess(sample: Sample) -> Guess:
    """Deterministic."""
    columns = columns_of(sample.rows, sample.marks, sample.units)
    time = None if sample.timed else guess_time(columns, joins=sample.format == "csv")
    options = sample.options
    if time is not None and time.join:
        options = {**options, "join": {**options.get("join", {}), time.field[0]: time.join}}
    taken = set(time.columns) if time else set()
    key = guess_key(columns, taken | _joined(options, columns))
    values = tuple(
        ValueGuess(column, guess_unit(column))
        for column in columns
        if _is_value(column) and column.path not in taken and not (key and key.field == column.path)
    )
    return Guess(
        format=sample.format,
        options=options,
        because=sample.because,
        doubts=sample.doubts,
        marks=sample.marks,
        rows=len(sample.rows),
        columns=columns,
        time=time,
        timed=sample.timed,
        key=key,
        values=values,
        uses=_uses(columns, time, key, values),
    )


def _joined(options: dict[str, Any], columns: tuple[Column, ...]) -> set[ColumnPathName]:
    """Columns produced by a declared join."""
    if "join" not in options:
        return set()
    made = {join.name for join in joins_of(csv_options(options))}
    return {column.path for column in columns if column.path[-1] in made}


def _is_value(column: Column) -> bool:
    """Numbers other than geographic positions."""
    return (
        column.kind == "number"
        and not _PLACE.match(column.path[-1])
        and column.path[-1] not in _GEOMETRY
        and all(0 < len(name) <= _LONGEST_NAME for name in column.path)
    )


def _uses(
    columns: tuple[Column, ...],
    time: TimeGuess | None,
    key: KeyGuess | None,
    values: tuple[ValueGuess, ...],
) -> dict[str, str]:
    taken = {value.column.path for value in values}
    uses = {}
    for column in columns:
        if time is not None and column.path in time.columns:
            uses[column.name] = "time"
        elif key is not None and column.path == key.field:
            uses[column.name] = "identity"
        elif column.path in taken:
            uses[column.name] = "value"
        else:
            uses[column.name] = "place" if _PLACE.match(column.path[-1]) else "left out"
    return uses
