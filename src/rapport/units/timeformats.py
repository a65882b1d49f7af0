"""Times as devices write them, to milliseconds UTC: epoch, ISO 8601, local time. [ME-13]

A local time that the clocks jump over is refused always. Of one that comes twice, when the clocks
go back, `fold` says which is meant: the first, the second, or neither (refused). `24:00` is the
beginning of the next day.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from rapport.core.errors import InvalidInput, nearest_names
from rapport.core.times import read_iso

EARLIEST_MS = -62_135_596_800_000
LATEST_MS = 253_402_300_799_999
"""Years 1 to 9999, the range of ISO 8601; times outside are faults of devices."""

Fold = Literal["", "first", "second"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LIKELY_FIRST_MS, _LIKELY_LAST_MS = 946_684_800_000, 4_102_444_800_000  # 2000 to 2100


class LocalTimes(NamedTuple):
    """The defaults of local times without a zone."""

    zone: str = ""
    takes_first: bool = False
    """Whether ambiguous times are the first of the two; the order of a file's rows then decides."""


_UNDECLARED = LocalTimes()
LOCAL_TIMES: ContextVar[LocalTimes] = ContextVar("local_times", default=_UNDECLARED)
"""Set while the payloads of a source are read."""


def from_epoch(value: float, unit_ms: float) -> int:
    """Milliseconds of a count of seconds (`unit_ms` 1000) or milliseconds (1) since 1970 UTC.

    >>> from_epoch(1772442845.3, 1000)
    1772442845300
    """
    if isinstance(value, int) and abs(value) > LATEST_MS:
        raise _out_of_range(value, unit_ms)
    time_ms = value * unit_ms
    if not EARLIEST_MS <= time_ms <= LATEST_MS:  # also false for NaN
        raise _out_of_range(value, unit_ms)
    return round(time_ms)


def from_iso(text: str, zone: str = "", fold: Fold = "first") -> int:
    """Milliseconds of ISO 8601 text; local text needs `zone`, text with an offset does not.

    >>> from_iso("2026-03-02T09:14:05.210Z"), from_iso("2026-07-01T02:00:00", "Europe/Berlin")
    (1772442845210, 1782864000000)
    """
    try:
        moment = read_iso(text.strip())
    except ValueError:
        raise _not_a_time(text, "ISO 8601, such as 2026-03-02T09:14:05.210Z") from None
    return _to_ms(moment, text, zone, fold)


def from_pattern(text: str, pattern: str, zone: str = "", fold: Fold = "first") -> int:
    """Milliseconds of text in a `strptime` pattern; without `%z` in it, `zone` is needed.

    >>> from_pattern("02/03/2026 06:14", "%d/%m/%Y %H:%M", "America/Sao_Paulo")
    1772442840000
    """
    try:
        moment = datetime.strptime(text.strip(), pattern)  # noqa: DTZ007 - the zone follows
    except ValueError:
        ended = _end_of_day(text.strip(), pattern)
        if ended is None:
            raise _not_a_time(text, f"the pattern {pattern}") from None
        moment = ended
    return _to_ms(moment, text, zone, fold)


def _end_of_day(text: str, pattern: str) -> datetime | None:
    """The moment of a text with the hour 24:00; None for other texts.

    Only an hour can be what makes a text with 24 in it no time, and one with 00 there a time.
    """
    if "%H" not in pattern:
        return None
    for found in re.finditer("24", text):
        begun = f"{text[: found.start()]}00{text[found.end() :]}"
        try:
            moment = datetime.strptime(begun, pattern)  # noqa: DTZ007 - the zone follows
        except ValueError:
            continue
        if (moment.hour, moment.minute, moment.second, moment.microsecond) == (0, 0, 0, 0):
            return _next_day(moment)
    return None


def _next_day(moment: datetime) -> datetime | None:
    try:
        return moment + timedelta(days=1)
    except OverflowError:
        return None


def to_iso(time_ms: int, zone: str = "") -> str:
    """ISO 8601 text with milliseconds, in UTC or with the offset of a zone.

    >>> to_iso(1772442845210), to_iso(1782864000000, "Europe/Berlin")
    ('2026-03-02T09:14:05.210Z', '2026-07-01T02:00:00.000+02:00')
    """
    moment = moment_of(time_ms, zone)
    text = moment.isoformat(timespec="milliseconds")
    return text if zone else text.removesuffix("+00:00") + "Z"


