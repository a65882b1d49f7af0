"""Conversions between a value and its notation: times, numbers, angles. [ME-4]"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from rapport.core.times import Fold, from_epoch, from_iso, from_pattern, to_iso, to_pattern
from rapport.mediation.rejections import (
    SHOWN,
    Calculation,
    Port,
    PortKind,
    RejectedValue,
    finite,
    number,
    text,
)
from rapport.units.coordinates import AngleForm, Axis, parse_angle, write_angle
from rapport.units.quantities import DecimalMark, parse_number

ISO, EPOCH_SECONDS, EPOCH_MILLISECONDS = "iso8601", "epoch_s", "epoch_ms"


class ParseTime(msgspec.Struct, frozen=True, tag="parse-time"):
    """Parses text or a number to milliseconds since 1970 UTC (`Time`). Several texts, such as
    date and time of day, are joined by `separator`. A local time needs `zone`; a nonexistent
    one is rejected, an ambiguous one too unless `fold` decides.
    """

    format: str = ISO
    """`iso8601`, `epoch_s`, `epoch_ms` or a strptime pattern."""
    zone: str = ""
    fold: Fold = ""
    separator: str = " "
    attributes: tuple[str, ...] = ()
    """The attributes of the parts in an object."""

    def takes(self, arguments: int) -> tuple[Port, ...]:
        names = self.attributes or tuple(f"part {number + 1}" for number in range(arguments))
        return tuple(Port(name, _kind_of(self.format)) for name in names)

    def gives(self, results: int) -> tuple[Port, ...]:
        return (Port("time", "integer"),)


class WriteTime(msgspec.Struct, frozen=True, tag="write-time"):
    """Writes `Time` as text or number; several results are the text split at `separator`. Local
    text without an offset is ambiguous when the clocks go back.
    """

    format: str = ISO
    zone: str = ""
    """Empty: UTC."""
    separator: str = " "
    attributes: tuple[str, ...] = ()
    """The attributes of the parts in an object."""

    def takes(self, arguments: int) -> tuple[Port, ...]:
        return (Port("time", "integer"),)

    def gives(self, results: int) -> tuple[Port, ...]:
        """Seconds are integers if the signature says so."""
        names = self.attributes or tuple(f"part {number + 1}" for number in range(results))
        kind: PortKind = "integer" if _kind_of(self.format) == "number" else "text"
        return tuple(Port(name, kind) for name in names)


class ParseNumber(msgspec.Struct, frozen=True, tag="parse-number"):
    """Parses text with a decimal point or comma, without thousands separators."""

    decimal: DecimalMark = "point"

    def takes(self, arguments: int) -> tuple[Port, ...]:
        return (Port("text", "text"),)

    def gives(self, results: int) -> tuple[Port, ...]:
        return (Port("number", "number"),)


class WriteNumber(msgspec.Struct, frozen=True, tag="write-number"):
    """Writes a number with `digits` decimals, else as many as needed."""

    decimal: DecimalMark = "point"
    digits: int | None = None

    def takes(self, arguments: int) -> tuple[Port, ...]:
        return (Port("number", "number"),)

    def gives(self, results: int) -> tuple[Port, ...]:
        return (Port("text", "text"),)


class ParseAngle(msgspec.Struct, frozen=True, tag="parse-angle"):
    """Parses degrees, north and east positive: decimal, degrees-minutes-seconds or NMEA."""

    axis: Axis
    form: AngleForm = "dms"
    decimal: DecimalMark = "point"

    def takes(self, arguments: int) -> tuple[Port, ...]:
        return (Port("text", "text"),)

    def gives(self, results: int) -> tuple[Port, ...]:
        return (Port(self.axis, "number", "deg"),)


class WriteAngle(msgspec.Struct, frozen=True, tag="write-angle"):
    """Writes degrees with the letter of the hemisphere; `digits` of its last part."""

    axis: Axis
    form: AngleForm = "dms"
    digits: int = 2

    def takes(self, arguments: int) -> tuple[Port, ...]:
        return (Port(self.axis, "number", "deg"),)

    def gives(self, results: int) -> tuple[Port, ...]:
        return (Port("text", "text"),)


def _kind_of(time_format: str) -> PortKind:
    return "number" if time_format in (EPOCH_SECONDS, EPOCH_MILLISECONDS) else "text"


Notation = ParseTime | WriteTime | ParseNumber | WriteNumber | ParseAngle | WriteAngle


_UNIT_MS = {EPOCH_SECONDS: 1_000.0, EPOCH_MILLISECONDS: 1.0}


def notation_calculation(how: Notation, name: str, kinds: list[str]) -> Calculation:
    """`kinds`: the kinds of the results."""
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
    """A `Time` as int; an integral float is accepted."""
    found = number(value, name)
    if found != math.floor(found):
        raise RejectedValue(
            "value.not_an_integer", f"{name} is {str(value)[:SHOWN]}, not a whole number"
        )
    return int(value)


def write_number(value: float, how: WriteNumber) -> str:
    """The shortest text that parses back to the number, or a fixed number of decimals."""
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
            raise RejectedValue("value.too_few_parts", f"{name}: {written!r} has not {parts} parts")
        return found

    return write
