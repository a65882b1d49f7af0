"""Kinds of conversion between a value and how it is written: times, numbers, angles. [ME-4]

Each is plain data; what it does is in `reading_texts.py`.
"""

from __future__ import annotations

import msgspec

from rapport.mediation.model.ports import Port, PortKind
from rapport.units.angles import AngleForm, Axis
from rapport.units.quantities import DecimalMark
from rapport.units.timeformats import Fold

ISO, EPOCH_SECONDS, EPOCH_MILLISECONDS = "iso8601", "epoch_s", "epoch_ms"


class ParseTime(msgspec.Struct, frozen=True, tag="parse-time"):
    """Text or a number to milliseconds since 1970 UTC (`Time`).

    Several texts, such as date and time of day, are joined by `separator` first. A local time needs
    `zone`; one that does not exist is rejected, one that comes twice too unless `fold` says which.
    """

    format: str = ISO
    """`iso8601`, `epoch_s`, `epoch_ms` or a pattern of strptime."""
    zone: str = ""
    fold: Fold = ""
    separator: str = " "
    attributes: tuple[str, ...] = ()
    """The parts, when they are taken out of one object."""

    def takes(self, arguments: int) -> tuple[Port, ...]:
        names = self.attributes or tuple(f"part {number + 1}" for number in range(arguments))
        return tuple(Port(name, _kind_of(self.format)) for name in names)

    def gives(self, results: int) -> tuple[Port, ...]:
        return (Port("time", "integer"),)


class WriteTime(msgspec.Struct, frozen=True, tag="write-time"):
    """`Time` to text or a number; several results are the text cut at `separator`.

    Local text without an offset does not tell the two hours apart when the clocks go back: lossy.
    """

    format: str = ISO
    zone: str = ""
    """Empty: UTC."""
    separator: str = " "
    attributes: tuple[str, ...] = ()
    """What the parts are called, when they become one object."""

    def takes(self, arguments: int) -> tuple[Port, ...]:
        return (Port("time", "integer"),)

    def gives(self, results: int) -> tuple[Port, ...]:
        """Seconds are whole where the signature says integer."""
        names = self.attributes or tuple(f"part {number + 1}" for number in range(results))
        kind: PortKind = "integer" if _kind_of(self.format) == "number" else "text"
        return tuple(Port(name, kind) for name in names)


class ParseNumber(msgspec.Struct, frozen=True, tag="parse-number"):
    """Text to a number, with a decimal point or comma; no thousands separators."""

    decimal: DecimalMark = "point"

    def takes(self, arguments: int) -> tuple[Port, ...]:
        return (Port("text", "text"),)

    def gives(self, results: int) -> tuple[Port, ...]:
        return (Port("number", "number"),)


class WriteNumber(msgspec.Struct, frozen=True, tag="write-number"):
    """A number to text; with `digits` after the mark, else as many as it needs."""

    decimal: DecimalMark = "point"
    digits: int | None = None

    def takes(self, arguments: int) -> tuple[Port, ...]:
        return (Port("number", "number"),)

    def gives(self, results: int) -> tuple[Port, ...]:
        return (Port("text", "text"),)


class ParseAngle(msgspec.Struct, frozen=True, tag="parse-angle"):
    """Text to degrees, north and east positive: decimal, degrees-minutes-seconds or NMEA."""

    axis: Axis
    form: AngleForm = "dms"
    decimal: DecimalMark = "point"

    def takes(self, arguments: int) -> tuple[Port, ...]:
        return (Port("text", "text"),)

    def gives(self, results: int) -> tuple[Port, ...]:
        return (Port(self.axis, "number", "deg"),)


class WriteAngle(msgspec.Struct, frozen=True, tag="write-angle"):
    """Degrees to text with the letter of the hemisphere; `digits` of its last part."""

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
NOTATIONS = (ParseTime, WriteTime, ParseNumber, WriteNumber, ParseAngle, WriteAngle)
