"""Times as Spark's columns: epochs, ISO 8601 and fixed patterns, to milliseconds. [ME-14, PI-4]

Only texts of fixed shapes are read here, in which every digit has its place; Spark and Python agree
on these, and what the calendar does not have gives null.
"""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

from rapport.pipeline.mediating.instants import FIRST_YEAR, ZoneDays, fixed_pattern, zone_days
from rapport.pipeline.mediating.nodes import Instant
from rapport.units.timeformats import EARLIEST_MS, LATEST_MS

if TYPE_CHECKING:
    from pyspark.sql import Column

_DAY_MS = 86_400_000
_FIRST_DAY = (date(FIRST_YEAR, 1, 1) - date(1970, 1, 1)).days
_FRACTIONS = ("", ".000", ".000000")
_ISO = tuple(f"0000-00-00{mark}00:00:00{part}" for mark in "T " for part in _FRACTIONS)
_ZONED = tuple(f"{shape}{zone}" for shape in _ISO for zone in ("Z", "+00:00", "-00:00"))
_WHOLE = r"^-?[0-9]{1,15}$"


class TimeColumns:
    """Expressions of times; null for what needs a closer look."""

    def __init__(self) -> None:
        from pyspark.sql import functions

        self._f = functions

    def epoch(self, number: Column, unit_ms: float) -> Column:
        """A number of seconds or milliseconds since 1970; halves go to the even one."""
        time = number * self._f.lit(unit_ms)
        inside = (time >= float(EARLIEST_MS)) & (time <= float(LATEST_MS))
        return self._f.when(inside, self._f.rint(time).try_cast("bigint"))

    def instant(self, text: Column, node: Instant) -> Column:
        """Text as ISO 8601 or a fixed pattern has it."""
        if not node.pattern:
            return self._iso(text, node.zone)
        fixed = fixed_pattern(node.pattern)
        if fixed is None or not node.zone:
            return self._f.lit(None).cast("bigint")
        pieces: list[Column] = []
        for piece, after in zip(("%Y", "%m", "%d", "%H", "%M", "%S"), "--T::.", strict=True):
            place = fixed.places.get(piece)
            length = 4 if piece == "%Y" else 2
            digits = self._f.lit("00") if place is None else self._f.substring(text, place, length)
            pieces += [digits, self._f.lit(after)]
        fraction = fixed.places.get("%f")
        pieces.append(self._f.substring(text, fraction, 6) if fraction else self._f.lit("0"))
        local = self._read(self._f.concat(*pieces, self._f.lit("Z")))
        fits = self._shape(text).isin(*fixed.shapes) & (pieces[0] != "0000")
        return self._f.when(fits, self._from_local(local, node.zone))

    def moment(self, text: Column) -> Column:
        """Whole milliseconds, or ISO 8601 that says its offset."""
        whole = self._f.when(text.rlike(_WHOLE), text.try_cast("bigint"))
        return self._f.coalesce(whole, self._iso(text, ""))

    def _iso(self, text: Column, zone: str) -> Column:
        shape = self._shape(text)
        there = self._f.substring(text, 1, 4) != "0000"
        found = self._f.when(there & shape.isin(*_ZONED), self._read(text))
        if not zone:
            return found
        local = self._read(self._f.concat(text, self._f.lit("Z")))
        return found.when(there & shape.isin(*_ISO), self._from_local(local, zone))

    def _shape(self, text: Column) -> Column:
        return self._f.translate(text, "123456789", "000000000")

    def _read(self, text: Column) -> Column:
        return self._f.unix_millis(text.try_cast("timestamp"))

    def _from_local(self, local: Column, zone: str) -> Column:
        """By the offset of that day; a byte of a constant says which."""
        if zone == "UTC":
            return local
        days: ZoneDays = zone_days(zone)
        day = self._f.floor(local / self._f.lit(_DAY_MS)) - self._f.lit(_FIRST_DAY)
        codes = self._f.lit(bytearray(days.codes))
        code = self._f.ascii(self._f.substring(codes, day.cast("int") + 1, 1).cast("string"))
        offsets = self._f.array(*(self._f.lit(each) for each in days.offsets_ms))
        inside = (day >= 0) & (day < len(days.codes))
        return self._f.when(inside, local - self._f.get(offsets, code - 1).cast("bigint"))
