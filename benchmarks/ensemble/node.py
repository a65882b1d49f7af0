"""A real node under load: sealed knowledge of 1 kB comes in over UDP, becomes a replica and goes
on to another. [EN-10]

The node is a process of its own, so is who loads it: a socket that keeps some messages under way.
Every message is a newer version of one of many components, so nothing is saved anywhere.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import secrets
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Final

import msgspec

from benchmarks.results import Result, limit, rate
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.protocol import PublishedKnowledge, encode
from rapport.ensemble.runtime.ensemble_node import EnsembleNode
from rapport.ensemble.runtime.node_status import RuntimeSettings
from rapport.kernel.clock import Chance, SystemClock
from rapport.transport.base import Address
from rapport.transport.fragments import WHOLE
from rapport.transport.keys import DatagramKey, DatagramKeys, make_key
from rapport.transport.sealed_datagrams import RUN_BYTES, Sealer, Unsealer, receiver_name

GOAL_PER_SECOND: Final = 5_000.0
COMPONENTS: Final = 200
BODY_BYTES: Final = 1_024
UNDER_WAY: Final = 64
_SILENT_S: Final = 0.25
"""So long without a message: what is under way is lost."""
_READY_S: Final = 30.0
_BUFFER_BYTES: Final = 4 * 1024 * 1024
_ANY_SIZE: Final = 65_535
_CLOCK = SystemClock()


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a load."""

    sent: int
    returned: int
    seconds: float
    processor_s: float
    """Of the node."""
    received: int
    """Newer versions, as the node counts them."""
    told: int
    """Whoever wanted to know of them was told so often."""


def real_node(quick: bool) -> list[Result]:
    """Some 12 s: with nobody told of what comes, and with somebody, as a channel is."""
    seconds = 0.5 if quick else 5.0
    results: list[Result] = []
    for tells in (False, True):
        found = load_node(seconds, tells=tells)
        how = "each told to a listener" if tells else "kept as replicas"
        what = f"one node, sealed knowledge of 1 kB in and out, {how}"
        goal = None if quick or tells else GOAL_PER_SECOND
        results += [
            rate(f"{what}: in", found.received / found.seconds, "messages/s", goal),
            rate(f"{what}: and out", found.returned / found.seconds, "messages/s", goal),
            limit(f"{what}: lost on the way", found.sent - found.returned, "messages"),
            limit(
                f"{what}: processor time of the node",
                found.processor_s * 1e6 / max(found.returned, 1),
                "us/message",
            ),
        ]
    return results


def load_node(seconds: float, *, tells: bool) -> Loaded:
    """Loads a fresh node for so long."""
    key = make_key("network", "network")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        own.bind(("127.0.0.1", 0))
        own.setblocking(False)
        host, port = own.getsockname()
        with _node_at_work(key, (host, port), tells) as (node, pipe):
            load = _Load(own, key, (host, port), node)
            load.run(seconds / 5)
            pipe.send("look")
            before_s, before, told = pipe.recv()
            sent, returned = load.sent, load.returned
            took_s = load.run(seconds)
            pipe.send("look")
            after_s, after, told_after = pipe.recv()
    return Loaded(
        sent=load.sent - sent,
        returned=load.returned - returned,
        seconds=took_s,
        processor_s=after_s - before_s,
        received=after - before,
        told=told_after - told,
    )


class _Load:
    """Sends newer versions, and counts what comes back."""

    def __init__(self, own: socket.socket, key: DatagramKey, here: Address, to: Address) -> None:
        ring = DatagramKeys([key])
        self.sent = self.returned = 0
        self._socket, self._to = own, to
        self._seal = Sealer(ring, secrets.token_bytes(RUN_BYTES))
        self._unseal = Unsealer(ring, own=self._seal)
        self._there, self._here = receiver_name(to), receiver_name(here)
        self._body = msgspec.msgpack.encode({"said": "x" * (BODY_BYTES - 9)})
        self._version = _CLOCK.now_ms()

    def run(self, seconds: float) -> float:
        """For so long, then until nothing comes; returns how long it was, without that wait."""
        began = _CLOCK.steady_ns()
        until, under_way = began + int(seconds * 1e9), 0
        while (now := _CLOCK.steady_ns()) < until:
            for _ in range(UNDER_WAY - under_way):
                self._send()
            ready, _, _ = select.select([self._socket], [], [], _SILENT_S)
            came = self._take() if ready else under_way
            under_way = UNDER_WAY - came if ready else 0
        while select.select([self._socket], [], [], _SILENT_S)[0]:
            self._take()
        return (now - began) / 1e9

    def _send(self) -> None:
        self.sent += 1
        number, wall_ms = self.sent % COMPONENTS, _CLOCK.now_ms()
        message = PublishedKnowledge(
            f"thing {number}", self._version + self.sent, wall_ms, "load", ("Thing",), self._body
        )
        plain = WHOLE + encode(message)
        self._socket.sendto(self._seal.seal(plain, wall_ms, to=self._there), self._to)

    def _take(self) -> int:
        came = 0
        while True:
            try:
                datagram = self._socket.recv(_ANY_SIZE)
            except BlockingIOError:
                self.returned += came
                return came
            opened = self._unseal.open(datagram, _CLOCK.now_ms(), self._here)
            came += opened is not None and len(opened[0]) > BODY_BYTES


@contextmanager
def _node_at_work(
    key: DatagramKey, known: Address, tells: bool
) -> Iterator[tuple[Address, Connection]]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, key, known, tells), daemon=True)
    process.start()
    try:
        if not ours.poll(_READY_S):
            raise RuntimeError("the node did not start")
        yield ours.recv(), ours
        ours.send("end")
        process.join(_READY_S)
    finally:
        process.kill()
        process.join()


def _serve(pipe: Connection, key: DatagramKey, known: Address, tells: bool) -> None:
    import uvloop

    uvloop.run(_serve_node(pipe, key, known, tells))


async def _serve_node(pipe: Connection, key: DatagramKey, known: Address, tells: bool) -> None:
    told = 0

    def count(_knowledge: object) -> None:
        nonlocal told
        told += 1

    gossip = GossipSettings(probability=1.0, fan_out=1)
    node = await EnsembleNode.open(
        "node",
        listen=("127.0.0.1", 0),
        clock=_CLOCK,
        chance=Chance(1),
        ip=True,
        keys=DatagramKeys([key]),
        settings=RuntimeSettings(gossip=gossip),
        on_changed=count if tells else None,
    )
    # Who loads takes no part in the membership; the node is told that it is there.
    node.machine.know([known])
    pipe.send(node.address)
    while await asyncio.to_thread(pipe.recv) == "look":
        used = resource.getrusage(resource.RUSAGE_SELF)
        received = node.status().counters.get("versions_received", 0)
        pipe.send((used.ru_utime + used.ru_stime, received, told))
    await node.close()
