"""Duty rosters: which members of a group are on duty, and when that changes. [CN-9]

A roster is a list of shifts in local time. A shift holds on its days and dates, during its hours;
one that reaches across midnight belongs to the day it begins on. A substitute takes the shifts of
another person over: without hours of its own those that begin on its days, with hours while these
hold. Substitutes are not substituted, so that two people can swap. All functions are pure, with the
time as an argument; the change of the clock makes a night an hour shorter or longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from rapport.communication.privacy import (
    DAY_MINUTES,
    LocalTimes,
    clock_change,
    moment_of,
    start_days,
)
from rapport.communication.texts import EPOCH, local_time
from rapport.core.errors import InvalidInput

ALWAYS = LocalTimes()
DAY_NAMES = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
LONGEST_LOOK_DAYS = 400
"""How far `next_change` looks ahead: a year of dates, and some more."""
_WEEK_MINUTES = 7 * DAY_MINUTES
_MINUTE_MS = 60_000
_EARLIEST_MS, _LATEST_MS = 0, 32_503_680_000_000
"""1970 to 3000, so that no date near them leaves the calendar."""
_MONDAY = datetime(2024, 1, 1, tzinfo=UTC)


class Shift(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a person is on duty, or stands in for another one."""

    person: str
    when: LocalTimes = ALWAYS
    instead_of: str = ""
    """The person whose shifts are taken over; empty = a shift of its own."""


