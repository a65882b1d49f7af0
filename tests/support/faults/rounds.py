"""Rounds of trouble: people at work in threads while something is killed, cut or filled. For tests.
[CH-5, CH-9, CH-13]

`ROUNDS` makes one test of two: a short form for every day, and a hundred rounds marked `long`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import pytest

from rapport.kernel.clock import SystemClock

MANY = 100
_LOOK_SECONDS = 0.02
_END_SECONDS = 60.0


class Worker(Protocol):
    """Somebody who works until told to stop."""

    def run(self, stop: threading.Event) -> None:
        """Returns soon after `stop` is set; what it raises fails the test."""


class _Shift(threading.Thread):
    """One worker's thread; keeps what it raised."""

    def __init__(self, worker: Worker, stop: threading.Event) -> None:
        super().__init__(name=type(worker).__name__, daemon=True)
        self._worker, self._stop_sign = worker, stop
        self.error: BaseException | None = None

    def run(self) -> None:
        """See threading.Thread."""
        try:
            self._worker.run(self._stop_sign)
        except BaseException as error:  # raised again where the test can see it
            self.error = error


@contextmanager
def at_work(*workers: Worker) -> Iterator[None]:
    """Has workers run beside the block; what one of them raised is raised at its end."""
    stop = threading.Event()
    shifts = [_Shift(worker, stop) for worker in workers]
    for shift in shifts:
        shift.start()
    try:
        yield
    finally:
        stop.set()
        for shift in shifts:
            shift.join(_END_SECONDS)
    for shift in shifts:
        if shift.error is not None:
            raise shift.error
        assert not shift.is_alive(), f"{shift.name} does not end"


def wait_until(
    condition: Callable[[], bool], seconds: float = 30, *, every: float = _LOOK_SECONDS
) -> bool:
    """Looks every so many seconds; says whether it came true in time."""
    clock = SystemClock()
    deadline = clock.steady_ns() + int(seconds * 1e9)
    while not condition():
        if clock.steady_ns() > deadline:
            return False
        threading.Event().wait(every)
    return True


def few_or_many(few: int) -> Sequence[object]:
    """Parameters of a test of rounds: so many, and `MANY` behind the marker `long`."""
    return (
        pytest.param(few, id="short"),
        pytest.param(MANY, id="hundred", marks=pytest.mark.long),
    )


def check_once(found: Iterable[str], acknowledged: Iterable[str]) -> None:
    """Everything acknowledged was found, and nothing twice."""
    counted = Counter(found)
    doubled = [name for name, times in counted.items() if times > 1]
    assert not doubled, f"{len(doubled)} doubled, such as {doubled[:5]}"
    lost = set(acknowledged) - set(counted)
    assert not lost, f"{len(lost)} lost, such as {sorted(lost)[:5]}"


def check_same(found: Sequence[str], written: Sequence[str]) -> None:
    """A reader has what is written, in order: all of it, or as far as it came."""
    assert list(found) == list(written[: len(found)]), _first_difference(found, written)


def _first_difference(found: Sequence[str], written: Sequence[str]) -> str:
    for number, (one, other) in enumerate(zip(found, written, strict=False)):
        if one != other:
            return f"at {number} the reader has {one!r}, the log {other!r}"
    return f"the reader has {len(found)} events, the log {len(written)}"
