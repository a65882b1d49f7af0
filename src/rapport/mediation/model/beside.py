"""Work beside the event loop that leaves it its turns. [ME-6]

A thread that computes keeps the interpreter for 5 ms at a time unless told otherwise, which is as
long as an event may be delayed altogether.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

TURN_SECONDS = 0.0005
"""How long a thread keeps the interpreter while another one waits for it."""
_T = TypeVar("_T")
_guard = threading.Lock()
_before: list[float] = []
"""What was set when each `short_turns` under way began; the first is what holds otherwise."""


async def beside(work: Callable[[], _T]) -> _T:
    """What `work` gives, done in a thread. The loop waits for the interpreter half a millisecond at
    a time, longer only where a single step of `work` (compiling a text) takes longer.
    """

    def in_turns() -> _T:
        with short_turns():
            return work()

    return await asyncio.to_thread(in_turns)


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
