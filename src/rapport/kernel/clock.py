"""Time and chance: the clock, a timer for state machines, a guard against clock jumps, the seeded
random generator of a node and the ids drawn from both. [CH-14, CX-2, EN-10]

Both are arguments everywhere else; only this module reads the machine's clock and its entropy.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import random
import secrets
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from rapport.core.event import CHANCE_BYTES, id_ends, id_start


class Now(NamedTuple):
    """A moment, as an argument of state machines."""

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
    """A clock that the caller moves; sleepers wake in order of their due time."""

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
        """Moves to a time, forwards or back; wakes the sleepers that are due."""
        self._now_ms = now_ms
        while self._sleepers and self._sleepers[0][0] <= now_ms:
            _due, _order, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)

    async def advance(self, duration_ms: int) -> None:
        """Advances, and lets each sleeper run at its due time."""
        target = self._now_ms + duration_ms
        await settle()
        while self._sleepers and self._sleepers[0][0] <= target:
            self.set_ms(max(self._now_ms, int(self._sleepers[0][0])))
            await settle()
        self.set_ms(target)
        await settle()


async def settle(rounds: int = 20) -> None:
    """Lets all ready tasks run; enough rounds for chains of awaits without I/O."""
    for _ in range(rounds):
        await asyncio.sleep(0)


_LEAST_MS = 1.0
"""Shortest time between two calls."""


def steady_ms(clock: Clock) -> float:
    """Milliseconds that never go back."""
    return clock.steady_ns() / 1e6


class DueTimer:
    """Calls `ring` when the time comes that `due` returns (steady ms; None: nothing is due).

    Call `look` after every change that may have made that time earlier.
    """

    def __init__(
        self, clock: Clock, due: Callable[[], float | None], ring: Callable[[], None]
    ) -> None:
        self._clock, self._due, self._ring = clock, due, ring
        self._until = -math.inf
        self._wake = asyncio.Event()

    def look(self) -> None:
        """Wakes the timer earlier if the due time is earlier now."""
        due = self._due()
        # A smaller difference is rounding between two clocks.
        if due is not None and due < self._until - _LEAST_MS:
            self._until = due
            self._wake.set()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            due = self._due()
            now = steady_ms(self._clock)
            if due is None:
                self._until = math.inf
                await self._wake.wait()
            elif due > now:
                self._until = due
                await self._sleep(due - now)
            else:
                self._until = -math.inf
                self._ring()
                await self._clock.sleep(_LEAST_MS)

    async def _sleep(self, duration_ms: float) -> None:
        sleeper = asyncio.ensure_future(self._clock.sleep(max(duration_ms, _LEAST_MS)))
        sleeper.add_done_callback(lambda _done: self._wake.set())
        try:
            await self._wake.wait()
        finally:
            sleeper.cancel()


MOST_JUMP_MS = 5 * 60_000
"""A smaller difference to the steady counter is a normal clock correction."""
CONFIRM_MS = 10 * 60_000
"""How long a new time must last until it counts; also how long after its start a node that seems to
have been off for long deletes nothing.
"""


class ClockJumpGuard:
    """Wall time that ignores fresh jumps forward; for everything that deletes by age. Thread-safe.

    A machine's clock may be set to 2099 for a moment, by hand or by a faulty time server. Time that
    goes back counts at once, because keeping more loses nothing. Time that jumps ahead counts only
    after it has lasted for `CONFIRM_MS`; until then the steady counter extends the former time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._anchor = self._candidate = self._look()
        self._began_ms = self._anchor[1]

    def now_ms(self) -> int:
        """Milliseconds since 1970 UTC; never ahead of the clock, without a fresh jump."""
        with self._guard:
            wall, steady = now = self._look()
            expected = _extrapolated(self._anchor, steady)
            if wall <= expected + MOST_JUMP_MS or self._is_confirmed(now):
                self._anchor = self._candidate = now
                return wall
            return expected

    def is_settled(self) -> bool:
        """Whether it has observed the clock long enough to exclude a wrong time at the start."""
        return self._look()[1] - self._began_ms >= CONFIRM_MS

    def _is_confirmed(self, now: tuple[int, int]) -> bool:
        """Whether a time that jumped ahead has lasted for long enough."""
        jumped = self._candidate
        if jumped is self._anchor or abs(now[0] - _extrapolated(jumped, now[1])) > MOST_JUMP_MS:
            self._candidate = now  # a first or another jump: starts the confirmation
            return False
        return now[1] - jumped[1] >= CONFIRM_MS

    def _look(self) -> tuple[int, int]:
        return self._clock.now_ms(), self._clock.steady_ns() // 1_000_000


def _extrapolated(seen: tuple[int, int], steady_ms: int) -> int:
    return seen[0] + steady_ms - seen[1]


_DRAW_COUNT = 64
_FEW = 16


class Chance(random.Random):
    """A seeded random generator; the same seed gives the same run. Secrets come from `secrets`."""

    @staticmethod
    def from_machine() -> Chance:
        """A generator with an unpredictable seed."""
        return Chance(secrets.randbits(128))


class Ids:
    """Ids that sort by time and are unique within the node, even if the clock goes back."""

    def __init__(self, clock: Clock, chance: Chance) -> None:
        self._clock, self._chance = clock, chance
        self._last_ms, self._start = 0, id_start(0)
        self._ends: list[str] = []

    def new(self) -> str:
        """A UUIDv7 as text."""
        now_ms = self._clock.now_ms()
        if now_ms > self._last_ms:
            self._last_ms, self._start = now_ms, id_start(now_ms)
        if not self._ends:
            # Drawing many at once costs hardly more than drawing one.
            self._ends = id_ends(self._chance.randbytes(CHANCE_BYTES * _DRAW_COUNT))
        return self._start + self._ends.pop()

    def many(self, count: int) -> list[str]:
        """`count` ids of one millisecond, at a fraction of the cost of single ids."""
        if count < _FEW:
            return [self.new() for _ in range(count)]
        now_ms = self._clock.now_ms()
        if now_ms > self._last_ms:
            self._last_ms, self._start = now_ms, id_start(now_ms)
        start = self._start
        return [start + end for end in id_ends(self._chance.randbytes(CHANCE_BYTES * count))]
