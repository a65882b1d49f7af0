"""What the kinds in `notations.py` do: times, numbers and angles, read and written. [ME-4]"""

from __future__ import annotations

import math
from typing import Any

from rapport.mediation.model.notations import (
    EPOCH_MILLISECONDS,
    EPOCH_SECONDS,
    ISO,
    Notation,
    ParseAngle,
    ParseNumber,
    ParseTime,
    WriteAngle,
    WriteNumber,
    WriteTime,
)
from rapport.mediation.model.passing import Calculation
from rapport.mediation.model.rejecting import SHOWN, finite, number, text
from rapport.mediation.rejection import Rejected
from rapport.units.angles import parse_angle, write_angle
from rapport.units.quantities import parse_number
from rapport.units.timeformats import from_epoch, from_iso, from_pattern, to_iso, to_pattern

_UNIT_MS = {EPOCH_SECONDS: 1_000.0, EPOCH_MILLISECONDS: 1.0}


def notation(how: Notation, name: str, kinds: list[str]) -> Calculation:
    """The kind as a calculation; `kinds` are those of the results."""
    if isinstance(how, ParseTime):
        return _parse_time(how, name)
    if isinstance(how, WriteTime):
        return _write_time(how, name, kinds)
    if isinstance(how, ParseNumber):
        decimal = how.decimal
        return lambda value: (finite(parse_number(text(value, name), decimal), name),)
    if isinstance(how, WriteNumber):
        return lambda value: (write_number(number(value, name), how),)
    if isinstance(how, ParseAngle):
        return lambda value: (parse_angle(text(value, name), how.axis, how.form, how.decimal),)
    assert isinstance(how, WriteAngle)
    return lambda value: (write_angle(number(value, name), how.axis, how.form, how.digits),)


def whole_number(value: Any, name: str) -> int:
    """A `Time`; one that came through arithmetic or as JSON `1.0` counts as long as it is whole."""
    found = number(value, name)
    if found != math.floor(found):
        raise Rejected(
            "value.not_an_integer", f"{name} is {str(value)[:SHOWN]}, not a whole number"
        )
    return int(value)


def write_number(value: float, how: WriteNumber) -> str:
    """The shortest text that reads back as the number, or so many digits after the mark."""
    if how.digits is None:
        written = str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
    else:
        written = f"{value:.{how.digits}f}"
    return written if how.decimal == "point" else written.replace(".", ",")


def _parse_time(how: ParseTime, name: str) -> Calculation:
    unit_ms = _UNIT_MS.get(how.format)
    if unit_ms is not None:
        return lambda value: (from_epoch(number(value, name), unit_ms),)
    separator, zone, fold, form = how.separator, how.zone, how.fold, how.format

    def parse(*parts: Any) -> tuple[int]:
        whole = separator.join([text(part, name) for part in parts])
        if form == ISO:
            return (from_iso(whole, zone, fold),)
        return (from_pattern(whole, form, zone, fold),)

    return parse


def _write_time(how: WriteTime, name: str, kinds: list[str]) -> Calculation:
    if how.format == EPOCH_MILLISECONDS:
        return lambda value: (whole_number(value, name),)
    if how.format == EPOCH_SECONDS and kinds == ["integer"]:
        return lambda value: (round(whole_number(value, name) / 1_000),)
    if how.format == EPOCH_SECONDS:
        return lambda value: (whole_number(value, name) / 1_000,)
    parts = len(how.attributes) or len(kinds)

    def write(value: Any) -> list[str]:
        time_ms = whole_number(value, name)
        if how.format == ISO:
            written = to_iso(time_ms, how.zone)
        else:
            written = to_pattern(time_ms, how.format, how.zone)
        found = written.split(how.separator, parts - 1) if parts > 1 else [written]
        if len(found) != parts:
            raise Rejected("value.too_few_parts", f"{name}: {written!r} has not {parts} parts")
        return found

    return write
