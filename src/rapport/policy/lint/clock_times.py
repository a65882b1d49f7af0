"""Whether a clock can show a time at which some windows of time are open and others are not.
[SI-13]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rapport.policy.situation_plan import DayRange, TableDays, TimeWindow, YearDay

_MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


class WindowLiteral(NamedTuple):
    """A window of time that is open, or not."""

    window: TimeWindow
    is_open: bool


class _ShownDay(NamedTuple):
    """A day as a clock shows it: a day of the week, and of the year where that matters."""

    weekday: int
    date: tuple[int, int] | None


def can_be_shown(literals: Iterable[WindowLiteral]) -> bool:
    """Whether the clock of each zone can show a time that suits all its windows. The clocks of two
    zones are not compared, and what days a table has is not known: both count as possible.
    """
    by_zone: dict[str, list[WindowLiteral]] = {}
    for one in literals:
        by_zone.setdefault(one.window.zone, []).append(one)
    return all(map(_can_be_shown, by_zone.values()))


def _can_be_shown(literals: Sequence[WindowLiteral]) -> bool:
    windows = [one.window for one in literals]
    # Between these minutes no window opens or closes.
    minutes = {0, *(one.first_minute for one in windows), *(one.end_minute for one in windows)}
    has_dates = any(isinstance(day, YearDay) for one in windows for day in one.days)
    return any(
        all(_may_suit(one, minute % 1440, today, before) for one in literals)
        for today, before in _days(has_dates=has_dates)
        for minute in minutes
    )


def _days(*, has_dates: bool) -> Iterator[tuple[_ShownDay, _ShownDay]]:
    """Every day that a clock can show, with the day before it."""
    pairs: list[tuple[tuple[int, int] | None, tuple[int, int] | None]] = [(None, None)]
    if has_dates:
        dates = [
            (month, day)
            for month, count in enumerate(_MONTH_DAYS, 1)
            for day in range(1, count + 1)
        ]
        pairs = list(zip(dates, [dates[-1], *dates[:-1]], strict=True))
        pairs.append(((3, 1), (2, 28)))
    for weekday in range(7):
        for today, before in pairs:
            yield _ShownDay(weekday, today), _ShownDay((weekday - 1) % 7, before)


def _may_suit(literal: WindowLiteral, minute: int, today: _ShownDay, before: _ShownDay) -> bool:
    window = literal.window
    if window.first_minute < window.end_minute:
        begun = today if window.first_minute <= minute < window.end_minute else None
    elif minute >= window.first_minute:
        begun = today
    else:
        begun = before if minute < window.end_minute else None
    if begun is None:
        return not literal.is_open
    if not window.days or any(_is_day(one, begun) for one in window.days):
        return literal.is_open
    return not literal.is_open or any(isinstance(one, TableDays) for one in window.days)


def _is_day(wanted: DayRange | YearDay | TableDays, day: _ShownDay) -> bool:
    match wanted:
        case DayRange(first, last):
            return (day.weekday - first) % 7 <= (last - first) % 7
        case YearDay(month, number):
            return day.date == (month, number)
        case TableDays():
            return False
