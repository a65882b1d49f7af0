"""Events on their way from the source to the application: waiting, handed over, acknowledged. Pure.
[CH-7]

Positions of a channel only grow. So whatever is asked twice, comes twice or comes late, an event
that is not behind the newest one here has been here before, and is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from rapport.core.event import Event, StoredEvent

_MOST_MARKS = 4_096
_OVERHEAD_BYTES = 512
"""Counted per event beside its data: the envelope."""


class ReceivedEvent(msgspec.Struct, frozen=True, gc=False):
    """An event as a listener hands it over: where it stands in its channel (counted from 1), when
    the channel received it (ms UTC), and what the listener gave to be handed back.
    """

    position: int
    received: int
    event: Event
    handback: str = ""


class Cache:
    """Holds what waits, and how far the application is. Bounded by its owner: see `has_room`."""

    def __init__(self, acknowledged: int, *, most_events: int, most_bytes: int) -> None:
        self.acknowledged = self.newest = acknowledged
        """Marks: everything up to here is acknowledged; was put in or passed over."""
        self.waiting_bytes = 0
        self._most_events, self._most_bytes = most_events, most_bytes
        self._waiting: deque[ReceivedEvent] = deque()
        self._sets: deque[tuple[int, str]] = deque()
        """For sets not wholly acknowledged: last position, token."""

    def __len__(self) -> int:
        return len(self._waiting)

    def has_room(self, events: int) -> bool:
        """Whether a set of so many events may be asked for."""
        fits = len(self._waiting) + events <= self._most_events
        return fits and self.waiting_bytes < self._most_bytes

    def put(self, token: str, events: Sequence[StoredEvent], handback: str) -> int:
        """Takes in the set that a token names; returns how many of its events are new."""
        fresh = [
            ReceivedEvent(one.position, one.received, one.event, handback)
            for one in events
            if one.position > self.newest
        ]
        if fresh:
            self._waiting.extend(fresh)
            self.waiting_bytes += sum(map(_size, fresh))
            self.newest = fresh[-1].position
            self._sets.append((self.newest, token))
            self._thin_out()
        return len(fresh)

    def take(self, count: int) -> list[ReceivedEvent]:
        """Hands over the first `count` events that wait; fewer when there are fewer."""
        taken = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
        self.waiting_bytes -= sum(map(_size, taken))
        return taken

    def give_back(self, events: Sequence[ReceivedEvent]) -> None:
        """Puts events that were just taken, and reached nobody, in front again."""
        kept = [one for one in events if one.position > self.acknowledged]
        self._waiting.extendleft(reversed(kept))
        self.waiting_bytes += sum(map(_size, kept))

    def handed(self) -> int:
        """The mark before the first event that waits: everything up to it was handed over."""
        return self._waiting[0].position - 1 if self._waiting else self.newest

    def mark_of(self, received: ReceivedEvent) -> int:
        """The mark once an event is done: before it while others with its position wait, into which
        an interpretation has split one event of the channel.
        """
        is_split = bool(self._waiting) and self._waiting[0].position == received.position
        return received.position - is_split

    def acknowledge(self, position: int) -> None:
        """Everything up to a position is done, also what was not handed over or has not come."""
        if position <= self.acknowledged:
            return
        self.acknowledged = position
        self.newest = max(self.newest, position)
        while self._waiting and self._waiting[0].position <= position:
            self.take(1)
        while self._sets and self._sets[0][0] <= position:
            self._sets.popleft()

    def open_token(self) -> str:
        """The token of a set from which on everything not acknowledged can be had again; empty when
        nothing is open.
        """
        return self._sets[0][1] if self._sets else ""

    def _thin_out(self) -> None:
        """Who acknowledges seldom loses marks, never events: an earlier token serves as well."""
        if len(self._sets) > _MOST_MARKS:
            sets = list(self._sets)
            # Of each pair the earlier token stands for the later set too.
            merged = [
                (later[0], earlier[1])
                for earlier, later in zip(sets[::2], sets[1::2], strict=False)
            ]
            self._sets = deque(merged + (sets[-1:] if len(sets) % 2 else []))


def _size(one: ReceivedEvent) -> int:
    return len(one.event.data) + _OVERHEAD_BYTES
