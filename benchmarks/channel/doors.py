"""How fast the doors are: publishing over HTTP, and telling a hundred subscribers. [CH-12]

The node runs as a process of its own (`rapport up`), the clients in this one; both share the
machine. Every answer to a publish means that the events are synced to disk.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

from benchmarks.channel.door_clients import Counter, post_all, post_request
from benchmarks.fresh_node import Address, fresh_node
from benchmarks.results import Result, limit, rate
from rapport.core.times import format_time, parse_time
from rapport.kernel.clock import SystemClock

_CLOCK = SystemClock()
_BEGAN_MS = parse_time("2026-03-02T09:14:05.210Z")
_DATA = {"reading": "7" * 186}
_CONNECTIONS = 64
_BATCH_CONNECTIONS = 16
_BATCH = 100
_SUBSCRIBERS = 100


def run(quick: bool) -> dict[str, Any]:
    """All measurements against one fresh node; some seconds when quick, a minute otherwise."""
    with fresh_node() as address:
        results = uvloop.run(_measure(address, quick))
    return {"name": "doors", "results": results}


async def _measure(address: Address, quick: bool) -> list[Result]:
    scale = 1 if quick else 20
    await post_all(address, _posts("warm", 500, 1), connections=8)
    return [
        await _singles(address, 1_600 * scale),
        await _batches(address, 16_000 * scale),
        await _fan_out(address, 2_000 * scale, _BATCH, "requests of 100"),
        await _fan_out(address, 400 * scale, 1, "one request each, 16 connections"),
        await _latency(address, 60 * scale),
    ]


async def _singles(address: Address, count: int) -> Result:
    requests = _posts("singles", count, 1)
    seconds = await _timed(lambda: post_all(address, requests, connections=_CONNECTIONS))
    metric = (
        f"HTTP publish, {_CONNECTIONS} connections, one event with 200 B data per request, "
        "each answered when synced"
    )
    return rate(metric, count / seconds, "requests/s", 8_000)


async def _batches(address: Address, count: int) -> Result:
    requests = _posts("batches", count, _BATCH)
    seconds = await _timed(lambda: post_all(address, requests, connections=_BATCH_CONNECTIONS))
    metric = (
        f"HTTP publish, {_BATCH_CONNECTIONS} connections, {_BATCH} events with 200 B data per "
        "request, each answered when synced"
    )
    return rate(metric, count / seconds, "events/s", 150_000)


async def _fan_out(address: Address, count: int, batch: int, how: str) -> Result:
    """From the first publish until every subscriber has every event."""
    channel = f"fan-{batch}"
    counters = await _subscribed(address, channel)
    requests = _posts(channel, count, batch)

    async def tell() -> None:
        await post_all(address, requests, connections=_BATCH_CONNECTIONS)
        while not all(counter.has(count) for counter in counters):
            await _CLOCK.sleep(1)

    seconds = await _timed(tell)
    assert all(counter.count == count for counter in counters), "an event came twice"
    for counter in counters:
        counter.close()
    metric = f"WebSocket fan-out to {_SUBSCRIBERS} subscribers of one channel, published in {how}"
    return rate(metric, count * _SUBSCRIBERS / seconds, "deliveries/s", 60_000)


async def _latency(address: Address, count: int) -> Result:
    """One event after the other, each from before its publish to the last of all subscribers."""
    counters = await _subscribed(address, "latency")
    took: list[float] = []
    for number, request in enumerate(_posts("latency", count, 1), start=1):
        began = _CLOCK.steady_ns()
        await post_all(address, [request], connections=1)
        while not all(counter.has(number) for counter in counters):
            await _CLOCK.sleep(0)
        took.append((_CLOCK.steady_ns() - began) / 1e6)
    for counter in counters:
        counter.close()
    metric = (
        f"one event over HTTP (with its connection) until the last of {_SUBSCRIBERS} subscribers "
        "has it, p50"
    )
    return limit(metric, sorted(took)[len(took) // 2], "ms")


async def _subscribed(address: Address, channel: str) -> list[Counter]:
    loop = asyncio.get_running_loop()
    counters = []
    for _ in range(_SUBSCRIBERS):
        _transport, counter = await loop.create_connection(lambda: Counter(channel), *address)
        counters.append(counter)
        await counter.ready
    return counters


def _posts(channel: str, count: int, batch: int) -> list[bytes]:
    path = f"/channels/{channel}/events"
    requests = []
    for first in range(0, count, batch):
        events = [_event(number) for number in range(first, first + batch)]
        body = json.dumps(events if batch > 1 else events[0]).encode()
        requests.append(post_request(path, body))
    return requests


def _event(number: int) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": f"{number:012d}",
        "source": "bench/sensors",
        "type": "bench.reading",
        "subject": "tag/77",
        "time": format_time(_BEGAN_MS + number),
        "data": _DATA,
    }


async def _timed(work: Callable[[], Awaitable[object]]) -> float:
    began = _CLOCK.steady_ns()
    await work()
    return (_CLOCK.steady_ns() - began) / 1e9
