"""The listener: receives the matches of a query, by callback or on request. [CH-7]"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rapport.channel.agents.leased_listener import LeasedListener
from rapport.channel.agents.listener_directory import (
    PLACE_NAME,
    FailedEvent,
    ListenedQuery,
    ListenerDirectory,
)
from rapport.channel.agents.listener_state import (
    Acknowledging,
    Activity,
    ListenerCache,
    ListenerMachine,
    ListenerSettings,
    ListenerStatus,
    ReceivedEvent,
    ResumePoint,
    check_settings,
)
from rapport.channel.agents.listener_threads import (
    Callback,
    CallbackPolicy,
    ListenerCore,
    ListenerFetcher,
    ListenerPusher,
    ListenerSource,
    OnFailure,
    OnGap,
    SourceEndpoint,
)
from rapport.channel.query.query_kinds import SQL, TEMPLATE, make_query
from rapport.channel.requests.request import Request, check_request, with_interpretation
from rapport.channel.validation import check_channel_name
from rapport.core.errors import InvalidInput, LeaseExpired, StoreUnavailable, Unavailable
from rapport.core.event import Gap
from rapport.kernel.clock import Chance, Clock, SystemClock

_CLOSE_SECONDS = 5.0
_Function = TypeVar("_Function", bound=Callback)


def opening_request(
    channel: str,
    query: str | dict[str, Any],
    kind: str,
    handback: str | None,
    from_start: bool,
    settings: ListenerSettings,
    *,
    interpretation: str = "",
) -> Request:
    """The first request; checked here so that a mistake is reported at once, not by the node. An
    interpretation is part of the query, and so of the saved position.
    """
    check_channel_name(channel)
    request = Request(
        query=query,
        kind=kind,
        interpretation=interpretation,
        handback=handback or "",
        from_start=from_start,
        max_messages=settings.batch_events,
        lease_minutes=settings.remote_lease_minutes,
    )
    check_request(request)
    if kind in ("", SQL, TEMPLATE):  # other kinds are plug-ins that only the node may have
        make_query(kind, query)
    return with_interpretation(channel, request)


def make_machine(resume_point: ResumePoint, settings: ListenerSettings) -> ListenerMachine:
    cache = ListenerCache(
        resume_point.position, most_events=settings.most_events, most_bytes=settings.most_bytes
    )
    return ListenerMachine(
        cache,
        resume_point,
        batch_events=settings.batch_events,
        wait_ms=int(settings.wait_seconds * 1_000),
        first_pause_ms=settings.first_pause_ms,
        longest_pause_ms=settings.longest_pause_ms,
    )


def open_directory(
    directory: str | Path | None, channel: str, opening: Request
) -> ListenerDirectory | None:
    """The directory of the position, if one is given; raises as ListenerDirectory does."""
    if directory is None:
        return None
    session = ListenedQuery(
        channel=channel,
        query=msgspec.json.encode(opening.query, order="sorted").decode(),
        kind=opening.kind,
        handback=opening.handback,
    )
    return ListenerDirectory(Path(directory), session)


def refusal_hint(code: str, place: ListenerDirectory | None) -> str:
    """A hint for an error of a source that refuses requests."""
    if code.startswith("token.") and place is not None:
        return (
            "the source no longer knows our position (another node, or other data): "
            f"delete {place.directory / PLACE_NAME} to begin with the query again"
        )
    if code.startswith("token."):
        return "the source no longer knows our position: open a new listener"
    if code.startswith("access."):
        return "give a token with the right to subscribe: resume(token=...)"
    return "change the request, or resume() to try again"


class Listener:
    """Receives the matches of a query in a channel of a node: history first, then live, in order.

    A background thread sends requests (only outgoing connections) and fills a bounded cache;
    network errors raise nothing. Events are delivered by callback (`push`) or on request (`pull`);
    either call switches the mode without losing or repeating events.

    Within one process each event is delivered once. With a `directory` the next listener on it
    continues behind the last acknowledged event, whatever ended this one: at least once, and
    exactly once for a program that stores the position with its own result and calls
    `acknowledge(position)` when it starts. `lease` (seconds) ends the listening unless `renew`ed;
    None lasts until `close`.

    Calls may come from any thread; several pulling threads must acknowledge explicitly, as a pull
    acknowledges the one before. Opening raises InvalidInput (query, name), StoreUnavailable
    (`listener.locked`), Corrupt (`listener.bad_place`) and Conflict (`listener.other_place`).
    """

    def __init__(
        self,
        url: str,
        channel: str,
        query: str | dict[str, Any] | None = None,
        *,
        kind: str = "",
        interpretation: str = "",
        directory: str | Path | None = None,
        token: str = "",
        lease: float | None = None,
        handback: str | None = None,
        from_start: bool = True,
        acknowledging: Acknowledging = "automatic",
        on_failure: OnFailure | None = None,
        on_gap: OnGap | None = None,
        settings: ListenerSettings | None = None,
        clock: Clock | None = None,
        source: ListenerSource | None = None,
    ) -> None:
        """`source` replaces the node's endpoint: anything that answers requests. With an
        `interpretation` both query and events are in it. `on_gap(gap)` is called in the background
        thread for unreadable positions; otherwise they are logged.
        """
        self._settings = chosen = settings or ListenerSettings()
        check_settings(chosen)
        opening = opening_request(
            channel,
            {} if query is None else query,
            kind,
            handback,
            from_start,
            chosen,
            interpretation=interpretation,
        )
        endpoint = source or SourceEndpoint(
            url, channel, token, timeout_seconds=chosen.request_seconds
        )
        self._clock: Clock = clock or SystemClock()
        self._place = open_directory(directory, channel, opening)
        resume_point = (self._place.saved if self._place else None) or ResumePoint()
        self._core = ListenerCore(make_machine(resume_point, chosen), self._place, self._clock)
        self._core.state.renew(self._lease_end(lease))
        self._is_automatic = acknowledging == "automatic"
        self._policy = CallbackPolicy(
            acknowledges=self._is_automatic,
            attempts=chosen.attempts,
            first_pause_ms=chosen.retry_pause_ms,
            save_every_ms=chosen.save_every_ms,
            on_failure=on_failure,
        )
        self._source = endpoint
        self._switching = threading.Lock()
        self._pusher: ListenerPusher | None = None
        self._fetcher = ListenerFetcher(
            self._core, endpoint, opening, Chance.from_machine(), on_gap
        )

    @staticmethod
    def leased(
        url: str, channel: str, query: str | dict[str, Any] | None = None, **options: Any
    ) -> LeasedListener:
        """A listener that shares the channel with other workers: see LeasedListener."""
        return LeasedListener(url, channel, query, **options)

    # --- handing over -----------------------------------------------------------------------------

    def push(self, callback: Callback) -> None:
        """Calls `callback(received)` for each event from now on, in a thread of its own, one at a
        time.

        Events pulled before count as acknowledged (unless acknowledging is explicit). After an
        error the event is retried; after the last attempt it goes to `on_failure`, or is logged and
        kept (`failed()`), and the next one follows. Waits for another running callback.
        """
        while True:
            self._end_push(None)
            with self._switching:
                if self._pusher is None:  # else another thread was faster, and is ended too
                    self._check_open()
                    self._acknowledge_handed()
                    self._pusher = ListenerPusher(self._core, callback, self._policy)
                    self._pusher.start()
                    return

    def on_event(self, callback: _Function) -> _Function:
        """`push` as a decorator."""
        self.push(callback)
        return callback

    def pull(self, count: int = 1, timeout: float | None = 0.0) -> list[ReceivedEvent]:
        """Up to `count` cached events, waiting so many seconds for the first one (None: for ever).
        Ends callbacks. Empty after the time-out.

        Events pulled before count as acknowledged, durably (unless acknowledging is explicit).
        Raises LeaseExpired, Unavailable when listening has stopped (see its code and hint),
        StoreUnavailable when the position cannot be saved: then nothing was delivered.
        """
        return self.pull_unless(count, timeout, lambda: False)

    def pull_unless(
        self, count: int, timeout: float | None, is_given_up: Callable[[], bool]
    ) -> list[ReceivedEvent]:
        """A `pull` that also ends, empty, when `is_given_up` turned true and `wake` was called."""
        if count < 1:
            raise InvalidInput(f"cannot pull {count} events", code="listener.bad_count")
        deadline_ms = None if timeout is None else self._core.now_ms() + int(timeout * 1_000)
        if not self._end_push(timeout):
            return []
        with self._switching:
            if self._pusher is None:
                self._check_open()
                self._acknowledge_handed()
        core = self._core
        with core.changed:
            while not len(core.state.cache) and not is_given_up():
                self._check_going()
                seconds = self._seconds_to_wait(deadline_ms)
                if self._pusher is not None or (seconds is not None and seconds <= 0):
                    return []  # also when another thread requested callbacks meanwhile
                core.changed.wait(seconds)
            self._check_open()
            self._check_leased()
            is_wanted = self._pusher is None and not is_given_up()
            return core.take(count) if is_wanted else []

    def give_back(self, events: list[ReceivedEvent]) -> None:
        """Puts the events of the last `pull` back: they are delivered again, next."""
        self._core.give_back(events)

    def acknowledge(self, event: ReceivedEvent | int) -> None:
        """Marks this event, or position, and everything before it as done; durable when it returns.

        A position may be ahead of the delivered events: those up to it are never delivered. Raises
        StoreUnavailable when the position cannot be saved.
        """
        self._core.acknowledge(event)
        self._core.save()

    # --- lease ------------------------------------------------------------------------------------

    def renew(self, lease: float | None = None) -> None:
        """Extends the local lease to so many seconds from now (None: as long as the listener); an
        ended one continues where it stopped.
        """
        with self._core.changed:
            self._core.state.renew(self._lease_end(lease))
            self._core.wake()

    def cancel(self) -> None:
        """Ends the local lease: nothing more is delivered, and the source is notified. `renew`
        continues where it stopped.
        """
        self.renew(0.0)

    def resume(self, token: str | None = None) -> None:
        """Retries at once, after a stop or in a pause; with another token if one is given."""
        with self._core.changed:
            if token is not None:
                self._source.token = token
            self._core.state.resume()
            self._core.wake()

    # --- looking and ending -----------------------------------------------------------------------

    def status(self) -> ListenerStatus:
        core = self._core
        with core.changed:
            state, now_ms = core.state, core.now_ms()
            until, pause = state.lease_until_ms, state.resume_at_ms
            return ListenerStatus(
                activity=self._activity(now_ms),
                mode="push" if self._pusher is not None else "pull",
                waiting=len(state.cache),
                handed_over=core.handed_over,
                acknowledged=state.cache.acknowledged,
                failed=core.failed_count(),
                gone=state.gone,
                begun_again=state.begun_again,
                trouble=state.trouble or core.disk_trouble,
                next_try_in_ms=max(pause - now_ms, 0) if pause is not None else 0,
                lease_left_ms=max(until - now_ms, 0) if until is not None else None,
                remote_lease_minutes=state.remote_minutes,
                unreadable=state.unreadable,
            )

    def failed(self) -> list[FailedEvent]:
        """Events whose callback failed too often, with the error, oldest first; on disk with a
        directory, else the last thousand.
        """
        return self._core.failed()

    def gaps(self) -> list[Gap]:
        """Unreadable positions of the channel since this listener was opened, each once, oldest
        first; the last thousand ranges. Events around them are delivered as usual.
        """
        with self._core.changed:
            return list(self._core.state.gaps)

    def wake(self) -> None:
        """Has a `pull_unless` that waits look again."""
        self._core.wake()

    def close(self) -> None:
        """Ends, after a running callback (5 seconds at most); a second call is no error. The last
        pull without an acknowledgement is delivered again to the next listener on the directory;
        leaving a `with` block without an error acknowledges it first.
        """
        self._end_push(_CLOSE_SECONDS)
        with self._switching:
            if self._core.ended:
                return
            self._fetcher.end()
        state = self._core.state
        if self._place is not None:
            self._core.save_if_possible()
            self._place.close()
        elif state.token and state.trouble is None:
            self._source.end_session(state.token)

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if kind is None and self._end_push(_CLOSE_SECONDS) and not self._core.ended:
            self._acknowledge_handed()
        self.close()

    def _end_push(self, timeout: float | None) -> bool:
        """Ends callbacks; False when one is still running. Holds no lock while it waits: the
        running callback may switch too.
        """
        pusher = self._pusher
        if pusher is not None and not pusher.end(timeout):
            return False
        with self._switching:
            if self._pusher is pusher:
                self._pusher = None
        return True

    def _acknowledge_handed(self) -> None:
        if self._is_automatic:
            self._core.acknowledge()
            self._core.save()

    def _lease_end(self, seconds: float | None) -> int | None:
        return None if seconds is None else self._core.now_ms() + int(seconds * 1_000)

    def _seconds_to_wait(self, deadline_ms: int | None) -> float | None:
        """The time until the deadline or the end of the lease, whichever is first."""
        ends = [at for at in (deadline_ms, self._core.state.lease_until_ms) if at is not None]
        return (min(ends) - self._core.now_ms()) / 1_000 if ends else None

    def _check_going(self) -> None:
        self._check_open()
        self._check_leased()
        state = self._core.state
        if state.stopped:
            assert state.trouble is not None
            raise Unavailable(
                f"listening has stopped: {state.trouble.message}",
                code=state.trouble.code,
                hint=refusal_hint(state.trouble.code, self._place),
            )

    def _check_open(self) -> None:
        if self._core.ended:
            raise StoreUnavailable("the listener is closed", code="listener.closed")

    def _check_leased(self) -> None:
        if not self._core.state.is_leased(self._core.now_ms()):
            raise LeaseExpired(
                "the listener's lease has run out",
                code="listener.lease_over",
                hint="renew(seconds) goes on where it stopped; renew() without an end",
            )

    def _activity(self, now_ms: int) -> Activity:
        state = self._core.state
        if self._core.ended:
            return "closed"
        if state.stopped:
            return "stopped"
        if not state.is_leased(now_ms):
            return "resting"
        if state.resume_at_ms is not None:
            return "pausing"
        room = state.is_pending or state.cache.has_room(self._settings.batch_events)
        return "asking" if room else "full"
