"""Requests over a network that loses datagrams, is cut in two, and heals. [CX-2, CX-4, CX-5]"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from rapport.context.api import (
    ContextBroker,
    ContextConsumer,
    ContextProvider,
    EntityRef,
    load_keys,
)
from rapport.context.protocol import Status, decode
from rapport.core.errors import Unavailable
from rapport.kernel.clock import Chance, SystemClock
from rapport.transport.base import Address, DatagramHandler, Endpoint
from rapport.transport.keys import DatagramKeys, add_key, make_key, share_keys
from rapport_lab.topology import Topology, ring, waxman
from support.faults.bad_network import BadNetwork
from support.faults.namespaces import Machines, why_not
from support.processes.context import BrokerProcess
from support.processes.context_load import SCOPE, Tally, ask_for, consumers, providing
from support.processes.context_network import UNRELIABLE, BrokerNetwork, on_loopback

pytestmark = pytest.mark.slow

LEAST = {0.1: 0.99, 0.3: 0.95}
"""What must be answered at which loss."""


def topology(kind: str, count: int) -> Topology[int]:
    if kind == "ring":
        return ring(range(count))
    return waxman(range(count), Chance(5), alpha=0.4, beta=0.4, degree=3)


def losing(share: float) -> Callable[[Endpoint], Endpoint]:
    seeds = iter(range(1_000))

    def link(endpoint: Endpoint) -> Endpoint:
        network = BadNetwork(endpoint, Chance(next(seeds)))
        network.lose(share)
        return network

    return link


COPIED_MS, NOT_COPIED_MS = 60_000, 4_500
"""Validity above and below what is worth a copy: then every record is at one broker only."""


async def ask_while_lost(
    network: BrokerNetwork, share: float, seconds: float, valid_for_ms: int = NOT_COPIED_MS
) -> Tally:
    """Every datagram of brokers and clients alike may be lost."""
    homes, chance = [[address] for address in network.addresses], Chance(4)
    network.lose(share)
    async with (
        providing(
            homes,
            each=3,
            every_ms=1_000,
            valid_for_ms=valid_for_ms,
            link=losing(share),
        ) as names,
        consumers(homes, link=losing(share)) as asking,
    ):
        flat = [name for own in names for name in own]
        tally = await ask_for(asking, lambda: chance.choice(flat), seconds=seconds, every_ms=200)
    network.lose(0)
    return tally


def check(tally: Tally, share: float) -> None:
    assert tally.reaches(LEAST[share]), str(tally)
    assert set(tally.refused) <= {"context.not_found", "context.no_broker"}, str(tally)
    assert (tally.late, tally.stale, tally.wrong) == ([], 0, 0), str(tally)


def test_at_ten_and_thirty_percent_loss_requests_are_answered_or_refused_in_time() -> None:
    with on_loopback(6, net=31, program=UNRELIABLE) as network:

        async def scenario() -> None:
            await network.connect(topology("waxman", 6))
            for share in LEAST:
                check(await ask_while_lost(network, share, seconds=2), share)
            await network.until_quiet()

        asyncio.run(scenario())


@pytest.mark.long
@pytest.mark.parametrize("valid_for_ms", [COPIED_MS, NOT_COPIED_MS])
@pytest.mark.parametrize("kind", ["ring", "waxman"])
def test_ten_brokers_lose_datagrams_for_a_while(kind: str, valid_for_ms: int) -> None:
    with on_loopback(10, net=32, program=UNRELIABLE) as network:

        async def scenario() -> None:
            await network.connect(topology(kind, 10))
            for share in LEAST:
                tally = await ask_while_lost(network, share, 40, valid_for_ms)
                print(f"\n{kind} at loss {share:.0%}, valid {valid_for_ms} ms: {tally}")
                check(tally, share)
            await network.until_quiet()

        asyncio.run(scenario())


def test_an_update_whose_confirmation_is_lost_is_told_as_such_and_the_next_one_follows() -> None:
    """The broker is there, so this is neither silence nor a record that was not found."""

    class Deaf(BadNetwork):
        """Hears all but what ends an update."""

        def receive(self, handler: DatagramHandler) -> None:
            def hear(datagram: bytes, sender: Address) -> None:
                message = decode(datagram[1:])
                if not (self.is_deaf and isinstance(message, Status) and message.status == 102):
                    handler(datagram, sender)

            super().receive(hear)

        is_deaf = True

    made: list[Deaf] = []

    def link(endpoint: Endpoint) -> Endpoint:
        made.append(Deaf(endpoint, Chance(1)))
        return made[0]

    async def scenario() -> None:
        clock = SystemClock()
        broker = await ContextBroker.open(("127.0.0.1", 0), clock=clock, chance=Chance(1))
        async with await ContextProvider.open([broker.address], name="p", link=link) as provider:
            with pytest.raises(Unavailable) as error:
                await provider.update("room/r3", SCOPE, {}, valid_for_ms=60_000, within_ms=500)
            assert error.value.code == "context.not_confirmed"
            every = asyncio.create_task(
                provider.provide_every("room/r4", SCOPE, lambda: {"n": 1}, every_ms=200)
            )
            await asyncio.sleep(0.5)
            made[0].is_deaf = False
            assert not every.done(), every.exception()
            await provider.update("room/r3", SCOPE, {"n": 2}, valid_for_ms=60_000)
            every.cancel()
            await asyncio.gather(every, return_exceptions=True)
        located = await broker.ask(EntityRef("room", "r3"), SCOPE)
        assert located.record.values == {"n": 2}
        await broker.close()

    asyncio.run(scenario())


# Partitions


async def part_and_heal(network: BrokerNetwork, seconds: float) -> tuple[Tally, Tally, Tally]:
    """Two halves: each finds its own, refuses what the other has, and after all finds all."""
    count = len(network.brokers)
    halves = list(range(count // 2)), list(range(count // 2, count))
    homes, chance = [[address] for address in network.addresses], Chance(6)
    own, other, healed = Tally(), Tally(), Tally()
    async with (
        providing(homes, each=2, every_ms=500, valid_for_ms=2_000) as names,
        consumers(homes) as asking,
    ):
        network.cut(*halves)
        # Neighbours across the cut are found silent, and each half closes by itself.
        await asyncio.sleep(5)
        loads = []
        for half, far in (halves, halves[::-1]):
            near_names = [name for n in half for name in names[n]]
            far_names = [name for n in far for name in names[n]]
            asks = [asking[n] for n in half]
            loads += [
                ask_for(asks, _any_of(chance, near_names), seconds=seconds, tally=own),
                ask_for(asks, _any_of(chance, far_names), seconds=seconds, tally=other,
                        every_ms=500, within_ms=1_000),
            ]  # fmt: skip
        await asyncio.gather(*loads)
        network.heal()
        await network.until_joined(at_least=1)
        flat = [name for one in names for name in one]
        await ask_for(asking, _any_of(chance, flat), seconds=seconds, every_ms=200, tally=healed)
    return own, other, healed


def _any_of(chance: Chance, names: list[str]) -> Callable[[], str]:
    return lambda: chance.choice(names)


@pytest.mark.parametrize(
    ("count", "seconds"), [(6, 1), pytest.param(10, 20, marks=pytest.mark.long)]
)
def test_a_network_cut_in_two_answers_what_each_half_has_and_heals(
    count: int, seconds: float
) -> None:
    with on_loopback(count, net=33, program=UNRELIABLE) as network:

        async def scenario() -> tuple[Tally, Tally, Tally]:
            await network.connect(ring(range(count)))
            return await part_and_heal(network, seconds)

        own, other, healed = asyncio.run(scenario())
    print(f"\nown half {own}\nother half {other}\nhealed {healed}")
    assert own.reaches(0.99), str(own)
    assert other.answered == 0, str(other)
    assert set(other.refused) == {"context.not_found"}, str(other)
    assert healed.reaches(0.99), str(healed)
    assert own.late == other.late == healed.late == []
    assert own.stale == other.stale == healed.stale == 0


# The same with the kernel's own loss and cuts


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    if reason := why_not():
        pytest.skip(reason)
    with Machines(6, name="loss") as made:
        yield made


def test_machines_lose_what_they_are_told_to_and_hear_nobody_across_a_cut(
    machines: Machines,
) -> None:
    def heard(count: int) -> int:
        for _ in range(count):
            sender.sendto(b"word", receiver.getsockname())
        found = 0
        while True:
            try:
                found += len(receiver.recv(10)) > 0
            except TimeoutError:
                return found

    with machines.entered(0):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with machines.entered(5):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.bind((machines.host(5), 0))
        receiver.settimeout(0.3)
    with sender, receiver:
        assert heard(10) == 10
        machines.lose(0.3)
        assert 110 <= heard(200) <= 170
        machines.lose(0)
        machines.cut((0, 1, 2), (3, 4, 5))
        assert heard(10) == 0
        machines.heal()
        assert heard(10) == 10


@asynccontextmanager
async def clients(
    machines: Machines, network: BrokerNetwork, keys: DatagramKeys
) -> AsyncIterator[tuple[list[str], list[ContextConsumer]]]:
    """A provider and a consumer on each machine, each with the broker of the next one. Names what
    is told, once all of it is; nothing is worth a copy.
    """
    async with AsyncExitStack() as closing:
        names, asking, telling = [], [], []
        for number in range(machines.count):
            beside = network.addresses[(number + 1) % machines.count]
            with machines.entered(number):
                provider = await ContextProvider.open([beside], name=f"p{number}", keys=keys)
                closing.push_async_callback(provider.close)
                consumer = await ContextConsumer.open([beside], keys=keys)
                closing.push_async_callback(consumer.close)
            name = f"room/{number}"
            names.append(name)
            asking.append(consumer)
            await provider.update(name, SCOPE, {"of": name}, valid_for_ms=NOT_COPIED_MS)
            telling.append(asyncio.create_task(_keep_telling(provider, name)))
        try:
            yield names, asking
        finally:
            for task in telling:
                task.cancel()
            await asyncio.gather(*telling, return_exceptions=True)


async def _keep_telling(provider: ContextProvider, name: str) -> None:
    await provider.provide_every(
        name, SCOPE, lambda: {"of": name}, every_ms=1_000, valid_for_ms=NOT_COPIED_MS
    )


def sealed_network(machines: Machines, directory: Path) -> tuple[BrokerNetwork, DatagramKeys]:
    keys, ana = directory / "keys.toml", directory / "ana.toml"
    add_key(keys, make_key("brokers", "network"))
    add_key(keys, make_key("ana", "client"))
    share_keys(keys, "ana", ana)
    brokers = [
        BrokerProcess(
            listen=(machines.host(number), 7411),
            inside=machines.inside(number),
            keys=keys,
            join=tuple((machines.host(other), 7411) for other in range(number)),
        )
        for number in range(machines.count)
    ]
    return BrokerNetwork(brokers, load_keys(keys)), load_keys(ana)


@pytest.mark.parametrize("seconds", [1, pytest.param(30, marks=pytest.mark.long)])
def test_sealed_brokers_on_machines_of_their_own_bear_loss_and_a_cut(
    machines: Machines, tmp_path: Path, seconds: float
) -> None:
    network, keys = sealed_network(machines, tmp_path)
    machines.lose(0)
    machines.heal()
    tallies: dict[str, Tally] = {}

    async def scenario() -> None:
        await network.until_joined(at_least=1)
        chance = Chance(8)
        async with clients(machines, network, keys) as (names, asking):
            pick = _any_of(chance, names)
            for share in LEAST:
                machines.lose(share)
                tally = await ask_for(asking, pick, seconds=seconds, every_ms=200)
                tallies[f"loss {share:.0%}"] = tally
                check(tally, share)
            machines.lose(0)
            await asyncio.sleep(2.5)  # what loss kept from being told is told again
            machines.cut((0, 1, 2), (3, 4, 5))
            # Under loss they may have come to know each other through the other half only.
            await network.until_joined(at_least=1, among=(0, 1, 2))
            # What machines 0 and 1 tell is at brokers 1 and 2.
            half = await ask_for(asking[:2], _any_of(chance, names[:2]), seconds=1, every_ms=100)
            tallies["in a half"] = half
            machines.heal()
            await asyncio.sleep(4)
            tallies["healed"] = await ask_for(asking, pick, seconds=seconds, every_ms=200)

    with machines.entered(0), network:
        asyncio.run(scenario())
    print("".join(f"\n{name}: {tally}" for name, tally in tallies.items()))
    assert tallies["in a half"].reaches(0.99), str(tallies["in a half"])
    assert tallies["healed"].reaches(0.99), str(tallies["healed"])
