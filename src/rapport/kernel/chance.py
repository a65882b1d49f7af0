"""The one seeded generator of a node; ids, gossip and simulation draw from it. [design 6]"""

from __future__ import annotations

import random
import secrets

from rapport.core.ids import CHANCE_BYTES, id_ends, id_start
from rapport.kernel.clock import Clock

_DRAWN = 64
_FEW = 16


class Chance(random.Random):
    """A seeded generator; the same seed gives the same run. Not for secrets: those come from
    `secrets`.
    """

    @staticmethod
    def from_machine() -> Chance:
        """A generator whose seed nobody knows."""
        return Chance(secrets.randbits(128))


class Ids:
    """Mints ids that sort by time and never repeat within the node, also when the clock stands or
    goes back.
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
            # Drawing for many at once costs hardly more than for one.
            self._ends = id_ends(self._chance.randbytes(CHANCE_BYTES * _DRAWN))
        return self._start + self._ends.pop()

    def many(self, count: int) -> list[str]:
        """So many of them, all of one millisecond; from some ten on for a fraction of the cost."""
        if count < _FEW:
            return [self.new() for _ in range(count)]
        now_ms = self._clock.now_ms()
        if now_ms > self._last_ms:
            self._last_ms, self._start = now_ms, id_start(now_ms)
        start = self._start
        return [start + end for end in id_ends(self._chance.randbytes(CHANCE_BYTES * count))]
