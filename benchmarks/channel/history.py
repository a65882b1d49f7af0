"""How fast history is asked by a declared index, and how that grows from 1e5 to 1e7 events. [CH-4,
CH-13]

A query is a whole request in process: the first batch of up to 100 messages and the token of the
batch behind it, over data of 200 bytes; every query asks for another value. The log is made anew in
a temporary directory; 1e7 events (`full`) need some 5 GB of disk.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.results import Result, limit, rate, share
from rapport.channel.backends.local import open_embedded
from rapport.channel.config import ChannelRules, ChannelsConfig
from rapport.channel.log.channels import LoggedChannels
from rapport.channel.requests.request import Request
from rapport.core.errors import StoreUnavailable
from rapport.core.event import Event
from rapport.kernel.clock import SystemClock

_CLOCK = SystemClock()
_GOAL_MS = 2.0
_BATCH = 1_000
_BYTES_PER_EVENT = 600
_INDEX = ("type", "data.room", "data.person", "data.value")
_ROOMS, _VALUES, _PER_PERSON = 1_000, 1_000_003, 20
_FILLING = b"7" * 120
_ONE_VALUE = ("one room in 1,000", "a rare person", "nothing")


def run(quick: bool, full: bool = False) -> dict[str, Any]:
    """Side by side at 1e5 and 1e6 events, with `full` at 1e7 too (some minutes), when quick at 5e3.

    Raises StoreUnavailable when the disk is too small.
    """
    sizes = [5_000] if quick else [100_000, 1_000_000]
    if full:
        sizes.append(10_000_000)
    results: list[Result] = []
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="rapport-bench-") as directory:
            _check_room(Path(directory), size)
            results += asyncio.run(_at(Path(directory), size, 50 if quick else 300))
    return {"name": "history", "results": results}


def _check_room(directory: Path, size: int) -> None:
    free = shutil.disk_usage(directory).free
    if free < size * _BYTES_PER_EVENT:
        raise StoreUnavailable(
            f"{size:,} events need {size * _BYTES_PER_EVENT // 10**9} GB in {directory.parent}",
            code="bench.no_room",
            hint="set TMPDIR to a larger disk",
        )


async def _at(directory: Path, size: int, rounds: int) -> list[Result]:
    channels = open_embedded(directory, _CLOCK)
    try:
        plain = await _publish(channels, "plain", min(size, 300_000))
        channels.use_rules(ChannelsConfig(rules=(ChannelRules(pattern="c", index=_INDEX),)))
        indexed = await _publish(channels, "c", size)
        waited_ms = await _fed(channels, size)
        results = [
            rate(f"durable publish, no field indexed, {size:,} events", plain, "events/s"),
            rate(f"durable publish, 4 fields indexed, {size:,} events", indexed, "events/s"),
            limit(f"index complete behind the last of {size:,} events", waited_ms, "ms"),
        ]
        return results + await _ask_all(channels, size, rounds)
    finally:
        await channels.close()


async def _publish(channels: LoggedChannels, name: str, count: int) -> float:
    """Batches of 1,000, one after the other; events per second of waiting for the disk."""
    channel, waited = channels.channel(name), 0
    for start in range(0, count, _BATCH):
        events = [_event(number) for number in range(start, start + _BATCH)]
        began = _CLOCK.steady_ns()
        await channel.append(events)
        waited += _CLOCK.steady_ns() - began
    return count / (waited / 1e9)


def _event(number: int) -> Event:
    room, person = number * 7919 % _ROOMS, number // _PER_PERSON * 31 % 10**9
    data = b'{"room":"R%d","person":"P%d","value":%.2f,"filling":"%s"}' % (
        room,
        person,
        number * 104_729 % _VALUES / 100,
        _FILLING,
    )
    kind = ("badge.seen", "desk.used", "door.open")[number % 3]
    return Event("bench/sensors", f"{number:012d}", kind, "", number, data)


async def _fed(channels: LoggedChannels, size: int) -> float:
    """Milliseconds until the index has taken in everything."""
    began = _CLOCK.steady_ns()
    while not _is_fed(channels, size):
        channels.wake_index()
        await _CLOCK.sleep(20)
    return (_CLOCK.steady_ns() - began) / 1e6


def _is_fed(channels: LoggedChannels, size: int) -> bool:
    index = channels.parts.fields
    return index is not None and min(index.fed("c").values(), default=0) >= size


async def _ask_all(channels: LoggedChannels, size: int, rounds: int) -> list[Result]:
    asked: dict[str, Callable[[int], str]] = {
        "one room in 1,000": lambda n: f"data.room = 'R{n * 37 % _ROOMS}'",
        "a room and a type": lambda n: f"type = 'badge.seen' AND data.room = 'R{n * 41 % _ROOMS}'",
        "a rare person": lambda n: f"data.person = 'P{n * 7919 % (size // _PER_PERSON) * 31}'",
        "values in a range of 1 in 10,000": lambda n: (
            f"data.value BETWEEN {n * 33} AND {n * 33 + 1}"
        ),
        "nothing": lambda n: f"data.person = 'nobody {n}'",
    }
    results: list[Result] = []
    one_value: list[float] = []
    every: list[float] = []
    for what, query in asked.items():
        await _ask(channels, query, 20)
        took = await _ask(channels, query, rounds)
        one_value += took if what in _ONE_VALUE else []
        every += took
        for percent in (50, 99):
            metric = f"history query, {what}, p{percent} at {size:,} events"
            results.append(limit(metric, share(took, percent), "ms"))
    metric = f"indexed history query, one value of one field, p99 at {size:,} events"
    results.append(limit(metric, share(one_value, 99), "ms", _GOAL_MS))
    metric = f"indexed history query, all of these, p99 at {size:,} events"
    results.append(limit(metric, share(every, 99), "ms", _GOAL_MS))
    return results


async def _ask(channels: LoggedChannels, query: Callable[[int], str], rounds: int) -> list[float]:
    took = []
    for number in range(rounds):
        request = Request(query=query(number))
        began = _CLOCK.steady_ns()
        await channels.source.request("c", request, identity="bench")
        took.append((_CLOCK.steady_ns() - began) / 1e6)
    return took
