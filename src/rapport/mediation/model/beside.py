"""Work beside the event loop that leaves it its turns. [ME-6]

A thread that computes keeps the interpreter for 5 ms at a time unless told otherwise, which is as
long as an event may be delayed altogether. And it keeps its processor for as long when the loop's
thread wakes up on the same one, unless it is the less urgent of the two.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TypeVar

TURN_SECONDS = 0.0005
"""How long a thread keeps the interpreter while another one waits for it."""
_NICENESS = 10
_T = TypeVar("_T")
_guard = threading.Lock()
_before: list[float] = []
"""What was set when each `short_turns` under way began; the first is what holds otherwise."""


def _let_others_go_first() -> None:
    """On Linux the priority of a thread is its own; elsewhere it would be that of the process."""
    if sys.platform == "linux":
        with suppress(OSError):  # where that is not allowed, it is as urgent as the others
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


_thread = ThreadPoolExecutor(1, "beside", initializer=_let_others_go_first)
"""One, of its own: a thread that stepped back may not step forward again."""


async def beside(work: Callable[[], _T]) -> _T:
    """What `work` gives, done in a thread, one work after the other. The loop waits for the
    interpreter half a millisecond at a time, longer only where a single step of `work` (compiling a
    text) takes longer.
    """
    # Before the thread begins: who waits for the interpreter waits as long as was said when it
    # began to wait.
    with short_turns():
        return await asyncio.get_running_loop().run_in_executor(_thread, work)


@contextmanager
def short_turns() -> Iterator[None]:
    """All threads of the process take short turns meanwhile: more changes between them, so for
    bounded work only.
    """
    with _guard:
        _before.append(sys.getswitchinterval())
        sys.setswitchinterval(TURN_SECONDS)
    try:
        yield
    finally:
        with _guard:
            sys.setswitchinterval(_before.pop())
