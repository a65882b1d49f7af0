"""The threads of a listener: fetching, callbacks, and the state they share. [CH-7]

`ListenerFetcher` sends requests, fills the cache and keeps the remote lease alive; `ListenerPusher`
calls the application, in order, one event at a time, again after an error; both work on
`ListenerCore`. `ListenerMachine` decides what to do, `SourceEndpoint` interprets HTTP replies.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import Protocol
from urllib.parse import quote

import msgspec

from rapport.channel.agents.connection import (
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
from rapport.channel.agents.courier import PauseSending
from rapport.channel.agents.listener_directory import FailedEvent, ListenerDirectory
from rapport.channel.agents.listener_state import (
    BatchReceived,
    CacheFull,
    LeaseEnded,
    ListenerMachine,
    ReceivedEvent,
    RequestNow,
    ResumePoint,
    SourceAnswer,
)
from rapport.channel.requests.leases import Answers, SettlementResult
from rapport.channel.requests.request import Request, read_batch, write_request
from rapport.core.errors import InvalidInput, LeaseExpired, RapportError
from rapport.core.event import Gap, clip_gaps
from rapport.kernel.clock import Chance, Clock
from rapport.kernel.telemetry import get_logger

_log = get_logger(__name__)

_FAILED_IN_MEMORY = 1_000
_JOIN_SECONDS = 5.0
_STUMBLE_MS = 1_000
OnGap = Callable[[Gap], None]
"""Receives each range of unreadable positions, once."""
Callback = Callable[[ReceivedEvent], object]
OnFailure = Callable[[ReceivedEvent, BaseException], object]
_LONGEST_PAUSE_MS = 5_000
_CALLED_WITH: ContextVar[ReceivedEvent | None] = ContextVar("called_with", default=None)
"""The event of the running callback; inherited by tasks and threads that a loop starts."""
_MOST_ANSWER_BYTES = 96 * 1024 * 1024
"""A set has 8 MiB of data, or one event of up to 32; JSON and envelopes are added."""
_GOODBYE_SECONDS = 1.0


class ListenerCore:
    """Shared by the fetching thread, the callback thread and the application.

    `state` is accessed only while `changed` is held. A caller that needs the file lock too acquires
    that one first.
    """

    def __init__(
        self, state: ListenerMachine, place: ListenerDirectory | None, clock: Clock
    ) -> None:
        self.state, self.place = state, place
        self.changed = threading.Condition()
        self.ended = False
        self.disk_trouble: Reason | None = None
        """Why the position could not be saved; None after it was."""
        self.handed_over = 0
        """Events delivered in this run."""
        self._clock = clock
        self._saving = threading.Lock()
        self._failed: deque[FailedEvent] = deque(maxlen=_FAILED_IN_MEMORY)
        self._woken = False

    def now_ms(self) -> int:
        """Time that never jumps."""
        return self._clock.steady_ns() // 1_000_000

    def wake(self) -> None:
        with self.changed:
            self._woken = True
            self.changed.notify_all()

    def wait_for_change(self, seconds: float | None, *, or_until_resumed: bool = False) -> None:
        """Waits for a `wake` since the last call; in a pause only for `resume`."""
        with self.changed:
            self.changed.wait_for(
                lambda: (
                    self.ended
                    or (self.state.resume_at_ms is None if or_until_resumed else self._woken)
                ),
                seconds,
            )
            self._woken = False

    def note(self, change: Callable[[], None]) -> None:
        """Changes the state and wakes all threads. The very first position is saved before:
        delivered events can then be requested again after a crash, also when the listener began in
        the middle.
        """
        if self.place is None or self.place.saved is not None:
            with self.changed:
                change()
                self.wake()
            return
        with self._saving, self.changed:
            change()
            resume_point = self.state.resume_point()
            if resume_point.token:
                self._write_if_possible(self.place, resume_point)
            self.wake()

    def take(self, count: int) -> list[ReceivedEvent]:
        """Takes undelivered events; the room they leave is filled again."""
        with self.changed:
            taken = self.state.cache.take(count)
            self.handed_over += len(taken)
            if taken:
                self.wake()
            return taken

    def give_back(self, events: list[ReceivedEvent]) -> None:
        with self.changed:
            self.state.cache.give_back(events)
            self.handed_over -= len(events)
            self.wake()

    def acknowledge(self, done: ReceivedEvent | int | None = None) -> None:
        """Marks everything up to an event or position as done (None: everything delivered); not
        saved yet.
        """
        with self.changed:
            cache = self.state.cache
            if isinstance(done, ReceivedEvent):
                done = cache.mark_of(done)
            cache.acknowledge(cache.handed() if done is None else done)
            self.wake()

    def save(self) -> None:
        """Saves the position; durable when it returns. Raises StoreUnavailable."""
        if self.place is None:
            return
        with self._saving:  # the newest state, written last
            with self.changed:
                resume_point = self.state.resume_point()
            self._write(self.place, resume_point)

    def save_if_possible(self) -> None:
        """Saves the position; a disk error is logged and costs repetitions after a crash."""
        try:
            self.save()
        except RapportError as error:
            _log.warning("position not saved", code=error.code, why=error.message)

    def keep_failed(self, received: ReceivedEvent, error: BaseException) -> None:
        """Keeps a failed event; durable with a directory. Raises StoreUnavailable."""
        code = error.code if isinstance(error, RapportError) else "listener.callback_failed"
        reason = Reason(code, repr(error)[:2000])
        failed = FailedEvent(time=self._clock.now_ms(), reason=reason, received=received)
        _log.warning(
            "event not handled",
            position=received.position,
            id=received.event.id,
            why=reason.message,
        )
        self._failed.append(failed)
        if self.place is not None:
            self.place.keep_failed(failed)

    def failed(self) -> list[FailedEvent]:
        """The failed events, oldest first; without a directory the last thousand."""
        return self.place.failed() if self.place is not None else list(self._failed)

    def failed_count(self) -> int:
        return self.place.failed_count if self.place is not None else len(self._failed)

    def _write(self, place: ListenerDirectory, resume_point: ResumePoint) -> None:
        try:
            place.save(resume_point)
        except RapportError as error:
            self.disk_trouble = Reason(error.code, error.message)
            raise
        self.disk_trouble = None

    def _write_if_possible(self, place: ListenerDirectory, resume_point: ResumePoint) -> None:
        try:
            self._write(place, resume_point)
        except RapportError as error:
            _log.warning("position not saved", code=error.code, why=error.message)


class ListenerSource(Protocol):
    """Answers requests: an endpoint of a node, or a program."""

    token: str

    def request(self, request: Request) -> SourceAnswer:
        """Sends a request; a failure is a result too."""

    def interrupt(self) -> None:
        """Makes a running request fail soon; callable from any thread."""

    def hang_up(self) -> None:
        """Closes idle connections."""

    def end_session(self, token: str) -> None:
        """Ends a session, if the source can be reached."""


class ListenerFetcher:
    """Requests from one source until ended."""

    def __init__(
        self,
        core: ListenerCore,
        source: ListenerSource,
        opening: Request,
        chance: Chance,
        on_gap: OnGap | None = None,
    ) -> None:
        """`opening` is the request that begins; later ones share its limits and its lease."""
        self._core, self._source = core, source
        self._opening, self._chance = opening, chance
        self._on_gap, self._gaps_until = on_gap, 0
        self._thread = threading.Thread(target=self._run, name="rapport-listener", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ends the thread; a running request is aborted."""
        with self._core.changed:
            self._core.ended = True
            self._core.changed.notify_all()
        self._source.interrupt()
        self._thread.join(_JOIN_SECONDS)

    # --- in the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._core.ended:
            try:
                self._step()
            except Exception as error:  # the position is kept and the request retried
                self._abandon_request(error)
        self._source.hang_up()

    def _step(self) -> None:
        core = self._core
        now_ms = core.now_ms()
        with core.changed:
            step = core.state.next_step(now_ms)
        if isinstance(step, RequestNow):
            self._request(step, now_ms)
        elif isinstance(step, PauseSending):
            core.wait_for_change((step.until_ms - now_ms) / 1_000, or_until_resumed=True)
        elif isinstance(step, CacheFull) and step.until_ms is not None:
            core.wait_for_change(max(step.until_ms - now_ms, 0) / 1_000)
        else:
            core.wait_for_change(None)

    def _request(self, ask: RequestNow, now_ms: int) -> None:
        core = self._core
        with core.changed:
            number = core.state.begin(ask, now_ms)
            request = self._as_request(ask)
        answer = self._source.request(request)
        if core.ended:
            return  # an aborted request proves nothing
        _log_answer(answer, ask)
        core.note(lambda: core.state.answered(number, answer, core.now_ms(), self._chance.random()))
        with core.changed:
            has_open = bool(core.state.cache.open_token())
            gaps = clip_gaps(core.state.gaps, self._gaps_until + 1)
        for gap in gaps:
            self._gaps_until = gap.last
            self._report_gap(gap)
        if not has_open:
            # Progress through non-matching events; the rest is saved as it is acknowledged.
            core.save_if_possible()

    def _report_gap(self, gap: Gap) -> None:
        try:
            if self._on_gap is not None:
                self._on_gap(gap)
                return
        except Exception as error:  # a failing callback must not stop events
            _log.warning("on_gap failed", why=repr(error))
        _log.warning(
            "the source could not read events", first=gap.first, last=gap.last, reason=gap.reason
        )

    def _as_request(self, ask: RequestNow) -> Request:
        opening = self._opening
        if not ask.token:
            # Restarted: events behind us are dropped by their position.
            from_start = opening.from_start or self._core.state.cache.newest > 0
            return msgspec.structs.replace(opening, wait_ms=ask.wait_ms, from_start=from_start)
        return Request(
            token=ask.token,
            seen=ask.seen,
            wait_ms=ask.wait_ms,
            max_messages=opening.max_messages,
            lease_minutes=0 if ask.ends else opening.lease_minutes,
        )

    def _abandon_request(self, error: Exception) -> None:
        """A fault of ours: the request counts as failed."""
        if not self._core.ended:
            _log.error("listening stumbled", why=repr(error), exc_info=error)
        core = self._core
        with core.changed:
            core.state.abandon_request(
                Reason("listener.failed", repr(error)), core.now_ms() + _STUMBLE_MS
            )


