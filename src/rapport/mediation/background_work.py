"""Background work in a thread that does not delay the event loop. [ME-6]

A computing thread keeps the interpreter lock for 5 ms at a time by default, as long as an event may
be delayed altogether. A thread that computes without pauses is also likely to be preempted by the
system while it holds the lock. So the work pauses briefly after a number of calls. Its priority is
not lowered, since then the loop, waiting for the lock, would run at the same low priority.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

TURN_SECONDS = 0.0005
"""How long a thread keeps the interpreter lock while another one waits for it."""
CALLS = 1_000
"""Calls and returns between two pauses, about a third of a millisecond."""
REST_SECONDS = 0.0005
_T = TypeVar("_T")
_guard = threading.Lock()
_before: list[float] = []
"""The switch interval before each active `short_switch_interval`; the first is the original one."""
_thread = ThreadPoolExecutor(1, "beside")
_never = threading.Event()


async def run_in_background(work: Callable[[], _T], *, resting: bool = True) -> _T:
    """Runs `work` in a thread, one at a time, and returns its result. The loop waits for the
    interpreter lock half a millisecond at a time, longer only if a single step of `work`
    (compiling a text) takes longer. Takes three times as long as the work alone; without
    `resting` (pauses, for when events flow) as long.
    """
    # Before the thread starts: a waiting thread uses the interval from when it began to wait.
    with short_switch_interval():
        done = (lambda: run_with_pauses(work)) if resting else work
        return await asyncio.get_running_loop().run_in_executor(_thread, done)


def run_with_pauses(work: Callable[[], _T], rest: Callable[[], object] | None = None) -> _T:
    """Runs `work` in this thread and calls `rest` after every thousand calls and returns."""
    rest = rest or _rest
    left = CALLS

    def count(_frame: FrameType, _event: str, _about: Any) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            rest()
            left = CALLS

    former = sys.getprofile()
    sys.setprofile(count)
    try:
        return work()
    finally:
        sys.setprofile(former)


def _rest() -> None:
    _never.wait(REST_SECONDS)


@contextmanager
def short_switch_interval() -> Iterator[None]:
    """Shortens the switch interval of all threads; costs more switches, so for bounded work
    only.
    """
    with _guard:
        _before.append(sys.getswitchinterval())
        sys.setswitchinterval(TURN_SECONDS)
    try:
        yield
    finally:
        with _guard:
            sys.setswitchinterval(_before.pop())
