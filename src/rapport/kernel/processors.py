"""Where threads run. [CO-7]

One interpreter runs one thread at a time; held on one processor, its threads find each other's
objects in that processor's caches. Who works beside them with arrays of its own roams.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def processors() -> list[int]:
    """The processors this process may use; empty where the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


_GIVEN = processors()


def roam() -> None:
    """Lets this thread run wherever the process may, though it was begun by one that is held."""
    if _GIVEN:
        os.sched_setaffinity(0, _GIVEN)


@contextmanager
def held_on(number: int) -> Iterator[None]:
    """Holds this thread, and the threads and processes it starts meanwhile, on one of its
    processors, counted from 0 and round again; does nothing where the system cannot.
    """
    allowed = processors()
    if not allowed:
        yield
        return
    os.sched_setaffinity(0, {allowed[number % len(allowed)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
