"""Car sharing on real nodes: each actor on a node of its own, over UDP. [EN-10, EN-13]"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import msgspec

from rapport.core.knowledge import Knowledge
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.model.work_scheduler import HostSettings
from rapport.ensemble.runtime.ensemble_node import EnsembleNode
from rapport.ensemble.runtime.node_status import RuntimeSettings
from rapport.kernel.clock import Chance, Clock
from rapport.transport.base import Address
from rapport.transport.udp import MulticastGroup
from rapport_lab.car_sharing.cast import Part, make_component
from rapport_lab.car_sharing.ensembles import ENSEMBLES
from rapport_lab.car_sharing.simulated_world import HOST
from rapport_lab.car_sharing.town import Town
from rapport_lab.ensemble.simulation.streets import StreetMap

LOOPBACK: Final[Address] = ("127.0.0.1", 0)
_GROUP_HOST: Final = "239.77.4.13"

ON_THE_AIR: Final = GossipSettings(knowledge_ms=300, probability=0.1)
"""Everybody hears everybody: passing on only makes up for what is lost."""
ON_IP: Final = GossipSettings(knowledge_ms=300, probability=0.4, fan_out=4)


class Meeting(msgspec.Struct, frozen=True):
    """How nodes find each other: all in a multicast group, or through one that is there."""

    group: MulticastGroup | None = None
    join: tuple[Address, ...] = ()
    host: HostSettings = HOST

    @property
    def settings(self) -> RuntimeSettings:
        """A thread for each node is enough: its processes are short."""
        gossip = ON_IP if self.group is None else ON_THE_AIR
        return RuntimeSettings(gossip=gossip, host=self.host, threads=1)


def free_group() -> MulticastGroup:
    """A multicast group of this machine that nobody else uses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(LOOPBACK)
        return MulticastGroup(_GROUP_HOST, probe.getsockname()[1])


@asynccontextmanager
async def opened_parts(
    parts: Sequence[Part],
    streets: StreetMap,
    meeting: Meeting,
    clock: Clock,
    chance: Chance,
    *,
    pace: float,
) -> AsyncIterator[list[EnsembleNode]]:
    """A node for each part while the block runs."""
    async with AsyncExitStack() as stack:
        nodes: list[EnsembleNode] = []
        for part in parts:
            town = Town(streets, lambda: clock.steady_ns() / 1e6, _drawn(chance), pace=pace)
            join = meeting.join or ((nodes[0].address,) if nodes else ())
            node = await EnsembleNode.open(
                part.name,
                [make_component(part, town, number=clock.now_ms())],
                ENSEMBLES,
                listen=LOOPBACK,
                clock=clock,
                chance=_drawn(chance),
                group=meeting.group,
                join=() if meeting.group is not None else join,
                settings=meeting.settings,
            )
            stack.push_async_callback(_close, node)
            nodes.append(node)
        yield nodes


class Observer:
    """A node without components that hears what all others say."""

    def __init__(self, node: EnsembleNode) -> None:
        self.node = node

    def knowledge(self) -> list[Knowledge]:
        """Of all that were heard lately."""
        return [replica.knowledge for replica in self.node.machine.host.replicas.values()]


@asynccontextmanager
async def observing(meeting: Meeting, clock: Clock, chance: Chance) -> AsyncIterator[Observer]:
    """An observer while the block runs."""
    node = await EnsembleNode.open(
        f"map-{clock.steady_ns()}",
        listen=LOOPBACK,
        clock=clock,
        chance=_drawn(chance),
        group=meeting.group,
        join=meeting.join,
        settings=meeting.settings,
    )
    try:
        yield Observer(node)
    finally:
        await _close(node)


async def _close(node: EnsembleNode) -> None:
    """In a task of its own: one that is cancelled itself leaves `Tasks.stop` too early."""
    await asyncio.create_task(node.close())


def _drawn(chance: Chance) -> Chance:
    return Chance(chance.getrandbits(64))
