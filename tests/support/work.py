"""How much work a piece of code does, counted and not timed: what a busy machine does not change.
[UX-3]

Garbage is not collected meanwhile: when that is, and who wants to hear of it, is others' work.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from rapport_lab.scheduler import without_collector


def calls(work: Callable[[], object]) -> int:
    """How many functions were called, those written in C included. What one of these does inside
    is not seen.
    """
    count = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    with without_collector():
        sys.setprofile(note)
        try:
            work()
        finally:
            sys.setprofile(before)
    return count


def lines(work: Callable[[], object]) -> int:
    """How many lines of Python were run, those of all functions called: loops count by their
    rounds. What a function written in C does inside is not seen.
    """
    count = 0

    def note(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return note

    before = sys.gettrace()
    with without_collector():
        sys.settrace(note)
        try:
            work()
        finally:
            sys.settrace(before)
    return count
