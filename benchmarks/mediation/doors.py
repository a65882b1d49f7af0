"""Publishers and consumers on connections of their own, as the source measured it. [ME-9]

In the path of every event: a request of its own at the HTTP door (64 connections), answered when
the event is synced; the channel; the way; a TCP connection to every consumer, whose place is
committed durably after each batch. Node and clients are processes on one machine.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import msgspec

from benchmarks.channel.door_clients import post_all, post_request
from benchmarks.mediation import external as mediation_external
from benchmarks.mediation import node as mediation_node
from benchmarks.mediation.events import SENT, events
from benchmarks.mediation.external import Between
from rapport.core.errors import Unavailable
from rapport.kernel.clock import SystemClock
from support.processes.node import NodeProcess

WAYS = ("baseline", "content-based", "mediated", "reflective", "external")
CONNECTIONS = 64
_CLOCK = SystemClock()
_SITE = '[site]\nname = "bench"\n\n[concepts.thing.attributes]\nstate = "text"\n'
_LONGEST_MS = 60_000


class Doors(msgspec.Struct):
    """A running node: its doors, and the port for consumers."""

    address: tuple[str, int]
    consumers: int


@contextmanager
def running_node() -> Iterator[Doors]:
    """Node and site are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="rapport-bench-") as directory:
        site = Path(directory)
        (site / "site.toml").write_text(_SITE, encoding="utf-8")
        with NodeProcess(site, program=Path(mediation_node.__file__)) as node:
            node.start()
            assert node.doors is not None
            port = (site / mediation_node.PORT_FILE).read_text(encoding="utf-8")
            yield Doors(node.doors, int(port))


def requests(channel: str, count: int) -> list[bytes]:
    """One publish per event."""
    return [
        post_request(
            f"/channels/{channel}/events",
            b'{"specversion":"1.0","id":"%b","source":"bench/producer","type":"%b",'
            b'"time":"2026-03-02T09:14:05.210Z","data":%b}'
            % (event.id.encode(), SENT.encode(), event.data),
        )
        for event in events("flat", count)
    ]


async def seconds_over_doors(
    doors: Doors, channel: str, way: str, *, consumers: int, count: int
) -> float:
    """From the first publish until every consumer has every event; the channel is a new one."""
    with _between(doors, way, channel) as read_from:
        shown = "baseline" if way == "external" else way
        taking = [
            await _Consumer.ready(doors, read_from, shown, number, count)
            for number in range(consumers)
        ]
        prepared = requests(channel, count)
        began = _CLOCK.steady_ns()
        await post_all(doors.address, prepared, connections=CONNECTIONS)
        await _all_done(taking)
        took = (_CLOCK.steady_ns() - began) / 1e9
    for consumer in taking:
        consumer.close()
    return took


@contextmanager
def _between(doors: Doors, way: str, channel: str) -> Iterator[str]:
    """Gives the channel to read from: for the external way behind a client that feeds it."""
    if way != "external":
        yield channel
        return
    where = Between(doors.consumers, doors.address, channel, f"{channel}-out")
    program = mediation_external.__file__
    command = [sys.executable, program, msgspec.json.encode(where).decode()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        if client.stdout.readline() != "ready\n":
            raise Unavailable("the external client did not start", code="bench.refused")
        try:
            yield where.given
        finally:
            client.kill()


class _Consumer(asyncio.Protocol):
    """Counts the lines it is sent."""

    def __init__(self, first: bytes, count: int) -> None:
        self._first, self._count = first, count + 1  # the word that it is ready is a line too
        self.is_ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def ready(
        cls, doors: Doors, channel: str, way: str, number: int, count: int
    ) -> _Consumer:
        """Connected and subscribed."""
        wanted = msgspec.json.encode({"channel": channel, "way": way, "number": number}) + b"\n"
        loop = asyncio.get_running_loop()
        address = "127.0.0.1", doors.consumers
        _, consumer = await loop.create_connection(lambda: cls(wanted, count), *address)
        await consumer.is_ready
        return consumer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Says what it wants."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._first)

    def data_received(self, data: bytes) -> None:
        """The first line says that it is subscribed, every other one is an event."""
        self._count -= data.count(b"\n")
        if not self.is_ready.done():
            self.is_ready.set_result(None)
        if self._count == 0 and not self.is_done.done():
            self.is_done.set_result(None)

    def close(self) -> None:
        """Ends the connection."""
        assert self._count == 0, "an event came twice"
        self._transport.close()


async def _all_done(consumers: Sequence[_Consumer]) -> None:
    waiting = asyncio.gather(*(consumer.is_done for consumer in consumers))
    await asyncio.wait_for(waiting, _LONGEST_MS / 1000)
