"""From a sample to a guess: which column is the time, the key, a value, and in which unit. Pure.
[ME-11, ME-13]
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from rapport.mediation.formats.csv_options import csv_options, joins_of
from rapport.mediation.guessing.columns import Column, Marks, Path, columns_of
from rapport.mediation.guessing.keys import KeyGuess, guess_key
from rapport.mediation.guessing.sample import Sample
from rapport.mediation.guessing.times import TimeGuess, guess_time
from rapport.mediation.guessing.units import UnitGuess, guess_unit

_PLACE = re.compile(r"^(lat|latitude|lon|lng|long|longitude|altitude)$", re.IGNORECASE)
_LONGEST_NAME = 256
_GEOMETRY = ("coordinates",)


class ValueGuess(msgspec.Struct, frozen=True):
    """A column of numbers that may be readings."""

    column: Column
    unit: UnitGuess


class Guess(msgspec.Struct, frozen=True, kw_only=True):
    """All that is proposed, with the reasons."""

    format: str
    options: dict[str, Any]
    because: str
    doubts: tuple[str, ...]
    marks: Marks
    rows: int
    columns: tuple[Column, ...]
    time: TimeGuess | None
    timed: bool
    """The format itself says when."""
    key: KeyGuess | None
    values: tuple[ValueGuess, ...]
    uses: dict[str, str]
    """What each column is taken for, by its name."""


def guess(sample: Sample) -> Guess:
    """What the sample seems to mean; the same for the same sample."""
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


def _joined(options: dict[str, Any], columns: tuple[Column, ...]) -> set[Path]:
    """Columns that a declared join has made."""
    if "join" not in options:
        return set()
    made = {join.name for join in joins_of(csv_options(options))}
    return {column.path for column in columns if column.path[-1] in made}


def _is_value(column: Column) -> bool:
    """Numbers that are more than a constant of the file's head or a place on earth."""
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
