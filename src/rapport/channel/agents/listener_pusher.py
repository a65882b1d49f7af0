"""The thread that hands events over by callback: in order, one at a time, again after an error.
[CH-7]
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar

import msgspec

from rapport.channel.agents.listener_cache import ReceivedEvent
from rapport.channel.agents.listener_reception import Reception
from rapport.channel.agents.window import pause_ms
from rapport.core.errors import RapportError
from rapport.kernel.telemetry import get_logger

_log = get_logger(__name__)

Callback = Callable[[ReceivedEvent], object]
OnFailure = Callable[[ReceivedEvent, BaseException], object]
_LONGEST_PAUSE_MS = 5_000
_JOIN_SECONDS = 5.0
_CALLED_WITH: ContextVar[ReceivedEvent | None] = ContextVar("called_with", default=None)
"""The event whose callback we are in; goes along into tasks and threads that a loop starts."""


class Care(msgspec.Struct, frozen=True, kw_only=True):
    """How callbacks are treated."""

    acknowledges: bool
    """Whether a callback that returned has acknowledged its event."""
    attempts: int
    first_pause_ms: int
    save_every_ms: int
    on_failure: OnFailure | None


class Pusher:
    """Calls one callback until it is told to end.

    An event is handled when the callback has returned, or failed as often as it may; then it was
    given to `on_failure` or kept aside, and the next one follows.
    """

    def __init__(self, reception: Reception, callback: Callback, care: Care) -> None:
        self._reception, self._callback, self._care = reception, callback, care
        self._ended = self._ended_within = False
        self._under_way: ReceivedEvent | None = None
        self._saved_at_ms = reception.now_ms()
        self._thread = threading.Thread(target=self._run, name="rapport-push", daemon=True)

    def start(self) -> None:
        """Begins to call; whoever ends it must know of it by now, the callback may be first."""
        self._thread.start()

    def end(self, timeout_seconds: float | None = _JOIN_SECONDS) -> bool:
        """Ends after the callback under way; False when that takes longer. From within the callback
        the event under way counts as handled.
        """
        within = self._under_way is not None and _CALLED_WITH.get() is self._under_way
        with self._reception.bell:
            self._ended, self._ended_within = True, self._ended_within or within
            self._reception.bell.notify_all()
        if within:
            if self._care.acknowledges and self._under_way is not None:
                self._reception.acknowledge(self._under_way)
            return True
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    # --- in the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while (received := self._next()) is not None:
            handled = self._handle(received)
            self._under_way = None
            if handled:
                self._settle(received)
            else:
                self._reception.give_back([received])
        self._reception.save_if_possible()

    def _next(self) -> ReceivedEvent | None:
        """The next event; None at the end. A lease that has run out hands nothing over."""
        reception = self._reception
        with reception.bell:
            while not self._is_over():
                is_leased = reception.state.is_leased(reception.now_ms())
                if is_leased and (taken := reception.take(1)):
                    self._under_way = taken[0]
                    _CALLED_WITH.set(taken[0])
                    return taken[0]
                reception.bell.wait()
        return None

    def _handle(self, received: ReceivedEvent) -> bool:
        """Whether the event was handled; False when we were told to end before a further try."""
        for failures in range(self._care.attempts):
            try:
                self._callback(received)
                return True
            except (Exception, SystemExit) as error:  # neither may end the thread
                last: BaseException = error
            if self._ended_within or failures + 1 == self._care.attempts:
                break
            if self._is_cut_short(failures):
                return False
        return self._give_up(received, last)

    def _give_up(self, received: ReceivedEvent, error: BaseException) -> bool:
        try:
            if self._care.on_failure is not None:
                self._care.on_failure(received, error)
                return True
        except (Exception, SystemExit) as second:
            _log.warning("on_failure failed", why=repr(second))
        try:
            self._reception.keep_failed(received, error)
        except RapportError as refused:
            # Not kept is not handled: tried again from the beginning, after a pause.
            _log.warning("failed event not kept", code=refused.code, why=refused.message)
            self._is_cut_short(self._care.attempts)
            return False
        return True

    def _is_cut_short(self, failures: int) -> bool:
        """Pauses before the next try; whether somebody ended us meanwhile."""
        pause = pause_ms(failures, self._care.first_pause_ms, _LONGEST_PAUSE_MS, 1.0)
        with self._reception.bell:
            return self._reception.bell.wait_for(self._is_over, pause / 1_000)

    def _settle(self, received: ReceivedEvent) -> None:
        if not self._care.acknowledges:
            return
        reception = self._reception
        reception.acknowledge(received)
        now_ms = reception.now_ms()
        if not len(reception.state.cache) or now_ms - self._saved_at_ms >= self._care.save_every_ms:
            self._saved_at_ms = now_ms
            reception.save_if_possible()

    def _is_over(self) -> bool:
        return self._ended or self._reception.ended
