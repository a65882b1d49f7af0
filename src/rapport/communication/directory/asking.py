"""Questions to an application, each with a deadline: one that hangs holds up nobody else. [CO-3,
CO-7]

A function cannot be interrupted, so each call runs in a thread that nobody waits for when the
process ends. What takes too long goes on unheard: its answer, when it comes after all, is given to
who asks next, and until then who asks for the same is told at once that nothing is known.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

import msgspec

from rapport.core.errors import SourceUnavailable
from rapport.core.message import Identifier
from rapport.kernel.clock import Clock

DEADLINE_SECONDS = 10.0
"""So long an answer is waited for."""
PATIENCE_SECONDS = 1.0
"""So long while another call hangs: its service is probably in trouble as a whole."""
GIVEN_UP_SECONDS = 60.0
"""After that a call is not expected to come back: it is asked anew, a coroutine is cancelled."""
MOST_HANGING = 8
"""With so many calls hanging no other is made."""
_IDLE_SECONDS = 5.0
_NS = 1_000_000_000

T = TypeVar("T")
Callback = Callable[[Identifier], "T | Awaitable[T]"]


class _Threads:
    """Threads for calls that may hang, used again while they do not; nobody waits for them when the
    process ends. One that has nothing to do for some seconds goes.
    """

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[Callable[[], None]]] = []
        self._guard = threading.Lock()

    def run(self, work: Callable[[], None]) -> None:
        """Begins the work, which does not raise, at once."""
        with self._guard:
            given = self._idle.pop() if self._idle else None
        if given is None:
            given = SimpleQueue()
            serve = partial(self._serve, given)
            threading.Thread(target=serve, name="rapport-who-is", daemon=True).start()
        given.put(work)

    def _serve(self, given: SimpleQueue[Callable[[], None]]) -> None:
        while True:
            try:
                work = given.get(timeout=_IDLE_SECONDS)
            except Empty:
                with self._guard:
                    if given in self._idle:
                        self._idle.remove(given)
                        return
                continue  # it was given something just now
            work()
            with self._guard:
                self._idle.append(given)


class _Late(msgspec.Struct, Generic[T]):
    """A call that took longer than it was waited for."""

    call: Future[T]
    begun_ns: int


class Asking(Generic[T]):
    """All calls of one callback; may be asked from any thread. Costs a hop into another thread, or
    into the loop for a coroutine function: some tens of microseconds.
    """

    def __init__(
        self,
        callback: Callback[T],
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        *,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        """`loop`: where coroutines run."""
        self._callback, self._loop, self._clock = callback, loop, clock
        self._deadline_seconds = deadline_seconds
        self._threads = _Threads()
        self._late: dict[Identifier, _Late[T]] = {}
        self._given_up: list[Future[T]] = []
        self._guard = threading.Lock()

    def ask(self, who: Identifier) -> T:
        """What the callback returns or raises; SourceUnavailable when it does not in time."""
        with self._guard:
            came = self._came_late(who)
            hanging = self._hanging()
        if came is not None:
            return came.result()
        if hanging >= MOST_HANGING:
            raise _too_slow(who, f"{hanging} calls of the callback hang")
        seconds = self._deadline_seconds
        if hanging:
            seconds = min(seconds, PATIENCE_SECONDS)
        begun_ns = self._clock.steady_ns()
        call = self._begin(who)
        try:
            return call.result(seconds)
        except TimeoutError:
            if call.done():
                raise  # its own
            with self._guard:
                self._late[who] = _Late(call, begun_ns)
            raise _too_slow(who, f"no answer in {seconds:g} s") from None

    def _came_late(self, who: Identifier) -> Future[T] | None:
        """The answer that came too late for who asked before, if it is not old; raises
        SourceUnavailable while it may still come.
        """
        late = self._late.get(who)
        if late is None:
            return None
        is_old = self._clock.steady_ns() - late.begun_ns > GIVEN_UP_SECONDS * _NS
        if not late.call.done() and not is_old:
            raise _too_slow(who, "an earlier call still runs")
        del self._late[who]
        if late.call.done() and not is_old:
            return late.call
        self._given_up.append(late.call)
        return None

    def _hanging(self) -> int:
        self._given_up = [call for call in self._given_up if not call.done()]
        return len(self._given_up) + sum(not late.call.done() for late in self._late.values())

    # --- one call ---

    def _begin(self, who: Identifier) -> Future[T]:
        in_loop = _is_in_a_loop()
        if not in_loop and inspect.iscoroutinefunction(self._callback):
            return self._awaiting(self._callback(who))
        made: Future[T] = Future()

        def run() -> None:
            try:
                answered = self._callback(who)
                if isinstance(answered, Awaitable):
                    answered = self._waited_for(answered, in_loop)
                made.set_result(answered)
            except BaseException as error:
                made.set_exception(error)

        self._threads.run(run)
        return made

    def _waited_for(self, answered: Awaitable[T], in_loop: bool) -> T:
        if in_loop:
            if asyncio.iscoroutine(answered):
                answered.close()
            raise SourceUnavailable(
                "a coroutine of the application cannot be waited for in the event loop",
                code="people.in_the_loop",
                hint="look people up in a worker thread, or give a plain function",
            )
        return self._awaiting(answered).result()

    def _awaiting(self, answered: Awaitable[T]) -> Future[T]:
        given = asyncio.wait_for(answered, GIVEN_UP_SECONDS)
        return asyncio.run_coroutine_threadsafe(given, self._loop)


def _too_slow(who: Identifier, why: str) -> SourceUnavailable:
    return SourceUnavailable(
        f"the application did not say in time who {who} is: {why}",
        code="people.directory_slow",
        hint="a callback answers within seconds; give what it asks a timeout of its own",
    )


def _is_in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
