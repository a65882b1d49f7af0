"""Checks of reading times: the repeated hour of local clocks, and times too far from arrival.
[ME-11, ME-13]
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from rapport.core.event import Event, StoredEvent
from rapport.core.release import HISTORY
from rapport.core.times import EARLIEST_MS, LATEST_MS, format_time, moment_of
from rapport.mediation.rejections import Rejection
from rapport.mediation.source_bindings import RAW_POSITION

MOST_AHEAD_MS = 86_400_000
"""More than any zone offset; a reading further ahead of its arrival is implausible."""
MOST_BEHIND_MS = 10 * 366 * 86_400_000
"""Devices may be offline for long, but not for ten years."""
_CLOCK_IS_SET_MS = 946_684_800_000  # 2000-01-01: a node whose own clock says less cannot judge
_DAY_MS = 86_400_000


class _HourPass(msgspec.Struct):
    """Progress of the readings of one thing within a repeated hour."""

    last_ms: int
    has_moved: bool = False
    is_second: bool = False


class RepeatedHours:
    """Finds the second pass through the hour that local clocks show twice, by the order of a
    file's rows: when the times of one thing go back, or repeat in hourly rows, the later hour
    has begun. For one file, or one source whose files arrive one after another.
    """

    def __init__(self, zone: str) -> None:
        self._zone = zone
        self._passes: dict[tuple[str, str], _HourPass] = {}

    def settle(self, readings: list[Event]) -> list[Event]:
        """Returns the readings with the times that the row order implies; live readings are
        unchanged.
        """
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
    """The delay until the clocks of a zone show the same time again; 0 if they do not.

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
    """Whether the clocks may go back on a UTC day, counted from 1970."""
    ends = (day * _DAY_MS, (day + 1) * _DAY_MS + 2 * 3_600_000)
    before, after = (moment_of(end, zone).utcoffset() for end in ends)
    return before is not None and after is not None and after < before


def split_plausible(
    readings: Sequence[Event], raws: Sequence[StoredEvent], stamp: str
) -> tuple[list[Event], list[Rejection]]:
    """Splits live readings into plausible ones and rejections by the distance of their time
    from the arrival; history is not checked.
    """
    if not readings or _are_plausible(readings, raws):
        return list(readings), []
    arrived = {str(one.position): one for one in raws}
    kept: list[Event] = []
    rejections: list[Rejection] = []
    for reading in readings:
        raw = arrived[reading.headers[RAW_POSITION]]
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
    """Fast path: whether all are plausible whatever their arrival."""
    times, arrivals = [one.time for one in readings], [one.received for one in raws]
    return is_plausible(max(times), min(arrivals)) and is_plausible(min(times), max(arrivals))


def is_plausible(time_ms: int, arrived_ms: int) -> bool:
    """Whether a live reading may have that time; always if the node's own clock is not set."""
    ahead_ms = time_ms - arrived_ms
    return arrived_ms < _CLOCK_IS_SET_MS or -MOST_BEHIND_MS <= ahead_ms <= MOST_AHEAD_MS


def _hint(time_ms: int, arrived_ms: int) -> str:
    """The declaration that would fit; empty for a plausible time."""
    if is_plausible(time_ms, arrived_ms):
        return ""
    for unit, form, likely_ms in (
        ("seconds", "epoch_s", time_ms * 1_000),
        ("milliseconds", "epoch_ms", time_ms // 1_000),
    ):
        if is_plausible(likely_ms, arrived_ms):
            return f'it looks like {unit} since 1970: declare time = {{ field, format = "{form}" }}'
    return "set the device's clock; recorded readings come in by rapport import"
