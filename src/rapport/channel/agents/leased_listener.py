"""A worker's listener: messages are leased, then acked, returned or renewed. [CH-7]"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rapport.channel.agents.connection import (
    FIRST_PAUSE_MS,
    TIMEOUT_SECONDS,
    CallBarred,
    CallFailed,
    Reason,
)
from rapport.channel.agents.listener_state import BatchReceived
from rapport.channel.agents.listener_threads import SourceEndpoint
from rapport.channel.requests.leases import Answers
from rapport.channel.requests.request import DEFAULT_TRIES, Batch, Request, check_request
from rapport.core.errors import InvalidInput, StoreUnavailable, Unavailable
from rapport.core.event import Event
from rapport.kernel.clock import Clock, SystemClock
from rapport.kernel.telemetry import get_logger

_log = get_logger(__name__)
_LONGEST_WAIT_SECONDS = 20.0
_PUSH_WAIT_SECONDS = 1.0
"""Seconds per request of an idle callback thread, so that `close` need not abort one."""
_CLOSE_SECONDS = 5.0


class LeasedEvent(msgspec.Struct, frozen=True, gc=False):
    """An event that is this worker's until its lease ends."""

    position: int
    received: int
    event: Event
    delivery: str
    """By which it is acked."""
    tries: int
    """How often the message was delivered to a worker, this time included."""


WorkCallback = Callable[[LeasedEvent], object]


