"""The process that test_retention.py kills: publishers, a reader and a sweeper that never rests.

Prints each acknowledged event as its number, once `append` has returned.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from rapport.channel.backends.local import open_embedded
from rapport.channel.config import ChannelRules, ChannelsConfig
from rapport.core.event import Event
from rapport.kernel.clock import SystemClock

READER = "adder"


def open_small(directory: Path):
    channels = open_embedded(directory, SystemClock(), segment_bytes=4_000)
    channels.use_rules(ChannelsConfig(common=ChannelRules(keep_bytes=20_000)))
    return channels


def next_state(state: bytes, batch) -> bytes:
    """Count and sum of positions: a lost or repeated event would show in it for ever."""
    count, total = json.loads(state or b"[0, 0]")
    return json.dumps([count + len(batch), total + sum(item.position for item in batch)]).encode()


async def publish(channels, start: int) -> None:
    number = start
    while True:
        batch = [Event("p", str(number + n), "t", "", 0, b"x" * 100) for n in range(5)]
        await channels.channel("c").append(batch)
        os.write(1, "".join(f"{number + n}\n" for n in range(5)).encode())
        number += 5


async def add_up(channels) -> None:
    subscription = await channels.subscribe("c", READER)
    while True:
        batch = await subscription.next_batch(limit=50)
        await subscription.commit(batch[-1].position, next_state(subscription.state, batch))


async def sweep(channels) -> None:
    while True:
        await channels.sweeper.sweep_all()
        await SystemClock().sleep(1)


async def main(directory: Path, start: int) -> None:
    channels = open_small(directory)
    await asyncio.gather(add_up(channels), sweep(channels), publish(channels, start))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
