"""The one seeded generator of a node; ids, gossip and simulation draw from it. [design 6]"""

from __future__ import annotations

import random
import secrets

from rapport.core.ids import time_ordered_id
from rapport.kernel.clock import Clock

_DRAWN = 64


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
        self._last_ms = 0
        self._drawn: list[bytes] = []

    def new(self) -> str:
        """A UUIDv7 as text."""
        now_ms = self._clock.now_ms()
        if now_ms > self._last_ms:
            self._last_ms = now_ms
        if not self._drawn:
            # Drawing for many at once costs hardly more than for one.
            many = self._chance.randbytes(10 * _DRAWN)
            self._drawn = [many[start : start + 10] for start in range(0, len(many), 10)]
        return time_ordered_id(self._last_ms, self._drawn.pop())
