"""The process that test_export.py kills: a publisher, an exporter and a sweeper that never rest.

Prints each acknowledged event as its number, once `append` has returned.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from rapport.channel.backends.local import open_embedded
from rapport.channel.config import ChannelRules, ChannelsConfig
from rapport.core.event import Event
from rapport.kernel.clock import SystemClock
from rapport.node.maintenance import LakeExporter

DECLARED = ChannelsConfig(common=ChannelRules(export=True, keep_bytes=20_000))


def open_small(directory: Path):
    channels = open_embedded(directory / "log", SystemClock(), segment_bytes=4_000)
    channels.use_rules(DECLARED)
    return channels


async def publish(channels, start: int) -> None:
    number = start
    while True:
        batch = [
            Event("p", str(number + n), f"t{n % 2}", "", 0, b'"' + b"x" * 100 + b'"')
            for n in range(5)
        ]
        await channels.channel("c").append(batch)
        os.write(1, "".join(f"{number + n}\n" for n in range(5)).encode())
        number += 5


async def export(channels, directory: Path) -> None:
    exporting = LakeExporter(channels, DECLARED, directory / "lake", SystemClock())
    while True:
        await exporting.export_due()
        assert exporting.troubles == {}
        await SystemClock().sleep(1)


async def sweep(channels) -> None:
    while True:
        await channels.sweeper.sweep_all()
        await SystemClock().sleep(1)


async def main(directory: Path, start: int) -> None:
    channels = open_small(directory)
    await asyncio.gather(export(channels, directory), sweep(channels), publish(channels, start))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
