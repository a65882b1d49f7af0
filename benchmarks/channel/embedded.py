"""How fast the embedded channel is: durable publishing, latency, reading, growth, reopening.
[CH-13]

Every figure is taken with the duplicate check and the history index on and with data of 200 bytes;
"durable" means that `append` has returned, so the events are synced to the disk that holds the
temporary directory.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.peers.peer import make_events
from benchmarks.results import Result, limit, rate, share
from rapport.channel.backends.local import open_embedded
from rapport.channel.log.channels import LoggedChannels
from rapport.channel.log.logged_channel import LoggedChannel
from rapport.channel.requests.request import Request
from rapport.core.event import Event
from rapport.kernel.clock import SystemClock
from rapport.store.files import DiskFiles

_CLOCK = SystemClock()
_BATCH = 1000
_PUBLISHERS = 64
_STRETCH = 50_000
_LATENCY_RATE = 500

Measure = Callable[[LoggedChannels, bool], Awaitable[list[Result]]]


def run(quick: bool, full: bool = False) -> dict[str, Any]:
    """All measurements in fresh directories; some seconds when quick, 40 s otherwise, some minutes
    when full: then the log grows to 1e7 events.
    """
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="rapport-bench-") as directory:
        results.append(_bare_sync(Path(directory)))
    growth = partial(_growth, full=full)
    for measure in (_publish_batches, _publish_singly, _publish_together, _latency, growth):
        with tempfile.TemporaryDirectory(prefix="rapport-bench-") as directory:
            results += uvloop.run(_on_fresh_channels(Path(directory), measure, quick))
    with tempfile.TemporaryDirectory(prefix="rapport-bench-") as directory:
        results += uvloop.run(_reopening(Path(directory), 40_000 if quick else 1_000_000))
    return {"name": "embedded", "results": results}


def _bare_sync(directory: Path) -> Result:
    """What the disk itself takes, to read the other figures by."""
    file = DiskFiles().open(directory / "bare")
    file.allocate(1024 * 1024)
    took = []
    for number in range(300):
        began = _CLOCK.steady_ns()
        file.write_at(number * 300, bytes(300))
        file.sync()
        took.append((_CLOCK.steady_ns() - began) / 1e6)
    file.close()
    metric = "bare write and sync of 300 B on this disk, p50 of 300 (nothing of the channel)"
    return limit(metric, share(took, 50), "ms")


async def _on_fresh_channels(directory: Path, measure: Measure, quick: bool) -> list[Result]:
    channels = open_embedded(directory, _CLOCK)
    try:
        return await measure(channels, quick)
    finally:
        await channels.close()


async def _publish_batches(channels: LoggedChannels, quick: bool) -> list[Result]:
    """One publisher, batches of 1,000, one after the other; then everything is read."""
    count = 20_000 if quick else 500_000
    events = make_events(count)
    channel = channels.channel("bench")
    seconds = await _timed(lambda: _append_in_batches(channel, events))
    channels.decoded.clear()
    gc.collect()  # a collection of everything else takes longer than reading 20,000 events
    reading = await _timed(lambda: _read_all(channel))
    indexing = await _timed(lambda: channels.find_event(events[count // 2].id))
    return [
        rate(
            f"durable publish, one publisher, batches of {_BATCH:,} events with 200 B data, "
            "each batch synced before the next",
            count / seconds,
            "events/s",
            150_000,
        ),
        rate(
            "read everything from the segment files (in the system's page cache) and decode it, "
            "1,000 events a call, one reader",
            count / reading,
            "events/s",
        ),
        limit(
            f"find one event by id right after publishing {count:,} (waits until the history "
            "index has caught up)",
            indexing * 1000,
            "ms",
        ),
    ]


async def _publish_singly(channels: LoggedChannels, quick: bool) -> list[Result]:
    """One publisher, one event per append, the next after the last was synced."""
    events = make_events(200 if quick else 5_000)
    channel = channels.channel("bench")
    await channel.append(make_events(1, prefix="warm"))

    async def publish() -> None:
        for event in events:
            await channel.append([event])

    seconds = await _timed(publish)
    return [
        rate(
            "durable publish, one publisher, one event with 200 B data per append and sync",
            len(events) / seconds,
            "events/s",
            5_000,
        )
    ]


async def _publish_together(channels: LoggedChannels, quick: bool) -> list[Result]:
    """64 publishers at once, one event per append each; syncs are shared."""
    events = make_events(2_000 if quick else 100_000)
    channel = channels.channel("bench")

    async def publish(number: int) -> None:
        for event in events[number::_PUBLISHERS]:
            await channel.append([event])

    async def all_publish() -> None:
        await asyncio.gather(*(publish(number) for number in range(_PUBLISHERS)))

    seconds = await _timed(all_publish)
    return [
        rate(
            f"durable publish, {_PUBLISHERS} publishers at once, "
            "one event with 200 B data per append",
            len(events) / seconds,
            "events/s",
        )
    ]


async def _latency(channels: LoggedChannels, quick: bool) -> list[Result]:
    """500 events a second, sent on a fixed beat; from before `append` to its return, and to a
    waiting reader.
    """
    channel = channels.channel("bench")
    events = make_events(100 if quick else 2_500)
    await channel.append(make_events(1, prefix="warm"))
    sent: dict[str, int] = {}
    acknowledged: list[float] = []
    arrived: list[float] = []

    async def read() -> None:
        position = channel.last_position()
        while len(arrived) < len(events):
            await channel.wait_after(position)
            for item in await channel.read_after(position):
                arrived.append((_CLOCK.steady_ns() - sent[item.event.id]) / 1e6)
                position = item.position

    async def send(event: Event) -> None:
        sent[event.id] = _CLOCK.steady_ns()
        await channel.append([event])
        acknowledged.append((_CLOCK.steady_ns() - sent[event.id]) / 1e6)

    reader = asyncio.create_task(read())
    began = _CLOCK.steady_ns()
    sending = []
    for number, event in enumerate(events):
        due_ms = number * 1000 / _LATENCY_RATE
        await _CLOCK.sleep(due_ms - (_CLOCK.steady_ns() - began) / 1e6)
        sending.append(asyncio.create_task(send(event)))
    await asyncio.gather(reader, *sending)
    beat = f"at {_LATENCY_RATE} events/s in process"
    return [
        limit(f"latency p50 {beat}, append to durable", share(acknowledged, 50), "ms", 0.4),
        limit(f"latency p99 {beat}, append to durable", share(acknowledged, 99), "ms", 2.0),
        limit(f"latency p50 {beat}, append to a waiting reader", share(arrived, 50), "ms"),
        limit(f"latency p99 {beat}, append to a waiting reader", share(arrived, 99), "ms"),
    ]


async def _growth(channels: LoggedChannels, quick: bool, *, full: bool) -> list[Result]:
    """The same work on a log of 1e5, 1e6 and 1e7 events (1e7 only when full): nothing may depend on
    its length.
    """
    sizes = [4_000, 40_000] if quick else [100_000, 1_000_000, *([10_000_000] if full else ())]
    channel = channels.channel("bench")
    results, means, filled = [], [], 0
    for size in sizes:
        rates = []
        for start in range(filled, size, _STRETCH):
            more = make_events(min(_STRETCH, size - start), prefix=f"{start}-")
            rates.append(len(more) / await _timed(partial(_append_in_batches, channel, more)))
        filled = size
        by_place = await _read_here_and_there(channels, channel)
        by_token = await _read_by_token(channels)
        means.append(by_token)
        there = f"{size:,} events in the log"
        results += [
            rate(
                f"durable batches of {_BATCH:,}, {there}, last {_STRETCH:,}", rates[-1], "events/s"
            ),
            limit(f"read of 100 events from disk at 200 places, {there}, mean", by_place, "ms"),
            limit(f"read of 100 events by token, {there}, mean of 100", by_token, "ms"),
        ]
    what = f"read by token, {sizes[-1]:,} against {sizes[0]:,} events"
    return [*results, limit(what, means[-1] / means[0], "times")]


async def _read_by_token(channels: LoggedChannels) -> float:
    """Mean milliseconds of asking for the same token, its events not in memory."""
    query = f"position > {channels.channel('bench').last_position() // 2}"
    first = await channels.source.request(
        "bench", Request(query=query, max_messages=100), identity="bench"
    )
    again = Request(token=first.current_token)
    total = 0.0
    for _number in range(100):
        channels.decoded.clear()
        total += await _timed(partial(channels.source.request, "bench", again, identity="bench"))
    return total / 100 * 1000


async def _reopening(directory: Path, count: int) -> list[Result]:
    """Opening after a clean close, after a crash (no index of the last segment), and the first
    append after.
    """
    channels = open_embedded(directory, _CLOCK)
    await _append_in_batches(channels.channel("bench"), make_events(count))
    await channels.close()
    clean = await _timed(lambda: _open_and_close(directory))
    _forget_indexes(directory)
    crashed = await _timed(lambda: _open_and_close(directory))
    channels = open_embedded(directory, _CLOCK)
    first = await _timed(lambda: channels.channel("bench").append(make_events(1, prefix="new")))
    await channels.close()
    return [
        limit(f"open and close {count:,} events after a clean close", clean * 1000, "ms"),
        limit(
            f"open and close {count:,} events without any index file, last segment checked whole",
            crashed * 1000,
            "ms",
        ),
        limit(
            f"first append after opening {count:,} events (rebuilds the duplicate window)",
            first * 1000,
            "ms",
        ),
    ]


def _forget_indexes(directory: Path) -> None:
    for index in directory.glob("logs/bench/*.index"):
        index.unlink()


async def _open_and_close(directory: Path) -> None:
    await open_embedded(directory, _CLOCK).close()


async def _append_in_batches(channel: LoggedChannel, events: list[Event]) -> None:
    for start in range(0, len(events), _BATCH):
        await channel.append(events[start : start + _BATCH])


async def _read_all(channel: LoggedChannel) -> None:
    position = 0
    while batch := await channel.read_after(position, limit=_BATCH):
        position = batch[-1].position


async def _read_here_and_there(channels: LoggedChannels, channel: LoggedChannel) -> float:
    """Mean milliseconds of a read; the cache of decoded blocks is emptied before each."""
    step = max(channel.last_position() // 200, 1)
    total = 0.0
    for number in range(200):
        channels.decoded.clear()
        place = number * 7919 % 200 * step
        total += await _timed(partial(channel.read_after, place, limit=100))
    return total / 200 * 1000


async def _timed(work: Callable[[], Awaitable[object]]) -> float:
    began = _CLOCK.steady_ns()
    await work()
    return (_CLOCK.steady_ns() - began) / 1e9