def _log_answer(answer: SourceAnswer, ask: RequestNow) -> None:
    if isinstance(answer, CallFailed):
        _log.info("request failed", why=answer.reason.message)
    elif isinstance(answer, CallBarred):
        _log.warning("listening stopped", code=answer.reason.code, why=answer.reason.message)
    elif isinstance(answer, LeaseEnded):
        _log.warning("session ran out, begun again", why=answer.reason.message)
    elif answer.batch.gone and not ask.seen:
        _log.warning("events were gone before they came", token=ask.token[:16])


class CallbackPolicy(msgspec.Struct, frozen=True, kw_only=True):
    acknowledges: bool
    """Whether a callback that returned has acknowledged its event."""
    attempts: int
    first_pause_ms: int
    save_every_ms: int
    on_failure: OnFailure | None


class ListenerPusher:
    """Calls one callback until ended.

    An event is handled when the callback has returned, or failed as often as allowed; then it was
    passed to `on_failure` or kept, and the next one follows.
    """

    def __init__(self, core: ListenerCore, callback: Callback, policy: CallbackPolicy) -> None:
        self._core, self._callback, self._policy = core, callback, policy
        self._ended = self._ended_within = False
        self._in_callback: ReceivedEvent | None = None
        self._saved_at_ms = core.now_ms()
        self._thread = threading.Thread(target=self._run, name="rapport-push", daemon=True)

    def start(self) -> None:
        """Starts the thread, once the caller has stored this object: the callback may run first."""
        self._thread.start()

    def end(self, timeout_seconds: float | None = _JOIN_SECONDS) -> bool:
        """Ends after the running callback; False when that takes longer. Within the callback its
        event counts as handled.
        """
        within = self._in_callback is not None and _CALLED_WITH.get() is self._in_callback
        with self._core.changed:
            self._ended, self._ended_within = True, self._ended_within or within
            self._core.changed.notify_all()
        if within:
            if self._policy.acknowledges and self._in_callback is not None:
                self._core.acknowledge(self._in_callback)
            return True
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    # --- in the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while (received := self._next()) is not None:
            handled = self._handle(received)
            self._in_callback = None
            if handled:
                self._settle(received)
            else:
                self._core.give_back([received])
        self._core.save_if_possible()

    def _next(self) -> ReceivedEvent | None:
        """The next event; None at the end. An ended lease delivers nothing."""
        core = self._core
        with core.changed:
            while not self._is_over():
                is_leased = core.state.is_leased(core.now_ms())
                if is_leased and (taken := core.take(1)):
                    self._in_callback = taken[0]
                    _CALLED_WITH.set(taken[0])
                    return taken[0]
                core.changed.wait()
        return None

    def _handle(self, received: ReceivedEvent) -> bool:
        for failures in range(self._policy.attempts):
            try:
                self._callback(received)
                return True
            except (Exception, SystemExit) as error:  # neither may end the thread
                last: BaseException = error
            if self._ended_within or failures + 1 == self._policy.attempts:
                break
            if self._is_cut_short(failures):
                return False
        return self._give_up(received, last)

    def _give_up(self, received: ReceivedEvent, error: BaseException) -> bool:
        try:
            if self._policy.on_failure is not None:
                self._policy.on_failure(received, error)
                return True
        except (Exception, SystemExit) as second:
            _log.warning("on_failure failed", why=repr(second))
        try:
            self._core.keep_failed(received, error)
        except RapportError as refused:
            # Not kept is not handled: tried again from the beginning, after a pause.
            _log.warning("failed event not kept", code=refused.code, why=refused.message)
            self._is_cut_short(self._policy.attempts)
            return False
        return True

    def _is_cut_short(self, failures: int) -> bool:
        """Pauses before the next try; True when ended meanwhile."""
        pause = pause_ms(failures, self._policy.first_pause_ms, _LONGEST_PAUSE_MS, 1.0)
        with self._core.changed:
            return self._core.changed.wait_for(self._is_over, pause / 1_000)

    def _settle(self, received: ReceivedEvent) -> None:
        if not self._policy.acknowledges:
            return
        core = self._core
        core.acknowledge(received)
        now_ms = core.now_ms()
        if not len(core.state.cache) or now_ms - self._saved_at_ms >= self._policy.save_every_ms:
            self._saved_at_ms = now_ms
            core.save_if_possible()

    def _is_over(self) -> bool:
        return self._ended or self._core.ended


