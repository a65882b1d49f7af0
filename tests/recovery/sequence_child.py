"""A sink that forgets ids at once and is killed at any moment: appends numbered events, some of
them again, and prints the highest number that is on disk.

Arguments: directory, number to begin with.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from rapport.channel.backends.local import open_embedded
from rapport.channel.log import logged_channel as sequence_keeping
from rapport.channel.log.sequences import SequenceStamp, counted_in
from rapport.core.event import Event
from rapport.kernel.clock import SystemClock
from support.numbered_events import stamped

sequence_keeping.SAVE_EVERY = 25


def numbered(sequence: int) -> Event:
    headers = stamped({}, SequenceStamp("p", 1, sequence))
    return Event("s", f"{sequence}", "t", "", 0, b"{}", headers)


async def main(directory: Path, first: int) -> None:
    channels = open_embedded(directory, SystemClock(), dedupe_window=1, segment_bytes=5_000)
    channel = channels.channel("c")
    while True:
        batch = [numbered(one) for one in range(max(first - 7, 1), first + 5)]
        await channel.append(counted_in("c", batch))
        first += 5
        print(first - 1, flush=True)


asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
