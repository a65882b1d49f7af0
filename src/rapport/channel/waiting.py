"""Waiting across threads: a bell for readers, a door that keeps the queue bounded. [CH-14]"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable

from rapport.core.errors import ChannelUnavailable

WAITING_BYTES = 64 * 1024 * 1024
"""Data in front of a full queue before `append` sends its callers away."""
_Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class Bell:
    """Wakes every coroutine that waits, in whichever loop it runs; may be rung from any thread."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiters: list[_Waiter] = []

    def listen(self) -> asyncio.Future[None]:
        """A future that the next ring resolves."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._guard:
            if len(self._waiters) > 64:
                self._waiters = [waiter for waiter in self._waiters if not waiter[1].done()]
            self._waiters.append((loop, future))
        return future

    def ring(self) -> None:
        """Resolves all futures handed out so far."""
        if not self._waiters:
            return
        with self._guard:
            waiters, self._waiters = self._waiters, []
        wake(waiters)


class Room:
    """Back-pressure: at most `limit` bytes inside at once (a single larger guest enters when it is
    empty) and at most `waiting` in front of it; who comes then is sent away.
    """

    def __init__(self, limit: int, waiting: int = WAITING_BYTES) -> None:
        self._limit, self._inside = limit, 0
        self._waiting_limit, self._waiting = waiting, 0
        self.refused = 0
        """How many were sent away."""
        self._guard = threading.Lock()
        self._queue: deque[tuple[int, _Waiter]] = deque()

    async def enter(self, size: int) -> None:
        """Returns when there is room; first come, first served. Raises ChannelUnavailable when
        too much waits already: what waits is held in memory.
        """
        with self._guard:
            if not self._queue and self._fits(size):
                self._inside += size
                return
            if self._queue and self._waiting + size > self._waiting_limit:
                self.refused += 1
                raise ChannelUnavailable(
                    "more events come in than the disk can take",
                    code="channel.busy",
                    hint="send them again after a moment; nothing of this append is kept",
                )
            self._waiting += size
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            self._queue.append((size, (loop, future)))
        try:
            await future
        except asyncio.CancelledError:
            self._withdraw(size, future)
            raise

    def leave(self, size: int) -> None:
        """Makes room; may be called from any thread."""
        with self._guard:
            self._inside -= size
            admitted = self._admit()
        wake(admitted)

    def _fits(self, size: int) -> bool:
        return self._inside == 0 or self._inside + size <= self._limit

    def _admit(self) -> list[_Waiter]:
        admitted = []
        while self._queue and self._fits(self._queue[0][0]):
            size, waiter = self._queue.popleft()
            self._waiting -= size
            self._inside += size
            admitted.append(waiter)
        return admitted

    def _withdraw(self, size: int, future: asyncio.Future[None]) -> None:
        """A guest went away: if it still queued it is struck out, if it was let in its place is
        given back.
        """
        with self._guard:
            queued = [entry for entry in self._queue if entry[1][1] is not future]
            was_inside = len(queued) == len(self._queue)
            self._queue = deque(queued)
            if was_inside:
                self._inside -= size
            else:
                self._waiting -= size
            admitted = self._admit()
        wake(admitted)


def wake(waiters: Iterable[_Waiter]) -> None:
    """Resolves futures, each in its own loop, with one call per loop; a loop that has ended needs
    no waking.
    """
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for loop, future in waiters:
        by_loop.setdefault(loop, []).append(future)
    for loop, futures in by_loop.items():
        call_in(loop, _resolve, futures)


def call_in(loop: asyncio.AbstractEventLoop, action: Callable[..., None], *values: object) -> bool:
    """Calls an action in a loop from any thread; False when that loop has ended, so nobody waits
    there.
    """
    try:
        loop.call_soon_threadsafe(action, *values)
    except RuntimeError:
        if not loop.is_closed():
            raise
        return False
    return True


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
