"""Blocking work in threads, and the CPUs that threads run on. [PO-2, CO-7]

One interpreter runs one thread at a time. Pinned to one CPU, its threads find each other's objects
in that CPU's caches; threads that work on large arrays use all CPUs.

Runs blocking work, such as writes of a record store, beside the event loop. [design 1]
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

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
