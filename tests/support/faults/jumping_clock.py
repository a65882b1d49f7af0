"""A clock whose wall time can be set while its steady time goes on, as a machine's can. For tests.
[CH-14, design 6]
"""

from __future__ import annotations

from rapport.kernel.clock import ManualClock


class JumpingClock(ManualClock):
    """A ManualClock; `jump` sets the wall clock and nothing else: nobody wakes, no time passes."""

    def __init__(self, now_ms: int = 0) -> None:
        super().__init__(now_ms)
        self._off_by_ms = 0

    def now_ms(self) -> int:
        """See Clock."""
        return super().now_ms() + self._off_by_ms

    def jump(self, by_ms: int) -> None:
        """Sets the wall clock forwards or back."""
        self._off_by_ms += by_ms

    def correct(self) -> None:
        """Sets the wall clock right again."""
        self._off_by_ms = 0
