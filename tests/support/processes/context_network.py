"""A network of broker processes: each on an address of its own, in the topology that is wanted, to
be killed, started again, cut apart and measured. [CX-4, CX-7]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from rapport.context.broker_status import BrokerStatus
from rapport.context.clients.controller import ContextController
from rapport.core.errors import RapportError, Unavailable
from rapport.kernel.clock import SystemClock
from rapport.transport.addresses import format_address
from rapport.transport.base import Address
from rapport.transport.keys import DatagramKeys
from rapport_lab.topology import Topology
from support.processes.context import BrokerProcess

COMMAND = ("rapport.cli.main", "context", "broker")
UNRELIABLE = ("support.faults.unreliable_broker",)
"""The program of brokers that lose datagrams and are cut off when told so."""

_LOOK_MS = 50
_clock = SystemClock()


def on_loopback(
    count: int,
    *,
    net: int = 1,
    directory: Path | None = None,
    keys: Path | None = None,
    program: tuple[str, ...] = COMMAND,
    options: tuple[str, ...] = (),
) -> BrokerNetwork:
    """Brokers on 127.0.`net`.1 and on; with a directory, each keeps its updates in a part of it."""
    brokers = [
        BrokerProcess(
            listen=(f"127.0.{net}.{number + 1}", 0),
            directory=directory / f"broker-{number}" if directory is not None else None,
            keys=keys,
            options=options,
            program=program,
        )
        for number in range(count)
    ]
    return BrokerNetwork(brokers)


class BrokerNetwork:
    """Brokers by number. As a context manager it starts them together and leaves none behind.

    What looks into brokers needs keys where they have some: `ring`, of a member.
    """

    def __init__(self, brokers: Sequence[BrokerProcess], ring: DatagramKeys | None = None) -> None:
        self.brokers, self.ring = list(brokers), ring

    @property
    def addresses(self) -> list[Address]:
        """Where they listen, by number."""
        return [broker.address for broker in self.brokers]

    @property
    def alive(self) -> list[int]:
        """Those that run."""
        return [number for number, one in enumerate(self.brokers) if one.is_running()]

    def __enter__(self) -> Self:
        try:
            with ThreadPoolExecutor(len(self.brokers)) as pool:
                list(pool.map(BrokerProcess.start, self.brokers))
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
        for broker in self.brokers:
            broker.__exit__(kind, error, trace)

    async def kill(self, number: int) -> None:
        """SIGKILL."""
        await asyncio.to_thread(self.brokers[number].kill)

    async def restart(self, number: int) -> None:
        """Starts one that ended, on the same address."""
        await asyncio.to_thread(self.brokers[number].start)

    async def connect(self, topology: Topology[int]) -> None:
        """Makes exactly these neighbours; returns when both sides of each edge know."""
        places = self.addresses
        wanted: dict[int, list[Address]] = {}
        for one, other in topology.edges():
            wanted.setdefault(one, []).append(places[other])
        async with await self.controller() as controller:
            for one, others in wanted.items():
                await controller.connect(places[one], others)
        names = [format_address(place) for place in places]
        edges = {
            number: {names[other] for other in others}
            for number, others in topology.neighbours.items()
        }
        await self.until(
            lambda found: all(edges[number] <= neighbours_of(found[number]) for number in found)
        )

    async def controller(self) -> ContextController:
        """One that may tell all of them what to do."""
        return await ContextController.open(self.addresses[:1], keys=self.ring)

    async def statuses(self, among: Sequence[int] | None = None) -> dict[int, BrokerStatus]:
        """How those that run are, by number; or these of them."""
        async with await self.controller() as controller:
            found = {}
            for number in self.alive if among is None else among:
                found[number] = await controller.status(self.addresses[number])
            return found

    async def until(
        self,
        holds: Callable[[dict[int, BrokerStatus]], bool],
        *,
        within_ms: int = 20_000,
        among: Sequence[int] | None = None,
    ) -> int:
        """Waits until the statuses, or those of some, are as wanted, and says how many ms that
        took; raises Unavailable with the last ones.
        """
        began_ms = _clock.now_ms()
        found: dict[int, BrokerStatus] = {}
        while _clock.now_ms() - began_ms < within_ms:
            try:
                found = await self.statuses(among)
                if holds(found):
                    return _clock.now_ms() - began_ms
            except RapportError:
                pass  # one is not back yet, or its answer was lost: looked at again
            await _clock.sleep(_LOOK_MS)
        raise Unavailable(f"it did not come about: {found}", code="testing.never_so")

    async def until_joined(
        self, *, at_least: int = 2, within_ms: int = 20_000, among: Sequence[int] | None = None
    ) -> int:
        """Waits until all that run have so many neighbours that run, and all are connected; or
        these of them, by themselves.
        """
        return await self.until(
            lambda found: is_whole(found, at_least), within_ms=within_ms, among=among
        )

    async def until_quiet(self, *, within_ms: int = 20_000) -> int:
        """Waits until nothing is under way: searches, updates that wait for the disk."""
        return await self.until(
            lambda found: all(one.searches == 0 == one.queued for one in found.values()),
            within_ms=within_ms,
        )

    def resident_kib(self) -> dict[int, int]:
        """The memory of those that run."""
        return {number: resident_kib(self.brokers[number].pid) for number in self.alive}

    def lose(self, share: float) -> None:
        """Each datagram that a broker sends or hears from now on is lost with this probability;
        only for the program UNRELIABLE.
        """
        for number in self.alive:
            self.brokers[number].say(f"lose {share}")

    def cut(self, *groups: Sequence[int]) -> None:
        """Brokers of different groups hear nothing of each other; only for UNRELIABLE."""
        for group in groups:
            others = [self.addresses[n] for other in groups if other is not group for n in other]
            names = " ".join(format_address(address) for address in others)
            for number in group:
                self.brokers[number].say(f"cut {names}")

    def heal(self) -> None:
        """Ends a cut."""
        for number in self.alive:
            self.brokers[number].say("cut")


def neighbours_of(status: BrokerStatus) -> set[str]:
    """Their addresses."""
    return {one.address for one in status.neighbours}


def is_whole(found: dict[int, BrokerStatus], at_least: int) -> bool:
    """Whether each has so many neighbours among these, and each is reached from each."""
    by_name = {status.address: neighbours_of(status) for status in found.values()}
    edges = {name: others & by_name.keys() for name, others in by_name.items()}
    if any(len(others) < min(at_least, len(edges) - 1) for others in edges.values()):
        return False
    reached, border = set(), list(edges)[:1]
    while border:
        name = border.pop()
        if name not in reached:
            reached.add(name)
            border += edges[name]
    return len(reached) == len(edges)


def resident_kib(pid: int) -> int:
    """The resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0
