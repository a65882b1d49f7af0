"""When a pull adapter pulls: at an interval, at a deadline, on request, and later after failures.
[CO-5, CO-12]

A request is an event of `request.<name>`. One with a time to live is repeated until a message came
or the time is over; then its sender gets TIMEOUT. One without is a single pull. Pure: time is an
argument.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rapport.core.errors import InvalidInput
from rapport.core.event import CAUSE, Event, cause_text, content_id, make_event

FIRST_FAILURE_PAUSE_MS, LONGEST_FAILURE_PAUSE_MS = 1_000, 300_000
"""After a failure; doubled with each one in a row."""


class PullPlan(msgspec.Struct, frozen=True, kw_only=True):
    """When an application wants its adapter to pull."""

    interval_ms: int | None = None
    """Between the starts of two pulls; None = only on request or at the deadline."""
    deadline_ms: int | None = None
    """The time of the last pull (ms UTC); then the input is removed."""
    delete_if_successful: bool = False
    """Removed after the first pull that brought a message."""

    def check(self) -> None:
        """Raises InvalidInput for an interval that is not positive."""
        if self.interval_ms is not None and self.interval_ms <= 0:
            raise InvalidInput(
                f"an interval of {self.interval_ms} ms is not possible",
                code="input.bad_interval",
                hint="it must be positive; leave it out to pull on request only",
            )


class PullSchedule:
    """When the next pull is due, by the plan and the results of the last ones."""

    def __init__(self, plan: PullPlan, now_ms: int) -> None:
        self._plan = plan
        self._next_ms = now_ms if plan.interval_ms is not None else None
        self._not_before_ms = now_ms
        self._paused_ms, self._pause_ms = 0, FIRST_FAILURE_PAUSE_MS
        self.found_some = False
        self.is_over = False

    def next_due_ms(self, requested_ms: int | None, now_ms: int) -> int | None:
        """When to pull next, given when a request wants it; None when no pull is due.

        Nothing but the deadline is further away than its interval or pause: a clock that was set
        back defers no pull.
        """
        if self._next_ms is not None and self._plan.interval_ms is not None:
            self._next_ms = min(self._next_ms, now_ms + self._plan.interval_ms)
        self._not_before_ms = min(self._not_before_ms, now_ms + self._paused_ms)
        moments = (self._next_ms, self._plan.deadline_ms, requested_ms)
        due_ms = min((moment for moment in moments if moment is not None), default=None)
        return None if due_ms is None else max(due_ms, self._not_before_ms)

    def pulled(self, began_ms: int, now_ms: int, *, found: bool) -> None:
        self._pause_ms, self._paused_ms, self._not_before_ms = FIRST_FAILURE_PAUSE_MS, 0, now_ms
        self.found_some = self.found_some or found
        if self._plan.interval_ms is not None:
            self._next_ms = began_ms + self._plan.interval_ms
        is_past = self._is_past_deadline(began_ms)
        self.is_over = is_past or (found and self._plan.delete_if_successful)

    def failed(self, began_ms: int, now_ms: int, *, kept: bool) -> int:
        """A pull failed; returns the pause until the next one, ms. The last pull is not repeated,
        unless messages are `kept` that have to be published.
        """
        self._paused_ms = self._pause_ms
        self._not_before_ms = now_ms + self._paused_ms
        self._pause_ms = min(self._pause_ms * 2, LONGEST_FAILURE_PAUSE_MS)
        self.is_over = self._is_past_deadline(began_ms) and not kept
        return self._paused_ms

    def _is_past_deadline(self, began_ms: int) -> bool:
        return self._plan.deadline_ms is not None and self._plan.deadline_ms <= began_ms


REQUEST = "rapport.input.request"
TIMEOUT = "rapport.control.timeout"
FIRST_REQUEST_PAUSE_MS, LONGEST_REQUEST_PAUSE_MS = 1_000, 60_000
"""Between two pulls for the same request; doubled each time."""


class PullRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The data of a request event."""

    id: str
    requester: str
    """Gets the timeout, as `kind:name`."""
    asked_ms: int
    expires: int = 0
    """When it ends, ms UTC; 0 = after one pull."""
    refers_to: str = ""
    """The message that the request is made for."""

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
    """The event of `control` for a request, or an input's deadline, that ended without
    a message.
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
    """A request that is not settled, and when its next pull is due."""

    request: PullRequest
    due_ms: int
    pause_ms: int = FIRST_REQUEST_PAUSE_MS


class OpenRequests:
    """The unsettled requests of one adapter by position; knows how far the reader may commit, and
    which later positions are settled already.
    """

    def __init__(self, committed: int, settled: Iterable[int] = ()) -> None:
        self.read_until = committed
        self._committed = committed
        self._settled = {position for position in settled if position > committed}
        self._open: dict[int, _OpenRequest] = {}

    def add(self, position: int, request: PullRequest | None) -> None:
        """A request was read; None for an event that is no request."""
        self.read_until = max(self.read_until, position)
        if request is None:
            self._settled.add(position)
        elif position not in self._settled:
            self._open[position] = _OpenRequest(request, request.asked_ms)

    def next_due_ms(self, now_ms: int) -> int | None:
        """When the next pull for a request is due, or None. A clock that was set back defers
        none.
        """
        for entry in self._open.values():
            entry.due_ms = min(entry.due_ms, now_ms + entry.pause_ms)
        return min((entry.due_ms for entry in self._open.values()), default=None)

    def next_expiry_ms(self) -> int | None:
        ends = (entry.request.expires for entry in self._open.values())
        return min((moment for moment in ends if moment), default=None)

    def pop_expired(self, now_ms: int) -> list[PullRequest]:
        """Settles and returns the requests whose time is over although no pull was possible."""
        ended = [
            (position, entry.request)
            for position, entry in self._open.items()
            if entry.request.expires and entry.request.expires <= now_ms
        ]
        for position, _request in ended:
            del self._open[position]
            self._settled.add(position)
        return [request for _position, request in ended]

    def pulled(self, began_ms: int, now_ms: int, *, found: bool) -> list[PullRequest]:
        """A pull has ended; returns the requests whose time is over without a message. `found` ends
        all requests, since messages do not say which request they answer.
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
        """A pull failed; returns the requests whose time is over."""
        return self.pulled(now_ms, now_ms, found=False)

    def progress(self) -> tuple[int, list[int]]:
        """The position up to which all requests are settled, and the settled ones after it."""
        until = min(self._open, default=self.read_until + 1) - 1
        self._settled = {position for position in self._settled if position > until}
        return until, sorted(self._settled)
