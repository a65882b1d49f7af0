"""Brokers and clients on real sockets that lose, repeat and delay what they send. [CX-5]"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import pytest

from rapport.context.api import ContextBroker, ContextConsumer, ContextNotFound, ContextProvider
from rapport.core.context_record import EntityRef
from rapport.kernel.clock import Chance
from rapport.transport.base import Endpoint
from support.faults.lossy import LossyEndpoint

pytestmark = pytest.mark.slow


class Opening(Protocol):
    def __call__(
        self, count: int, **options: Any
    ) -> AbstractAsyncContextManager[list[ContextBroker]]: ...


class BadNetwork:
    """Wraps every endpoint; quiet until it is made bad."""

    def __init__(self) -> None:
        self._ends: list[LossyEndpoint] = []

    def __call__(self, endpoint: Endpoint) -> Endpoint:
        end = LossyEndpoint(endpoint, Chance(len(self._ends)), jitter_ms=2.0)
        self._ends.append(end)
        return end

    def lose(self, share: float) -> None:
        for end in self._ends:
            end.loss, end.duplication = share, 0.05


@pytest.mark.parametrize(("loss", "answered"), [(0.1, 0.99), (0.3, 0.95)])
def test_with_a_copy_in_reach_requests_are_answered_whatever_is_lost(
    line_of_brokers: Opening, loss: float, answered: float
) -> None:
    async def scenario() -> None:
        network = BadNetwork()
        async with line_of_brokers(5, link=network) as brokers:
            provider = await ContextProvider.open([brokers[0].address], name="p", link=network)
            consumer = await ContextConsumer.open([brokers[4].address], link=network)
            async with provider, consumer:
                network.lose(loss)
                many = 150
                loop = asyncio.get_running_loop()
                within = asyncio.Semaphore(30)

                async def tell_and_ask(n: int) -> bool:
                    async with within:
                        told = await provider.update(
                            f"room/{n}", "s", {"n": n}, valid_for_ms=60_000, within_ms=20_000
                        )
                        began = loop.time()
                        try:
                            located = await consumer.request(f"room/{n}", "s", within_ms=2_000)
                        except ContextNotFound:
                            return False
                        finally:
                            assert loop.time() - began < 2.5
                        return located.record == told

                got = await asyncio.gather(*(tell_and_ask(n) for n in range(many)))
                assert sum(got) >= answered * many
                network.lose(0.0)

    asyncio.run(scenario())


def test_who_provides_at_a_rate_goes_on_after_what_came_too_late(line_of_brokers: Opening) -> None:
    """A short outage, and a measurement is over when it arrives: the next one is newer."""

    async def scenario() -> None:
        network, measured = BadNetwork(), itertools.count()
        async with line_of_brokers(1) as (broker,):
            provider = await ContextProvider.open([broker.address], name="p", link=network)
            async with provider:
                providing = asyncio.create_task(
                    provider.provide_every(
                        "room/r3", "status", lambda: {"n": next(measured)}, every_ms=20
                    )
                )
                for _ in range(5):
                    await asyncio.sleep(0.1)
                    network.lose(1.0)
                    await asyncio.sleep(0.07)
                    network.lose(0.0)
                await asyncio.sleep(0.3)
                assert not providing.done()
                assert (await broker.ask(EntityRef("room", "r3"), "status")).record.values["n"] > 10
                providing.cancel()

    asyncio.run(scenario())
