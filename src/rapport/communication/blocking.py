"""Runs blocking work, such as writes of a record store, beside the event loop. [design 1]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def run_blocking(work: Callable[[], T]) -> T:
    """Runs blocking work in a thread; a cancelled caller still waits for its end."""
    return await run_to_end(asyncio.to_thread(work))


async def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Runs the work to its end even when the caller is cancelled, so that it is never half done."""
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # retrieved, so that asyncio does not warn
        raise
