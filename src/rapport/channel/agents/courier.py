"""The background thread of a publisher: reads the outbox, sends, settles. [CH-5]

A thin shell: what to do is decided by `Window`, what an answer means by `SinkDoor`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

import msgspec

from rapport.channel.agents.outbox import Outbox
from rapport.channel.agents.outbox_reading import Numbered, RejectedEvent
from rapport.channel.agents.sink_door import SinkDoor
from rapport.channel.agents.window import Failed, Moved, Pause, Ready, Reason, Taken, Window
from rapport.core.errors import RapportError
from rapport.kernel.chance import Chance
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger

_log = get_logger(__name__)

REQUEST_BYTES = 2 * 1024 * 1024
"""Bytes in one request, about; a single larger event goes alone."""
_JOIN_SECONDS = 5.0

Activity = Literal["idle", "sending", "pausing", "stopped", "closed"]


class Delivery(msgspec.Struct, frozen=True):
    """How the delivery stands: what is done now, what went wrong last, when it is tried again."""

    activity: Activity
    trouble: Reason | None = None
    next_try_in_ms: int = 0


class Courier:
    """Delivers one outbox through one door, in order, until it is told to end."""

    def __init__(
        self,
        outbox: Outbox,
        door: SinkDoor,
        clock: Clock,
        chance: Chance,
        make_window: Callable[[int], Window],
    ) -> None:
        self._outbox, self._door, self._clock, self._chance = outbox, door, clock, chance
        self._make_window = make_window
        self._window = make_window(outbox.settled)
        self._bell = threading.Condition()
        self._rung = self._ended = False
        self._thread = threading.Thread(target=self._run, name="rapport-courier", daemon=True)
        self._thread.start()

    def ring(self) -> None:
        """Tells that there are new events."""
        with self._bell:
            self._rung = True
            self._bell.notify_all()

    def resume(self, token: str | None = None) -> None:
        """Tries again at once, with another token if one is given."""
        with self._bell:
            if token is not None:
                self._door.token = token
            self._window.resume()
            self._rung = True
            self._bell.notify_all()

    def wait_settled(self, sequence: int, timeout_seconds: float | None) -> bool:
        """Whether everything up to a number is settled; waits until it is, the time is over, or
        the delivery has stopped.
        """
        with self._bell:
            self._bell.wait_for(
                lambda: self._outbox.settled >= sequence or self._window.stopped or self._ended,
                timeout_seconds,
            )
        return self._outbox.settled >= sequence

    def delivery(self) -> Delivery:
        """How it stands now."""
        window = self._window
        if self._ended:
            return Delivery("closed", window.trouble)
        if window.stopped:
            return Delivery("stopped", window.trouble)
        if window.sent > window.acknowledged:
            return Delivery("sending", window.trouble)
        if window.resume_at_ms is not None:
            left_ms = max(window.resume_at_ms - self._now_ms(), 0)
            return Delivery("pausing", window.trouble, left_ms)
        return Delivery("idle", window.trouble)

    def end(self) -> None:
        """Ends the thread; a request under way is broken off, and its events stay in the outbox."""
        with self._bell:
            self._ended = True
            self._bell.notify_all()
        self._door.interrupt()
        self._thread.join(_JOIN_SECONDS)

    # --- in the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended:
            try:
                self._step()
            except Exception as error:  # whatever happens here, the events wait and are tried again
                self._go_back(error)
        self._door.hang_up()

    def _step(self) -> None:
        now_ms = self._now_ms()
        with self._bell:
            self._rung = False
            step = self._window.next_step(self._outbox.last, now_ms)
        if isinstance(step, Ready):
            self._send(step)
        elif isinstance(step, Pause):
            self._wait((step.until_ms - now_ms) / 1_000)
        else:
            self._wait(None)

    def _wait(self, seconds: float | None) -> None:
        """New events end no pause: it is the sink that needs it."""
        with self._bell:
            pausing = seconds is not None
            self._bell.wait_for(
                lambda: (
                    self._ended
                    or (self._rung and not pausing)
                    or (pausing and self._window.resume_at_ms is None)
                ),
                seconds,
            )

    def _send(self, ready: Ready) -> None:
        events = self._outbox.read_waiting(ready.first, ready.last, most_bytes=REQUEST_BYTES)
        number = self._window.begin(events[-1].sequence if events else ready.last)
        # Nothing left of them: the disk lost these events, `Outbox.problems` says where.
        answer = self._door.send(events) if events else Taken()
        with self._bell:
            moved = self._window.answered(number, answer, self._now_ms(), self._chance.random())
        if isinstance(answer, Failed):
            _log.info("delivery failed", why=answer.reason.message)
        if moved is not None:
            self._settle(moved, events)
        with self._bell:
            self._bell.notify_all()

    def _settle(self, moved: Moved, events: list[Numbered]) -> None:
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
        """Begins again at what is durably settled, after a pause."""
        known = isinstance(error, RapportError)
        code = error.code if isinstance(error, RapportError) else "outbox.failed"
        if not self._ended:
            _log.warning("delivery stumbled", why=repr(error), exc_info=not known)
        with self._bell:
            window = self._make_window(self._outbox.settled)
            window.resume_at_ms = self._now_ms() + 1_000
            window.trouble = Reason(code, str(error))
            self._window = window

    def _now_ms(self) -> int:
        return self._clock.steady_ns() // 1_000_000
