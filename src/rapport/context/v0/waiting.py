"""Consumers of v0 that wait for an answer. v0 has no request ids, so they are found by the address,
the question, or where the request was sent, the oldest first. [CX-2]
"""

from __future__ import annotations

from rapport.context.messages import Question
from rapport.context.v0.admission import Caller
from rapport.transport.base import Address


class Waiting:
    """A consumer that asked this broker; compared by identity."""

    __slots__ = ("caller", "deadline_ms", "is_in_v1", "is_over", "question", "sent_to")

    def __init__(self, caller: Caller, question: Question, deadline_ms: float) -> None:
        self.caller, self.question, self.deadline_ms = caller, question, deadline_ms
        self.sent_to: Address | None = None
        """The neighbour that walks for it now."""
        self.is_in_v1 = self.is_over = False


_ByAddress = dict[Address, dict[Waiting, None]]


class WaitingRoom:
    """Who waits; entering, leaving and finding cost the same however many there are."""

    def __init__(self) -> None:
        self._of: _ByAddress = {}
        self._sent_to: _ByAddress = {}

    def count_of(self, consumer: Address) -> int:
        """How many requests of this consumer wait."""
        return len(self._of.get(consumer, ()))

    def enter(self, waiting: Waiting) -> None:
        """It waits from now on."""
        self._of.setdefault(waiting.caller.address, {})[waiting] = None

    def sent(self, waiting: Waiting, to: Address) -> None:
        """It was sent to a neighbour."""
        waiting.sent_to = to
        self._sent_to.setdefault(to, {})[waiting] = None

    def walked(self, waiting: Waiting) -> None:
        """Nobody walks for it any more: it is searched for in v1."""
        waiting.is_in_v1 = True
        if waiting.sent_to is not None:
            _remove(self._sent_to, waiting.sent_to, waiting)
            waiting.sent_to = None

    def leave(self, waiting: Waiting) -> None:
        """It waits no longer."""
        waiting.is_over = True
        _remove(self._of, waiting.caller.address, waiting)
        if waiting.sent_to is not None:
            _remove(self._sent_to, waiting.sent_to, waiting)

    def oldest_of(
        self, consumer: Address, question: Question | None, *, walked_for: bool
    ) -> Waiting | None:
        """The oldest request of a consumer with this question (none: any), of those that are walked
        for where asked.
        """
        for waiting in self._of.get(consumer, ()):
            if question in (None, waiting.question) and not (walked_for and waiting.is_in_v1):
                return waiting
        return None

    def oldest_sent_to(self, neighbour: Address) -> Waiting | None:
        """The oldest request that this neighbour walks for."""
        return next(iter(self._sent_to.get(neighbour, ())), None)


def _remove(places: _ByAddress, address: Address, waiting: Waiting) -> None:
    there = places.get(address, {})
    there.pop(waiting, None)
    if not there:
        places.pop(address, None)
