"""Waking a machine when something of it is due. [CX-2, EN-10]"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from rapport.kernel.clock import Clock

_LEAST_MS = 1.0
"""Between two rings: what is late already gains nothing by more."""


def steady_ms(clock: Clock) -> float:
    """Milliseconds that never go back."""
    return clock.steady_ns() / 1e6


class Alarm:
    """Rings when the time comes that `due` tells (steady ms; None: nothing is due).

    `look` is called after everything that may have made that time earlier, and costs one question.
    """

    def __init__(
        self, clock: Clock, due: Callable[[], float | None], ring: Callable[[], None]
    ) -> None:
        self._clock, self._due, self._ring = clock, due, ring
        self._until = -math.inf
        self._wake = asyncio.Event()

    def look(self) -> None:
        """Wakes earlier when it must."""
        due = self._due()
        # What moves by less is the rounding of two clocks, not worth a wake-up.
        if due is not None and due < self._until - _LEAST_MS:
            self._until = due
            self._wake.set()

    async def run(self) -> None:
        """Rings until cancelled."""
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
