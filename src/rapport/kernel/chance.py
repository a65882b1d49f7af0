"""The one seeded generator of a node; ids, gossip and simulation draw from it. [design 6]"""

from __future__ import annotations

import random
import secrets

from rapport.core.ids import time_ordered_id
from rapport.kernel.clock import Clock


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

    def new(self) -> str:
        """A UUIDv7 as text."""
        self._last_ms = max(self._last_ms, self._clock.now_ms())
        return time_ordered_id(self._last_ms, self._chance.randbytes(10))
