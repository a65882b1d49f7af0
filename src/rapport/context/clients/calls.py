"""Requests under way: repeated with the same id until answered or too late. Pure. [CX-2, CX-3]"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import msgspec

from rapport.context.messages import RECEIVED, Answer, Status
from rapport.transport.base import Address

Finish = Callable[[Answer | Status | None], None]
"""Gets the answer, or None when time is up."""

_AT_WORK_MS = 200.0
"""A broker that has begun is not asked again before this."""
_TRIES_IN_TIME = 12
_LEAST_PAUSE_MS = 50.0
"""Pauses grow, but not beyond this part of the time there is: were each twice the one before to the
end, a deadline would see few tries, and of those some are lost and some come before the answer.
"""


class Call(msgspec.Struct):
    """One request."""

    id: int
    finish: Finish
    began_ms: float
    deadline_ms: float
    retry_ms: float
    """How long until the next repetition."""
    due_ms: float
    to: Address | None = None
    """Who is asked, and nobody else; none: whoever the client has chosen."""
    tries: int = 1
    received_ends: bool = False
    """Whether 101 is all that will be said."""

    def longest_pause_ms(self) -> float:
        """Between two tries."""
        return max((self.deadline_ms - self.began_ms) / _TRIES_IN_TIME, _LEAST_PAUSE_MS)


class Calls:
    """All requests of one client. Memory is bounded by who waits for them."""

    def __init__(self, longest_retry_ms: float) -> None:
        self._longest_retry_ms = longest_retry_ms
        self._calls: dict[int, Call] = {}
        self._order: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._calls)

    def begin(self, call: Call) -> None:
        """A request that is sent now."""
        self._calls[call.id] = call
        heapq.heappush(self._order, (min(call.due_ms, call.deadline_ms), call.id))

    def abandon(self, id: int) -> None:
        """Nobody waits for it any more."""
        self._calls.pop(id, None)

    def answered(self, message: Answer | Status, sender: Address, now_ms: float) -> None:
        """What a broker said; what nobody asked for, or another was asked for, is dropped."""
        call = self._calls.get(message.id)
        if call is None or call.to not in (None, sender):
            return
        is_received = isinstance(message, Status) and message.status == RECEIVED
        if is_received and not call.received_ends:
            # It is at work, and what it says in the end may be lost as well.
            call.retry_ms = min(_AT_WORK_MS, self._longest_retry_ms)
            call.due_ms = now_ms + call.retry_ms
            return
        del self._calls[message.id]
        call.finish(message)

    def due(self, now_ms: float) -> list[Call]:
        """The requests to repeat now; those that are too late are finished with None."""
        repeated: list[Call] = []
        while self._order and self._order[0][0] <= now_ms:
            _, id = heapq.heappop(self._order)
            call = self._calls.get(id)
            if call is None:
                continue
            if call.deadline_ms <= now_ms:
                del self._calls[id]
                call.finish(None)
                continue
            if call.due_ms <= now_ms:
                repeated.append(call)
                call.tries += 1
                longest_ms = min(self._longest_retry_ms, call.longest_pause_ms())
                call.retry_ms = max(call.retry_ms, min(call.retry_ms * 2, longest_ms))
                call.due_ms = now_ms + call.retry_ms
            heapq.heappush(self._order, (min(call.due_ms, call.deadline_ms), id))
        return repeated

    def next_due_ms(self) -> float | None:
        """When `due` may have something to do."""
        while self._order and self._order[0][1] not in self._calls:
            heapq.heappop(self._order)
        return self._order[0][0] if self._order else None

    def all(self) -> list[Call]:
        """All that are under way."""
        return list(self._calls.values())
