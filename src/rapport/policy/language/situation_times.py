"""Reads times of a situation: `time is between 22:00 and 06:00 on Mon-Fri in 'Europe/Berlin'`.
[SI-7]"""

from __future__ import annotations

from rapport.policy.language.lexer import SyntaxFault, Token, TokenCursor, span
from rapport.policy.language.situation_tree import (
    CalendarDay,
    Day,
    DayTable,
    Not,
    TimeOfDay,
    Weekdays,
)

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_LONG_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_LONG_MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july"),
    *("august", "september", "october", "november", "december"),
)
_DAY_MINUTES = 24 * 60
_EXAMPLE = "time is between 22:00 and 06:00"
_CODE = "policy.bad_time"


def read_time(cursor: TokenCursor) -> TimeOfDay | Not:
    """Reads from `time` on; raises SyntaxFault."""
    start = cursor.take().place
    has_is = cursor.take_if("keyword", "is") is not None
    negated = cursor.take_if("keyword", "not") is not None
    if not has_is or cursor.word() not in ("between", "on"):
        raise _expected_time(cursor)
    first_minute = end_minute = None
    if cursor.reads("between"):
        first_minute, end_minute = _between(cursor)
    days: tuple[Day, ...] = ()
    if cursor.reads("on"):
        cursor.take()
        days = _days(cursor)
    zone = ""
    if cursor.reads("in"):
        cursor.take()
        zone = _zone(cursor)
    if cursor.reads("on"):
        hint = f"such as: {_EXAMPLE} on Fri in 'Europe/Berlin'"
        raise cursor.fault(_CODE, "the days stand before the zone", hint=hint)
    place = span(start, cursor.last_place())
    found = TimeOfDay(days, place, first_minute, end_minute, zone)
    return Not(found) if negated else found


def _expected_time(cursor: TokenCursor) -> SyntaxFault:
    hint = f"such as: {_EXAMPLE}, or: time is on Sat, Sun"
    clock = cursor.peek(1)
    if clock is not None and clock.kind == "clock":
        if cursor.word() in ("after", "above", "from", "since"):
            hint = f"did you mean: time is between {clock.text} and 24:00"
        elif cursor.word() in ("before", "below", "until", "till"):
            hint = f"did you mean: time is between 00:00 and {clock.text}"
    return cursor.fault(_CODE, "expected 'time is between' or 'time is on'", hint=hint)


def _between(cursor: TokenCursor) -> tuple[int, int]:
    cursor.take()
    first = _clock(cursor)
    if not cursor.take_if("keyword", "and"):
        hint = f"such as: {_EXAMPLE}"
        raise cursor.fault(_CODE, "expected 'and' between two times of day", hint=hint)
    second_place = cursor.place()
    second = _clock(cursor, may_end=True)
    if first == second:
        hint = "for the whole day, leave the times out, or write: between 00:00 and 24:00"
        raise SyntaxFault(_CODE, "the two times are equal", second_place, hint)
    return first, second


def _clock(cursor: TokenCursor, *, may_end: bool = False) -> int:
    token = cursor.take_if("clock")
    if token is None:
        raise cursor.fault(_CODE, "expected a time of day", hint=_clock_hint(cursor))
    hour, minute = map(int, token.text.split(":"))
    minutes = 60 * hour + minute
    if minute > 59 or minutes > _DAY_MINUTES or (minutes == _DAY_MINUTES and not may_end):
        hint = "times are from 00:00 to 23:59; 24:00 may end"
        raise SyntaxFault(_CODE, f"there is no time {token.text} here", token.place, hint)
    return minutes


def _clock_hint(cursor: TokenCursor) -> str:
    """The time of day that `10 pm` or `22` means."""
    number = cursor.peek()
    if number is not None and number.kind == "number" and number.text.isdecimal():
        hour = int(number.text[:4])
        if cursor.word(1) == "pm" and hour < 12:
            hour += 12
        if hour < 24:
            return f"did you mean {hour:02}:00?"
    return "write hours and minutes, such as 22:00"


def _days(cursor: TokenCursor) -> tuple[Day, ...]:
    days = [_day(cursor)]
    while cursor.take_if("mark", ","):
        days.append(_day(cursor))
    return tuple(days)


def _day(cursor: TokenCursor) -> Day:
    number = cursor.take_if("number")
    if number is not None:
        return _calendar_day(cursor, number)
    word = cursor.take_if("word")
    if word is None:
        hint = "such as: on Mon-Fri, on Sat, Sun, on 24 Dec, on holidays"
        raise cursor.fault(_CODE, "expected a day", hint=hint)
    month = _index(word.text, MONTHS, _LONG_MONTHS)
    if month is not None and cursor.sees("number"):
        hint = f"the day stands first: {cursor.take().text} {MONTHS[month]}"
        raise SyntaxFault(_CODE, "expected a day", word.place, hint)
    first_name, _, last_name = word.text.partition("-")
    first = _index(first_name, WEEKDAYS, _LONG_WEEKDAYS)
    if first is None:
        return DayTable(word.text, word.place)
    if not last_name and cursor.take_if("sign", "-"):
        last_word = cursor.take_if("word")
        last_name = last_word.text if last_word is not None else "-"
    last = _index(last_name, WEEKDAYS, _LONG_WEEKDAYS) if last_name else first
    if last is None:
        hint = f"such as: {WEEKDAYS[first]}-Sun"
        raise SyntaxFault(_CODE, "expected a second day of the week", word.place, hint)
    return Weekdays(first, last)


def _calendar_day(cursor: TokenCursor, number: Token) -> CalendarDay:
    word = cursor.take_if("word")
    month = _index(word.text, MONTHS, _LONG_MONTHS) if word is not None else None
    if month is None:
        hint = "write the day and the month, such as: 24 Dec"
        if word is not None and "-" in word.text:
            hint = "list the days, such as: 24 Dec, 25 Dec"
        raise SyntaxFault(_CODE, "expected a day of the year", number.place, hint)
    if not number.text.isdecimal() or not 1 <= int(number.text[:4]) <= _MONTH_DAYS[month]:
        message = f"{MONTHS[month]} has no day {number.text}"
        hint = f"days of {MONTHS[month]} are 1 to {_MONTH_DAYS[month]}"
        raise SyntaxFault(_CODE, message, number.place, hint)
    if cursor.sees("sign", "-"):
        raise cursor.fault(
            _CODE,
            "days of the year have no ranges",
            hint="list the days, such as: 24 Dec, 25 Dec",
        )
    return CalendarDay(int(number.text), month + 1)


def _index(name: str, short: tuple[str, ...], long: tuple[str, ...]) -> int | None:
    lowered = name.lower()
    for index, (abbreviated, full) in enumerate(zip(short, long, strict=True)):
        if lowered in (abbreviated.lower(), full):
            return index
    return None


def _zone(cursor: TokenCursor) -> str:
    token = cursor.peek()
    if token is not None and token.kind == "text" and token.text:
        return cursor.take().text
    hint = "write its name in quotes, such as: in 'Europe/Berlin'"
    if token is not None and token.kind in ("word", "unit"):
        hint = f"put it in quotes: in '{token.text}'"
    raise cursor.fault(_CODE, "expected a time zone", hint=hint)
