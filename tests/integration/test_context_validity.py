"""Nothing is returned past its validity, and a network that is left alone holds on to nothing.
[CX-1, CX-5, CX-6]
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from rapport.context.api import (
    BrokerSettings,
    ContextBroker,
    ContextConsumer,
    ContextNotFound,
    ContextProvider,
    ReplicationSettings,
)
from rapport.kernel.clock import Chance, SystemClock
from rapport.transport.base import Endpoint
from rapport_lab.topology import ring
from support.faults.bad_network import BadNetwork
from support.processes.context_load import Tally, ask_for, consumers, providing
from support.processes.context_network import on_loopback

pytestmark = pytest.mark.slow

CLOCK = SystemClock()


class RecordedClock(SystemClock):
    """Remembers the last time it told."""

    told_ms = 0

    def now_ms(self) -> int:
        self.told_ms = super().now_ms()
        return self.told_ms


def slow(delay_ms: float) -> object:
    def link(endpoint: Endpoint) -> Endpoint:
        network = BadNetwork(endpoint, Chance(1))
        network.sending.delay_ms = delay_ms
        return network

    return link


def test_what_expires_on_its_way_to_the_consumer_is_not_returned() -> None:
    """Valid when the broker answers and over when the answer arrives."""

    async def scenario() -> Counter[str]:
        broker = await ContextBroker.open(
            ("127.0.0.1", 0), clock=CLOCK, chance=Chance(1), link=slow(60)
        )
        ended: Counter[str] = Counter()
        provider = await ContextProvider.open([broker.address], name="p")
        clock = RecordedClock()
        consumer = await ContextConsumer.open([broker.address], clock=clock)
        async with provider, consumer:
            for number in range(12):
                name = f"room/{number}"
                told = await provider.update(name, "status", {"n": 1}, valid_for_ms=200)
                await CLOCK.sleep(max(told.valid_until - CLOCK.now_ms() - 30 - 3 * number, 0))
                try:
                    located = await consumer.request(name, "status", within_ms=400)
                    assert located.record.valid_until > clock.told_ms
                    ended["answered"] += 1
                except ContextNotFound:
                    ended["refused"] += 1
        await broker.close()
        return ended

    ended = asyncio.run(scenario())
    assert ended["refused"] >= 8, ended


@pytest.mark.parametrize("seconds", [2, pytest.param(30, marks=pytest.mark.long)])
def test_records_that_live_for_moments_are_never_returned_late(seconds: float) -> None:
    with on_loopback(5, net=41) as network:

        async def scenario() -> Tally:
            await network.connect(ring(range(5)))
            homes, chance = [[address] for address in network.addresses], Chance(2)
            # Between two tellings each is past its validity for a while.
            async with (
                providing(homes, each=2, every_ms=600, valid_for_ms=250) as names,
                consumers(homes) as asking,
            ):
                flat = [name for own in names for name in own]
                return await ask_for(
                    asking,
                    lambda: chance.choice(flat),
                    seconds=seconds,
                    every_ms=50,
                    within_ms=300,
                )

        tally = asyncio.run(scenario())
    print(f"\nshort validity: {tally}")
    assert tally.answered > 20, str(tally)
    assert sum(tally.refused.values()) > 20, str(tally)
    assert (tally.stale, tally.wrong) == (0, 0), str(tally)


def test_a_network_left_alone_has_nothing_under_way_and_forgets_what_is_over() -> None:
    async def scenario() -> None:
        settings = BrokerSettings(replication=ReplicationSettings(least_validity_ms=200))
        async with AsyncExitStack() as closing:
            brokers: list[ContextBroker] = []
            for number in range(6):
                one = await ContextBroker.open(
                    ("127.0.0.1", 0), clock=CLOCK, chance=Chance(number), settings=settings
                )
                closing.push_async_callback(one.close)
                if brokers:
                    await one.join([brokers[-1].address])
                brokers.append(one)
            homes, chance = [[one.address] for one in brokers], Chance(3)
            async with (
                providing(homes, each=3, every_ms=300, valid_for_ms=1_000) as names,
                consumers(homes) as asking,
            ):
                flat = [name for own in names for name in own] + ["room/nowhere"]
                tally = await ask_for(
                    asking, lambda: chance.choice(flat), seconds=2, every_ms=50, within_ms=500
                )
                assert tally.answered > 100, str(tally)
                assert sum(one.status().replicas for one in brokers) > 0
            await asyncio.sleep(3)
            for one in brokers:
                status = one.machine.status()
                under_way = (len(one.machine._hop_sender), len(one.machine._probes))
                assert (status.searches, status.watches, *under_way) == (0, 0, 0, 0), status
                assert (status.records, status.replicas) == (0, 0), status

    asyncio.run(scenario())
