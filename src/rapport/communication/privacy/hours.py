"""Times of the day, days and dates on somebody's own clock, and when they are over. [CO-9]

Pure: the time is an argument. Local clock time decides, so a night is an hour shorter or longer
when the clock changes.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from rapport.core.errors import InvalidInput

DAY_MINUTES = 1440
_HOURS = re.compile(r"\s*(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})\s*\Z")
_CLOCK = re.compile(r"\s*(\d{1,2}):(\d{2})\s*\Z")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_SPANS = 1_000
"""Spans that follow each other without a gap; more is as good as never."""


class DaySpan(msgspec.Struct, frozen=True, array_like=True):
    """From `start` up to but not including `end`, minutes after local midnight; `start > end`
    reaches across midnight and belongs to the day it begins on."""

    start: int
    end: int


class DateSpan(msgspec.Struct, frozen=True, array_like=True):
    """Both days included: `2026-08-01` to `2026-08-14`, or `12-24` to `01-06` in every year."""

    first: str
    last: str

    def has(self, day: date) -> bool:
        """Whether the day lies in it."""
        shown = day.isoformat()
        shown = shown[-len(self.first) :] if len(self.first) < len(shown) else shown
        if self.first <= self.last:
            return self.first <= shown <= self.last
        return shown >= self.first or shown <= self.last


class LocalTimes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Hours on days that are among `days` (0 = Monday) and `dates`; what is empty is not asked."""

    hours: tuple[DaySpan, ...] = ()
    days: tuple[int, ...] = ()
    dates: tuple[DateSpan, ...] = ()

    def has_day(self, day: date) -> bool:
        """Whether hours that begin on this day count."""
        fits = not self.days or day.weekday() in self.days
        return fits and (not self.dates or any(span.has(day) for span in self.dates))

    def never_end(self) -> bool:
        """Whether every minute of every day is in it."""
        if (self.days and len(set(self.days)) < 7) or self.dates:
            return False
        covered = {minute for span in self.hours for minute in _minutes(span)}
        return not self.hours or len(covered) == DAY_MINUTES


_WHOLE_DAY = (DaySpan(0, DAY_MINUTES),)


def parse_hours(text: str) -> DaySpan:
    """A span of the day; raises InvalidInput.

    >>> parse_hours("22:00-07:00"), parse_hours("18:00-24:00")
    (DaySpan(start=1320, end=420), DaySpan(start=1080, end=1440))
    """
    found = _HOURS.match(text)
    numbers = [int(part) for part in found.groups()] if found else []
    start = numbers[0] * 60 + numbers[1] if numbers else 0
    end = numbers[2] * 60 + numbers[3] if numbers else 0
    wrong = not numbers or numbers[1] > 59 or numbers[3] > 59
    if wrong or start >= DAY_MINUTES or end > DAY_MINUTES:
        raise InvalidInput(
            f"{text[:40]!r} is not a span of the day",
            code="peer.bad_quiet",
            hint="write local times from 00:00 to 24:00, such as 22:00-07:00",
        )
    if start == end:
        raise InvalidInput(
            f"{text[:40]!r} begins when it ends, so nobody knows whether it is all day or never",
            code="peer.bad_quiet",
            hint="leave it out to be reachable always",
        )
    return DaySpan(start, end)


def parse_clock(text: str) -> int:
    """A time of the day in minutes after midnight; raises InvalidInput.

    >>> parse_clock("08:30")
    510
    """
    found = _CLOCK.match(text)
    hour, minute = (int(found[1]), int(found[2])) if found else (24, 0)
    if hour > 23 or minute > 59:
        raise InvalidInput(
            f"{text[:40]!r} is not a time of the day",
            code="privacy.bad_clock",
            hint="write a local time from 00:00 to 23:59, such as 08:00",
        )
    return hour * 60 + minute


