"""A node for the benchmark of mediation: `rapport up`, and beside it a port for consumers. [ME-9]

Run as a program with the site's directory; it says where it listens as `rapport up` does, and the
site's `consumers.port` holds the other port. A consumer connects, says `{"channel": ..., "way":
..., "number": ...}` in one line, and is sent every event of the channel as that way gives it, one
JSON text per line. Events are published at the product's own doors.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from benchmarks.mediation.throughput import BATCH
from benchmarks.mediation.ways import Baseline, ByReflection, ContentBased, Mediated, Way
from rapport.channel.log.channels import LoggedChannels
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import load_settings
from rapport.node.wiring import make_node
from rapport.site.site import Site, load_site
from rapport.web.app import serving

PORT_FILE = "consumers.port"


class Wanted(msgspec.Struct):
    """What a consumer says first."""

    channel: str
    way: str
    number: int


def make_way(name: str) -> Way:
    """A way by its name; consumers share one interpretation, which is not the producer's."""
    if name == "content-based":
        return ContentBased()
    if name == "mediated":
        return Mediated("flat", readers=1)
    if name == "reflective":
        return ByReflection("flat", readers=1)
    return Baseline()


async def serve(site: Site) -> None:
    """Until it is killed."""
    settings = load_settings(site.file.section("node"), flags={"port": 0})
    node = make_node(site, settings, SystemClock())
    telling = partial(_tell, node.channels, {})
    consumers = await asyncio.start_server(telling, "127.0.0.1", 0)
    port = consumers.sockets[0].getsockname()[1]
    (site.directory / PORT_FILE).write_text(str(port), encoding="utf-8")
    async with serving(node) as url:
        await node.start()
        gc.collect()
        gc.freeze()
        sys.stderr.write(f"rapport is up: {url}\n")
        sys.stderr.flush()
        await asyncio.Event().wait()


async def _tell(
    channels: LoggedChannels,
    ways: dict[str, Way],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Feeds one consumer; the ways of a channel are shared by all its consumers."""
    wanted = msgspec.json.decode(await reader.readline(), type=Wanted)
    way = ways.setdefault(wanted.channel, make_way(wanted.way))
    subscription = await channels.subscribe(wanted.channel, f"consumer-{wanted.number}")
    writer.write(b"ready\n")
    feeding = asyncio.create_task(_feed(subscription, way, wanted.number, writer))
    await reader.read()  # nothing more is said; the end of the connection ends it
    feeding.cancel()
    writer.close()


async def _feed(subscription: Any, way: Way, number: int, writer: asyncio.StreamWriter) -> None:
    while True:
        batch = await subscription.next_batch(limit=BATCH)
        writer.write(b"\n".join([*way.deliver(batch, number), b""]))
        await writer.drain()
        await subscription.commit(batch[-1].position)


if __name__ == "__main__":
    uvloop.run(serve(load_site(Path(sys.argv[1]))))
