"""Brokers as processes on the loopback, some of them killed. [CX-4, CX-5, CX-8, CX-9]"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from rapport.context.api import (
    ContextConsumer,
    ContextController,
    ContextProvider,
    ContextRecord,
    load_keys,
)
from rapport.core.errors import RapportError, Unavailable
from rapport.transport.keys import add_key, make_key, share_keys
from support.processes.context import BrokerProcess

pytestmark = pytest.mark.slow


async def neighbours_of(broker: BrokerProcess, keys: Path | None = None) -> int:
    ring = load_keys(keys) if keys else None
    async with await ContextController.open([broker.address], keys=ring) as controller:
        return len((await controller.status(broker.address)).neighbours)


async def until_joined(
    *brokers: BrokerProcess, at_least: int = 1, keys: Path | None = None
) -> None:
    for _ in range(200):
        if all([await neighbours_of(one, keys) >= at_least for one in brokers]):
            return
        await asyncio.sleep(0.05)
    raise AssertionError("they did not join")


def test_a_request_crosses_three_processes_and_survives_the_death_of_the_middle_one(
    tmp_path: Path,
) -> None:
    with ExitStack() as closing:
        first = closing.enter_context(BrokerProcess())
        middle = closing.enter_context(BrokerProcess(join=(first.address,)))
        last = closing.enter_context(BrokerProcess(join=(middle.address, first.address)))

        async def scenario() -> None:
            await until_joined(first, middle, last, at_least=2)
            provider = await ContextProvider.open([first.address], name="station")
            consumer = await ContextConsumer.open([last.address])
            async with provider, consumer:
                await provider.update("room/r3", "status", {"n": 1}, valid_for_ms=3_000)
                located = await consumer.request("room/r3", "status")
                assert (located.record.values, located.hops >= 1) == ({"n": 1}, True)
                await asyncio.to_thread(middle.kill)
                for n in range(20):
                    entity = f"room/x{n}"
                    await provider.update(entity, "status", {"n": n}, valid_for_ms=60_000)
                    located = await consumer.request(entity, "status")
                    assert located.record.values == {"n": n}

        asyncio.run(scenario())
        assert last.stop() == 0
        assert first.stop() == 0


def test_every_update_that_was_acknowledged_is_there_after_a_kill(tmp_path: Path) -> None:
    with BrokerProcess(directory=tmp_path / "log") as broker:

        async def tell(done: list[ContextRecord]) -> None:
            async with await ContextProvider.open([broker.address], name="station") as provider:

                async def stream(number: int) -> None:
                    for n in range(1_000):
                        entity = f"room/{number}-{n}"
                        try:
                            record = await provider.update(
                                entity, "status", {"n": n}, valid_for_ms=600_000, within_ms=800
                            )
                        except Unavailable:
                            return
                        done.append(record)

                streams = [asyncio.create_task(stream(number)) for number in range(8)]
                for _ in range(4_000):
                    if len(done) >= 400:
                        break
                    await asyncio.sleep(0.005)
                await asyncio.to_thread(broker.kill)
                await asyncio.gather(*streams, return_exceptions=True)

        async def check(done: list[ContextRecord]) -> None:
            async with await ContextConsumer.open([broker.address]) as consumer:
                for record in done:
                    located = await consumer.request(record.entity, "status")
                    assert located.record == record

        for _ in range(2):
            done: list[ContextRecord] = []
            asyncio.run(tell(done))
            broker.start()
            asyncio.run(check(done))


def test_processes_with_keys_hear_each_other_and_nobody_else(tmp_path: Path) -> None:
    keys, ana = tmp_path / "keys.toml", tmp_path / "ana.toml"
    add_key(keys, make_key("brokers", "network"))
    add_key(keys, make_key("ana", "client"))
    share_keys(keys, "ana", ana)
    with ExitStack() as closing:
        one = closing.enter_context(BrokerProcess(keys=keys))
        two = closing.enter_context(BrokerProcess(keys=keys, join=(one.address,)))
        stranger = closing.enter_context(BrokerProcess(join=(one.address,)))

        async def scenario() -> None:
            await until_joined(one, two, keys=keys)
            ring = load_keys(ana)
            provider = await ContextProvider.open([one.address], keys=ring)
            consumer = await ContextConsumer.open([two.address], keys=ring)
            eve = await ContextConsumer.open([two.address])
            async with provider, consumer, eve:
                await provider.update("room/r3", "status", {"n": 1}, valid_for_ms=60_000)
                located = await consumer.request("room/r3", "status")
                assert located.record.provider == "ana"
                with pytest.raises(RapportError) as unheard:
                    await eve.request("room/r3", "status", within_ms=400)
                assert unheard.value.code == "context.no_broker"
            assert await neighbours_of(stranger) == 0
            assert await neighbours_of(one, keys) == 1

        asyncio.run(scenario())
