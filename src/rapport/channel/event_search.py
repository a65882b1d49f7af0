"""The newest events of a channel that fulfil a condition, page by page backwards. [CN-11]

A request looks at a bounded number of events and says how far it came, so a search through a long
log goes on where the one before ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from rapport.channel.channel import Channel, pages_of
from rapport.channel.event_lookup import BACKWARDS_MS, position_before
from rapport.core.event import StoredEvent
from rapport.kernel.clock import Clock

_WINDOW = 500
_MOST_SEEN = 20_000
_MOST_BYTES = 8 * 1024 * 1024
"""Of data in one answer, except that one event always fits."""

View = Callable[[Sequence[StoredEvent]], Awaitable[Sequence[StoredEvent]]]
"""Gives the events as their reader sees them, without those hidden from it."""


class FoundEvents(msgspec.Struct, frozen=True, kw_only=True):
    """Matching events, newest first; go on before the position `next`, 0 when there is no more."""

    events: list[StoredEvent]
    next: int
    reached: int
    """When the oldest event that was looked at was received; 0 when none was."""


class TimeRange(msgspec.Struct, frozen=True, kw_only=True):
    """Times of arrival in ms; `until` is not included, 0 means any."""

    since: int = 0
    until: int = 0

    def includes(self, received: int) -> bool:
        """Whether something that arrived then lies in the range."""
        return self.since <= received and (not self.until or received < self.until)


async def find_newest(
    channel: Channel,
    view: View,
    matches: Callable[[StoredEvent], bool],
    clock: Clock,
    *,
    arrived: TimeRange,
    before: int,
    limit: int,
) -> FoundEvents:
    """The newest matching events before a position (0: from the end) that arrived in a time."""
    low = await position_before(channel, arrived.since) if arrived.since else 0
    high = before - 1 if before else channel.last_position()
    if arrived.until:
        # Twice: a clock that was set back hides nothing on either side.
        high = min(high, await position_before(channel, arrived.until + 2 * BACKWARDS_MS))
    found: list[StoredEvent] = []
    seen = size = reached = 0
    while high > low and seen < _MOST_SEEN:
        begin = max(high - _WINDOW, low)
        window = _Window(limit - len(found), _MOST_BYTES - size)
        async for page in pages_of(channel, begin, limit=high - begin, last=high):
            reached = min(reached or page[0].received, page[0].received)
            for stored in await view(page):
                if arrived.includes(stored.received) and matches(stored):
                    window.add(stored)
            await clock.sleep(0)  # a long search lets others work
        found += reversed(window.kept)
        size += window.size
        if found and (window.dropped or len(found) == limit or size >= _MOST_BYTES):
            return FoundEvents(events=found, next=found[-1].position, reached=reached)
        seen, high = seen + high - begin, begin
    return FoundEvents(events=found, next=high + 1 if high > low else 0, reached=reached)


class _Window:
    """The newest matches of a stretch of the log, within a number and a size."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self.kept: deque[StoredEvent] = deque()
        self.size, self.dropped = 0, False

    def add(self, stored: StoredEvent) -> None:
        self.kept.append(stored)
        self.size += len(stored.event.data)
        while len(self.kept) > self._most or (self.size > self._most_bytes and len(self.kept) > 1):
            self.size -= len(self.kept.popleft().event.data)
            self.dropped = True
