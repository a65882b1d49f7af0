"""Times, durations and duration histograms; milliseconds inside. [ME-13]

People write times as ISO 8601 and durations as `5s`, `10 min` or `2 hours`; devices write times as
epoch, ISO 8601 or local time in any pattern. A local time that the clocks jump over is refused
always. Of one that comes twice, when the clocks go back, `fold` says which is meant: the first, the
second, or neither (refused). `24:00` is the beginning of the next day.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

import msgspec

from rapport.core.errors import InvalidInput, did_you_mean

_UNITS_MS = {
    "ms": 1,
    "millisecond": 1,
    "milliseconds": 1,
    "s": 1_000,
    "sec": 1_000,
    "second": 1_000,
    "seconds": 1_000,
    "m": 60_000,
    "min": 60_000,
    "minute": 60_000,
    "minutes": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "hours": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
    "days": 86_400_000,
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH = _EPOCH.replace(tzinfo=None)
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*\Z")
_END_OF_DAY = re.compile(r"(.{7,10}[T ])24((?::?00(?::?00(?:[.,]0+)?)?)?(?:Z|[+-][0-9:]+)?)")
_INTEGER = re.compile(r"-?\d{1,19}\Z")
ENDLESS_DURATION = "time.endless_duration"
"""Error code of a duration that is longer than the range of times."""
EARLIEST_MS = -62_135_596_800_000
LATEST_MS = 253_402_300_799_999
"""Years 1 to 9999, the range of ISO 8601; times outside are faults of devices."""


def parse_duration(text: str) -> int:
    """Milliseconds of `text`.

    >>> parse_duration("5s"), parse_duration("1.5 min"), parse_duration("2 hours")
    (5000, 90000, 7200000)
    """
    found = _DURATION.match(text)
    unit_ms = _UNITS_MS.get(found[2].lower()) if found else None
    if found is None or unit_ms is None:
        raise InvalidInput(
            f"{text!r} is not a duration",
            code="time.bad_duration",
            hint="write a number and a unit, such as 500ms, 5s, 10 min, 2 hours, 1 day",
        )
    duration_ms = float(found[1]) * unit_ms
    if duration_ms > LATEST_MS:
        raise InvalidInput(
            f"{text[:60]!r} is longer than any duration can be",
            code=ENDLESS_DURATION,
            hint="at most some 8,000 years, such as 2900000 days",
        )
    return round(duration_ms)


def format_duration(duration_ms: int) -> str:
    """The shortest exact form.

    >>> format_duration(5000), format_duration(90000), format_duration(1)
    ('5s', '90s', '1ms')
    """
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if duration_ms and duration_ms % size == 0:
            return f"{duration_ms // size}{unit}"
    return f"{duration_ms}ms"


def rough_duration(duration_ms: int) -> str:
    """For people, in the largest unit with a value of at least two.

    >>> rough_duration(10_812_345), rough_duration(90_000), rough_duration(1_250)
    ('3 h', '90 s', '1250 ms')
    """
    for unit, size in (("days", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if duration_ms >= 2 * size:
            return f"{round(duration_ms / size)} {unit}"
    return f"{duration_ms} ms"


def parse_time(value: str | int, *, needs_offset: bool = False) -> int:
    """Milliseconds since 1970 UTC of an integer, digits, or ISO 8601 text.

    A text without an offset is in UTC, as people write it for a query; with `needs_offset`, as in
    envelopes of events, it is refused.

    >>> parse_time("1970-01-01T00:00:01Z"), parse_time("1005061")
    (1000, 1005061)
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return _in_range(value)
    text = str(value).strip()
    # Most times end with Z and need no match.
    if text[-1:] != "Z" and _INTEGER.match(text):
        return _in_range(int(text))
    try:
        moment = read_iso(text)
    except ValueError:
        raise InvalidInput(
            f"{text[:60]!r} is not a time",
            code="time.bad_time",
            hint="write milliseconds since 1970 or ISO 8601, such as 2026-03-02T09:14:05.210Z",
        ) from None
    if needs_offset and moment.tzinfo is None:
        raise InvalidInput(
            f"{text[:60]!r} says no offset from UTC",
            code="time.no_zone",
            hint="write it with its offset, such as 2026-03-02T09:14:05Z",
        )
    since = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)) - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000 + since.microseconds // 1_000


