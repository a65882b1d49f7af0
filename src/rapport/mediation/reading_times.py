"""Times of readings beyond their parsing: the hour that local clocks show twice, and times that are
implausibly far from arrival. [ME-11, ME-13]
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from rapport.core.event import Event, StoredEvent
from rapport.core.release import HISTORY
from rapport.core.times import format_time
from rapport.mediation.rejections import Rejection
from rapport.units.timeformats import EARLIEST_MS, LATEST_MS, moment_of

MOST_AHEAD_MS = 86_400_000
"""A clock in another zone is wrong by less; a reading further ahead of its arrival is none."""
MOST_BEHIND_MS = 10 * 366 * 86_400_000
"""Devices may be without a connection for long, but not for ten years."""
_CLOCK_IS_SET_MS = 946_684_800_000  # 2000-01-01: a node whose own clock says less cannot judge
_DAY_MS = 86_400_000
_RAW_POSITION = "rawposition"


class _HourPass(msgspec.Struct):
    """How far the readings of one thing are in an hour that comes twice."""

    last_ms: int
    has_moved: bool = False
    is_second: bool = False


class RepeatedHours:
    """The second pass through the hour that the clocks of a zone show twice, told by the order of
    a file's rows: where the times of one thing go back, or come again in hourly rows, the later
    hour has begun. Belongs to one file, or to one source whose files come one after another.
    """

    def __init__(self, zone: str) -> None:
        self._zone = zone
        self._passes: dict[tuple[str, str], _HourPass] = {}

    def settle(self, readings: list[Event]) -> list[Event]:
        """The readings with the times that the order of their rows says; live ones stay."""
        if not self._zone:
            return readings
        return [self._settled(reading) for reading in readings]

    def _settled(self, reading: Event) -> Event:
        if HISTORY not in reading.headers:
            return reading
        key, later_ms = (reading.subject, reading.type), repeated_after_ms(reading.time, self._zone)
        if not later_ms:
            self._passes.pop(key, None)
            return reading
        state = self._passes.get(key)
        if state is None:
            self._passes[key] = _HourPass(reading.time)
            return reading
        comes_again = reading.time == state.last_ms and not state.has_moved
        if reading.time < state.last_ms or comes_again:
            state.is_second = True
        state.has_moved = state.has_moved or reading.time != state.last_ms
        state.last_ms = reading.time
        if not state.is_second:
            return reading
        return msgspec.structs.replace(reading, time=reading.time + later_ms)


def repeated_after_ms(time_ms: int, zone: str) -> int:
    """How long after a moment the clocks of a zone show the same time again; 0: they do not.

    >>> repeated_after_ms(1792888200000, "Europe/Berlin")  # 02:30 on 2026-10-25, summer time
    3600000
    """
    inside = EARLIEST_MS + _DAY_MS <= time_ms <= LATEST_MS - _DAY_MS
    if not inside or not _has_repeated_hour(time_ms // _DAY_MS, zone):
        return 0
    local = moment_of(time_ms, zone)
    first, second = local.utcoffset(), local.replace(fold=1).utcoffset()
    if local.fold or first is None or second is None or second >= first:
        return 0
    return round((first - second).total_seconds() * 1_000)


@lru_cache(maxsize=4_096)
def _has_repeated_hour(day: int, zone: str) -> bool:
    """Whether the clocks may go back on a day of UTC, counted from 1970."""
    ends = (day * _DAY_MS, (day + 1) * _DAY_MS + 2 * 3_600_000)
    before, after = (moment_of(end, zone).utcoffset() for end in ends)
    return before is not None and after is not None and after < before


def split_plausible(
    readings: Sequence[Event], raws: Sequence[StoredEvent], stamp: str
) -> tuple[list[Event], list[Rejection]]:
    """Live readings whose times are near the arrival of their raw events, and rejections of the
    others; history is not compared.
    """
    if not readings or _are_plausible(readings, raws):
        return list(readings), []
    arrived = {str(one.position): one for one in raws}
    kept: list[Event] = []
    rejections: list[Rejection] = []
    for reading in readings:
        raw = arrived[reading.headers[_RAW_POSITION]]
        hint = "" if HISTORY in raw.event.headers else _hint(reading.time, raw.received)
        if not hint:
            kept.append(reading)
            continue
        message = (
            f"the time {format_time(reading.time)} is implausibly far from the arrival at "
            f"{format_time(raw.received)}"
        )
        found = Rejection("time.implausible", message, hint, raw.event, raw.position, stamp)
        rejections.append(found)
    return kept, rejections


def _are_plausible(readings: Sequence[Event], raws: Sequence[StoredEvent]) -> bool:
    """Whether all are, whichever arrived when: the fast path."""
    times, arrivals = [one.time for one in readings], [one.received for one in raws]
    return is_plausible(max(times), min(arrivals)) and is_plausible(min(times), max(arrivals))


def is_plausible(time_ms: int, arrived_ms: int) -> bool:
    """Whether a live reading may be of that time; always where the own clock is not set."""
    ahead_ms = time_ms - arrived_ms
    return arrived_ms < _CLOCK_IS_SET_MS or -MOST_BEHIND_MS <= ahead_ms <= MOST_AHEAD_MS


def _hint(time_ms: int, arrived_ms: int) -> str:
    """What to declare instead; empty for a plausible time."""
    if is_plausible(time_ms, arrived_ms):
        return ""
    for unit, form, likely_ms in (
        ("seconds", "epoch_s", time_ms * 1_000),
        ("milliseconds", "epoch_ms", time_ms // 1_000),
    ):
        if is_plausible(likely_ms, arrived_ms):
            return f'it looks like {unit} since 1970: declare time = {{ field, format = "{form}" }}'
    return "set the device's clock; recorded readings come in by rapport import"
