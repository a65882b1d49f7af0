"""A source in memory that answers as a channel does, for listeners under test: no network, no
clock, and every answer can be lost, doubled or broken. [CH-7]
"""

from __future__ import annotations

from collections.abc import Callable

from rapport.channel.agents.connection import CallBarred, Reason
from rapport.channel.agents.listener_state import BatchReceived, LeaseEnded, SourceAnswer
from rapport.channel.requests.request import Batch, Request
from rapport.core.event import Event, StoredEvent


def make_stored(position: int) -> StoredEvent:
    """The event that stands at a position in every model."""
    event = Event("model", str(position), "t", "", 1_000 + position, str(position).encode())
    return StoredEvent(position, 2_000 + position, event)


class ModelSource:
    """Sets are closed when their token is given out; tokens carry everything, as a node's do.

    `fail` may stand in for an answer: it gets the request and, as a function, the true answer.
    """

    def __init__(self, *, before: Callable[[], None] | None = None) -> None:
        self.last = 0
        self.token = ""
        self.let_go: set[int] = set()
        self.ended: set[str] = set()
        self.requests: list[Request] = []
        self.is_interrupted = False
        self.fail: Callable[[Request, Callable[[], SourceAnswer]], SourceAnswer] | None = None
        self._sessions = 0
        self._before = before

    def append(self, count: int = 1) -> list[int]:
        """Adds events; their positions."""
        self.last += count
        return list(range(self.last - count + 1, self.last + 1))

    def request(self, request: Request) -> SourceAnswer:
        """See listener_fetcher.Source; never waits."""
        self.requests.append(request)
        if self._before is not None:
            self._before()
        if self.fail is not None:
            return self.fail(request, lambda: self.answer(request))
        return self.answer(request)

    def answer(self, request: Request) -> SourceAnswer:
        """What a channel answers."""
        if not request.token:
            self._sessions += 1
            start = 0 if request.from_start else self.last
            found, reach = self._choose(start, request)
            token = self._token(f"s{self._sessions}", start, found, reach, request.handback)
            return BatchReceived(self._batch(token, found, reach, request))
        return self._go_on(request)

    def interrupt(self) -> None:
        """See listener_fetcher.Source."""
        self.is_interrupted = True

    def hang_up(self) -> None:
        """See listener_fetcher.Source; nothing is held."""

    def end_session(self, token: str) -> None:
        """See listener_fetcher.Source."""
        self.ended.add(token.split("|")[0])

    def _go_on(self, request: Request) -> SourceAnswer:
        parts = request.token.split("|")
        if len(parts) != 5:
            return CallBarred(Reason("token.damaged", "this is no token"))
        session, positions, after, reach, _handback = parts
        if session in self.ended:
            return LeaseEnded(Reason("channel.lease_expired", "the lease has run out"))
        if request.lease_minutes == 0:
            self.ended.add(session)
            return BatchReceived(Batch(events=(), current_token=request.token))
        named = [int(one) for one in positions.split(",") if one]
        if request.seen:
            return BatchReceived(self._batch(request.token, [], int(reach), request))
        if self.let_go.intersection(named):
            return BatchReceived(self._batch(request.token, [], int(after), request, gone=True))
        return BatchReceived(self._batch(request.token, named, int(reach), request))

    def _choose(self, after: int, request: Request) -> tuple[list[int], int]:
        there = [one for one in range(after + 1, self.last + 1) if one not in self.let_go]
        found = there[: request.max_messages or 100]
        return found, found[-1] if found else self.last

    def _token(self, session: str, after: int, found: list[int], reach: int, handback: str) -> str:
        before = found[0] - 1 if found else after
        return "|".join((session, ",".join(map(str, found)), str(before), str(reach), handback))

    def _batch(
        self, token: str, found: list[int], reach: int, request: Request, *, gone: bool = False
    ) -> Batch:
        following, further = self._choose(reach, request)
        session, handback = token.split("|")[0], token.split("|")[4]
        follows = self._token(session, reach, following, further, handback) if following else None
        return Batch(
            events=tuple(make_stored(one) for one in found),
            current_token=token,
            next_token=follows,
            lease_minutes=request.lease_minutes,
            gone=gone,
            handback=handback,
        )