class Roster(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    shifts: tuple[Shift, ...]
    zone: str = "UTC"
    """Time zone of hours, days and dates."""

    def people(self) -> set[str]:
        """Everybody who is ever on duty."""
        return {shift.person for shift in self.shifts}


class DutySpan(msgspec.Struct, frozen=True):
    """Who is on duty from `start` until `end` (ms UTC), sorted; empty = nobody."""

    start: int
    end: int
    people: tuple[str, ...]


class DutyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The duty of a group as people see it."""

    group: str
    zone: str
    on_duty: tuple[str, ...]
    """Those on duty at the beginning; empty = nobody, so that messages go to all members."""
    next_change: int | None
    """When others come on duty then (ms UTC); null when it stays as it is for over a year."""
    spans: list[DutySpan]


def on_duty(roster: Roster, now_ms: int) -> tuple[str, ...]:
    """The names of those on duty, sorted; empty = nobody."""
    local = local_time(now_ms, roster.zone)
    return tuple(
        sorted(
            {
                name
                for shift in roster.shifts
                if not shift.instead_of
                for began in start_days(shift.when, local)
                for name in _persons(roster, shift.person, began, local)
            }
        )
    )


def _persons(roster: Roster, person: str, began: date, local: datetime) -> list[str]:
    """The substitutes of a person for the shift that began on this day, else the person."""
    substitutes = [
        shift.person
        for shift in roster.shifts
        if shift.instead_of == person
        and (start_days(shift.when, local) if shift.when.hours else shift.when.has_day(began))
    ]
    return substitutes or [person]


def next_change(roster: Roster, now_ms: int) -> int | None:
    """When others come on duty; None when that stays as it is for over a year."""
    people, today = on_duty(roster, now_ms), local_time(now_ms, roster.zone).date()
    for days in range(LONGEST_LOOK_DAYS):
        for moment in _changes_of(roster, today + timedelta(days=days)):
            if moment > now_ms and on_duty(roster, moment) != people:
                return moment
    return None


def duty_spans(roster: Roster, from_ms: int, to_ms: int) -> list[DutySpan]:
    """Who is on duty from one moment to another, in order and without holes."""
    found: list[DutySpan] = []
    start, people = from_ms, on_duty(roster, from_ms)
    for moment in _changes_between(roster, from_ms, to_ms):
        then = on_duty(roster, moment)
        if then != people:
            found.append(DutySpan(start, moment, people))
            start, people = moment, then
    return [*found, DutySpan(start, to_ms, people)] if start < to_ms else found


def duty_plan(group: str, roster: Roster, from_ms: int, to_ms: int) -> DutyPlan:
    """Who is on duty from one moment to another; raises InvalidInput for a bad span."""
    if not from_ms < to_ms <= from_ms + LONGEST_LOOK_DAYS * DAY_MINUTES * _MINUTE_MS:
        raise InvalidInput(
            f"from must be before to, at most {LONGEST_LOOK_DAYS} days",
            code="collective.bad_span",
            hint="leave both out for two weeks from now",
        )
    if not _EARLIEST_MS < from_ms < to_ms < _LATEST_MS:
        raise InvalidInput("that is too far away", code="collective.bad_span")
    return DutyPlan(
        group=group,
        zone=roster.zone,
        on_duty=on_duty(roster, from_ms),
        next_change=next_change(roster, from_ms),
        spans=duty_spans(roster, from_ms, to_ms),
    )


def weekly_gaps(roster: Roster, least: int = 1) -> list[tuple[int, int]]:
    """The minutes of the week (0 = Monday 00:00) in which fewer than `least` are on duty, start and
    end; one across the end of the week ends after 10,080. Only shifts without dates count, since
    they hold every week; none at all leave no gap that could be named.
    """
    standing = tuple(s for s in roster.shifts if not (s.instead_of or s.when.dates))
    if not standing:
        return []
    monday_ms = (_MONDAY - EPOCH) // timedelta(milliseconds=1)
    week = Roster(shifts=standing)
    spans = duty_spans(week, monday_ms, monday_ms + _WEEK_MINUTES * _MINUTE_MS)
    gaps: list[tuple[int, int]] = []
    for span in spans:
        if len(span.people) < least:
            start, end = ((at - monday_ms) // _MINUTE_MS for at in (span.start, span.end))
            joins = bool(gaps) and gaps[-1][1] == start
            gaps[-1:] = [(gaps[-1][0], end)] if joins else [*gaps[-1:], (start, end)]
    if len(gaps) > 1 and gaps[0][0] == 0 and gaps[-1][1] == _WEEK_MINUTES:
        gaps = [*gaps[1:-1], (gaps[-1][0], _WEEK_MINUTES + gaps[0][1])]
    return gaps


def week_time(minute: int) -> str:
    """A minute of the week in words.

    >>> week_time(5 * 1440 + 480), week_time(10_080)
    ('Sat 08:00', 'Mon 00:00')
    """
    day, left = divmod(minute % _WEEK_MINUTES, DAY_MINUTES)
    return f"{DAY_NAMES[day].capitalize()} {left // 60:02}:{left % 60:02}"


def roster_settings(roster: Roster) -> list[dict[str, Any]]:
    """The shifts as a site file writes them."""
    return [_shift_settings(shift) for shift in roster.shifts]


def _shift_settings(shift: Shift) -> dict[str, Any]:
    when = shift.when
    days = "mon-sun" if len(when.days) == len(DAY_NAMES) else ""
    settings: dict[str, Any] = {
        "person": shift.person,
        "instead_of": shift.instead_of,
        "days": days or [DAY_NAMES[day] for day in when.days],
        "hours": list(map(str, when.hours)),
        "dates": [f"{span.first}..{span.last}" for span in when.dates],
    }
    return {key: value for key, value in settings.items() if value}


# --- the moments at which shifts can begin or end ---


def _changes_between(roster: Roster, from_ms: int, to_ms: int) -> Iterator[int]:
    day, last = (local_time(at, roster.zone).date() for at in (from_ms, to_ms))
    while day <= last:
        yield from (at for at in _changes_of(roster, day) if from_ms < at < to_ms)
        day += timedelta(days=1)


def _changes_of(roster: Roster, day: date) -> Sequence[int]:
    """The moments of a local day at which somebody may come or go, in order: its midnight, the ends
    of hours, and the change of the clock.
    """
    minutes = {0}
    for shift in roster.shifts:
        for span in shift.when.hours:
            minutes |= {span.start, span.end % DAY_MINUTES}
    found = {moment_of(day, minute, roster.zone, fold) for minute in minutes for fold in (0, 1)}
    low, high = (
        EPOCH + timedelta(milliseconds=moment_of(day + timedelta(days=days), 0, roster.zone, 0))
        for days in (0, 1)
    )
    if change := clock_change(low, high, ZoneInfo(roster.zone)):
        found.add((change - EPOCH) // timedelta(milliseconds=1))
    return sorted(found)
