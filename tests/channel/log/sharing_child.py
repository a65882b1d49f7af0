"""One of several processes that publish overlapping events into one channel and read it whole.

Arguments: data directory, number of this process, events to publish, processes at work. The site's
file of addresses lies in the parent of the directory. Says what it read as one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from rapport.channel.backends.stores import open_channels
from rapport.channel.config import ChannelRules, ChannelsConfig
from rapport.channel.log.sequences import SequenceStamp, counted_in
from rapport.core.errors import ChannelUnavailable
from rapport.core.event import Event
from rapport.kernel.clock import SystemClock
from support.numbered_events import stamped


def events_of(number: int, count: int) -> list[Event]:
    """Events of an outbox that several deliver, and a few of this process alone."""
    shared = [
        Event(
            "outbox", f"shared-{n}", "t", "", n, b"{}", stamped({}, SequenceStamp("outbox", 1, n))
        )
        for n in range(1, count + 1)
    ]
    own = [Event(f"process-{number}", f"own-{n}", "t", "", n, b"{}") for n in range(1, count + 1)]
    mixed = [event for pair in zip(shared, own, strict=True) for event in pair]
    return counted_in("c", mixed)


async def publish(channel, events, size: int, clock) -> int:
    duplicates = 0
    for start in range(0, len(events), size):
        while True:
            try:
                appended = await channel.append(events[start : start + size])
                break
            except ChannelUnavailable:
                await clock.sleep(20)
        assert all(appended.positions), appended
        duplicates += appended.duplicates
    return duplicates


async def main(directory: Path, number: int, count: int, processes: int) -> None:
    store = (directory.parent / "store").read_text()
    declared = ChannelsConfig(
        nats="file:address", postgres="file:address", common=ChannelRules(log=store)
    )
    clock = SystemClock()
    channels = open_channels(
        directory, clock, declared, site=directory.parent, segment_bytes=1_000_000
    )
    try:
        channel = channels.channel("c")
        expected = count + processes * count
        publishing = asyncio.create_task(
            publish(channel, events_of(number, count), number * 3 + 2, clock)
        )
        seen: list[tuple[int, str]] = []
        while len(seen) < expected:
            position = seen[-1][0] if seen else 0
            if not await channel.wait_after(position, timeout_ms=30_000):
                break
            seen += [(one.position, one.event.id) for one in await channel.read_after(position)]
        duplicates = await publishing
        print(json.dumps({"seen": seen, "duplicates": duplicates, "names": channels.names()}))
    finally:
        await channels.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *map(int, sys.argv[2:5])))
