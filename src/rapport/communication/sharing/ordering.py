"""In which order a peer is told, whichever share decided it; pure. [CO-17]

A message *crosses* when it may bring deliveries to peers of another share than its own: one to a
collective, one that routing rules pass on, an answer that goes on to somebody. Deliveries that
messages bring when they are handled go out in the order in which these messages stand in `input`:
each share keeps a queue of what is for its peers and lets go of a delivery when nothing earlier can
come any more. Nobody waits for shares that have nothing to say: only for the messages that cross,
and each share for itself.
"""

from __future__ import annotations

import heapq
from collections import deque

import msgspec

from rapport.core.event import StoredEvent


class Reached(msgspec.Struct, frozen=True, array_like=True):
    """How far a share has come: everything of it in `input` up to `position` was handled, and what
    that brought for others stands in `handed` at `through` or before.
    """

    position: int = 0
    through: int = 0


NOWHERE = Reached()


class Crossings:
    """Which messages that cross are not yet handled, as far as one process knows. What it hears
    stays true, so it never takes anything back.
    """

    def __init__(self) -> None:
        self._open: dict[int, deque[int]] = {}
        self._reached: dict[int, Reached] = {}
        self._crossed: dict[int, int] = {}
        self.through = 0
        """Somebody's deliveries stand in `handed` up to here."""
        self.covered = -1
        """Of every message up to here it is known whether it crosses, or it was handled; -1 = not
        even where to begin is known. What is not covered is waited for as if it crossed."""

    def cover(self, position: int) -> None:
        """The messages up to a position that cross have been seen, or were handled."""
        self.covered = max(self.covered, position)

    def see(self, position: int, share: int) -> None:
        """A message of a share crosses; told in the order of positions, before it is covered."""
        if position > self.reached(share).position:
            self._open.setdefault(share, deque()).append(position)
        else:
            self._crossed[share] = position

    def hear(self, share: int, reached: Reached) -> bool:
        """A share has come so far; returns whether somebody may have waited for that."""
        before = self.reached(share)
        self.through = max(self.through, reached.through)
        if reached.position <= before.position:
            return False
        self._reached[share] = Reached(reached.position, max(before.through, reached.through))
        waiting, crossed = self._open.get(share), self._crossed.get(share, 0)
        while waiting and waiting[0] <= reached.position:
            self._crossed[share] = waiting.popleft()
        return self._crossed.get(share, 0) > crossed

    def reached(self, share: int) -> Reached:
        """How far a share has come."""
        return self._reached.get(share, NOWHERE)

    def has_crossed(self, share: int, since: int) -> bool:
        """Whether a message of the share that crosses was handled, after a position: others may
        wait to hear of it.
        """
        return self._crossed.get(share, 0) > since

    def first_open(self, share: int) -> int:
        """The first message that crosses and is not handled, of another share; 0 = there is none.
        Costs a look at each share.
        """
        found = [waiting[0] for other, waiting in self._open.items() if waiting and other != share]
        return min(found, default=0)

    def bound(self, share: int) -> int:
        """Nothing that stands in `input` before this brings anything more for the share's peers."""
        # Of our own share we may have heard from its last holder: farther than we have looked.
        own = min(self.reached(share).position, self.covered) + 1
        return min(self.first_open(share) or own, own)

    def is_clear(self, share: int, place: int, *, settled: int, handed: int) -> bool:
        """Whether a share's own delivery of the message at `place` may go at once: nothing that
        stands in `input` before it is waited for or under way. `settled`: what stands in `handed`
        up to here has gone; `handed`: the share itself put something there up to here.
        """
        first = self.first_open(share)
        is_next = self.covered >= place - 1 and (not first or first >= place)
        return is_next and settled >= max(self.through, handed)


class HandedQueue:
    """What was handed to a share for its peers and waits for its turn."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, StoredEvent]] = []
        self._positions: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, stored: StoredEvent, place: int) -> None:
        """Queues a delivery of the message at `place`; told in the order of `handed`."""
        heapq.heappush(self._heap, (place, stored.position, stored))
        self._positions[stored.position] = None

    def take(self, bound: int) -> list[StoredEvent]:
        """Those whose turn it is, in their order: of messages up to the bound."""
        taken = []
        while self._heap and self._heap[0][0] <= bound:
            _, position, stored = heapq.heappop(self._heap)
            del self._positions[position]
            taken.append(stored)
        return taken

    def last(self) -> int:
        """The place of the last that waits; 0 when nothing does."""
        return max((place for place, _, _ in self._heap), default=0)

    def settled(self, read_until: int) -> int:
        """Everything in `handed` up to here was taken, of what was read."""
        return next(iter(self._positions), read_until + 1) - 1
