"""A process that takes part in the work of one communication room until it is killed.

Started by test_several_engines.py with a directory and a name. The medium is a file that all
processes append to: each delivery is a line with its idempotency key.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from rapport.channel.backends.stores import open_channels, split_schema
from rapport.channel.config import ChannelRules, ChannelsConfig
from rapport.communication.adapters.base import Sent
from rapport.communication.cluster import Cluster
from rapport.communication.cluster_leases import ShareSettings
from rapport.communication.delivery_runner import EngineParts
from rapport.communication.peers import Collective, Peer, SiteDirectory
from rapport.kernel.clock import SystemClock
from rapport.store.postgres_records import PostgresRecordStore

PEERS = [f"p{number}" for number in range(12)]
LEASE_MS = 1_500


class FileMedium:
    """Takes a moment, as media do; writes with one call, so a kill never tears a line."""

    name = "file"

    def __init__(self, path, instance, clock):
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._instance, self._clock = instance, clock

    async def send(self, delivery):
        await self._clock.sleep(1)
        line = f"{delivery.key} {delivery.message} {delivery.peer} {self._instance}\n"
        os.write(self._file, line.encode())
        await self._clock.sleep(1)
        return Sent()

    async def close(self):
        os.close(self._file)


def open_room(directory, name, clock):
    """The channels of the site in `directory`; each process has a directory of its own as well."""
    log = (directory / "log-store").read_text()
    declared = ChannelsConfig(
        records="postgres",
        postgres="file:postgres",
        nats="file:nats" if log == "nats" else "",
        common=ChannelRules(log=log),
    )
    return open_channels(directory / name, clock, declared, site=directory, segment_bytes=1 << 20)


async def main(directory, instance):
    clock = SystemClock()
    channels = open_room(directory, instance, clock)
    dsn, schema = split_schema((directory / "postgres").read_text())
    peers = {name: Peer(name=name, addresses=("file:",)) for name in PEERS}
    crew = Collective(name="crew", members=tuple(PEERS[:3]), delivery="to-all-members")
    medium = FileMedium(directory / "medium", instance, clock)

    parts = EngineParts(directory=SiteDirectory(peers, {"crew": crew}), adapters=("file",))
    sharing = Cluster(
        channels,
        channels.records,
        clock,
        instance=instance,
        parts=parts,
        adapters=lambda: [medium],
        settings=ShareSettings(lease_ms=LEASE_MS),
        lease_records=PostgresRecordStore(dsn, schema=schema, size=1),
    )
    print("ready", flush=True)
    await sharing.run()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
