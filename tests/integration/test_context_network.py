"""Ten brokers as processes: every record is found from everywhere, while brokers come and go.
[CX-4, CX-5, CX-7]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from rapport.context.broker_status import BrokerStatus
from rapport.kernel.clock import Chance
from rapport_lab.topology import Topology, mesh, ring, waxman
from support.processes.context_load import Tally, ask_for, ask_once, consumers, providing
from support.processes.context_network import BrokerNetwork, on_loopback

pytestmark = pytest.mark.slow

BROKERS = range(10)
TOPOLOGIES: dict[str, Callable[[], Topology[int]]] = {
    "ring": lambda: ring(BROKERS),
    "mesh": lambda: mesh(BROKERS),
    "waxman": lambda: waxman(BROKERS, Chance(5), alpha=0.4, beta=0.4, degree=3),
}


def one_each(network: BrokerNetwork) -> list[list[tuple[str, int]]]:
    return [[address] for address in network.addresses]


async def found_from_everywhere_under_load(
    network: BrokerNetwork, topology: Topology[int], seconds: float
) -> Tally:
    await network.connect(topology)
    chance, everywhere, under_load = Chance(1), Tally(), Tally()
    homes = one_each(network)
    async with providing(homes) as names, consumers(homes) as asking:
        pairs = [
            ask_once(consumer, own[0], everywhere, within_ms=5_000)
            for consumer in asking
            for own in names
        ]
        await asyncio.gather(*pairs)
        assert (everywhere.answered, everywhere.asked) == (100, 100), str(everywhere)
        flat = [name for own in names for name in own]
        await ask_for(
            asking, lambda: chance.choice(flat), seconds=seconds, every_ms=200, tally=under_load
        )
    await network.until_quiet()
    assert under_load.reaches(0.99), str(under_load)
    assert (under_load.late, under_load.stale, under_load.wrong) == ([], 0, 0), str(under_load)
    return under_load


@pytest.mark.parametrize("kind", sorted(TOPOLOGIES))
def test_every_record_is_found_from_every_broker(kind: str) -> None:
    with on_loopback(10, net=11) as network:
        topology = TOPOLOGIES[kind]()
        asyncio.run(found_from_everywhere_under_load(network, topology, seconds=2))


@pytest.mark.long
@pytest.mark.parametrize("kind", sorted(TOPOLOGIES))
def test_under_lasting_load_every_request_is_answered_and_memory_stays(kind: str) -> None:
    with on_loopback(10, net=12) as network:
        topology = TOPOLOGIES[kind]()

        async def scenario() -> None:
            await found_from_everywhere_under_load(network, topology, seconds=10)
            before = network.resident_kib()
            homes, chance, tally = one_each(network), Chance(2), Tally()
            async with providing(homes, prefix="other/") as names, consumers(homes) as asking:
                flat = [name for own in names for name in own]
                await ask_for(
                    asking, lambda: chance.choice(flat), seconds=60, every_ms=200, tally=tally
                )
            after = network.resident_kib()
            print(f"\n{kind}: {tally}; resident kB {before} -> {after}")
            assert tally.reaches(0.99), str(tally)
            assert max(after[n] - before[n] for n in before) < 8_192, (before, after)

        asyncio.run(scenario())


def test_brokers_join_and_leave_under_load_and_nobody_waits_in_vain() -> None:
    with on_loopback(8, net=13) as network:
        asyncio.run(_join_and_leave(network, rounds=1))


@pytest.mark.long
def test_brokers_join_and_leave_for_a_minute() -> None:
    with on_loopback(8, net=14) as network:
        tally = asyncio.run(_join_and_leave(network, rounds=8))
        print(f"\njoining and leaving: {tally}")


async def _join_and_leave(network: BrokerNetwork, rounds: int) -> Tally:
    """Brokers 6 and 7 come and go; the others stay."""
    staying, homes, places = range(6), one_each(network), network.addresses
    chance, tally = Chance(3), Tally()
    async with await network.controller() as controller:
        await controller.connect(places[0], [places[1], places[2]])
        for number in (3, 4, 5):
            await controller.join(places[number], [places[n] for n in range(number)])
        async with (
            providing([homes[n] for n in staying]) as names,
            consumers([homes[n] for n in staying]) as asking,
        ):
            flat = [name for own in names for name in own]
            load = asyncio.create_task(
                ask_for(
                    asking,
                    lambda: chance.choice(flat),
                    seconds=1 + 5 * rounds,
                    every_ms=100,
                    tally=tally,
                )
            )
            for _ in range(rounds):
                for number in (6, 7):
                    await controller.join(places[number], [places[n] for n in (number - 6, 3, 5)])
                await network.until_joined(at_least=2)
                for number in (6, 7):
                    await controller.leave(places[number])
                await network.until(lambda found: _know_nobody(found, (6, 7)))
            await load
    assert tally.reaches(0.99), str(tally)
    assert (tally.late, tally.stale, tally.wrong) == ([], 0, 0), str(tally)
    return tally


def _know_nobody(found: dict[int, BrokerStatus], gone: tuple[int, ...]) -> bool:
    names = {found[number].address for number in gone}
    return not any(one.address in names for status in found.values() for one in status.neighbours)
