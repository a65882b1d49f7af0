"""The process that test_kill9.py kills: several publishers and one reader on embedded channels.

Prints each acknowledged event as a line `publisher number` once `append` has returned.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from rapport.channel.backends.local import open_embedded
from rapport.core.event import Event
from rapport.kernel.clock import SystemClock

READER = "adder"


def next_state(state: bytes, batch) -> bytes:
    """Count and sum of positions: a lost or repeated event would show in it for ever."""
    count, total = json.loads(state or b"[0, 0]")
    return json.dumps([count + len(batch), total + sum(item.position for item in batch)]).encode()


async def publish(channels, publisher: int, start: int) -> None:
    channel = channels.channel("c")
    number = start
    while True:
        size = 1 + number % 4
        batch = [
            Event(f"p{publisher}", str(number + index), "t", "", 0, b"x" * (number * 31 % 400))
            for index in range(size)
        ]
        await channel.append(batch)
        lines = "".join(f"{publisher} {number + index}\n" for index in range(size))
        os.write(1, lines.encode())
        number += size


async def add_up(channels) -> None:
    subscription = await channels.subscribe("c", READER)
    while True:
        batch = await subscription.next_batch(limit=50)
        await subscription.commit(batch[-1].position, next_state(subscription.state, batch))


async def main(directory: Path, starts: list[int]) -> None:
    channels = open_embedded(directory, SystemClock(), segment_bytes=100_000)
    publishers = [publish(channels, number, start) for number, start in enumerate(starts)]
    await asyncio.gather(add_up(channels), *publishers)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), [int(start) for start in sys.argv[2:]]))
