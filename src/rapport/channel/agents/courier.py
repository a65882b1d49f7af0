"""Delivery of an outbox: the sliding window, the publish endpoint, the background thread. [CH-5]

`SendWindow` (pure) has two marks: last sent, last acknowledged. One request is pending at a time
and always begins right behind the last acknowledged event. So whatever is lost, repeated or late,
the sink never sees an event before its predecessors, and may drop everything up to the highest it
has. `SinkEndpoint` interprets HTTP replies; `Courier` is the thread that reads the outbox, sends
and settles.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Literal
from urllib.parse import quote

import msgspec

from rapport.channel.agents.connection import (
    FIRST_PAUSE_MS,
    LONGEST_PAUSE_MS,
    TIMEOUT_SECONDS,
    CallBarred,
    CallFailed,
    HttpReply,
    NodeConnection,
    Reason,
    failed_call,
    pause_ms,
    problem_reason,
)
from rapport.channel.agents.outbox import NumberedEvent, Outbox, RejectedEvent
from rapport.channel.log.sequences import SEQUENCE
from rapport.core.codec import to_cloudevent
from rapport.core.errors import RapportError
from rapport.kernel.clock import Chance, Clock
from rapport.kernel.telemetry import get_logger

MOST_EVENTS = 1_000
"""Most events in one request: more saves little, and a lost answer repeats all of them."""


_STEADY = 16
"""Requests taken in a row before one twice as large is tried again after a 413."""
_log = get_logger(__name__)
_MOST_ANSWER_BYTES = 4 * 1024 * 1024
_BATCH = "application/cloudevents-batch+json"
_BAD_EVENT = frozenset((400, 422))
REQUEST_BYTES = 2 * 1024 * 1024
"""Approximate bytes in one request; a single larger event is sent alone."""
_JOIN_SECONDS = 5.0
Activity = Literal["idle", "sending", "pausing", "stopped", "closed"]


class EventsAccepted(msgspec.Struct, frozen=True):
    """The sink has all events of the request."""


class EventsRefused(msgspec.Struct, frozen=True):
    """The sink will never take the request as it is: one of its events is bad."""

    reason: Reason


class RequestTooLarge(msgspec.Struct, frozen=True):
    """The request is larger than the sink takes."""

    reason: Reason


SinkAnswer = EventsAccepted | EventsRefused | RequestTooLarge | CallFailed | CallBarred


class SendRange(msgspec.Struct, frozen=True):
    """Events `first` to `last` may be sent; fewer from the front is fine. Then call `begin`."""

    first: int
    last: int


class PauseSending(msgspec.Struct, frozen=True):
    """Nothing may be sent before this time."""

    until_ms: int


class NothingToSend(msgspec.Struct, frozen=True):
    """Nothing to do until a new event, an answer, or `resume`."""


class WindowProgress(msgspec.Struct, frozen=True):
    """Everything up to `acknowledged` is settled; with a reason, that event was rejected."""

    acknowledged: int
    rejected: Reason | None = None


class SendWindow:
    """Holds the two marks and how large the next request may be. Time and chance are arguments."""

    def __init__(
        self,
        acknowledged: int,
        *,
        most_events: int = MOST_EVENTS,
        first_pause_ms: int = FIRST_PAUSE_MS,
        longest_pause_ms: int = LONGEST_PAUSE_MS,
    ) -> None:
        self.acknowledged = self.sent = acknowledged
        self.trouble: Reason | None = None
        """Why the last request was not taken; None after one that was."""
        self.stopped = False
        """Whether nothing is sent until `resume`."""
        self.resume_at_ms: int | None = None
        self._most, self._first_pause, self._longest_pause = (
            most_events,
            first_pause_ms,
            longest_pause_ms,
        )
        self._size = self._ceiling = most_events
        self._suspected = 0
        """An event at or before this one, and after the acknowledged, is bad; 0 when none is."""
        self._number = self._failures = self._taken_in_row = 0

    def next_step(self, newest: int, now_ms: int) -> SendRange | PauseSending | NothingToSend:
        if self.stopped or self.sent > self.acknowledged or newest <= self.acknowledged:
            return NothingToSend()
        if self.resume_at_ms is not None:
            if now_ms < self.resume_at_ms:
                return PauseSending(self.resume_at_ms)
            self.resume_at_ms = None
        return SendRange(self.acknowledged + 1, min(newest, self.acknowledged + self._limit()))

    def begin(self, last: int) -> int:
        """Records that everything up to `last` is being sent; returns the number of the request."""
        self.sent = last
        self._number += 1
        return self._number

    def answered(
        self, number: int, answer: SinkAnswer, now_ms: int, chance: float
    ) -> WindowProgress | None:
        """Applies an answer; the caller makes the result durable. Answers to earlier requests, and
        repeated ones, change nothing. `chance` (0 to 1) spreads the pauses of many publishers that
        lost the same sink.
        """
        if number != self._number or self.sent == self.acknowledged:
            return None
        first, last = self.acknowledged + 1, self.sent
        self.sent = self.acknowledged
        alone = first == last
        match answer:
            case EventsAccepted():
                return self._take(last)
            case EventsRefused(reason) | RequestTooLarge(reason) if alone:
                return self._settle_rejected(reason)
            case EventsRefused():
                self._suspected, self._failures = last, 0
            case RequestTooLarge():
                self._size = self._ceiling = (last - self.acknowledged) // 2
                self._failures = self._taken_in_row = 0
            case CallBarred(reason):
                self.stopped, self.trouble = True, reason
            case CallFailed(reason, retry_after_ms):
                self.trouble = reason
                self.resume_at_ms = now_ms + pause_ms(
                    self._failures, self._first_pause, self._longest_pause, chance, retry_after_ms
                )
                self._failures += 1
        return None

    def resume(self) -> None:
        """Sends again at once, after a stop or in the middle of a pause."""
        self.stopped, self.resume_at_ms, self._failures = False, None, 0

    def _limit(self) -> int:
        """The most events of the next request: half of the range that contains a bad one."""
        if self._suspected > self.acknowledged:
            return max((self._suspected - self.acknowledged) // 2, 1)
        return self._size

    def _take(self, last: int) -> WindowProgress:
        self.acknowledged = self.sent = last
        self._failures, self.trouble = 0, None
        self._taken_in_row += 1
        if self._taken_in_row >= _STEADY and self._ceiling < self._most:
            self._ceiling, self._taken_in_row = min(self._ceiling * 2, self._most), 0
        self._size = min(self._size * 2, self._ceiling)
        return WindowProgress(last)

    def _settle_rejected(self, reason: Reason) -> WindowProgress:
        """One event alone was not taken. The next ones are tried in small requests first: where
        one is bad, many may be, and then each costs one request instead of a search.
        """
        self.acknowledged = self.sent = self.acknowledged + 1
        self._suspected, self._size, self._taken_in_row = 0, 1, 0
        self._ceiling = self._most
        self._failures, self.trouble = 0, None
        return WindowProgress(self.acknowledged, reason)


class _AppendedPositions(msgspec.Struct):
    """The endpoint's reply when all events are on disk."""

    positions: list[int]


