"""Times as text by whole columns: fixed patterns, and the offsets of a zone day by day. [ME-14]

Pure. Offsets are Python's own, so that a column and a generated transformer use one set of rules,
whatever Java was built with. Days on which the clocks change are left to the transformer.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from functools import lru_cache

import msgspec

from rapport.core.times import zone_named

FIRST_YEAR, LAST_YEAR = 1980, 2060
_PIECES = {"%Y": "0000", "%m": "00", "%d": "00", "%H": "00", "%M": "00", "%S": "00"}
_DIRECTIVE = re.compile(r"%.")
_SAMPLES = (0, 12, 24)
"""Hours of a day; no clock changes there and back within half of one."""
_MOST_OFFSETS = 120


class FixedPattern(msgspec.Struct, frozen=True):
    """A pattern whose pieces have fixed places, `places`, counted from 1. `shapes` are the text
    with 0 for each digit; several where it ends with a fraction of a second.
    """

    shapes: tuple[str, ...]
    places: dict[str, int]


def is_fixed_pattern(pattern: str) -> bool:
    """Each piece of the date, and perhaps of the time of day, stands once, with marks between."""
    return fixed_pattern(pattern) is not None


def fixed_pattern(pattern: str) -> FixedPattern | None:
    """The pattern by places; None when only `strptime` knows what it reads.

    >>> fixed_pattern("%d/%m/%Y %H:%M").shapes
    ('00/00/0000 00:00',)
    """
    shape, places, end = "", {}, 0
    whole = pattern.removesuffix("%f")
    for match in _DIRECTIVE.finditer(whole):
        between, piece = whole[end : match.start()], match[0]
        if piece not in _PIECES or piece in places or not _is_mark(between):
            return None
        shape += between
        places[piece] = len(shape) + 1
        shape += _PIECES[piece]
        end = match.end()
    if not _is_mark(whole[end:]) or not {"%Y", "%m", "%d"} <= places.keys():
        return None
    shape += whole[end:]
    if not set(shape) - set("0.-"):
        return None  # it could be a number
    if whole != pattern:
        places["%f"] = len(shape) + 1
        return FixedPattern(tuple(shape + "0" * digits for digits in range(1, 7)), places)
    return FixedPattern((shape,), places) if shape == shape.strip() else None


def _is_mark(text: str) -> bool:
    """Stands for itself in a pattern and in the text: printable ASCII that is no digit; a letter
    would be read in both cases of it.
    """
    return all(
        " " <= each <= "~" and not each.isalnum() and each != "%" for each in text
    ) and not re.search("  ", text)


class ZoneDays(msgspec.Struct, frozen=True):
    """Offsets of a zone by local day: `codes` has a byte for each day from the first of FIRST_YEAR
    on, that many-th of `offsets_ms` counted from 1; 0 is a day that needs a closer look.
    """

    codes: bytes
    offsets_ms: tuple[int, ...]


@lru_cache(maxsize=32)
def zone_days(zone: str) -> ZoneDays:
    """The days of a zone; some tenths of a second. Raises InvalidInput for an unknown one."""
    place = zone_named(zone)
    offsets: dict[int, int] = {}
    codes = bytearray()
    day, last = datetime(FIRST_YEAR, 1, 1), datetime(LAST_YEAR, 12, 31)  # noqa: DTZ001 - local
    while day <= last:
        found = {
            (day + timedelta(hours=hours)).replace(tzinfo=place, fold=fold).utcoffset()
            for hours in _SAMPLES
            for fold in (0, 1)
        }
        offset = found.pop()
        if found or offset is None or offset.microseconds or len(offsets) >= _MOST_OFFSETS:
            codes.append(0)
        else:
            milliseconds = round(offset.total_seconds()) * 1_000
            codes.append(offsets.setdefault(milliseconds, len(offsets) + 1))
        day += timedelta(days=1)
    return ZoneDays(bytes(codes), tuple(offsets))
