"""What a machine has to do later: calls in order of their due time. [CX-5]"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from rapport.transport.base import Now

Call = Callable[..., None]


class Agenda:
    """Planned calls on steady time; what is no longer wanted is found out by the call itself, so
    nothing is ever taken back.
    """

    __slots__ = ("_calls", "_number")

    def __init__(self) -> None:
        self._calls: list[tuple[float, int, Call, tuple[Any, ...]]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._calls)

    def at(self, due_ms: float, call: Call, *arguments: Any) -> None:
        """Plans `call(*arguments, now)` for a steady time."""
        self._number += 1
        heappush(self._calls, (due_ms, self._number, call, arguments))

    def next_due_ms(self) -> float | None:
        """When the first is due."""
        return self._calls[0][0] if self._calls else None

    def run(self, now: Now) -> None:
        """Makes every call that is due, in order; also those planned meanwhile for now."""
        calls = self._calls
        while calls and calls[0][0] <= now.steady_ms:
            _due, _number, call, arguments = heappop(calls)
            call(*arguments, now)
