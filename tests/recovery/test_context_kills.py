"""Brokers killed without warning while requests run: what is reachable is answered, the rest is
refused in time, and who comes back knows what is still valid. [CX-1, CX-4, CX-5, CX-8]
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rapport.context.api import ContextConsumer, ContextProvider, ContextRecord
from rapport.kernel.clock import Chance
from rapport_lab.topology import Topology, is_connected, mesh, ring, waxman
from support.processes.context_load import SCOPE, Tally, ask_for, consumers, providing
from support.processes.context_network import BrokerNetwork, on_loopback

pytestmark = pytest.mark.slow

DOOMED = (2, 5, 8)
PAUSE_SECONDS = 6
"""Between two deaths: a silent broker is found within four, so its neighbours have found others."""


def without(topology: Topology[int], *gone: int) -> Topology[int]:
    return Topology(
        {
            node: tuple(other for other in others if other not in gone)
            for node, others in topology.neighbours.items()
            if node not in gone
        }
    )


class Killing:
    """Requests of ten consumers, each with a second broker to turn to, while brokers die."""

    def __init__(self, network: BrokerNetwork, doomed: tuple[int, ...]) -> None:
        self.network, self.doomed = network, doomed
        self.reachable, self.doubtful = Tally(), Tally()
        """Of records whose broker stays, and of those whose broker dies."""
        self.kept: list[ContextRecord] = []
        self.names: list[str] = []

    async def run(self, pause_seconds: float) -> None:
        places, chance = self.network.addresses, Chance(1)
        staying = [n for n in range(len(places)) if n not in self.doomed]
        homes = [[place, places[(n + 1) % len(places)]] for n, place in enumerate(places)]
        async with (
            providing([[places[n]] for n in staying], prefix="safe/") as safe,
            providing([[places[n]] for n in self.doomed], prefix="lost/") as lost,
            consumers(homes) as asking,
        ):
            self.names, endangered = _flat(safe), _flat(lost)
            seconds = pause_seconds * (len(self.doomed) + 1)
            tasks = [
                ask_for(asking, lambda: chance.choice(self.names), seconds=seconds, every_ms=100,
                        tally=self.reachable),
                ask_for(asking, lambda: chance.choice(endangered), seconds=seconds, every_ms=500,
                        tally=self.doubtful),
                self._kill(pause_seconds),
            ]  # fmt: skip
            await asyncio.gather(*tasks)
            await self._come_back(asking)

    async def _kill(self, pause_seconds: float) -> None:
        for number in self.doomed:
            await asyncio.sleep(pause_seconds)
            await self._tell_something_lasting(number)
            await self.network.kill(number)

    async def _tell_something_lasting(self, number: int) -> None:
        place = self.network.addresses[number]
        async with await ContextProvider.open([place], name="lasting") as provider:
            for n in range(10):
                name, values = f"lasting/{number}-{n}", {"of": f"lasting/{number}-{n}"}
                told = await provider.update(name, SCOPE, values, valid_for_ms=600_000)
                self.kept.append(told)
            await provider.update(
                f"brief/{number}", SCOPE, {"of": f"brief/{number}"}, valid_for_ms=500
            )

    async def _come_back(self, asking: list[ContextConsumer]) -> None:
        """Those killed start again, find the others, and have what is still valid."""
        await asyncio.gather(*(self.network.restart(number) for number in self.doomed))
        await self.network.until_joined(at_least=1)
        statuses = await self.network.statuses()
        for number in self.doomed:
            assert statuses[number].records >= 10, statuses[number]
        chance, after = Chance(2), Tally()
        wanted = [str(record.entity) for record in self.kept] + self.names
        await ask_for(asking, lambda: chance.choice(wanted), seconds=2, every_ms=100, tally=after)
        assert after.reaches(0.99), str(after)
        brief = Tally()
        await ask_for(
            asking, lambda: f"brief/{self.doomed[0]}", seconds=0.2, every_ms=100,
            within_ms=1_000, tally=brief,
        )  # fmt: skip
        assert brief.answered == 0, str(brief)
        assert set(brief.refused) == {"context.not_found"}, str(brief)


def _flat(names: list[list[str]]) -> list[str]:
    return [name for own in names for name in own]


def check(killing: Killing, *, share: float = 0.99) -> None:
    reachable, doubtful = killing.reachable, killing.doubtful
    assert reachable.reaches(share), str(reachable)
    assert (reachable.late, reachable.stale, reachable.wrong) == ([], 0, 0), str(reachable)
    assert (doubtful.late, doubtful.stale, doubtful.wrong) == ([], 0, 0), str(doubtful)
    assert set(doubtful.refused) <= {"context.not_found", "context.no_broker"}, str(doubtful)
    assert doubtful.refused["context.no_broker"] <= 0.01 * doubtful.asked, str(doubtful)


def test_a_killed_broker_costs_no_answer_and_comes_back_with_what_it_knew(tmp_path: Path) -> None:
    with on_loopback(6, net=21, directory=tmp_path) as network:

        async def scenario() -> Killing:
            await network.connect(ring(range(6)))
            killing = Killing(network, (2,))
            await killing.run(pause_seconds=1.5)
            return killing

        check(asyncio.run(scenario()))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["mesh", "ring", "waxman"])
def test_three_of_ten_brokers_are_killed_one_after_the_other(kind: str, tmp_path: Path) -> None:
    topology = {
        "mesh": lambda: mesh(range(10)),
        "ring": lambda: ring(range(10)),
        "waxman": lambda: waxman(range(10), Chance(5), alpha=0.4, beta=0.4, degree=4),
    }[kind]()
    # Else a copy may be out of reach until the neighbours of the dead have found others.
    assert all(is_connected(without(topology, number)) for number in DOOMED)
    with on_loopback(10, net=22, directory=tmp_path) as network:

        async def scenario() -> Killing:
            await network.connect(topology)
            killing = Killing(network, DOOMED)
            await killing.run(PAUSE_SECONDS)
            return killing

        killing = asyncio.run(scenario())
        print(f"\n{kind}: reachable {killing.reachable}\n  of the dead {killing.doubtful}")
        check(killing)
