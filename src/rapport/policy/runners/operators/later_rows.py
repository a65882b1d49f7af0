"""Rows of streams that only absence may ask about: kept as they came until it does. [PO-6]"""

from __future__ import annotations

from collections import deque

from rapport.policy.runners.operators.intake import StreamRows

_FEW = 2
_MOST_WAITING = 4
"""Each batch costs a look-up however small it is: a match that falls due must not wait for more."""


class LaterRows:
    """Keeps a reference per batch; what nobody asks about is forgotten unseen."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self._waiting: deque[tuple[StreamRows, int]] = deque()
        self.is_busy = False
        """Whether batches are asked about soon after they came, as it seems."""

    def add(self, rows: StreamRows, first: int) -> None:
        """Rows no earlier than those here; `first`: the ordinal of the batch's first event."""
        self._waiting.append((rows, first))
        if len(self._waiting) > _FEW:
            self.is_busy = False

    @property
    def is_full(self) -> bool:
        """Whether so many batches wait that asking about all of them would take long."""
        return len(self._waiting) > _MOST_WAITING

    def take(self, before: int) -> list[tuple[StreamRows, int]]:
        """Gives away, in order, batches that begin before a time."""
        taken = []
        while self._waiting and self._waiting[0][0].times[0] < before:
            taken.append(self._waiting.popleft())
        if taken:
            self.is_busy = len(taken) <= _FEW
        return taken

    def trim(self, before: int) -> None:
        """Forgets batches that ended before a time."""
        while self._waiting and self._waiting[0][0].times[-1] < before:
            self._waiting.popleft()
