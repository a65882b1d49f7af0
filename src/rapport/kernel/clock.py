"""The one clock. Time is an argument everywhere else; only this file reads the machine's. [design
6]
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from typing import NamedTuple, Protocol


class Now(NamedTuple):
    """A moment, as pure machines are told it."""

    wall_ms: int
    """Milliseconds since 1970 UTC: decides what is valid; may jump when a clock is set."""
    steady_ms: float
    """Milliseconds that never go back: decides what is due; only differences mean something."""


class Clock(Protocol):
    """Wall time in ms UTC, a steady counter for measuring, and a way to wait."""

    def now_ms(self) -> int:
        """Milliseconds since 1970 UTC; may jump when the machine's clock is set."""

    def steady_ns(self) -> int:
        """Nanoseconds that never go back; only differences mean something."""

    async def sleep(self, duration_ms: float) -> None:
        """Returns when that much of this clock's time has passed."""


class SystemClock:
    """The machine's own time."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def steady_ns(self) -> int:
        return time.perf_counter_ns()

    async def sleep(self, duration_ms: float) -> None:
        await asyncio.sleep(max(duration_ms, 0) / 1_000)


class ManualClock:
    """Time that moves only when told: for tests and for replay. Sleepers wake in order of their due
    time.
    """

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now_ms(self) -> int:
        return self._now_ms

    def steady_ns(self) -> int:
        return self._now_ms * 1_000_000

    async def sleep(self, duration_ms: float) -> None:
        if duration_ms <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        due = self._now_ms + duration_ms
        heapq.heappush(self._sleepers, (due, next(self._order), future))
        await future

    def set_ms(self, now_ms: int) -> None:
        """Moves to a time, forwards or back (as a machine's clock may); wakes who is due."""
        self._now_ms = now_ms
        while self._sleepers and self._sleepers[0][0] <= now_ms:
            _due, _order, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)

    async def advance(self, duration_ms: int) -> None:
        """Moves on, stopping at each sleeper's due time and letting it run before going further."""
        target = self._now_ms + duration_ms
        await settle()
        while self._sleepers and self._sleepers[0][0] <= target:
            self.set_ms(max(self._now_ms, int(self._sleepers[0][0])))
            await settle()
        self.set_ms(target)
        await settle()


async def settle(rounds: int = 20) -> None:
    """Lets everything that is ready run; enough rounds for chains of awaits without I/O."""
    for _ in range(rounds):
        await asyncio.sleep(0)
