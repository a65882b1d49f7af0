"""Background work: supervised tasks (named, restarted with growing pauses, stopped and closed in
order), blocking work in threads, and the CPUs that threads run on. [UX-5, PO-2, CO-7]

One interpreter runs one thread at a time. Pinned to one CPU, its threads find each other's objects
in that CPU's caches; threads that work on large arrays use all CPUs.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger

_log = get_logger(__name__)
_FIRST_PAUSE_MS = 100
_LONGEST_PAUSE_MS = 30_000
_CANCEL_AGAIN_SECONDS = 0.2
_CALM_MS = 1_000


class Tasks:
    """The background tasks of a node; one that fails is logged and restarted."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running: dict[str, asyncio.Task[None]] = {}
        self.failures: dict[str, int] = {}
        self._well_again_ns: dict[str, int] = {}

    def start(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Runs `work` until it returns or `stop`; again after an exception, with growing pauses."""
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


async def ends_within(running: asyncio.Future[Any], clock: Clock, limit_ms: int) -> bool:
    """Whether work ends within the limit; otherwise it runs on."""
    deadline = asyncio.ensure_future(clock.sleep(limit_ms))
    try:
        await asyncio.wait({running, deadline}, return_when=asyncio.FIRST_COMPLETED)
        return running.done()
    finally:
        await cancel_until_done(deadline)


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


Result = TypeVar("Result")
Owner = TypeVar("Owner")
Arguments = ParamSpec("Arguments")


async def run_in_thread(work: Callable[[], Result], *, name: str) -> Result:
    """Runs `work` in a daemon thread and returns its result. A cancellation returns at once; the
    work continues and its result is dropped.

    `asyncio.to_thread` does not fit: a slow source would occupy the loop's threads and keep the
    process from ending.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def deliver(result: Result | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: Result | None = None
        failed: BaseException | None = None
        try:
            result = work()
        except Exception as error:
            failed = error
        try:
            loop.call_soon_threadsafe(deliver, result, failed)
        except RuntimeError:
            return  # the loop is closed

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done


def allowed_cpus() -> list[int]:
    """The CPUs this process may use; empty on systems without affinity."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


_ALL_CPUS = allowed_cpus()


def allow_all_cpus() -> None:
    """Lets this thread use all CPUs of the process, although a pinned thread started it."""
    if _ALL_CPUS:
        os.sched_setaffinity(0, _ALL_CPUS)


@contextmanager
def pinned_to_cpu(number: int) -> Iterator[None]:
    """Pins this thread, and the threads and processes it starts meanwhile, to one of its CPUs,
    counted from 0 modulo their number; does nothing on systems without affinity.
    """
    allowed = allowed_cpus()
    if not allowed:
        yield
        return
    os.sched_setaffinity(0, {allowed[number % len(allowed)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


async def run_blocking(work: Callable[[], Result]) -> Result:
    """Runs blocking work in a thread; a cancelled caller still waits for its end."""
    return await run_to_end(asyncio.to_thread(work))


def in_thread(
    method: Callable[Concatenate[Owner, Arguments], Result],
) -> Callable[Concatenate[Owner, Arguments], Coroutine[Any, Any, Result]]:
    """Makes a blocking method a coroutine: each call runs as `run_blocking` runs work."""

    @wraps(method)
    async def call(owner: Owner, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return await run_blocking(partial(method, owner, *args, **kwargs))

    return call


async def run_to_end(work: Coroutine[Any, Any, Result]) -> Result:
    """Runs the work to its end even when the caller is cancelled, so that it is never half done."""
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # retrieved, so that asyncio does not warn
        raise
