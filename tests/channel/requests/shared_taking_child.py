"""One of several processes that take from one channel whose log they share.

Arguments: data directory, name, and how long leases are (ms; 0 = it takes for good). The site's
file of addresses lies in the parent of the directory. Prints the id of each message it was given,
or has acked if they are leased, one per line, and ends after a while without any.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from rapport.channel.backends.stores import open_channels
from rapport.channel.config import ChannelRules, ChannelsConfig
from rapport.channel.requests.leases import Answers, SettlementResult
from rapport.channel.requests.request import Request
from rapport.kernel.clock import SystemClock


async def take(channels, name: str, lease_ms: int) -> None:
    while True:
        wanted = {"query": "data IS NOT NULL", "max_messages": 3, "take": True, "wait_ms": 8_000}
        asked = Request(**wanted, lease_ms=lease_ms)
        batch = await channels.source.request("c", asked, identity=name)
        if not batch.events:
            return
        if lease_ms:
            ids = tuple(delivery.id for delivery in batch.deliveries)
            assert await channels.source.settle("c", Answers(ack=ids)) == SettlementResult(
                acked=len(ids)
            )
        os.write(1, "".join(f"{stored.event.id}\n" for stored in batch.events).encode())


async def main(directory: Path, name: str, lease_ms: int) -> None:
    store = (directory.parent / "store").read_text()
    declared = ChannelsConfig(
        nats="file:address", postgres="file:address", common=ChannelRules(log=store)
    )
    channels = open_channels(
        directory, SystemClock(), declared, site=directory.parent, segment_bytes=1_000_000
    )
    try:
        os.write(1, b"ready\n")
        await asyncio.gather(*(take(channels, f"{name}-{number}", lease_ms) for number in range(3)))
    finally:
        await channels.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