class LeasedListener:
    """Leases messages of a channel, in competition with other workers. An acked message is never
    redelivered; one without an ack within `lease` seconds goes to the next worker. A message that
    was delivered `max_tries` times is dead-lettered with the last error.

    At least once: a worker that dies between its work and its ack leaves work that is repeated.
    Calls may come from any thread. Opening raises InvalidInput (query, lease, address).
    """

    def __init__(
        self,
        url: str,
        channel: str,
        query: str | dict[str, Any] | None = None,
        *,
        kind: str = "",
        interpretation: str = "",
        token: str = "",
        lease: float = 30.0,
        max_tries: int = DEFAULT_TRIES,
        request_seconds: float = TIMEOUT_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        if lease <= 0:
            raise InvalidInput(f"a lease cannot last {lease} seconds", code="listener.bad_lease")
        self._request = Request(
            query={} if query is None else query,
            kind=kind,
            interpretation=interpretation,
            take=True,
            lease_ms=max(int(lease * 1_000), 1),
            max_tries=max_tries,
        )
        check_request(self._request)
        self._clock: Clock = clock or SystemClock()
        self._requesting, self._answering = threading.Lock(), threading.Lock()
        self._source = SourceEndpoint(url, channel, token, timeout_seconds=request_seconds)
        self._answer_endpoint = SourceEndpoint(url, channel, token, timeout_seconds=request_seconds)
        self._ended = threading.Event()
        self._worker: threading.Thread | None = None
        self.trouble: Reason | None = None
        """Why the last request failed; None when it succeeded."""

    def pull(self, count: int = 1, timeout: float | None = 0.0) -> list[LeasedEvent]:
        """Up to `count` available messages, waiting so many seconds for the first one (None: for
        ever). Empty after the time-out, also because the node could not be reached: see `trouble`.
        Raises Unavailable when the node refuses.
        """
        if count < 1:
            raise InvalidInput(f"cannot pull {count} events", code="listener.bad_count")
        deadline = None if timeout is None else self._now() + timeout
        while True:
            self._check_open()
            left = _LONGEST_WAIT_SECONDS if deadline is None else max(deadline - self._now(), 0.0)
            wait_ms = int(min(left, _LONGEST_WAIT_SECONDS) * 1_000)
            events = self._request_messages(count, wait_ms)
            if events or (deadline is not None and self._now() >= deadline):
                return events
            if self.trouble is not None:
                self._ended.wait(min(FIRST_PAUSE_MS / 1_000, left))

    def ack(self, *events: LeasedEvent) -> bool:
        """Marks messages as done; durable when it returns. False when the lease of one had ended
        and another worker has it: that worker's answer counts. Raises Unavailable when the node
        could not be reached within the lease; then they are redelivered.
        """
        return self._settle(Answers(ack=tuple(one.delivery for one in events)))

    def nak(self, *events: LeasedEvent, delay: float = 0.0, error: str = "") -> bool:
        """Returns messages for redelivery after `delay` seconds. `error` is kept for the dead
        letter. Returns and raises as `ack` does.
        """
        ids = tuple(one.delivery for one in events)
        return self._settle(Answers(nak=ids, delay_ms=int(delay * 1_000), error=error))

    def renew(self, *events: LeasedEvent, lease: float | None = None) -> bool:
        """Keeps these for at least `lease` seconds from now on (as long as the listener's lease
        when left out). False when another worker has one of them; raises as `ack` does.
        """
        ids = tuple(one.delivery for one in events)
        lease_ms = self._request.lease_ms if lease is None else int(lease * 1_000)
        return self._settle(Answers(renew=ids, lease_ms=lease_ms))

    def push(self, callback: WorkCallback, *, retry_after: float = 1.0) -> None:
        """Calls `callback(event)` for one message at a time from now on, in a thread of its own:
        acks when it returns, naks with the error and `retry_after` seconds when it raises.
        """
        self._check_open()
        if self._worker is not None:
            raise InvalidInput("this listener has a callback already", code="listener.has_callback")
        run = (callback, retry_after)
        self._worker = threading.Thread(target=self._work, args=run, name="worker", daemon=True)
        self._worker.start()

    def close(self) -> None:
        """Ends, after a running callback (5 seconds at most). Messages without an ack are
        redelivered when their lease ends. A second call is no error.
        """
        self._ended.set()
        worker = self._worker
        if worker is not None and worker is not threading.current_thread():
            worker.join(_CLOSE_SECONDS)
        for endpoint in (self._source, self._answer_endpoint):
            endpoint.interrupt()
            endpoint.hang_up()

    def __enter__(self) -> LeasedListener:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _request_messages(self, count: int, wait_ms: int) -> list[LeasedEvent]:
        request = msgspec.structs.replace(self._request, max_messages=count, wait_ms=wait_ms)
        with self._requesting:
            answer = self._source.request(request)
        if isinstance(answer, BatchReceived):
            self.trouble = None
            for gap in answer.batch.gaps:
                _log.warning(
                    "the source could not read events",
                    first=gap.first,
                    last=gap.last,
                    reason=gap.reason,
                )
            return _leased_events(answer.batch)
        self.trouble = answer.reason
        if isinstance(answer, CallBarred):
            raise _refused(answer.reason)
        return []

    def _settle(self, answers: Answers) -> bool:
        """Sends answers until the node has them, as long as a lease lasts."""
        deadline = self._now() + self._request.lease_ms / 1_000
        while True:
            self._check_open()
            with self._answering:
                settled = self._answer_endpoint.settle(answers)
            if isinstance(settled, CallBarred):
                raise _refused(settled.reason)
            if not isinstance(settled, CallFailed):
                return not settled.stale
            if self._now() >= deadline:
                raise Unavailable(
                    f"the node could not be reached: {settled.reason.message}",
                    code="listener.not_settled",
                    hint="the messages come again when their lease ends",
                )
            self._ended.wait(FIRST_PAUSE_MS / 1_000)

    def _work(self, callback: WorkCallback, retry_after: float) -> None:
        while not self._ended.is_set():
            try:
                for event in self.pull(1, timeout=_PUSH_WAIT_SECONDS):
                    self._handle(callback, event, retry_after)
            except (Unavailable, StoreUnavailable) as error:
                if not self._ended.is_set():
                    _log.warning("worker waits", code=error.code, why=error.message)
                    self._ended.wait(retry_after)

    def _handle(self, callback: WorkCallback, event: LeasedEvent, retry_after: float) -> None:
        try:
            callback(event)
        except Exception as error:
            self.nak(event, delay=retry_after, error=f"{type(error).__name__}: {error}")
        else:
            self.ack(event)

    def _now(self) -> float:
        return self._clock.steady_ns() / 1_000_000_000

    def _check_open(self) -> None:
        if self._ended.is_set() and threading.current_thread() is not self._worker:
            raise StoreUnavailable("the listener is closed", code="listener.closed")


def _leased_events(batch: Batch) -> list[LeasedEvent]:
    pairs: Sequence[Any] = list(zip(batch.events, batch.deliveries, strict=True))
    return [
        LeasedEvent(stored.position, stored.received, stored.event, delivery.id, delivery.tries)
        for stored, delivery in pairs
    ]


def _refused(reason: Reason) -> Unavailable:
    return Unavailable(f"the node refuses: {reason.message}", code=reason.code)
