"""Requests to a pull adapter to look: events of `request.<name>`, and what is still to be done
about them. [CO-5, CO-12]

A request with a time to live is looked after until something came or the time is over; then its
sender is told TIMEOUT. One without is one look. Pure: time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rapport.core.event import CAUSE, Event, cause_text, make_event
from rapport.core.ids import content_id

REQUEST = "rapport.input.request"
TIMEOUT = "rapport.control.timeout"
FIRST_REQUEST_PAUSE_MS, LONGEST_REQUEST_PAUSE_MS = 1_000, 60_000
"""Between two looks for the same request; doubled each time."""


class PullRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The data of a request event."""

    id: str
    requester: str
    """Who is told when nothing came, as `kind:name`."""
    asked_ms: int
    expires: int = 0
    """When nobody waits for it any more, ms UTC; 0 = one look is enough."""
    refers_to: str = ""
    """The message on whose behalf it is asked."""

    def to_event(self, adapter: str) -> Event:
        """The event for `request.<adapter>`."""
        return make_event(
            source="communication",
            id=self.id,
            type=REQUEST,
            subject=adapter,
            time=self.asked_ms,
            data=self,
            headers={CAUSE: cause_text(self.refers_to)} if self.refers_to else {},
        )


def timeout_event(
    adapter: str, requester: str, refers_to: str, *, cause: str, now_ms: int
) -> Event:
    """What is told when nothing came in time, as an event of `control`. It refers to the request,
    or to the input whose deadline passed.
    """
    return make_event(
        source="communication",
        id=content_id("timeout", adapter, cause),
        type=TIMEOUT,
        subject=requester,
        time=now_ms,
        data={"refers_to": refers_to, "reason": f"nothing came in through {adapter} in time"},
        headers={CAUSE: cause_text(cause)},
    )


class _OpenRequest(msgspec.Struct):
    """A request that is not settled: when it is due for the next look."""

    request: PullRequest
    due_ms: int
    pause_ms: int = FIRST_REQUEST_PAUSE_MS


class OpenRequests:
    """The requests of one adapter that are not settled yet, by their position; says how far the
    reader's place may move and which positions after it are settled already.
    """

    def __init__(self, committed: int, settled: Iterable[int] = ()) -> None:
        self.read_until = committed
        self._committed = committed
        self._settled = {position for position in settled if position > committed}
        self._open: dict[int, _OpenRequest] = {}

    def take(self, position: int, request: PullRequest | None) -> None:
        """A request was read; None for an event that is none."""
        self.read_until = max(self.read_until, position)
        if request is None:
            self._settled.add(position)
        elif position not in self._settled:
            self._open[position] = _OpenRequest(request, request.asked_ms)

    def next_due_ms(self, now_ms: int) -> int | None:
        """When the next look for a request is due; None when there is none. A clock that was set
        back puts none off.
        """
        for entry in self._open.values():
            entry.due_ms = min(entry.due_ms, now_ms + entry.pause_ms)
        return min((entry.due_ms for entry in self._open.values()), default=None)

    def next_over_ms(self) -> int | None:
        """When the next request has waited long enough; None when none ever has."""
        ends = (entry.request.expires for entry in self._open.values())
        return min((moment for moment in ends if moment), default=None)

    def over(self, now_ms: int) -> list[PullRequest]:
        """Settles and returns the requests whose time is over, though no look could be made."""
        ended = [
            (position, entry.request)
            for position, entry in self._open.items()
            if entry.request.expires and entry.request.expires <= now_ms
        ]
        for position, _request in ended:
            del self._open[position]
            self._settled.add(position)
        return [request for _position, request in ended]

    def looked(self, began_ms: int, now_ms: int, *, found: bool) -> list[PullRequest]:
        """A look has ended; returns the requests whose time is over without anything. `found` ends
        all of them: which one it was meant for nobody can tell.
        """
        late = []
        for position, entry in list(self._open.items()):
            expires = entry.request.expires
            if not found and expires and expires > began_ms:
                entry.due_ms = min(now_ms + entry.pause_ms, expires)
                entry.pause_ms = min(entry.pause_ms * 2, LONGEST_REQUEST_PAUSE_MS)
                continue
            if not found and expires:
                late.append(entry.request)
            del self._open[position]
            self._settled.add(position)
        return late

    def failed(self, now_ms: int) -> list[PullRequest]:
        """A look could not be made; returns the requests whose time is over. The others wait for
        the next one.
        """
        return self.looked(now_ms, now_ms, found=False)

    def place(self) -> tuple[int, list[int]]:
        """Up to where everything is settled, and what is settled beyond that."""
        until = min(self._open, default=self.read_until + 1) - 1
        self._settled = {position for position in self._settled if position > until}
        return until, sorted(self._settled)
