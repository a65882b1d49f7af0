"""What is asked of every peer, and the amounts. [CH-13]"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from rapport.core.event import Event
from rapport.kernel.clock import SystemClock

BATCH = 1_000
CLOCK = SystemClock()
DATA = b'{"reading":"' + b"7" * 186 + b'"}'


def make_events(count: int, *, prefix: str = "") -> list[Event]:
    """Events with 200 bytes of data and ids of their own."""
    return [
        Event("bench/sensors", f"{prefix}{number:012d}", "bench.reading", "tag/77", number, DATA)
        for number in range(count)
    ]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Events per second, each forced to disk before the next is sent; `how` says by what means."""

    batches: float
    singles: float
    reads: float
    how: str


class Peer(Protocol):
    """A log server with a client. `publish` returns when everything given is on its disk."""

    how: str

    def publish(self, events: list[Event]) -> None:
        """One batch."""

    def read_all(self) -> int:
        """Reads everything back and counts it."""


def measure(peer: Peer, *, batches: int, singles: int) -> Figures:
    """Publishes batches, reads all, publishes one by one."""
    peer.publish(make_events(BATCH, prefix="warm"))
    many = [make_events(BATCH, prefix=f"{number}-") for number in range(batches)]
    seconds = timed(lambda: _each(peer, many))
    found = 0

    def read() -> None:
        nonlocal found
        found = peer.read_all()

    reading = timed(read)
    if found < batches * BATCH:
        raise RuntimeError(f"{peer.how}: {found} of {batches * BATCH} came back")
    ones = [[event] for event in make_events(singles, prefix="one-")]
    alone = timed(lambda: _each(peer, ones))
    return Figures(
        batches=batches * BATCH / seconds,
        singles=singles / alone,
        reads=found / reading,
        how=peer.how,
    )


def timed(work: Callable[[], object]) -> float:
    """Seconds that it took."""
    began = CLOCK.steady_ns()
    work()
    return (CLOCK.steady_ns() - began) / 1e9


def _each(peer: Peer, batches: list[list[Event]]) -> None:
    for batch in batches:
        peer.publish(batch)
