"""What a machine has to do later: calls in order of their due time. [CX-5]"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final

from rapport.transport.base import Now

Call = Callable[..., None]
NEVER: Final = float("inf")


class Agenda:
    """Planned calls on steady time; what is no longer wanted is found out by the call itself, so
    nothing is ever taken back.
    """

    __slots__ = ("_calls", "_number", "others_ms", "wake_ms")

    def __init__(self) -> None:
        self._calls: list[tuple[float, int, Call, tuple[Any, ...]]] = []
        self._number = 0
        self.wake_ms = NEVER
        """A time not after the first at which anything at all is due, also of what is kept
        elsewhere: whoever runs many machines looks here instead of asking each time.
        """
        self.others_ms = NEVER
        """The same for what seldom changes: membership, and the table."""

    def __len__(self) -> int:
        return len(self._calls)

    def at(self, due_ms: float, call: Call, *arguments: Any) -> None:
        """Plans `call(*arguments, now)` for a steady time."""
        self._number += 1
        heappush(self._calls, (due_ms, self._number, call, arguments))
        if due_ms < self.wake_ms:
            self.wake_ms = due_ms

    def wake_at(self, due_ms: float) -> None:
        """A hop, which keeps its own time, is due then."""
        if due_ms < self.wake_ms:
            self.wake_ms = due_ms

    def others_at(self, due_ms: float) -> None:
        """Membership or table have something to do then."""
        if due_ms < self.others_ms:
            self.others_ms = due_ms
            self.wake_at(due_ms)

    def settle(self, hops_ms: float | None) -> float:
        """The hops have nothing before that time (any more): what `wake_ms` is now."""
        wake_ms = self.others_ms
        if hops_ms is not None and hops_ms < wake_ms:
            wake_ms = hops_ms
        if self._calls and self._calls[0][0] < wake_ms:
            wake_ms = self._calls[0][0]
        self.wake_ms = wake_ms
        return wake_ms

    def next_due_ms(self) -> float | None:
        """When the first is due."""
        return self._calls[0][0] if self._calls else None

    def run(self, now: Now) -> None:
        """Makes every call that is due, in order; also those planned meanwhile for now."""
        calls = self._calls
        while calls and calls[0][0] <= now.steady_ms:
            _due, _number, call, arguments = heappop(calls)
            call(*arguments, now)
