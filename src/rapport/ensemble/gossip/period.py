"""When something periodic is due: at offset + n * period, by steady time. [EN-5, EN-8]"""

from __future__ import annotations

import math
from typing import Final

from rapport.kernel.chance import Chance

_NEVER: Final = float("inf")


class Period:
    """The next time of a task. Times that were slept through are left out, not made up for."""

    __slots__ = ("_number", "_offset_ms", "_period_ms", "due_ms")

    def __init__(
        self, period_ms: float, offset_ms: float | None, chance: Chance, start_ms: float
    ) -> None:
        """A period of 0 is never due. Without an offset one is drawn."""
        self._period_ms = period_ms
        self._offset_ms = chance.random() * period_ms if offset_ms is None else offset_ms
        self._number = 0
        self.due_ms = _NEVER
        """Steady time of the next; infinite for never."""
        if period_ms > 0:
            self._number = max(math.ceil((start_ms - self._offset_ms) / period_ms), 0)
            self.due_ms = self._offset_ms + self._number * period_ms

    @property
    def offset_ms(self) -> float:
        """As it was given or drawn."""
        return self._offset_ms

    def done(self, steady_ms: float) -> None:
        """The task was carried out: the next time is the first one after now."""
        # Counted, not computed from the time alone: a rounded quotient may be one too small.
        passed = math.floor((steady_ms - self._offset_ms) / self._period_ms)
        self._number = max(self._number, passed) + 1
        self.due_ms = self._offset_ms + self._number * self._period_ms

    def end(self) -> None:
        """Never again."""
        self.due_ms = _NEVER
