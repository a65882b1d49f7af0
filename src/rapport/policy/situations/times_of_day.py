"""Times of day and days, as the clocks of a zone show them. [SI-7]"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from rapport.policy.operators.base import PullData
from rapport.policy.situation_plan import DayRange, TableDays, TimeWindow, YearDay
from rapport.policy.situations.traces import FALSE, TRUE, UNKNOWN, Points, Step, Trace, TraceScope

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_MS = 86_400_000
_AHEAD_MS = 32 * _DAY_MS
_FIRST = (datetime(2, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_LAST = (datetime(9998, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
"""Outside of these years clocks show nothing, and a time window is never open."""


class ZoneClock:
    """Whether the clock of a zone shows a time of a window, and when that may change."""

    def __init__(self, window: TimeWindow, days: Mapping[str, Collection[str]]) -> None:
        """`days`: the days of each table, as ISO dates."""
        self._window, self._days = window, days
        self._zone = ZoneInfo(window.zone)
        self._minutes = {0, window.first_minute, window.end_minute % 1440}

    def shows(self, time: int) -> bool:
        if not _FIRST <= time < _LAST:
            return False
        window, local = self._window, self._local(time)
        today, minute = local.date(), 60 * local.hour + local.minute
        if window.first_minute < window.end_minute:
            return window.first_minute <= minute < window.end_minute and self._is_on(today)
        if minute >= window.first_minute:
            return self._is_on(today)
        return minute < window.end_minute and self._is_on(today - timedelta(days=1))

    def changes(self, begin: int, end: int) -> list[int]:
        """The times in [begin, end) at which `shows` may change, in order."""
        low, high = max(begin, _FIRST), min(end, _LAST)
        if low >= high:
            return []
        found = set()
        day = self._local(low).date() - timedelta(days=1)
        last = self._local(high).date() + timedelta(days=1)
        while day <= last:
            for minute in self._minutes:
                for fold in (0, 1):
                    shown = datetime(
                        *(day.year, day.month, day.day, minute // 60, minute % 60),
                        tzinfo=self._zone,
                        fold=fold,
                    )
                    found.add((shown - _EPOCH) // timedelta(milliseconds=1))
            day += timedelta(days=1)
        found |= self._shifts(low, high)
        return sorted(time for time in found if low <= time < high)

    def _shifts(self, begin: int, end: int) -> set[int]:
        """The instants at which the clocks are put forward or back."""
        found = set()
        for low in range(begin - 1, end, _DAY_MS):
            high = min(low + _DAY_MS, end)
            if self._offset(low) == self._offset(high):
                continue
            while high - low > 1:
                middle = (low + high) // 2
                if self._offset(middle) == self._offset(low):
                    low = middle
                else:
                    high = middle
            found.add(high)
        return found

    def _offset(self, time: int) -> timedelta | None:
        return self._local(time).utcoffset()

    def _local(self, time: int) -> datetime:
        # In integers: a float of seconds would round milliseconds up into the next minute.
        return (_EPOCH + timedelta(milliseconds=time)).astimezone(self._zone)

    def _is_on(self, day: date) -> bool:
        days = self._window.days
        return not days or any(self._is_one(day, one) for one in days)

    def _is_one(self, day: date, wanted: DayRange | YearDay | TableDays) -> bool:
        match wanted:
            case YearDay(month, number):
                return (day.month, day.day) == (month, number)
            case DayRange(first, last):
                return (day.weekday() - first) % 7 <= (last - first) % 7
            case TableDays(table):
                return day.isoformat() in self._days[table]


class TimeOfDayTrace(Trace):
    """A time window as a truth; one row."""

    def __init__(self, scope: TraceScope, window: TimeWindow, pull: PullData) -> None:
        super().__init__(scope, UNKNOWN)
        tables = [day.table for day in window.days if isinstance(day, TableDays)]
        self._clock = ZoneClock(window, {table: pull.days(table) for table in tables})
        self._changes: list[int] = []
        self._until: int | None = None
        """How far the changes are known; None: nothing was looked at with these tables."""

    def compute(self, step: Step) -> Points:
        times: list[int] = []
        if self._until is None:
            self._until = step.begin
            times.append(step.begin)
        if self._until <= step.end:
            until = step.end + _AHEAD_MS
            self._changes = [one for one in self._changes if one >= step.begin]
            self._changes += self._clock.changes(self._until, until)
            self._until = until
        first = bisect_left(self._changes, step.begin)
        times += self._changes[first : bisect_left(self._changes, step.end)]
        found: list[tuple[int, int]] = []
        now = int(self.now[0])
        for time in dict.fromkeys(times):
            value = TRUE if self._clock.shows(time) else FALSE
            if value != now:
                found.append((time, value))
                now = value
        if not found:
            return self._none
        instants, values = zip(*found, strict=True)
        rows = np.zeros(len(found), np.int64)
        return Points(rows, np.array(instants, np.int64), np.array(values, np.int8))

    def due(self) -> int | None:
        step = self._step
        place = bisect_left(self._changes, step.end) if step is not None else 0
        return self._changes[place] if place < len(self._changes) else self._until

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._changes, self._until = [], None
