"""Nodes in one process, over real sockets of the loopback."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.grouping.group_tables import GroupingSettings
from rapport.ensemble.model.component import Component, process
from rapport.ensemble.model.ensemble import Ensemble
from rapport.ensemble.model.role import Role
from rapport.ensemble.model.work_scheduler import HostSettings
from rapport.ensemble.runtime.ensemble_node import EnsembleNode
from rapport.ensemble.runtime.node_status import RuntimeSettings
from rapport.kernel.clock import Chance, SystemClock
from rapport.overlay.swim_protocol import SwimSettings
from rapport.transport.udp import MulticastGroup

GATE = threading.Event()
"""What components that hang wait for."""


class Named(Role):
    name: str


class Meeter(Role):
    met: list[str]


class Person(Component, Named, Meeter):
    name: str = ""
    met: list[str] = []  # noqa: RUF012 - a field: each component has its own
    greeted: int = 0

    @process(on_change="met", writes="greeted")
    def greet(self) -> None:
        self.greeted = len(self.met)


class Broken(Component, Named):
    name: str = "broken"
    counted: int = 0

    @process(every="20 ms", writes="counted")
    def raises(self) -> None:
        raise ValueError("as it always does")

    @process(every="20 ms", writes="counted")
    def hangs(self) -> None:
        GATE.wait(20)


class Meeting(Ensemble, every="30 ms"):
    coordinator: Meeter
    member: Named

    def membership(coordinator: Any, member: Any) -> bool:
        return True

    def exchange(coordinator: Any, member: Any) -> None:
        coordinator.met = sorted({*coordinator.met, member.name})


class Neighbours(Ensemble, every="30 ms"):
    """All are in one group."""

    coordinator: Meeter
    member: Named

    def membership(coordinator: Any, member: Any) -> bool:
        return True

    def exchange(coordinator: Any, member: Any) -> None:
        coordinator.met = sorted({*coordinator.met, member.name} - {"g"})

    def group(coordinator: Any) -> str:
        return "here"


QUICK = RuntimeSettings(
    gossip=GossipSettings(knowledge_ms=60, probability=1.0, fan_out=3, header_ms=0),
    host=HostSettings(replica_ms=5_000, process_ms=100),
    swim=SwimSettings(period_ms=100, ack_ms=25, gossip_ms=20),
    grouping=GroupingSettings(period_ms=200),
)


class World:
    """Opens nodes and closes them all."""

    def __init__(self) -> None:
        self.nodes: list[EnsembleNode] = []
        self.people: dict[str, Person] = {}

    async def person(self, name: str, **options: Any) -> EnsembleNode:
        """A node with one person who meets whom it hears of."""
        person = self.people[name] = Person(id=name, name=name)
        options.setdefault("listen", ("127.0.0.1", 0))
        options.setdefault("settings", QUICK)
        options.setdefault("ensembles", [Meeting])
        options.setdefault("clock", SystemClock())
        node = await EnsembleNode.open(f"node-{name}", [person], chance=Chance(), **options)
        self.nodes.append(node)
        return node

    async def until(self, holds: Callable[[], bool], seconds: float = 10) -> None:
        """Returns when it holds."""
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 - of real nodes, which tell nobody
                await asyncio.sleep(0.01)


@asynccontextmanager
async def opened_world() -> AsyncIterator[World]:
    world = World()
    try:
        yield world
    finally:
        for node in world.nodes:
            await node.close()


@pytest.fixture
def opened() -> Callable[[], Any]:
    return opened_world


@pytest.fixture
def neighbours() -> type[Ensemble]:
    return Neighbours


@pytest.fixture
def broken() -> type[Component]:
    return Broken


@pytest.fixture
def gate() -> threading.Event:
    GATE.clear()
    return GATE


@pytest.fixture
def quick() -> RuntimeSettings:
    return QUICK


@pytest.fixture
def group() -> MulticastGroup:
    """A multicast group of this test alone."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return MulticastGroup("239.77.4.9", probe.getsockname()[1])
