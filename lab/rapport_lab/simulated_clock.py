"""A clock on simulated time, for asyncio code in simulations and tests. [EN-10]"""

from __future__ import annotations

import asyncio

from rapport.kernel.clock import settle
from rapport.kernel.simulation import Scheduler


class SimulatedClock:
    """A clock that reads its time from a scheduler. `advance`, or `Scheduler.run` between awaits,
    moves the time.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def now_ms(self) -> int:
        return self._scheduler.now.wall_ms

    def steady_ns(self) -> int:
        return int(self._scheduler.time_ms * 1_000_000)

    async def sleep(self, duration_ms: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        planned = self._scheduler.after(max(duration_ms, 0), woken.set_result, None)
        try:
            await woken
        finally:
            self._scheduler.cancel(planned)

    async def advance(self, duration_ms: float) -> None:
        """Advances call by call; woken tasks run before the next call."""
        until_ms = self._scheduler.time_ms + duration_ms
        await settle()
        while (due := self._scheduler.next_due_ms()) is not None and due <= until_ms:
            self._scheduler.run(due)
            await settle()
        self._scheduler.run(until_ms)