class SinkEndpoint(NodeConnection):
    def __init__(
        self, url: str, channel: str, token: str = "", *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        super().__init__(url, token, most_answer_bytes=_MOST_ANSWER_BYTES)
        self._timeout = timeout_seconds
        self._path = f"/channels/{quote(channel, safe='')}/events"

    def send(self, events: Sequence[NumberedEvent]) -> SinkAnswer:
        """Posts the events as one request; a failure is an answer too."""
        try:
            body = encode_batch(events)
        except (ValueError, TypeError) as error:
            return EventsRefused(Reason("event.bad_data", f"cannot be written as JSON: {error}"))
        reply = self.post(self._path, body, _BATCH, self._timeout)
        if isinstance(reply, CallFailed):
            return reply
        return read_answer(reply, len(events))


def encode_batch(events: Sequence[NumberedEvent]) -> bytes:
    """A JSON array of CloudEvents with the sequence attributes."""
    return msgspec.json.encode(
        [{**to_cloudevent(one.event), SEQUENCE: str(one.sequence)} for one in events]
    )


def read_answer(reply: HttpReply, count: int) -> SinkAnswer:
    """Interprets an HTTP reply to `count` events. Pure.

    A 200 counts only when it comes from a node: captive portals answer 200 to everything.
    """
    if reply.status == 200:
        return _check_taken(reply.body, count)
    reason = problem_reason(reply.status, reply.body)
    if reply.status in _BAD_EVENT:
        return EventsRefused(reason)
    return RequestTooLarge(reason) if reply.status == 413 else failed_call(reply, reason)


def _check_taken(body: bytes, count: int) -> SinkAnswer:
    try:
        positions = msgspec.json.decode(body, type=_AppendedPositions).positions
    except (msgspec.DecodeError, UnicodeDecodeError):
        positions = []
    if len(positions) == count:
        return EventsAccepted()
    return CallFailed(Reason("http.strange_answer", "what answers at this address is not a node"))


class DeliveryStatus(msgspec.Struct, frozen=True):
    """State of the delivery: present activity, last error, time of the next try."""

    activity: Activity
    trouble: Reason | None = None
    next_try_in_ms: int = 0


class Courier:
    """Delivers one outbox through one endpoint, in order, until ended."""

    def __init__(
        self,
        outbox: Outbox,
        endpoint: SinkEndpoint,
        clock: Clock,
        chance: Chance,
        make_window: Callable[[int], SendWindow],
    ) -> None:
        self._outbox, self._endpoint, self._clock, self._chance = outbox, endpoint, clock, chance
        self._make_window = make_window
        self._window = make_window(outbox.settled)
        self._changed = threading.Condition()
        self._woken = self._ended = False
        self._thread = threading.Thread(target=self._run, name="rapport-courier", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Reports new events."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def resume(self, token: str | None = None) -> None:
        """Retries at once, with another token if one is given."""
        with self._changed:
            if token is not None:
                self._endpoint.token = token
            self._window.resume()
            self._woken = True
            self._changed.notify_all()

    def wait_settled(self, sequence: int, timeout_seconds: float | None) -> bool:
        """Whether everything up to a number is settled; waits until it is, the time is over, or
        the delivery has stopped.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._outbox.settled >= sequence or self._window.stopped or self._ended,
                timeout_seconds,
            )
        return self._outbox.settled >= sequence

    def delivery(self) -> DeliveryStatus:
        window = self._window
        if self._ended:
            return DeliveryStatus("closed", window.trouble)
        if window.stopped:
            return DeliveryStatus("stopped", window.trouble)
        if window.sent > window.acknowledged:
            return DeliveryStatus("sending", window.trouble)
        if window.resume_at_ms is not None:
            left_ms = max(window.resume_at_ms - self._now_ms(), 0)
            return DeliveryStatus("pausing", window.trouble, left_ms)
        return DeliveryStatus("idle", window.trouble)

    def end(self) -> None:
        """Ends the thread; a running request is aborted, and its events stay in the outbox."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._endpoint.interrupt()
        self._thread.join(_JOIN_SECONDS)

    # --- in the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended:
            try:
                self._step()
            except Exception as error:  # whatever happens here, the events stay and are retried
                self._go_back(error)
        self._endpoint.hang_up()

    def _step(self) -> None:
        now_ms = self._now_ms()
        with self._changed:
            self._woken = False
            step = self._window.next_step(self._outbox.last, now_ms)
        if isinstance(step, SendRange):
            self._send(step)
        elif isinstance(step, PauseSending):
            self._wait((step.until_ms - now_ms) / 1_000)
        else:
            self._wait(None)

    def _wait(self, seconds: float | None) -> None:
        """New events end no pause: it is the sink that needs it."""
        with self._changed:
            pausing = seconds is not None
            self._changed.wait_for(
                lambda: (
                    self._ended
                    or (self._woken and not pausing)
                    or (pausing and self._window.resume_at_ms is None)
                ),
                seconds,
            )

    def _send(self, ready: SendRange) -> None:
        events = self._outbox.read_waiting(ready.first, ready.last, most_bytes=REQUEST_BYTES)
        number = self._window.begin(events[-1].sequence if events else ready.last)
        # None are left: the disk lost these events, see `Outbox.problems`.
        answer = self._endpoint.send(events) if events else EventsAccepted()
        with self._changed:
            moved = self._window.answered(number, answer, self._now_ms(), self._chance.random())
        if isinstance(answer, CallFailed):
            _log.info("delivery failed", why=answer.reason.message)
        if moved is not None:
            self._settle(moved, events)
        with self._changed:
            self._changed.notify_all()

    def _settle(self, moved: WindowProgress, events: list[NumberedEvent]) -> None:
        rejected = None
        if moved.rejected is not None and events:
            _log.warning("event rejected", id=events[0].event.id, why=moved.rejected.message)
            rejected = RejectedEvent(
                sequence=events[0].sequence,
                time=self._clock.now_ms(),
                reason=moved.rejected,
                event=events[0].event,
            )
        self._outbox.settle(moved.acknowledged, rejected)

    def _go_back(self, error: Exception) -> None:
        """Restarts at the last durable mark, after a pause."""
        known = isinstance(error, RapportError)
        code = error.code if isinstance(error, RapportError) else "outbox.failed"
        if not self._ended:
            _log.warning("delivery stumbled", why=repr(error), exc_info=not known)
        with self._changed:
            window = self._make_window(self._outbox.settled)
            window.resume_at_ms = self._now_ms() + 1_000
            window.trouble = Reason(code, str(error))
            self._window = window

    def _now_ms(self) -> int:
        return self._clock.steady_ns() // 1_000_000
