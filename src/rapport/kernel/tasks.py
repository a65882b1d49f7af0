"""Supervised background tasks: named, restarted with growing pauses, stopped and closed in order.
[UX-5]
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
_CANCEL_AGAIN_SECONDS = 0.2
_CALM_MS = 1_000


class Tasks:
    """The background tasks of a node. A task that fails is logged and restarted; the others
    continue.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running: dict[str, asyncio.Task[None]] = {}
        self.failures: dict[str, int] = {}
        self._well_again_ns: dict[str, int] = {}

    def start(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Runs `work` until it returns or `stop`; after an exception it restarts with growing
        pauses.
        """
        if name in self._running and not self._running[name].done():
            raise RuntimeError(f"task {name} is running already")
        self._running[name] = asyncio.create_task(self._supervise(name, work), name=name)

    def unwell(self) -> list[str]:
        """The tasks that keep failing: each until it has run longer than its last pause."""
        now_ns = self._clock.steady_ns()
        return [name for name, until_ns in self._well_again_ns.items() if now_ns < until_ns]

    async def ended(self, name: str) -> None:
        """Waits until the task has ended by itself; returns at once if there is none."""
        task = self._running.get(name)
        if task is not None:
            await asyncio.wait({task})

    async def stop(self, *names: str) -> None:
        """Cancels the named tasks (all without names, newest first) and waits until they have
        ended, also in a task that is itself being cancelled. If cancelled while it waits, it
        cancels the remaining tasks without waiting.
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
        for name in names:
            task = self._running.pop(name, None)
            if task is not None:
                task.cancel()

    async def _supervise(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
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
            if _is_cancelled():
                return  # its clean-up failed; after a restart it would miss the cancellation
            lasted_ms = (self._clock.steady_ns() - began) // 1_000_000
            if lasted_ms > _LONGEST_PAUSE_MS:
                pause_ms = _FIRST_PAUSE_MS
            calm_ns = (2 * pause_ms + _CALM_MS) * 1_000_000
            self._well_again_ns[name] = self._clock.steady_ns() + calm_ns
            await self._clock.sleep(pause_ms)
            pause_ms = min(pause_ms * 2, _LONGEST_PAUSE_MS)


def _is_cancelled() -> bool:
    """Whether the current task was cancelled, even if it suppressed that."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def first_of(*works: Awaitable[object]) -> None:
    """Returns when the first has ended, or raises its exception; cancels the others."""
    waits = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for finished in done:
            finished.result()
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def cancel_until_done(*works: asyncio.Future[Any]) -> None:
    """Cancels repeatedly until all have ended; for tasks of drivers, not for our own.

    One cancel is not enough: Python 3.11's `wait_for` swallows a cancellation that coincides with
    its result, and the driver then continues. Exceptions are dropped. Clean-up code with awaits may
    be interrupted.
    """
    while waiting := [work for work in works if not work.done()]:
        for work in waiting:
            work.cancel()
        await asyncio.wait(waiting, timeout=_CANCEL_AGAIN_SECONDS)
    await asyncio.gather(*works, return_exceptions=True)


ClosableComponent = tuple[str, Callable[[], Awaitable[object] | None]]
"""A component's name, for the log, and the function that closes it."""


async def close_all(parts: Iterable[ClosableComponent]) -> None:
    """Closes all components in order. Errors are logged with the component's name; the first one is
    raised after all were closed.

    A cancellation of the caller interrupts the component being closed, not those after it, and is
    raised at the end: a node that is stopped in haste still closes its log.
    """
    first: Exception | None = None
    cancelled: asyncio.CancelledError | None = None
    for name, end in parts:
        try:
            await _close(end)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception as error:
            first = first or error
            _log.error("closing failed", component=name, error=repr(error))
    if cancelled is not None:
        raise cancelled
    if first is not None:
        raise first


async def _close(end: Callable[[], Awaitable[object] | None]) -> None:
    ending = end()
    if ending is not None:
        await ending
