"""Which part of the log a restarted broker must read: pure bookkeeping of positions. [CX-8]"""

from __future__ import annotations

import heapq
import math

import msgspec

from rapport.core.context_record import ContextRecord
from rapport.transport.base import Address

_SLACK = 10_000
_TIMES = 4
_MOST_STRAGGLERS = 10_000

Key = tuple[str, str, str, str]


class LowWater(msgspec.Struct, frozen=True, array_like=True):
    """A place in the log, and what before it is still needed."""

    position: int
    stragglers: tuple[tuple[int, ContextRecord], ...] = ()
    neighbours: tuple[Address, ...] = ()
    """Of the broker at that time: where it looks first after a restart."""
    owners: tuple[str, ...] = ()
    """Of the stragglers, in their order: the identity that each belongs to. None were written down
    before records had owners.
    """


class StillNeeded:
    """The records that a restart needs, by their place in the log.

    Nothing before the low-water position is needed, but for *stragglers*: few long-lived records
    that would otherwise make a restart read everything that came after them. So a restart reads at
    most about four times what is valid.
    """

    def __init__(self) -> None:
        self._held: dict[int, ContextRecord] = {}
        self._stragglers: dict[int, ContextRecord] = {}
        self._places: dict[Key, list[int]] = {}
        self._over: set[int] = set()
        """Needed although they are over, because of what they ended."""
        self._owed: dict[int, int] = {}
        """Until when they are needed at least: what came after them, too late, is valid so long."""
        self._ends: list[tuple[int, int]] = []
        self._last = 0

    def __len__(self) -> int:
        return len(self._held) + len(self._stragglers)

    def take(self, position: int, record: ContextRecord, wall_ms: int) -> None:
        """A record came into the log, at a position and at that time. The same rules as in the
        broker's table: what has begun ends all that began before it, also when it is over itself.
        """
        self._forget_ended(wall_ms)
        if position in self._held or position in self._stragglers:
            return
        if record.valid_until <= wall_ms or self._is_stale(position, record, wall_ms):
            return
        self._drop_before(record, equal_only=record.valid_from > wall_ms)
        # A repetition has the place of its first copy, which may lie before the others.
        (self._held if position > self._last else self._stragglers)[position] = record
        self._last = max(self._last, position)
        self._note(position, record)

    def recall(self, low: LowWater) -> None:
        """What was written down; then `take` is called for all that came later, as it came."""
        self._last = max(self._last, low.position)
        for position, record in low.stragglers:
            self._stragglers[position] = record
            self._note(position, record)

    def records(self, wall_ms: int) -> list[ContextRecord]:
        """What is needed, in the order of the log."""
        self._forget_ended(wall_ms)
        return [*self._stragglers.values(), *self._held.values()]

    def low_water(self, last: int, wall_ms: int) -> LowWater:
        """Where a restart may begin, when the log ends at `last`."""
        self._forget_ended(wall_ms)
        while last - self._before_first(last) > _TIMES * len(self._held) + _SLACK:
            if not self._held or len(self._stragglers) >= _MOST_STRAGGLERS:
                break
            oldest = next(iter(self._held))
            self._stragglers[oldest] = self._held.pop(oldest)
        return LowWater(self._before_first(last), tuple(self._stragglers.items()))

    def _before_first(self, last: int) -> int:
        return next(iter(self._held)) - 1 if self._held else last

    def _forget_ended(self, wall_ms: int) -> None:
        while self._ends and self._ends[0][0] <= wall_ms:
            _, position = heapq.heappop(self._ends)
            record = self._record_at(position)
            if record is not None:
                self._end(position, record, wall_ms)
        if len(self._ends) > 2 * len(self) + _SLACK:  # most are of records that were replaced
            live = {**self._stragglers, **self._held}
            kept = [one for one in self._ends if one[1] in self._over]
            self._ends = kept + [(record.valid_until, place) for place, record in live.items()]
            heapq.heapify(self._ends)

    def _end(self, position: int, record: ContextRecord, wall_ms: int) -> None:
        """A record is over, and all that began before it. If one of these stands later in the log,
        a restart that did not read this one would take that one for valid: then it stays needed.
        """
        dropped = [] if position in self._over else self._drop_before(record)
        ends = [end for place, end, owed in dropped if place > position]
        ends += [owed for _place, _end, owed in dropped]
        ends.append(self._owed.pop(position, wall_ms))
        last = max(ends, default=wall_ms)
        if last > wall_ms:
            self._over.add(position)
            heapq.heappush(self._ends, (last, position))
        else:
            self._drop(position, record)

    def _is_stale(self, position: int, record: ContextRecord, wall_ms: int) -> bool:
        """Whether one that began later is known. A restart must know that one as long as it would
        take this one for valid.
        """
        is_stale = False
        for place in self._places.get(record.key(), ()):
            other = self._record_at(place)
            if other is None or place in self._over:
                continue
            if record.valid_from < other.valid_from <= wall_ms:
                is_stale = True
                if place < position:
                    self._owed[place] = max(record.valid_until, self._owed.get(place, 0))
        return is_stale

    def _note(self, position: int, record: ContextRecord) -> None:
        self._places.setdefault(record.key(), []).append(position)
        heapq.heappush(self._ends, (record.valid_until, position))

    def _record_at(self, position: int) -> ContextRecord | None:
        return self._held.get(position) or self._stragglers.get(position)

    def _drop_before(
        self, record: ContextRecord, *, equal_only: bool = False
    ) -> list[tuple[int, int, int]]:
        """Drops what of the same provider, entity and scope begins no later, or just then; says
        where each stood, until when it was valid and what it owed.
        """
        dropped: list[tuple[int, int, int]] = []
        least = record.valid_from if equal_only else -math.inf
        for place in list(self._places.get(record.key(), ())):
            other = self._record_at(place)
            if other is None or other is record or place in self._over:
                continue
            if least <= other.valid_from <= record.valid_from:
                dropped.append((place, other.valid_until, self._owed.get(place, 0)))
                self._drop(place, other)
        return dropped

    def _drop(self, position: int, record: ContextRecord) -> None:
        self._held.pop(position, None)
        self._stragglers.pop(position, None)
        self._over.discard(position)
        self._owed.pop(position, None)
        places = self._places[record.key()]
        places.remove(position)
        if not places:
            del self._places[record.key()]
