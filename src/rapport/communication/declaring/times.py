"""Hours, days and dates as a site file says them, and every fault in them. [CO-9, UX-2]"""

from __future__ import annotations

from datetime import date
from typing import cast

from rapport.communication.privacy.hours import (
    DateSpan,
    DaySpan,
    LocalTimes,
    parse_clock,
    parse_hours,
)
from rapport.core.errors import InvalidInput
from rapport.kernel.config_fields import Fields

WHEN_KEYS = ("hours", "days", "dates")
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_SEVERAL_DAYS = {"workdays": tuple(range(5)), "weekend": (5, 6)}
_LEAP_YEAR = 2024


def read_when(table: Fields) -> LocalTimes | None:
    """The hours, days and dates of a rule; None when it has none."""
    if not any(table.has(key) for key in WHEN_KEYS):
        return None
    days = tuple(
        dict.fromkeys(day for text in read_texts("days", table) for day in _days(text, table))
    )
    spans = [_dates(text, table) for text in read_texts("dates", table)]
    return LocalTimes(
        hours=read_hours("hours", table) if table.has("hours") else (),
        days=days,
        dates=tuple(span for span in spans if span is not None),
    )


def read_texts(key: str, table: Fields) -> tuple[str, ...]:
    """The texts at a key; one that is there says something."""
    if table.has(key) and table.section.values[key] in ([], ""):
        table.wrong(key, "one or more texts", f'{key} = ["..."]')
    return tuple(text for text in table.texts(key, ()) if text)


def read_hours(key: str, table: Fields) -> tuple[DaySpan, ...]:
    """The spans of the day at a key."""
    found = []
    for text in read_texts(key, table):
        try:
            found.append(parse_hours(text))
        except InvalidInput as error:
            table.report(key, error)
    return tuple(found)


def _days(text: str, table: Fields) -> tuple[int, ...]:
    """`sat`, `mon-fri`, `fri-mon`, `workdays`, `weekend`."""
    words = [word.strip() for word in text.lower().split("-")]
    if text.lower() in _SEVERAL_DAYS:
        return _SEVERAL_DAYS[text.lower()]
    numbers = [_day(word) for word in words]
    if len(numbers) > 2 or None in numbers:
        table.fault(
            "days",
            "privacy.bad_days",
            f"{text[:40]!r} is no day of the week",
            hint='write "sat", "mon-fri", "workdays" or "weekend"',
        )
        return ()
    first, last = cast(int, numbers[0]), cast(int, numbers[-1])
    return tuple(number % 7 for number in range(first, last + 1 if last >= first else last + 8))


def _day(word: str) -> int | None:
    fits = [number for number, name in enumerate(_DAYS) if word in (name, name[:3])]
    return fits[0] if fits else None


def _dates(text: str, table: Fields) -> DateSpan | None:
    """`2026-08-01..2026-08-14`, `12-24..01-06`, or one day alone."""
    first, dots, last = (part.strip() for part in text.partition(".."))
    last = last if dots else first
    if not (_is_date(first) and _is_date(last) and len(first) == len(last)):
        table.fault(
            "dates",
            "privacy.bad_dates",
            f"{text[:40]!r} is no date and no span of dates",
            hint='write "2026-08-01..2026-08-14", or "12-24..01-06" for every year',
        )
        return None
    if len(first) > 5 and first > last:
        table.fault(
            "dates",
            "privacy.bad_dates",
            f"{text[:40]!r} ends before it begins",
            hint=f'write "{last}..{first}"',
        )
        return None
    return DateSpan(first, last)


def _is_date(text: str) -> bool:
    whole = f"{_LEAP_YEAR}-{text}" if len(text) == 5 else text
    try:
        return date.fromisoformat(whole).isoformat() == whole
    except ValueError:
        return False


def read_until(table: Fields) -> int | None:
    """The minute of the day at which a hold ends; None when the rule does not say."""
    text = table.text("until", "")
    try:
        return parse_clock(text) if table.has("until") else None
    except InvalidInput as error:
        table.report("until", error)
        return None
