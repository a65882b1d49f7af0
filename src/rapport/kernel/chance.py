"""The seeded random generator of a node, and the ids drawn from it. [design 6]"""

from __future__ import annotations

import random
import secrets

from rapport.core.ids import CHANCE_BYTES, id_ends, id_start
from rapport.kernel.clock import Clock

_DRAW_COUNT = 64
_FEW = 16


class Chance(random.Random):
    """A seeded random generator; the same seed gives the same run. Secrets come from `secrets`."""

    @staticmethod
    def from_machine() -> Chance:
        """A generator with an unpredictable seed."""
        return Chance(secrets.randbits(128))


class Ids:
    """Creates ids that sort by time and are unique within the node, even if the clock stands still
    or goes back.
    """

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
