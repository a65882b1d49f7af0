"""The process that test_taking.py kills: publishers and takers; prints each message handed out."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from rapport.channel.backends.local import open_embedded
from rapport.channel.requests.request import Request
from rapport.core.event import Event
from rapport.kernel.clock import SystemClock


async def publish(channels) -> None:
    channel = channels.channel("c")
    while True:
        start = channel.last_position()
        await channel.append(
            [Event("s", str(start + number), "t", "", 0) for number in range(1, 21)]
        )
        await asyncio.sleep(0.002)


async def take(channels, name: str) -> None:
    while True:
        asked = Request(query="data IS NULL", max_messages=3, take=True, wait_ms=1_000)
        batch = await channels.source.request("c", asked, identity=name)
        os.write(1, "".join(f"{stored.event.id}\n" for stored in batch.events).encode())


async def main(directory: Path) -> None:
    channels = open_embedded(directory, SystemClock(), segment_bytes=100_000)
    await asyncio.gather(publish(channels), *(take(channels, f"taker{n}") for n in range(4)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
