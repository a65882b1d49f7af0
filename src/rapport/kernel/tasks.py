"""Background work under care: named tasks that are restarted with growing pauses and stopped in
order. [UX-5]
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger

_log = get_logger(__name__)
_FIRST_PAUSE_MS = 100
_LONGEST_PAUSE_MS = 30_000
_ASK_AGAIN_SECONDS = 0.2
_CALM_MS = 1_000


class Tasks:
    """The background tasks of a node. A task that fails is logged and started again; the others go
    on.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running: dict[str, asyncio.Task[None]] = {}
        self.failures: dict[str, int] = {}
        self._well_again_ns: dict[str, int] = {}

    def start(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Runs `work` until it returns or `stop`; after an exception it is called again, later each
        time.
        """
        if name in self._running and not self._running[name].done():
            raise RuntimeError(f"task {name} is running already")
        self._running[name] = asyncio.create_task(self._care_for(name, work), name=name)

    def unwell(self) -> list[str]:
        """The tasks that keep failing: each until it has run longer than it last paused."""
        now_ns = self._clock.steady_ns()
        return [name for name, until_ns in self._well_again_ns.items() if now_ns < until_ns]

    async def ended(self, name: str) -> None:
        """Returns when the task has ended by itself, at once when there is none; never ends it."""
        task = self._running.get(name)
        if task is not None:
            await asyncio.wait({task})

    async def stop(self, *names: str) -> None:
        """Cancels the named tasks, newest first (all when none is named), and waits until they have
        ended; also in a task that is itself being cancelled. Cancelled while it waits, it still
        cancels all of them, and waits for none.
        """
        current = asyncio.current_task()
        cancelled = current.cancelling() if current is not None else 0
        chosen = list(names) or list(reversed(self._running))
        while chosen:
            task = self._running.pop(chosen.pop(0), None)
            if task is None:
                continue
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                if current is not None and current.cancelling() > cancelled:
                    self._cancel(chosen)
                    raise

    def _cancel(self, names: Iterable[str]) -> None:
        """Without waiting: who was to wait has no time left."""
        for name in names:
            task = self._running.pop(name, None)
            if task is not None:
                task.cancel()

    async def _care_for(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        pause_ms = _FIRST_PAUSE_MS
        while True:
            began = self._clock.steady_ns()
            try:
                await work()
                return
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self.failures[name] = self.failures.get(name, 0) + 1
                _log.error("task failed", task=name, error=repr(error), again_in_ms=pause_ms)
            if _is_being_stopped():
                return  # its cleaning up failed; started again it would never hear of the stop
            lasted_ms = (self._clock.steady_ns() - began) // 1_000_000
            if lasted_ms > _LONGEST_PAUSE_MS:
                pause_ms = _FIRST_PAUSE_MS
            calm_ns = (2 * pause_ms + _CALM_MS) * 1_000_000
            self._well_again_ns[name] = self._clock.steady_ns() + calm_ns
            await self._clock.sleep(pause_ms)
            pause_ms = min(pause_ms * 2, _LONGEST_PAUSE_MS)


def _is_being_stopped() -> bool:
    """Whether the task that asks was cancelled, whatever became of that."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def first_of(*works: Awaitable[object]) -> None:
    """Returns when the first has ended, raising what it raised; the others are cancelled."""
    waits = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for finished in done:
            finished.result()
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def end_firmly(*works: asyncio.Future[Any]) -> None:
    """Cancels until all have ended, and waits for that; for work of drivers, not for our own.

    One cancel is not enough: Python 3.11's `wait_for` swallows a cancellation that meets the answer
    it waits for, and the driver then goes on as if nobody had asked it to stop. What it raised in
    the end is dropped. Code that cleans up in an await of its own may be interrupted in it.
    """
    while waiting := [work for work in works if not work.done()]:
        for work in waiting:
            work.cancel()
        await asyncio.wait(waiting, timeout=_ASK_AGAIN_SECONDS)
    await asyncio.gather(*works, return_exceptions=True)