def is_zone(name: str) -> bool:
    """Whether the name is a time zone.

    >>> is_zone("Europe/Vienna"), is_zone("Europe/Atlantis"), is_zone("../etc")
    (True, False, False)
    """
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def end_of(times: LocalTimes, zone: str, now_ms: int) -> int | None:
    """When the times that `now_ms` lies in are over; None when it lies in none.

    An end that the clock skips comes at the moment of the change; one that comes twice counts the
    first time. Spans that follow each other count as one.
    """
    found, moment = None, now_ms
    for _ in range(_MOST_SPANS):
        end = _first_end(times, zone, moment)
        if end is None:
            break
        found = moment = end
    return found


def next_clock(minute: int, zone: str, after_ms: int) -> int:
    """The first moment after `after_ms` at which local clocks show this minute of the day."""
    day = local_time(after_ms, zone).date()
    return _next_moment(day, minute, zone, after_ms)


def local_time(moment_ms: int, zone: str) -> datetime:
    """The moment on the zone's clock."""
    return (_EPOCH + timedelta(milliseconds=moment_ms)).astimezone(ZoneInfo(zone))


def _first_end(times: LocalTimes, zone: str, moment_ms: int) -> int | None:
    local = local_time(moment_ms, zone)
    ends = []
    for span in times.hours or _WHOLE_DAY:
        last = _last_day(times, span, local)
        if last is not None:
            ends.append(_next_moment(last, span.end, zone, moment_ms))
    return max(ends, default=None)


def _last_day(times: LocalTimes, span: DaySpan, local: datetime) -> date | None:
    """The day on which the span ends that `local` lies in; None when it lies outside."""
    today, minute = local.date(), local.hour * 60 + local.minute
    if span.start < span.end:
        inside = span.start <= minute < span.end
        return today if inside and times.has_day(today) else None
    if minute >= span.start and times.has_day(today):
        return today + timedelta(days=1)
    if minute < span.end and times.has_day(today - timedelta(days=1)):
        return today
    return None


def _next_moment(day: date, minute: int, zone: str, after_ms: int) -> int:
    """The first time local clocks show `minute` after `after_ms`, on `day` or later."""
    for days in range(3):
        for fold in (0, 1):
            moment = _moment(day + timedelta(days=days), minute, zone, fold)
            if moment > after_ms:
                return moment
    raise AssertionError("a day has an end")  # pragma: no cover - both of tomorrow's are later


def _moment(day: date, minute: int, zone: str, fold: int) -> int:
    """That minute of that day, in ms UTC; the change of the clock when it skips it."""
    info, days = ZoneInfo(zone), minute // DAY_MINUTES
    day, minute = day + timedelta(days=days), minute % DAY_MINUTES
    wall = datetime(day.year, day.month, day.day, minute // 60, minute % 60, tzinfo=info, fold=fold)
    moment = wall.astimezone(UTC)
    back = moment.astimezone(info)
    if back.replace(tzinfo=None) != wall.replace(tzinfo=None):
        # Skipped: both readings of the wall time miss it. The clock jumped over the end, so it is
        # quiet no more from the jump on, which is where the two offsets meet.
        before = wall.replace(fold=0).utcoffset() or timedelta()
        after = wall.replace(fold=1).utcoffset() or timedelta()
        moment = _first_after_gap(moment, info, abs(after - before))
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _first_after_gap(moment: datetime, zone: ZoneInfo, width: timedelta) -> datetime:
    """The change of the clock near `moment`: offsets change on whole minutes nowadays."""
    at = moment.replace(second=0, microsecond=0) - width
    offset = at.astimezone(zone).utcoffset()
    while at.astimezone(zone).utcoffset() == offset:
        at += timedelta(minutes=1)
    return at


def _minutes(span: DaySpan) -> set[int]:
    """The minutes of the day that a span covers."""
    end = span.end if span.start < span.end else span.end + DAY_MINUTES
    return {minute % DAY_MINUTES for minute in range(span.start, end)}
