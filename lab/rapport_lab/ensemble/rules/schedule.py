"""What is due at an offset and then in every period. [EN-3]"""

from __future__ import annotations

from collections.abc import Collection
from math import ceil, floor

import msgspec

from rapport_lab.ensemble.rules.index import EARLY_MS


class Schedule(msgspec.Struct, frozen=True):
    """The times `offset_ms + n * period_ms`, each kept when not more than `late_ms` late."""

    period_ms: float
    offset_ms: float
    late_ms: float = 0.0

    def round_of(self, time_ms: float) -> int:
        """The number of the last round due at a time."""
        return floor((time_ms - self.offset_ms + EARLY_MS) / self.period_ms)

    def due_ms(self, round_number: int) -> float:
        """When a round is due."""
        return self.offset_ms + round_number * self.period_ms

    def is_kept(self, time_ms: float) -> bool:
        """Whether something that happened at a time was due."""
        lateness = time_ms - self.due_ms(self.round_of(time_ms))
        return lateness <= self.late_ms + 2 * EARLY_MS

    def is_made_up(self, round_number: int, kept: Collection[int]) -> bool:
        """Whether a round was kept, or one that was due while this one was not too late yet: a node
        that is late by more than a period leaves out what it slept through.
        """
        last = self.round_of(self.due_ms(round_number) + self.late_ms)
        return any(number in kept for number in range(round_number, last + 1))

    def rounds_between(self, after_ms: float, before_ms: float) -> range:
        """The numbers of rounds that were due, and are too late, strictly between two times."""
        first = floor((after_ms - self.offset_ms + EARLY_MS) / self.period_ms) + 1
        last = ceil((before_ms - self.late_ms - self.offset_ms - EARLY_MS) / self.period_ms)
        return range(max(first, 0), last)
