"""Wall time as far as it is believed: a jump forward must last before anything is let go because of
it. [CH-14, design 6]

A machine's clock may be set to 2099 for a moment, by hand or by a faulty time server. Whatever
deletes by age asks here. Time that goes back is believed at once, for nothing is lost by keeping
more; time that jumps ahead counts on as before, by the steady counter, until the new time has
stood for `CONFIRM_MS`.
"""

from __future__ import annotations

import threading

from rapport.kernel.clock import Clock

MOST_JUMP_MS = 5 * 60_000
"""Ahead of what the steady counter says: less is what clocks that are corrected do."""
CONFIRM_MS = 10 * 60_000
"""How long a new time must stand. Also how long after a start a node that seems to have been off
for long lets nothing go.
"""


class BelievedTime:
    """A clock's wall time with a memory; any thread may ask."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._anchor = self._candidate = self._look()
        self._began_ms = self._anchor[1]

    def now_ms(self) -> int:
        """Milliseconds since 1970 UTC; never ahead of the clock, and not ahead by a fresh jump."""
        with self._guard:
            wall, steady = now = self._look()
            expected = _carried_on(self._anchor, steady)
            if wall <= expected + MOST_JUMP_MS or self._has_stood(now):
                self._anchor = self._candidate = now
                return wall
            return expected

    def is_settled(self) -> bool:
        """Whether it has watched the clock for so long that a wrong start would have shown."""
        return self._look()[1] - self._began_ms >= CONFIRM_MS

    def _has_stood(self, now: tuple[int, int]) -> bool:
        """Whether a time that jumped ahead has gone on from there for long enough."""
        jumped = self._candidate
        if jumped is self._anchor or abs(now[0] - _carried_on(jumped, now[1])) > MOST_JUMP_MS:
            self._candidate = now  # a first jump, or another one: counts from here
            return False
        return now[1] - jumped[1] >= CONFIRM_MS

    def _look(self) -> tuple[int, int]:
        return self._clock.now_ms(), self._clock.steady_ns() // 1_000_000


def _carried_on(seen: tuple[int, int], steady_ms: int) -> int:
    """What the wall time should be now, had it gone on evenly."""
    return seen[0] + steady_ms - seen[1]
