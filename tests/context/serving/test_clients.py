"""Providers, consumers and controllers against brokers on real sockets. [CX-3, CX-11]"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, Protocol

import pytest

from rapport.context.api import (
    BlockingConsumer,
    BlockingProvider,
    ClientSettings,
    ContextBroker,
    ContextConsumer,
    ContextController,
    ContextNotFound,
    ContextProvider,
    ContextRecord,
)
from rapport.core.errors import InvalidInput, Unavailable
from rapport.kernel.clock import Chance, SystemClock

QUICK = ClientSettings(look_every_ms=200, lease_ms=900)


class Opening(Protocol):
    def __call__(
        self, count: int, **options: Any
    ) -> AbstractAsyncContextManager[list[ContextBroker]]: ...


def test_what_is_sent_to_one_broker_is_found_from_another(line_of_brokers: Opening) -> None:
    async def scenario() -> None:
        async with line_of_brokers(4) as brokers:
            provider = await ContextProvider.open([brokers[0].address], name="station")
            consumer = await ContextConsumer.open([brokers[3].address])
            async with provider, consumer:
                told = await provider.update("room/r3", "status", {"n": 1}, valid_for_ms=60_000)
                located = await consumer.request("room/r3", "status")
                assert located.record == told
                assert located.hops >= 1
                assert located.took_ms < 1_000
                with pytest.raises(ContextNotFound) as missing:
                    await consumer.request("room/r4", "status", within_ms=500)
                assert missing.value.code == "context.not_found"

    asyncio.run(scenario())


def test_a_record_past_its_validity_is_not_sent_any_more(line_of_brokers: Opening) -> None:
    async def scenario() -> None:
        async with line_of_brokers(1) as (broker,):
            provider = await ContextProvider.open([broker.address], name="station")
            consumer = await ContextConsumer.open([broker.address])
            async with provider, consumer:
                record = await provider.update("room/r3", "status", {}, valid_for_ms=150)
                await consumer.request("room/r3", "status")
                await asyncio.sleep(0.2)
                with pytest.raises(ContextNotFound):
                    await consumer.request("room/r3", "status", within_ms=300)
                with pytest.raises(InvalidInput, match="validity is over"):
                    await provider.update(
                        "room/r3", "status", {}, valid_for_ms=1, valid_from=record.valid_from
                    )

    asyncio.run(scenario())


def test_two_updates_in_one_millisecond_are_sent_in_order(line_of_brokers: Opening) -> None:
    async def scenario() -> None:
        async with line_of_brokers(1) as (broker,):
            provider = await ContextProvider.open([broker.address], name="station")
            both = await asyncio.gather(
                *(
                    provider.update("room/r3", "status", {"n": n}, valid_for_ms=60_000)
                    for n in range(2)
                )
            )
            assert both[0].valid_from < both[1].valid_from
            await provider.close()

    asyncio.run(scenario())


def test_what_was_announced_does_not_put_off_what_is_sent_now(line_of_brokers: Opening) -> None:
    async def scenario() -> None:
        async with line_of_brokers(1) as (broker,):
            provider = await ContextProvider.open([broker.address], name="station")
            async with provider, await ContextConsumer.open([broker.address]) as consumer:
                later = SystemClock().now_ms() + 3_600_000
                await provider.update(
                    "room/r3", "status", {"n": 9}, valid_for_ms=60_000, valid_from=later
                )
                await provider.update("room/r3", "status", {"n": 1}, valid_for_ms=60_000)
                located = await consumer.request("room/r3", "status", within_ms=500)
                assert located.record.values == {"n": 1}

    asyncio.run(scenario())


def test_a_clock_that_was_far_ahead_is_believed_again_when_it_is_set(
    line_of_brokers: Opening,
) -> None:
    async def scenario() -> None:
        async with line_of_brokers(1) as (broker,):
            clock = SystemClock()
            clock.now_ms = lambda: SystemClock().now_ms() + 3_600_000  # type: ignore[method-assign]
            provider = await ContextProvider.open([broker.address], name="station", clock=clock)
            async with provider, await ContextConsumer.open([broker.address]) as consumer:
                await provider.update("room/r3", "status", {"n": 0}, valid_for_ms=60_000)
                clock.now_ms = SystemClock().now_ms  # type: ignore[method-assign]
                await provider.update("room/r3", "status", {"n": 1}, valid_for_ms=60_000)
                located = await consumer.request("room/r3", "status", within_ms=500)
                assert located.record.values == {"n": 1}

    asyncio.run(scenario())


def test_a_subscription_tells_the_present_and_each_change(line_of_brokers: Opening) -> None:
    async def scenario() -> None:
        async with line_of_brokers(3) as brokers:
            provider = await ContextProvider.open([brokers[0].address], name="station")
            consumer = await ContextConsumer.open([brokers[2].address], settings=QUICK)
            async with provider, consumer:
                await provider.update("room/r3", "status", {"n": 0}, valid_for_ms=60_000)
                got: list[int] = []
                async with aclosing(consumer.subscribe("room/r3", "status")) as records:
                    async for record in records:
                        got.append(record.values["n"])
                        if len(got) == 4:
                            break
                        n = len(got)
                        await provider.update("room/r3", "status", {"n": n}, valid_for_ms=60_000)
                assert got == [0, 1, 2, 3]
                await _until(lambda: brokers[2].status().watches == 0)

    asyncio.run(scenario())


def test_a_periodic_subscription_tells_the_same_again(line_of_brokers: Opening) -> None:
    async def scenario() -> None:
        async with line_of_brokers(2) as brokers:
            provider = await ContextProvider.open([brokers[0].address], name="station")
            consumer = await ContextConsumer.open([brokers[1].address], settings=QUICK)
            async with provider, consumer:
                await provider.update("room/r3", "status", {"n": 0}, valid_for_ms=60_000)
                got: list[ContextRecord] = []
                records = consumer.subscribe("room/r3", "status", every_ms=60)
                async with aclosing(records):
                    async for record in records:
                        got.append(record)
                        if len(got) == 3:
                            break
                assert got[0] == got[1] == got[2]

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_subscription_outlives_its_lease_because_it_is_renewed(line_of_brokers: Opening) -> None:
    async def scenario() -> None:
        async with line_of_brokers(1) as (broker,):
            provider = await ContextProvider.open([broker.address], name="station")
            consumer = await ContextConsumer.open([broker.address], settings=QUICK)
            async with provider, consumer:
                records = consumer.subscribe("room/r3", "status")
                waiting = asyncio.ensure_future(anext(records))
                await asyncio.sleep(2.5 * QUICK.lease_ms / 1_000)
                await provider.update("room/r3", "status", {"n": 1}, valid_for_ms=60_000)
                assert (await asyncio.wait_for(waiting, 5)).values == {"n": 1}
                await records.aclose()

    asyncio.run(scenario())


@pytest.mark.slow
def test_clients_change_to_another_broker_when_theirs_dies(line_of_brokers: Opening) -> None:
    async def scenario() -> None:
        async with line_of_brokers(3) as brokers:
            both = [brokers[1].address, brokers[2].address]
            provider = await ContextProvider.open(both, name="station", settings=QUICK)
            consumer = await ContextConsumer.open(both, settings=QUICK)
            async with provider, consumer:
                await provider.update("room/r3", "status", {"n": 0}, valid_for_ms=60_000)
                got: list[int] = []

                async def follow() -> None:
                    async for record in consumer.subscribe("room/r3", "status"):
                        got.append(record.values["n"])

                following = asyncio.create_task(follow())
                await _until(lambda: got == [0])
                dead = provider.broker
                next(one for one in brokers if one.address == dead)._shell.station.endpoint.receive(
                    lambda _datagram, _sender: None
                )
                await provider.update("room/r3", "status", {"n": 1}, valid_for_ms=60_000)
                assert provider.broker != dead
                await _until(lambda: got == [0, 1])
                assert (await consumer.request("room/r3", "status")).record.values == {"n": 1}
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    asyncio.run(scenario())


@pytest.mark.slow
def test_what_a_provider_sent_goes_with_it_to_its_new_broker(line_of_brokers: Opening) -> None:
    async def scenario() -> None:
        async with line_of_brokers(2) as brokers:
            known = [broker.address for broker in brokers]
            provider = await ContextProvider.open(known, name="station", settings=QUICK)
            async with provider:
                await provider.update("room/r3", "status", {"n": 0}, valid_for_ms=60_000)
                first = next(one for one in brokers if one.address == provider.broker)
                second = next(one for one in brokers if one is not first)
                await first.close()
                await _until(lambda: second.status().records == 1)

    asyncio.run(scenario())


def test_an_old_broker_forgets_what_its_provider_took_along(line_of_brokers: Opening) -> None:
    async def scenario() -> None:
        async with line_of_brokers(1) as (one,), line_of_brokers(1) as (other,):
            known = {broker.address: broker for broker in (one, other)}
            async with await ContextProvider.open(list(known), name="station") as provider:
                await provider.update("room/r3", "status", {"n": 0}, valid_for_ms=60_000)
                old = known.pop(provider.broker or ("", 0))
                (new,) = known.values()
                before, link = provider.broker, provider._link
                link.choice._change_to(new.address)
                link._follow(before, 0.0)
                await _until(lambda: new.status().records == 1)
                await _until(lambda: old.status().records == 0)

    asyncio.run(scenario())


def _change(provider: ContextProvider, to: ContextBroker) -> None:
    """As the choice of a client does, at a moment that a test says."""
    before, link = provider.broker, provider._link
    link.choice._change_to(to.address)
    link._follow(before, 0.0)


async def _two_and_a_provider(
    one: ContextBroker, other: ContextBroker
) -> tuple[ContextProvider, ContextBroker, ContextBroker]:
    """A provider, the broker of its choice, and the other."""
    provider = await ContextProvider.open([one.address, other.address], name="station")
    await provider.update("room/r3", "status", {"n": 0}, valid_for_ms=60_000)
    first, second = (one, other) if provider.broker == one.address else (other, one)
    return provider, first, second


@pytest.mark.slow
@pytest.mark.parametrize("pause_ms", [0, 20, 300])
def test_what_a_provider_sent_is_there_when_it_changes_back_again(
    line_of_brokers: Opening, pause_ms: int
) -> None:
    async def scenario() -> None:
        async with line_of_brokers(1) as (one,), line_of_brokers(1) as (other,):
            provider, first, second = await _two_and_a_provider(one, other)
            async with provider:
                for number in range(200):
                    await provider.update(f"room/x{number}", "s", {"n": 0}, valid_for_ms=60_000)
                _change(provider, second)
                await asyncio.sleep(pause_ms / 1_000)
                _change(provider, first)
                await _until(lambda: second.status().records == 0)
                await asyncio.sleep(0.2)
                assert first.status().records == 201

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_broker_that_is_gone_delays_nothing_that_is_carried_along(
    line_of_brokers: Opening,
) -> None:
    async def scenario() -> None:
        async with line_of_brokers(1) as (one,), line_of_brokers(1) as (other,):
            provider, first, second = await _two_and_a_provider(one, other)
            async with provider:
                for number in range(500):
                    await provider.update(f"room/x{number}", "s", {"n": 0}, valid_for_ms=60_000)
                await first.close()
                _change(provider, second)
                await _until(lambda: second.status().records == 501, 4.0)

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("ahead_ms", [-400, 400])
def test_an_old_broker_forgets_also_when_its_clock_differs(
    line_of_brokers: Opening, ahead_ms: int
) -> None:
    async def scenario() -> None:
        async with line_of_brokers(1) as (one,), line_of_brokers(1) as (other,):
            provider, first, second = await _two_and_a_provider(one, other)
            clock = first._shell.clock
            now_ms = clock.now_ms
            clock.now_ms = lambda: now_ms() + ahead_ms  # type: ignore[method-assign]
            async with provider:
                _change(provider, second)
                await _until(lambda: second.status().records == 1)
                await _until(lambda: first.status().records == 0)

    asyncio.run(scenario())


def test_a_farewell_is_not_newer_than_what_the_provider_sent_meanwhile(
    line_of_brokers: Opening,
) -> None:
    async def scenario() -> None:
        async with line_of_brokers(1) as (one,), line_of_brokers(1) as (other,):
            provider, first, second = await _two_and_a_provider(one, other)
            told: list[ContextRecord] = []
            put = first.machine.table.put

            def taking(record: ContextRecord, *arguments: Any, **options: Any) -> Any:
                told.append(record)
                return put(record, *arguments, **options)

            first.machine._updates._state.table = _Table(  # type: ignore[assignment]
                first.machine.table, taking
            )
            tell = provider._put

            async def slowly(*arguments: Any, **options: Any) -> None:
                await tell(*arguments, **options)
                await asyncio.sleep(0.02)

            provider._put = slowly  # type: ignore[method-assign]
            async with provider:
                _change(provider, second)
                await asyncio.sleep(0)  # it has begun to carry along what was told
                newer = await provider.update("room/r3", "status", {"n": 1}, valid_for_ms=60_000)
                await _until(lambda: bool(told))
                assert told[0].rank() <= newer.rank()
                assert told[0].valid_until <= newer.valid_until

    asyncio.run(scenario())


class _Table:
    """A table whose `put` is seen."""

    def __init__(self, table: Any, put: Any) -> None:
        self._table, self.put = table, put

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)


@pytest.mark.slow
def test_a_periodic_subscription_goes_on_when_its_broker_was_started_anew(
    line_of_brokers: Opening,
) -> None:
    async def scenario() -> None:
        got: list[ContextRecord] = []
        async with line_of_brokers(1) as (broker,):
            address = broker.address
            provider = await ContextProvider.open([address], name="station")
            consumer = await ContextConsumer.open([address], settings=QUICK)

            async def follow() -> None:
                async for record in consumer.subscribe("room/r3", "status", every_ms=50):
                    got.append(record)

            async with provider, consumer:
                await provider.update("room/r3", "status", {"n": 0}, valid_for_ms=60_000)
                following = asyncio.create_task(follow())
                await _until(lambda: len(got) >= 30)
                await broker.close()
                again = await ContextBroker.open(address, clock=SystemClock(), chance=Chance(9))
                await provider.update("room/r3", "status", {"n": 1}, valid_for_ms=60_000)
                await _until(lambda: got[-1].values == {"n": 1}, 1.0)
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
                await again.close()

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_controller_joins_lets_leave_and_sees(line_of_brokers: Opening) -> None:
    async def scenario() -> None:
        async with line_of_brokers(1) as (one,), line_of_brokers(1) as (other,):
            controller = await ContextController.open([one.address])
            async with controller:
                await controller.join(one.address, [other.address])
                status = await controller.status(one.address)
                assert [n.address for n in status.neighbours] == [other.status().address]
                await controller.monitor(one.address)
                await controller.leave(one.address)
                assert not (await controller.status(one.address)).neighbours
                await _until(lambda: not other.status().neighbours)
                with pytest.raises(Unavailable) as alone:
                    await controller.join(one.address, [("127.0.0.1", 9)])
                assert alone.value.code == "context.not_joined"

    asyncio.run(scenario())


def test_an_address_may_be_spelled_in_any_way() -> None:
    async def scenario() -> None:
        async def opened(seed: int) -> ContextBroker:
            return await ContextBroker.open(("::1", 0), clock=SystemClock(), chance=Chance(seed))

        try:
            one, other = await opened(1), await opened(2)
        except Unavailable:
            pytest.skip("no IPv6 here")
        spelled = ("0:0:0:0:0:0:0:1", one.address[1])
        assert await other.join([spelled]) == (one.address,)
        async with await ContextController.open([spelled]) as controller:
            assert (await controller.status(spelled)).address == one.status().address
        await other.close()
        await one.close()

    asyncio.run(scenario())


@pytest.mark.slow
def test_where_nobody_answers_that_is_said_within_the_deadline() -> None:
    async def scenario() -> None:
        async with await ContextConsumer.open([("127.0.0.1", 9)]) as consumer:
            with pytest.raises(Unavailable) as nobody:
                await consumer.request("room/r3", "status", within_ms=600)
            assert nobody.value.code == "context.no_broker"
            assert "127.0.0.1:9" in nobody.value.message

    asyncio.run(scenario())


def test_a_program_without_a_loop_provides_and_asks(line_of_brokers: Opening) -> None:
    async def scenario() -> None:
        async with line_of_brokers(1) as (broker,):

            def program() -> None:
                with (
                    BlockingProvider([broker.address], name="station") as provider,
                    BlockingConsumer([broker.address]) as consumer,
                ):
                    provider.update("room/r3", "status", {"n": 1}, valid_for_ms=60_000)
                    assert consumer.request("room/r3", "status").record.values == {"n": 1}
                    records = consumer.subscribe("room/r3", "status")
                    assert next(records).values == {"n": 1}
                    records.close()  # type: ignore[attr-defined]

            await asyncio.to_thread(program)

    asyncio.run(scenario())


async def _until(holds: Any, seconds: float = 5.0) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not holds():
        assert loop.time() < end, "it did not come to pass"
        await asyncio.sleep(0.01)
