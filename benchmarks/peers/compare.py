"""The peers side by side with the embedded channel, in one run on one disk. [CH-13]"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from benchmarks.peers.nats import nats_peer
from benchmarks.peers.peer import BATCH, CLOCK, Figures, measure
from benchmarks.peers.postgres import postgres_peer
from benchmarks.peers.redis import redis_peer
from benchmarks.results import Result, absent, rate
from rapport.channel.backends.local import open_embedded
from rapport.core.event import Event

MOST_AHEAD = 1.5
"""How much faster than the best forced peer durable batches must be."""

_NOT_MEASURED = ("RabbitMQ, quorum queue, confirmed publishes (no client for it here)",)

Open = Callable[[], AbstractContextManager[Any]]


class OurChannel:
    """The embedded channel behind the same two calls; one loop turn per batch."""

    how = "Rapport, embedded channel, duplicate check and history index on"

    def __init__(self, directory: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._channels = open_embedded(directory, CLOCK)
        self._channel = self._channels.channel("bench")

    def publish(self, events: list[Event]) -> None:
        """One append."""
        self._run(self._channel.append(events))

    def read_all(self) -> int:
        """1,000 events a call, from the segment files."""
        self._channels.decoded.clear()
        found = position = 0
        while batch := self._run(self._channel.read_after(position, limit=BATCH)):
            found += len(batch)
            position = batch[-1].position
        return found

    def close(self) -> None:
        """Closes the stores."""
        self._run(self._channels.close())
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)


def compare(quick: bool) -> list[Result]:
    """Rows for ourselves and every peer, and how far ahead of the best forced one we are."""
    amounts = {"batches": 20, "singles": 300} if quick else {"batches": 200, "singles": 2_000}
    ours = _ours(amounts)
    peers: list[Figures] = []
    results = _rows(ours)
    for open_peer in (postgres_peer, _nats(True), _nats(False), redis_peer):
        with open_peer() as peer:
            if peer is None:
                results.append(absent("peer not installed: redis-server", "events/s"))
                continue
            figures = measure(peer, **amounts)
        peers.append(figures)
        results += _rows(figures)
    results += [absent(f"peer not measured: {name}", "events/s") for name in _NOT_MEASURED]
    best = max(peers, key=lambda figures: figures.batches)
    metric = f"durable batches of {BATCH:,}: ours against the best forced peer ({best.how})"
    return [*results, rate(metric, ours.batches / best.batches, "times", MOST_AHEAD)]


def _ours(amounts: dict[str, int]) -> Figures:
    with tempfile.TemporaryDirectory(prefix="rapport-bench-") as directory:
        channel = OurChannel(Path(directory))
        try:
            return measure(channel, **amounts)
        finally:
            channel.close()


def _nats(atomic: bool) -> Open:
    return lambda: nats_peer(atomic=atomic)


def _rows(figures: Figures) -> list[Result]:
    what = f"{figures.how}: durable"
    return [
        rate(f"{what} batches of {BATCH:,} x 200 B", figures.batches, "events/s"),
        rate(f"{what} one by one", figures.singles, "events/s"),
        rate(f"{figures.how}: read everything, 1,000 a call", figures.reads, "events/s"),
    ]
