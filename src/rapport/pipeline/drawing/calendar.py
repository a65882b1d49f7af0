"""Days, hours and weekdays of many times at once, in a time zone; months as rows of days. Pure.
[PI-9]
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo

import msgspec
import numpy as np
import numpy.typing as npt

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
LEVELS = 4
"""Shades of a day on which something was found."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_QUARTER_MS, _HOUR_MS, _DAY_MS = 900_000, 3_600_000, 86_400_000
_THURSDAY = 3
"""The weekday of 1970-01-01."""

Times = npt.NDArray[np.int64]


class Month(msgspec.Struct, frozen=True):
    """A row of the calendar: `2025-01`, and a count for each of its days; None: outside."""

    name: str
    days: list[int | None]

    @property
    def total(self) -> int:
        """Of the whole month."""
        return sum(day or 0 for day in self.days)


class Calendar:
    """Counts times by the clock on the wall in one zone; None is the machine's own."""

    def __init__(self, zone: tzinfo | None = UTC) -> None:
        self._zone = zone

    def per_day(self, times: Times) -> dict[str, int]:
        """Days with at least one time, in order."""
        days, counts = np.unique(self._local(times) // _DAY_MS, return_counts=True)
        return {day_name(int(day)): int(n) for day, n in zip(days, counts, strict=True)}

    def by_hour(self, times: Times) -> list[list[int]]:
        local = self._local(times)
        weekday = (local // _DAY_MS + _THURSDAY) % 7
        hour = local // _HOUR_MS % 24
        counts = np.bincount(weekday * 24 + hour, minlength=7 * 24)
        return [[int(count) for count in row] for row in counts.reshape(7, 24)]

    def day_of(self, time_ms: int) -> str:
        """The day of one time."""
        return day_name(int(self._local(np.array([time_ms], np.int64))[0] // _DAY_MS))

    def clock(self, time_ms: int) -> str:
        """`2025-01-02 15:13:13.549`; milliseconds only where there are some."""
        local = int(self._local(np.array([time_ms], np.int64))[0])
        day, rest = divmod(local, _DAY_MS)
        hours, rest = divmod(rest, _HOUR_MS)
        minutes, rest = divmod(rest, 60_000)
        seconds, parts = divmod(rest, 1_000)
        said = f"{day_name(day)} {hours:02}:{minutes:02}:{seconds:02}"
        return f"{said}.{parts:03}" if parts else said

    def _local(self, times: Times) -> Times:
        """Milliseconds as if the clock on the wall were UTC. Offsets change at quarters of an hour
        only, so each quarter is asked for once.
        """
        if self._zone is UTC or not len(times):
            return times
        quarters, places = np.unique(times // _QUARTER_MS, return_inverse=True)
        offsets = [self._offset_ms(int(quarter)) for quarter in quarters]
        return np.asarray(times + np.array(offsets, np.int64)[places], np.int64)

    def _offset_ms(self, quarter: int) -> int:
        try:
            moment = _EPOCH + timedelta(milliseconds=quarter * _QUARTER_MS)
            offset = moment.astimezone(self._zone).utcoffset()
        except OverflowError:
            return 0
        return 0 if offset is None else round(offset.total_seconds() * 1_000)


def day_name(number: int) -> str:
    """`2025-01-02` of days since 1970; digits where no calendar goes.

    >>> day_name(20090)
    '2025-01-02'
    """
    ordinal = number + 719_163
    return date.fromordinal(ordinal).isoformat() if 1 <= ordinal <= 3_652_059 else str(number)


def months(days: dict[str, int], first: str, last: str) -> list[Month]:
    """Every month from the first day to the last, with the days before and after left empty. Days
    that no calendar names are left out, also as the first or the last.
    """
    named = [day for day in (first, last, *days) if _is_named(day)]
    if not named:
        return []
    first = first if _is_named(first) else min(named)
    last = last if _is_named(last) else max(named)
    return [
        Month(
            f"{year:04}-{month:02}", [_count(days, day, first, last) for day in _days(year, month)]
        )
        for year, month in _each_month(first, last)
    ]


def level(count: int, most: int) -> int:
    """How strongly a count is shaded: 0 for none, 1 to LEVELS by its share of the most, by its
    root, so that a single one can be told from none and from many.
    """
    if count <= 0 or most <= 0:
        return 0
    share = min(count / most, 1.0) ** 0.5
    return max(1, int(np.ceil(share * LEVELS)))


def shades(most: int) -> list[tuple[int, int]]:
    """Of each shade the smallest and the largest count, without shades that no count has."""
    found: list[tuple[int, int]] = []
    low = 1
    for shade in range(1, LEVELS + 1):
        high = most if shade == LEVELS else int(most * (shade / LEVELS) ** 2)
        if high >= low:
            found.append((low, high))
            low = high + 1
    return found


def _each_month(first: str, last: str) -> Iterator[tuple[int, int]]:
    year, month = int(first[:4]), int(first[5:7])
    while (year, month) <= (int(last[:4]), int(last[5:7])):
        yield year, month
        year, month = (year + 1, 1) if month == 12 else (year, month + 1)


def _days(year: int, month: int) -> Iterator[str]:
    for day in range(1, monthrange(year, month)[1] + 1):
        yield date(year, month, day).isoformat()


def _is_named(day: str) -> bool:
    """Whether `day_name` found it in the calendar."""
    return day[4:5] == "-"


def _count(days: dict[str, int], day: str, first: str, last: str) -> int | None:
    return days.get(day, 0) if first <= day <= last else None
