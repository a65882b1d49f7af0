"""Ensemble nodes as child processes, to be killed, stopped and cut off. [EN-10]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from rapport.core.errors import Unavailable
from rapport.ensemble.runtime.node_status import NodeStatus, fetch_status
from rapport.kernel.clock import Chance, SystemClock
from rapport.transport.base import Address
from rapport.transport.keys import DatagramKeys
from support.processes.context import BrokerProcess

PROGRAM = """
from rapport.ensemble.model.component import Component
from rapport.ensemble.model.ensemble import Ensemble
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.model.work_scheduler import HostSettings
from rapport.ensemble.model.role import Role
from rapport.ensemble.runtime.node_status import RuntimeSettings
from rapport.overlay.swim_protocol import SwimSettings


class Named(Role):
    name: str


class Car(Component, Named):
    name: str = ""
    met: list[str] = []


class Meeting(Ensemble, every="200 ms"):
    coordinator: Car
    member: Named

    def membership(coordinator, member):
        return True

    def exchange(coordinator, member):
        coordinator.met = sorted({*coordinator.met, member.name})


settings = RuntimeSettings(
    gossip=GossipSettings(knowledge_ms=200, local_ms=1_000, probability=1.0, fan_out=3),
    host=HostSettings(replica_ms=20_000),
    swim=SwimSettings(period_ms=300, ack_ms=75, gossip_ms=60),
)


def components(node):
    return [Car(id=f"car-{node}", name=node)]
"""
"""Each node has one car, `car-NODE`, and knows within half a second whom it can hear."""


def node_process(
    file: Path,
    name: str,
    *,
    options: Sequence[str] = (),
    join: tuple[Address, ...] = (),
    keys: Path | None = None,
    listen: Address = ("127.0.0.1", 0),
    inside: tuple[str, ...] = (),
) -> BrokerProcess:
    """`rapport ensemble run FILE --node NAME`, not started yet."""
    return BrokerProcess(
        join=join,
        keys=keys,
        options=("--node", name, *options),
        listen=listen,
        inside=inside,
        program=("rapport.cli.main", "ensemble", "run", str(file)),
    )


class NodeProcesses:
    """Several of them, started together; as a context manager it leaves none behind."""

    def __init__(
        self, processes: dict[str, BrokerProcess], keys: DatagramKeys | None = None
    ) -> None:
        self.processes, self._keys = processes, keys

    def __enter__(self) -> Self:
        try:
            with ThreadPoolExecutor(len(self.processes)) as pool:
                list(pool.map(BrokerProcess.start, self.processes.values()))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self.processes.values():
            process.__exit__(kind, error, trace)

    async def status(self, name: str) -> NodeStatus | None:
        """What a node says of itself; none when it does not answer."""
        try:
            return await fetch_status(
                self.processes[name].address,
                clock=SystemClock(),
                chance=Chance.from_machine(),
                keys=self._keys,
                within_ms=1_000,
            )
        except Unavailable:
            return None

    async def until(
        self, holds: Callable[[NodeStatus], bool], *names: str, seconds: float = 20
    ) -> None:
        """Returns when it holds of all of them (of all that there are, if none is named)."""
        told: dict[str, NodeStatus | None] = {}
        try:
            async with asyncio.timeout(seconds):
                for name in names or tuple(self.processes):
                    while (found := await self.status(name)) is None or not holds(found):
                        told[name] = found
                        await SystemClock().sleep(50)
        except TimeoutError:
            raise AssertionError(f"not so within {seconds} s: {told}") from None


def knows(*cars: str) -> Callable[[NodeStatus], bool]:
    """Whether the replicas of a node are those of exactly these nodes, itself left out."""
    return lambda status: {one.node for one in status.replicas} == set(cars) - {status.node}


def has_members(*nodes: str) -> Callable[[NodeStatus], bool]:
    """Whether the node takes exactly these, itself left out, for present."""
    return lambda status: (
        {one.name for one in status.members if one.state in ("alive", "suspect")}
        == set(nodes) - {status.node}
    )