class SourceEndpoint(NodeConnection):
    def __init__(
        self, url: str, channel: str, token: str = "", *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        super().__init__(url, token, most_answer_bytes=_MOST_ANSWER_BYTES)
        self._timeout = timeout_seconds
        self._path = f"/channels/{quote(channel, safe='')}/requests"
        self._acks = f"/channels/{quote(channel, safe='')}/acks"

    def request(self, request: Request) -> SourceAnswer:
        """Sends a request, and waits as long as the request says and the answer takes."""
        seconds = self._timeout + request.wait_ms / 1_000
        reply = self.post(self._path, write_request(request), "application/json", seconds)
        return reply if isinstance(reply, CallFailed) else read_source_answer(reply)

    def settle(self, answers: Answers) -> SettlementResult | CallFailed | CallBarred:
        """Sends a worker's answers to leased messages."""
        body = msgspec.json.encode(answers)
        reply = self.post(self._acks, body, "application/json", self._timeout)
        return reply if isinstance(reply, CallFailed) else read_settled(reply)

    def end_session(self, token: str) -> None:
        """Ends a session, also after `interrupt`; an unreachable source ends it by itself."""
        line = NodeConnection(self.url, self.token, most_answer_bytes=_MOST_ANSWER_BYTES)
        ending = write_request(Request(token=token, lease_minutes=0))
        line.post(self._path, ending, "application/json", _GOODBYE_SECONDS)
        line.hang_up()


def read_source_answer(reply: HttpReply) -> SourceAnswer:
    """Interprets an HTTP reply. Pure.

    A 200 counts only when it holds a batch: captive portals answer 200 to everything.
    """
    if reply.status == 200:
        return _batch_in(reply.body)
    reason = problem_reason(reply.status, reply.body)
    return LeaseEnded(reason) if reason.code == LeaseExpired.code else failed_call(reply, reason)


def read_settled(reply: HttpReply) -> SettlementResult | CallFailed | CallBarred:
    """Interprets an HTTP reply to acks and naks. Pure."""
    if reply.status == 200:
        try:
            return msgspec.json.decode(reply.body, type=SettlementResult)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return CallFailed(Reason("http.strange_answer", "what answers there is not a node"))
    return failed_call(reply, problem_reason(reply.status, reply.body))


def _batch_in(body: bytes) -> SourceAnswer:
    try:
        return BatchReceived(read_batch(body))
    except InvalidInput as error:
        message = f"what answers at this address is not a node: {error.message}"
        return CallFailed(Reason(error.code, message[:2000]))