def to_pattern(time_ms: int, pattern: str, zone: str = "") -> str:
    """Text by a `strftime` pattern, in a zone or UTC; years have four digits on every platform.

    >>> to_pattern(1772442840000, "%d/%m/%Y %H:%M", "America/Sao_Paulo")
    '02/03/2026 06:14'
    """
    moment = moment_of(time_ms, zone)
    pieces = [piece.replace("%Y", f"{moment.year:04d}") for piece in pattern.split("%%")]
    return "%".join(moment.strftime(piece) for piece in pieces)


def moment_of(time_ms: int, zone: str = "") -> datetime:
    """The moment as local time of a zone; raises InvalidInput `time.out_of_range`."""
    if not EARLIEST_MS <= time_ms <= LATEST_MS:
        raise _out_of_range(time_ms, 1)
    moment = _EPOCH + timedelta(milliseconds=time_ms)
    try:
        return moment.astimezone(zone_named(zone)) if zone else moment
    except OverflowError:
        raise _out_of_range(time_ms, 1) from None


@lru_cache(maxsize=256)
def zone_named(name: str) -> ZoneInfo:
    """The time zone; raises InvalidInput `time.unknown_zone` with the nearest name."""
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        nearest = nearest_names(name, available_timezones())
        raise InvalidInput(
            f"there is no time zone named {name[:40]!r}",
            code="time.unknown_zone",
            hint=f"did you mean {nearest[0]!r}?" if nearest else "such as Europe/Berlin or UTC",
        ) from None


def _to_ms(moment: datetime, text: str, zone: str, fold: Fold) -> int:
    if moment.tzinfo is None:
        local_times = LOCAL_TIMES.get()
        zone = zone or local_times.zone
        if not zone:
            raise InvalidInput(
                f"{text[:40]!r} says no offset from UTC",
                code="time.no_zone",
                hint='declare the zone of local times, such as zone = "Europe/Berlin": where the '
                "time is declared, in [sources.NAME], or in [site]",
            )
        local = moment.replace(tzinfo=zone_named(zone), fold=1 if fold == "second" else 0)
        moment = _existing(local, text, zone)
        if not fold and not local_times.takes_first:
            _refuse_twice(local, text, zone)
    since: timedelta = moment - _EPOCH
    time_ms = (since.days * 86_400 + since.seconds) * 1_000 + since.microseconds // 1_000
    if not EARLIEST_MS <= time_ms <= LATEST_MS:  # an offset may lead out of them
        raise _not_a_time(text, "a year from 1 to 9999")
    return time_ms


def _existing(moment: datetime, text: str, zone: str) -> datetime:
    """Raises InvalidInput for a local time that a clock change skips."""
    try:
        back = moment.astimezone(UTC).astimezone(moment.tzinfo)
    except OverflowError:
        raise _not_a_time(text, "a year from 1 to 9999") from None
    if back.replace(tzinfo=None) != moment.replace(tzinfo=None):
        raise InvalidInput(
            f"{text[:40]!r} does not exist in {zone}: the clocks go forward over it",
            code="time.bad_time",
            hint="is the device's clock set to another zone?",
        )
    return moment


def _refuse_twice(moment: datetime, text: str, zone: str) -> None:
    if moment.utcoffset() != moment.replace(fold=1).utcoffset():
        raise InvalidInput(
            f"{text[:40]!r} comes twice in {zone}: the clocks go back over it",
            code="time.ambiguous",
            hint='say fold = "first" or "second", or let the device send an offset',
        )


def _not_a_time(text: str, form: str) -> InvalidInput:
    return InvalidInput(
        f"{text[:40]!r} is not a time", code="time.bad_time", hint=f"declared as {form}"
    )


def _out_of_range(value: float, unit_ms: float) -> InvalidInput:
    other, other_ms = ("epoch_ms", 1.0) if unit_ms != 1 else ("epoch_s", 1_000.0)
    likely = _LIKELY_FIRST_MS <= value * other_ms <= _LIKELY_LAST_MS if abs(value) < 1e18 else False
    return InvalidInput(
        f"{str(value)[:40]} is outside of the years 1 to 9999",
        code="time.out_of_range",
        hint=f'it looks like format = "{other}"' if likely else "",
    )
