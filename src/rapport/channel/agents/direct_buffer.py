"""What a direct source still has: the newest events, in memory, read as a channel is. [CH-8]"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

from rapport.channel.channel import Appended
from rapport.channel.waiting import Bell
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import first_of


class DirectBuffer:
    """See Channel. Holds the newest events within two bounds; older ones are let go, and the tokens
    that named them say so. All calls belong to one event loop.
    """

    def __init__(self, name: str, clock: Clock, *, most_events: int, most_bytes: int) -> None:
        self.name, self._clock = name, clock
        self._most_events, self._most_bytes = most_events, most_bytes
        self._events: deque[StoredEvent] = deque()
        self._places: dict[tuple[str, str], int] = {}
        self._bytes = self._last = 0
        self._bell = Bell()

    async def append(self, events: Sequence[Event]) -> Appended:
        """See Channel; repetitions are told among what is still here."""
        now_ms = self._clock.now_ms()
        positions, duplicates = [], 0
        for event in events:
            identity = (event.source, event.id)
            if identity in self._places:
                duplicates += 1
            else:
                self._last += 1
                self._places[identity] = self._last
                self._events.append(StoredEvent(self._last, now_ms, event))
                self._bytes += len(event.data)
            positions.append(self._places[identity])
        self._let_go()
        self._bell.ring()
        return Appended(tuple(positions), duplicates)

    async def read_after(self, position: int, *, limit: int = 1000) -> list[StoredEvent]:
        """See Channel."""
        if not self._events or position >= self._last:
            return []
        # Positions follow each other, so the place of one is known.
        start = max(position + 1 - self._events[0].position, 0)
        return list(islice(self._events, start, start + limit))

    async def wait_after(self, position: int, *, timeout_ms: int | None = None) -> bool:
        """See Channel."""
        deadline = None if timeout_ms is None else self._clock.steady_ns() + timeout_ms * 1_000_000
        while self._last <= position:
            ring = self._bell.listen()
            if deadline is None:
                await ring
                continue
            left_ms = (deadline - self._clock.steady_ns()) // 1_000_000
            if left_ms <= 0:
                break
            await first_of(ring, self._clock.sleep(left_ms))
        return self._last > position

    def last_position(self) -> int:
        """See Channel."""
        return self._last

    def _let_go(self) -> None:
        """The newest event stays, however large."""
        while len(self._events) > 1 and (
            len(self._events) > self._most_events or self._bytes > self._most_bytes
        ):
            oldest = self._events.popleft()
            self._bytes -= len(oldest.event.data)
            del self._places[oldest.event.source, oldest.event.id]
