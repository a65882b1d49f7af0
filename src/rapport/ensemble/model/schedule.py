"""When periodic things are due: at offset + n x period by steady time. [EN-1, EN-2]"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable
from typing import Any, Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Entry(NamedTuple):
    """Something periodic."""

    due_ms: float
    order: int
    key: Any
    period_ms: float
    offset_ms: float


def next_slot(offset_ms: float, period_ms: float, after_ms: float) -> float:
    """The first offset + n x period after a time.

    >>> next_slot(300, 1000, 5200), next_slot(300, 1000, 5300)
    (5300, 6300)
    """
    slot = offset_ms + (math.floor((after_ms - offset_ms) / period_ms) + 1) * period_ms
    return slot if slot > after_ms else slot + period_ms


class Schedule(Generic[Key]):
    """Periodic things and when each is due next; periods that were missed are not made up for."""

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._live: dict[Key, int] = {}
        self._order = 0
        self._last_ms = -math.inf

    def add(self, key: Key, period_ms: float, offset_ms: float, now_ms: float) -> None:
        """From now on; a key has one schedule."""
        self._push(key, period_ms, offset_ms, now_ms)

    def remove(self, key: Key) -> None:
        """No more."""
        self._live.pop(key, None)

    def due(self, now_ms: float) -> list[Key]:
        """What is due, in order of time; each is due once, however long ago it was asked."""
        if now_ms < self._last_ms:
            self._start_again(now_ms)
        self._last_ms = now_ms
        found: list[Key] = []
        while self._heap and self._heap[0].due_ms <= now_ms:
            entry = heapq.heappop(self._heap)
            if self._live.get(entry.key) == entry.order:
                found.append(entry.key)
                self._push(entry.key, entry.period_ms, entry.offset_ms, now_ms)
        return found

    def next_due_ms(self) -> float | None:
        """When the next thing is due."""
        while self._heap and self._live.get(self._heap[0].key) != self._heap[0].order:
            heapq.heappop(self._heap)
        return self._heap[0].due_ms if self._heap else None

    def _push(self, key: Key, period_ms: float, offset_ms: float, now_ms: float) -> None:
        self._order += 1
        self._live[key] = self._order
        due_ms = next_slot(offset_ms, period_ms, now_ms)
        heapq.heappush(self._heap, Entry(due_ms, self._order, key, period_ms, offset_ms))

    def _start_again(self, now_ms: float) -> None:
        """The steady clock went back, as after a restart of a simulation."""
        entries = [entry for entry in self._heap if self._live.get(entry.key) == entry.order]
        self._heap.clear()
        for entry in sorted(entries, key=lambda entry: entry.order):
            self._push(entry.key, entry.period_ms, entry.offset_ms, now_ms)
