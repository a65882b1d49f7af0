"""Work beside the event loop that leaves it its turns. [ME-6]

A thread that computes keeps the interpreter for 5 ms at a time unless told otherwise, which is as
long as an event may be delayed altogether. And one that computes without a rest is the one that the
system takes off its processor when others want it, with the interpreter in its hands, so that
nobody can work until it gets a processor again. So the work rests a moment after every so many
calls: what rests often is seldom interrupted. It is not made less urgent than the loop, since then
the loop, waiting for the interpreter, would be as little urgent as the work.
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
"""How long a thread keeps the interpreter while another one waits for it."""
CALLS = 1_000
"""Calls and returns of functions between two rests: a third of a millisecond, or thereabouts."""
REST_SECONDS = 0.0005
_T = TypeVar("_T")
_guard = threading.Lock()
_before: list[float] = []
"""What was set when each `short_turns` under way began; the first is what holds otherwise."""
_thread = ThreadPoolExecutor(1, "beside")
_never = threading.Event()


async def run_in_background(work: Callable[[], _T], *, resting: bool = True) -> _T:
    """What `work` gives, done in a thread, one work after the other. The loop waits for the
    interpreter half a millisecond at a time, longer only where a single step of `work` (compiling a
    text) takes longer. Takes three times as long as the work alone; without rests, which are for
    when events flow, as long.
    """
    # Before the thread begins: who waits for the interpreter waits as long as was said when it
    # began to wait.
    with short_switch_interval():
        done = (lambda: run_with_pauses(work)) if resting else work
        return await asyncio.get_running_loop().run_in_executor(_thread, done)


def run_with_pauses(work: Callable[[], _T], rest: Callable[[], object] | None = None) -> _T:
    """What `work` gives, done in this thread, with `rest` called after every thousand calls and
    returns of functions in it, whatever it is that it calls.
    """
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
