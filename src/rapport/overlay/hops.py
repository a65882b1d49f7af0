"""Acknowledged sending to a neighbour: three tries, then failure. [CX-5]"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Any

import msgspec

from rapport.overlay.liveness import UNKNOWN_MS
from rapport.overlay.routing import SeenFilter
from rapport.transport.base import Address, Now


class HopSettings(msgspec.Struct, frozen=True, kw_only=True):
    tries: int = 3
    """Maximum tries; at loss p of a round trip a hop fails with probability p**tries."""
    growth: float = 2.0
    """Factor between time-outs; a hop fails after timeout*(1+2+4)."""
    remembered: int = 4_096
    """Arrivals remembered to detect duplicates."""
    keep_ms: float = 30_000.0
    """How long arrivals are remembered; longer than all tries of a sender."""


class ResendHop(msgspec.Struct, frozen=True, gc=False):
    """Send it once more."""

    id: Hashable
    to: Address
    payload: Any


class HopFailed(msgspec.Struct, frozen=True, gc=False):
    """No try was acknowledged: choose another route."""

    id: Hashable
    to: Address
    payload: Any


class _PendingHop:
    __slots__ = ("due_ms", "payload", "timeout_ms", "to", "tries")

    def __init__(self, to: Address, payload: Any, timeout_ms: float, due_ms: float) -> None:
        self.to, self.payload, self.timeout_ms, self.due_ms = to, payload, timeout_ms, due_ms
        self.tries = 1


class HopRetries:
    """Unacknowledged messages and recent arrivals.

    A receiver handles a message at most once (`arrived`), despite loss and duplicates. Whether a
    failed message arrived is unknown: its acknowledgements may have been lost. Each call costs
    about a microsecond.
    """

    __slots__ = ("_arrived", "_heap", "_serial", "_settings", "_waiting")

    def __init__(self, settings: HopSettings | None = None) -> None:
        self._settings = settings = settings or HopSettings()
        self._waiting: dict[Hashable, _PendingHop] = {}
        self._heap: list[tuple[float, int, Hashable]] = []
        self._serial = 0
        self._arrived = SeenFilter(settings.remembered, settings.keep_ms)

    def sent(
        self, id: Hashable, to: Address, payload: Any, now: Now, timeout_ms: float = UNKNOWN_MS
    ) -> None:
        """Notes the first sending, in place of a pending one of the id."""
        due_ms = now.steady_ms + timeout_ms
        self._waiting[id] = _PendingHop(to, payload, timeout_ms, due_ms)
        self._wake(due_ms, id)

    def acknowledged(self, id: Hashable, by: Address) -> bool:
        """Notes an acknowledgement; false if that message is not pending for that neighbour."""
        waiting = self._waiting.get(id)
        if waiting is None or waiting.to != by:
            return False
        del self._waiting[id]
        return True

    def arrived(self, id: Hashable, sender: Address, now: Now) -> bool:
        """Whether to handle it. False: a duplicate, which is only acknowledged again."""
        return self._arrived.rises((id, sender), 0, now)

    def due(self, now: Now) -> list[ResendHop | HopFailed]:
        steps: list[ResendHop | HopFailed] = []
        heap, steady_ms = self._heap, now.steady_ms
        while heap and heap[0][0] <= steady_ms:
            due_ms, _, id = heapq.heappop(heap)
            waiting = self._waiting.get(id)
            if waiting is not None and waiting.due_ms == due_ms:
                steps.append(self._late(id, waiting, steady_ms))
        return steps

    def next_due(self) -> float | None:
        """The steady time at which `due` has something; None: nothing is pending."""
        heap = self._heap
        while heap:
            due_ms, _, id = heap[0]
            waiting = self._waiting.get(id)
            if waiting is not None and waiting.due_ms == due_ms:
                return due_ms
            heapq.heappop(heap)
        return None

    def forget(self, to: Address) -> list[HopFailed]:
        """Fails all pending messages to a lost neighbour."""
        gone = [(id, waiting) for id, waiting in self._waiting.items() if waiting.to == to]
        for id, _ in gone:
            del self._waiting[id]
        return [HopFailed(id, to, waiting.payload) for id, waiting in gone]

    def waits(self, id: Hashable) -> bool:
        return id in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def _late(self, id: Hashable, waiting: _PendingHop, steady_ms: float) -> ResendHop | HopFailed:
        if waiting.tries >= self._settings.tries:
            del self._waiting[id]
            return HopFailed(id, waiting.to, waiting.payload)
        waiting.tries += 1
        waiting.timeout_ms *= self._settings.growth
        waiting.due_ms = steady_ms + waiting.timeout_ms
        self._wake(waiting.due_ms, id)
        return ResendHop(id, waiting.to, waiting.payload)

    def _wake(self, due_ms: float, id: Hashable) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (due_ms, self._serial, id))
        # Acknowledged entries stay in the heap until due, but at most as many as pending ones.
        if len(self._heap) > 64 + 2 * len(self._waiting):
            self._heap = [
                entry
                for entry in self._heap
                if (waiting := self._waiting.get(entry[2])) and waiting.due_ms == entry[0]
            ]
            heapq.heapify(self._heap)
