"""The state of a listener as its threads share it: one lock, one bell, one place on disk. [CH-7]"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from rapport.channel.agents.listener_cache import ReceivedEvent
from rapport.channel.agents.listener_place import FailedEvent, ListenerPlace
from rapport.channel.agents.listener_state import Listening, StandsAt
from rapport.channel.agents.window import Reason
from rapport.core.errors import RapportError
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger

_log = get_logger(__name__)

_FAILED_IN_MEMORY = 1_000


class Reception:
    """Between the thread that asks, the thread that calls the application, and the application.

    `state` is touched only while `bell` is held. Whoever needs the lock of the files too takes that
    one first.
    """

    def __init__(self, state: Listening, place: ListenerPlace | None, clock: Clock) -> None:
        self.state, self.place = state, place
        self.bell = threading.Condition()
        self.ended = False
        self.disk_trouble: Reason | None = None
        """Why the place could not be kept; None after it was."""
        self.handed_over = 0
        """Events handed over in this run."""
        self._clock = clock
        self._saving = threading.Lock()
        self._failed: deque[FailedEvent] = deque(maxlen=_FAILED_IN_MEMORY)
        self._rung = False

    def now_ms(self) -> int:
        """Time that never jumps."""
        return self._clock.steady_ns() // 1_000_000

    def ring(self) -> None:
        """Wakes everybody; whoever waits looks again."""
        with self.bell:
            self._rung = True
            self.bell.notify_all()

    def wait_for_ring(self, seconds: float | None, *, or_until_resumed: bool = False) -> None:
        """Waits for a ring since the last call; in a pause only for somebody who resumes."""
        with self.bell:
            self.bell.wait_for(
                lambda: (
                    self.ended
                    or (self.state.resume_at_ms is None if or_until_resumed else self._rung)
                ),
                seconds,
            )
            self._rung = False

    def note(self, change: Callable[[], None]) -> None:
        """Changes the state and tells everybody. The very first place is kept before anybody is
        told: what is handed over can be had again after a crash, also when we began in the middle.
        """
        if self.place is None or self.place.saved is not None:
            with self.bell:
                change()
                self.ring()
            return
        with self._saving, self.bell:
            change()
            stands_at = self.state.stands_at()
            if stands_at.token:
                self._write_if_possible(self.place, stands_at)
            self.ring()

    def take(self, count: int) -> list[ReceivedEvent]:
        """Hands over events that wait; the room they leave is filled again."""
        with self.bell:
            taken = self.state.cache.take(count)
            self.handed_over += len(taken)
            if taken:
                self.ring()
            return taken

    def give_back(self, events: list[ReceivedEvent]) -> None:
        """Takes back what was handed over and reached nobody."""
        with self.bell:
            self.state.cache.give_back(events)
            self.handed_over -= len(events)
            self.ring()

    def acknowledge(self, done: ReceivedEvent | int | None = None) -> None:
        """Everything up to an event or position is done (None: everything handed over); not saved
        yet.
        """
        with self.bell:
            cache = self.state.cache
            if isinstance(done, ReceivedEvent):
                done = cache.mark_of(done)
            cache.acknowledge(cache.handed() if done is None else done)
            self.ring()

    def save(self) -> None:
        """Keeps the place; durable when it returns. Raises StoreUnavailable."""
        if self.place is None:
            return
        with self._saving:  # the newest state, written last
            with self.bell:
                stands_at = self.state.stands_at()
            self._write(self.place, stands_at)

    def save_if_possible(self) -> None:
        """Keeps the place; a disk that refuses costs repetitions after a crash, and is told."""
        try:
            self.save()
        except RapportError as error:
            _log.warning("place not kept", code=error.code, why=error.message)

    def keep_failed(self, received: ReceivedEvent, error: BaseException) -> None:
        """Keeps an event aside with what went wrong; durable with a directory. Raises
        StoreUnavailable.
        """
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
        """What was kept aside, oldest first; without a directory the last thousand."""
        return self.place.failed() if self.place is not None else list(self._failed)

    def failed_count(self) -> int:
        """How many were kept aside."""
        return self.place.failed_count if self.place is not None else len(self._failed)

    def _write(self, place: ListenerPlace, stands_at: StandsAt) -> None:
        try:
            place.save(stands_at)
        except RapportError as error:
            self.disk_trouble = Reason(error.code, error.message)
            raise
        self.disk_trouble = None

    def _write_if_possible(self, place: ListenerPlace, stands_at: StandsAt) -> None:
        try:
            self._write(place, stands_at)
        except RapportError as error:
            _log.warning("place not kept", code=error.code, why=error.message)
