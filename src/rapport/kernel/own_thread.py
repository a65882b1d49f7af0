"""Blocking work in a thread of its own, which nobody waits for when the process ends. [PO-2]"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


async def in_own_thread(work: Callable[[], Result], *, name: str) -> Result:
    """What `work` returns or raises. Cancelled, it lets go at once: the work goes on unheard.

    Not `asyncio.to_thread`: a source that answers slowly would keep the loop's own threads busy,
    and the process from ending.
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
            return  # the loop was closed meanwhile: nobody is waiting

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done