def read_iso(text: str) -> datetime:
    """Parses ISO 8601 with or without an offset; raises ValueError.

    >>> read_iso("2026-03-01T24:00Z").isoformat()
    '2026-03-02T00:00:00+00:00'
    """
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        ended = _END_OF_DAY.fullmatch(text)
        if ended is None:
            raise
    try:
        return datetime.fromisoformat(f"{ended[1]}00{ended[2]}") + timedelta(days=1)
    except OverflowError:
        raise ValueError(text) from None


def parse_times(values: Sequence[str | int | None], default_ms: int) -> list[int]:
    """`parse_time` of each value with `needs_offset`, `default_ms` for None; faster if all values
    are texts with an offset.

    >>> parse_times(["1970-01-01T00:00:01Z", "1970-01-01T00:00:02+00:00"], 0)
    [1000, 2000]
    """
    read = datetime.fromisoformat
    try:
        # Values that are no text, no ISO 8601 or have no zone raise.
        spans = [read(value) - _EPOCH for value in values]  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return [
            default_ms if value is None else parse_time(value, needs_offset=True)
            for value in values
        ]
    return [
        (span.days * 86_400 + span.seconds) * 1_000 + span.microseconds // 1_000 for span in spans
    ]


def format_time(time_ms: int) -> str:
    """ISO 8601 in UTC with milliseconds; times outside years 1..9999 stay digits.

    >>> format_time(1005061)
    '1970-01-01T00:16:45.061Z'
    """
    if not EARLIEST_MS <= time_ms <= LATEST_MS:
        return str(time_ms)
    moment = _NAIVE_EPOCH + timedelta(milliseconds=time_ms)
    return f"{moment.isoformat(timespec='milliseconds')}Z"


def _in_range(time_ms: int) -> int:
    if not -(2**63) <= time_ms < 2**63:
        raise InvalidInput("the time does not fit in 64 bits", code="time.bad_time")
    return time_ms


# --- durations measured ---

_BITS = 6
_LONGEST = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly; in microseconds 285 years."""


class DurationCounts(msgspec.Struct, frozen=True):
    """A snapshot of a histogram. A bucket is named by its shortest duration, which is at most a
    thirty-second less than any duration in it. Counts of several periods add up.
    """

    count: int = 0
    longest: int = 0
    steps: tuple[tuple[int, int], ...] = ()
    """Buckets with their counts, the shortest first."""


class DurationHistogram:
    """Counts durations (integers of any unit) in logarithmic buckets: at most about 1,500, in
    practice some dozens. Adding takes 0.2 us. [PI-6]
    """

    __slots__ = ("_buckets", "_longest")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self._longest = 0

    def __len__(self) -> int:
        return sum(self._buckets.values())

    def add(self, duration: int) -> None:
        """Adds a duration; a negative one (of a clock that was set back) counts as 0."""
        if duration > self._longest:
            duration = self._longest = min(duration, _LONGEST)
        shift = duration.bit_length() - _BITS
        # `bucket_of` written out: the call would double the cost.
        step = duration >> shift << shift if shift > 0 else duration
        if step < 0:
            step = 0
        self._buckets[step] = self._buckets.get(step, 0) + 1

    def take(self) -> DurationCounts:
        """Returns the counts since the last call and resets them."""
        counts = DurationCounts(len(self), self._longest, tuple(sorted(self._buckets.items())))
        self._buckets, self._longest = {}, 0
        return counts


def bucket_of(duration: int) -> int:
    """The bucket that a duration is counted in.

    >>> [bucket_of(number) for number in (0, 63, 64, 65, 66, 1_000, 1_000_000)]
    [0, 63, 64, 64, 66, 992, 999424]
    """
    shift = duration.bit_length() - _BITS
    return duration >> shift << shift if shift > 0 else duration


# --- times of devices ---

Fold = Literal["", "first", "second"]

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
        raise InvalidInput(
            f"there is no time zone named {name[:40]!r}",
            code="time.unknown_zone",
            hint=did_you_mean(name, available_timezones(), "such as Europe/Berlin or UTC"),
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
