"""Events per second from publishers through a durable channel to consumers, in each way. [ME-9]

Everything is in one process and on one loop, as in the local setting of the source: publishers
append and wait until their event is synced to disk; each consumer has a subscription of its own,
takes what is there, and commits its place durably after each batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from benchmarks.mediation.ways import Way
from rapport.channel.log.channels import LoggedChannels
from rapport.channel.log.logged_channel import LoggedChannel
from rapport.core.event import Event
from rapport.kernel.clock import SystemClock

PUBLISHERS = 64
BATCH = 1_000
_CLOCK = SystemClock()


class Took(msgspec.Struct, frozen=True):
    """Seconds by the clock, and those in which the processor worked for this process."""

    seconds: float
    processor: float


async def seconds_of(
    channels: LoggedChannels, name: str, events: Sequence[Event], way: Way, *, consumers: int,
    singly: bool,
) -> Took:  # fmt: skip
    """From the first publish until the last consumer has committed the last event; `name` is that
    of a new channel. `singly`: one event per append by 64 publishers at once, else batches of
    1,000 by one.
    """
    channel = channels.channel(name)
    readers = [await channels.subscribe(name, f"consumer-{n}") for n in range(consumers)]
    began, worked = _CLOCK.steady_ns(), time.process_time_ns()
    publishing = _singly(channel, events) if singly else _in_batches(channel, events)
    consuming = [
        _consume(reader, way, number, len(events)) for number, reader in enumerate(readers)
    ]
    _, *received = await asyncio.gather(publishing, *consuming)
    took = Took((_CLOCK.steady_ns() - began) / 1e9, (time.process_time_ns() - worked) / 1e9)
    assert received == [len(events)] * consumers, received
    return took


async def _singly(channel: LoggedChannel, events: Sequence[Event]) -> None:
    async def publish(number: int) -> None:
        for event in events[number::PUBLISHERS]:
            await channel.append([event])

    await asyncio.gather(*(publish(number) for number in range(PUBLISHERS)))


async def _in_batches(channel: LoggedChannel, events: Sequence[Event]) -> None:
    for start in range(0, len(events), BATCH):
        await channel.append(events[start : start + BATCH])


async def _consume(reader: Any, way: Way, number: int, wanted: int) -> int:
    received = 0
    while received < wanted:
        batch = await reader.next_batch(limit=BATCH)
        received += len(way.deliver(batch, number))
        await reader.commit(batch[-1].position)
    return received
