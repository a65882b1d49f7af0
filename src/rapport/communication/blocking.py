"""Runs blocking work, such as writes of a record store, beside the event loop. [design 1]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def run_blocking(work: Callable[[], T]) -> T:
    """Runs blocking work in a thread; a cancelled caller still waits until it has ended."""
    return await run_to_end(asyncio.to_thread(work))


async def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Does the work to its end, also when the caller is cancelled meanwhile: what belongs together
    is not done by half.
    """
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # looked at, so that nobody warns of a failure that is too late
        raise
