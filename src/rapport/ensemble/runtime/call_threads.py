"""Runs processes of components in threads, so that one that hangs does not block the others.
[EN-1, EN-10]

Python cannot end a thread: a hanging one is abandoned and another one takes its place.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence

from rapport.ensemble.model.calls import Call, Outcome, run_call
from rapport.kernel.clock import Clock, steady_ms

Done = Callable[[Call, Outcome], None]


class CallThreads:
    """Runs calls, each once, `at_once` at a time; outcomes are delivered on the loop.

    Calls that run for longer than `hangs_ms` do not count: others run beside them, until there are
    `most` threads. A call costs about 50 us more than its work.
    """

    def __init__(
        self, done: Done, clock: Clock, *, hangs_ms: float, at_once: int = 4, most: int = 64
    ) -> None:
        self._done, self._clock = done, clock
        self._hangs_ms, self._at_once, self._most = hangs_ms, at_once, most
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Call] = deque()
        self._running: dict[Call, float] = {}
        """Since which steady time each runs."""
        self._threads = self._idle = 0
        self._is_closed = False
        self._change = threading.Condition()

    def __len__(self) -> int:
        """How many threads there are."""
        return self._threads

    @property
    def waiting(self) -> int:
        """Calls that no thread had time for yet."""
        return len(self._waiting)

    def run(self, calls: Sequence[Call]) -> None:
        """Has them run as soon as a thread is free."""
        with self._change:
            self._waiting += calls
            self._change.notify(len(calls))
        self.look()

    def look(self) -> None:
        """Adds threads while calls wait and all threads are busy; to be called now and then."""
        if not self._waiting:
            return
        now_ms = steady_ms(self._clock)
        with self._change:
            hanging = sum(now_ms - since > self._hangs_ms for since in self._running.values())
            allowed = min(self._at_once + hanging, self._most) - self._threads
            for _ in range(min(allowed, len(self._waiting) - self._idle)):
                self._threads += 1
                threading.Thread(target=self._work, name="process", daemon=True).start()

    def close(self) -> None:
        """Starts no further call; the outcomes of running calls are dropped."""
        with self._change:
            self._is_closed = True
            self._waiting.clear()
            self._change.notify_all()

    def _work(self) -> None:
        while (call := self._next()) is not None:
            outcome = run_call(call)
            with self._change:
                self._running.pop(call, None)
                if not self._is_closed:
                    self._loop.call_soon_threadsafe(self._tell, call, outcome)

    def _next(self) -> Call | None:
        """The next call; none when this thread is not needed any more."""
        with self._change:
            while not self._waiting:
                if self._is_closed or self._idle >= self._at_once:
                    self._threads -= 1
                    return None
                self._idle += 1
                self._change.wait()
                self._idle -= 1
            call = self._waiting.popleft()
            self._running[call] = steady_ms(self._clock)
            return call

    def _tell(self, call: Call, outcome: Outcome) -> None:
        if not self._is_closed:
            self._done(call, outcome)
