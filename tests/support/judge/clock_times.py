"""Times of day and days as the clocks of a zone show them. [SI-7]"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from rapport.policy.language.situation_tree import CalendarDay, Day, DayTable, TimeOfDay, Weekdays

_HOUR_MS, _MINUTE_MS = 3_600_000, 60_000


def shows(time: TimeOfDay, t: int, zone: str, tables: Mapping[str, Collection[str]]) -> bool:
    """Whether the clock of the zone shows, at t, a time of a stretch that began on such a day."""
    local = _local(t, zone)
    today, minute = local.date(), 60 * local.hour + local.minute
    if time.first_minute is None or time.end_minute is None:
        return _is_on(today, time.days, tables)
    if time.first_minute < time.end_minute:
        inside = time.first_minute <= minute < time.end_minute
        return inside and _is_on(today, time.days, tables)
    if minute >= time.first_minute:
        return _is_on(today, time.days, tables)
    return minute < time.end_minute and _is_on(today - timedelta(days=1), time.days, tables)


def edges(time: TimeOfDay, start: int, end: int, zone: str) -> set[int]:
    """Every instant from start to end at which `shows` may change, and some more."""
    minutes = {0, time.first_minute or 0, (time.end_minute or 0) % 1440}
    found = _clock_changes(start, end, zone)
    day = _local(start, zone).date() - timedelta(days=1)
    while day <= _local(end, zone).date() + timedelta(days=1):
        for minute in minutes:
            for fold in (0, 1):
                shown = datetime(
                    *(day.year, day.month, day.day, minute // 60, minute % 60),
                    tzinfo=ZoneInfo(zone),
                    fold=fold,
                )
                found.add(round(shown.timestamp() * 1000))
        day += timedelta(days=1)
    return found


def _local(t: int, zone: str) -> datetime:
    # In integers: a float of seconds would round milliseconds up into the next minute.
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=t)
    return moment.astimezone(ZoneInfo(zone))


def _is_on(day: date, days: tuple[Day, ...], tables: Mapping[str, Collection[str]]) -> bool:
    return not days or any(_is_one(day, one, tables) for one in days)


def _is_one(day: date, wanted: Day, tables: Mapping[str, Collection[str]]) -> bool:
    match wanted:
        case CalendarDay():
            return (day.day, day.month) == (wanted.day, wanted.month)
        case Weekdays(first, last):
            return (day.weekday() - first) % 7 <= (last - first) % 7
        case DayTable():
            return day.isoformat() in tables[wanted.table]


def _clock_changes(start: int, end: int, zone: str) -> set[int]:
    """The instants at which the clocks are put forward or back."""
    found = set()
    for hour in range(start - start % _HOUR_MS, end + _HOUR_MS, _HOUR_MS):
        if _local(hour, zone).utcoffset() != _local(hour + _HOUR_MS, zone).utcoffset():
            found |= set(range(hour, hour + _HOUR_MS + 1, _MINUTE_MS))
    return found
