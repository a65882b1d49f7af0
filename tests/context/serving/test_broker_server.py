"""A running broker: what it keeps, what it writes down, whom it hears. [CX-8, CX-9]"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rapport.channel.backends.local import open_embedded
from rapport.channel.log.channels import LoggedChannels
from rapport.context.api import (
    ContextBroker,
    ContextConsumer,
    ContextGrant,
    ContextNotFound,
    ContextProvider,
    ContextRecord,
    ContextRights,
    EntityRef,
    history,
)
from rapport.context.audit import AUDIT_CHANNEL
from rapport.core.errors import Conflict, InvalidInput, NotAllowed, Unavailable
from rapport.kernel.clock import Chance, SystemClock
from rapport.transport.keys import DatagramKeys, make_key

ROOM = EntityRef("room", "r3")
ANYWHERE = ("127.0.0.1", 0)
NETWORK, ANA, BEN = (
    make_key("brokers", "network"),
    make_key("ana", "client"),
    make_key("ben", "client"),
)


@asynccontextmanager
async def kept_broker(directory: Path, **options: Any) -> AsyncIterator[ContextBroker]:
    channels = open_embedded(directory, SystemClock())
    options = {"listen": ANYWHERE, "clock": SystemClock(), "chance": Chance(1), **options}
    broker = await ContextBroker.open(channels=channels, **options)
    try:
        yield broker
    finally:
        await broker.close()
        await channels.close()


def a_record(n: int, valid_for_ms: int = 60_000, provider: str = "p") -> ContextRecord:
    now = SystemClock().now_ms()
    return ContextRecord(provider, ROOM, "status", now, now + valid_for_ms, {"n": n})


async def lines_of(directory: Path) -> list[dict[str, Any]]:
    channels = open_embedded(directory, SystemClock())
    found = await channels.channel(AUDIT_CHANNEL).read_after(0)
    await channels.close()
    return [stored.event.payload() for stored in found]


def test_a_restarted_broker_knows_what_is_still_valid_and_nothing_else(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kept_broker(tmp_path) as broker:
            await broker.put(a_record(1))
            await broker.put(a_record(2, valid_for_ms=100, provider="gone"))
            await broker.put(
                ContextRecord("q", EntityRef("room", "r4"), "s", 0, SystemClock().now_ms() + 9_000)
            )
        await asyncio.sleep(0.1)
        async with kept_broker(tmp_path) as broker:
            assert (await broker.ask(ROOM, "status")).record.values == {"n": 1}
            assert broker.status().records == 2

    asyncio.run(scenario())


def test_the_past_can_be_asked_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kept_broker(tmp_path) as broker:
            for n in range(3):
                await broker.put(a_record(n), identity="local")
                await asyncio.sleep(0.003)
            other = ContextRecord(
                "p", ROOM, "light", 0, SystemClock().now_ms() + 9_000, {"on": True}
            )
            await broker.put(other, headers={"cause": "e1"})
        channels: LoggedChannels = open_embedded(tmp_path, SystemClock())
        whole = [past async for past in history(channels, ROOM)]
        assert [past.record.values for past in whole] == [
            {"n": 0},
            {"n": 1},
            {"n": 2},
            {"on": True},
        ]
        assert whole[0].identity == "local"
        only = [past async for past in history(channels, ROOM, "light")]
        assert [past.record for past in only] == [other]
        (stored,) = await channels.channel("context").read_after(3)
        assert stored.event.causes() == ("e1",)
        since, until = whole[1].told, whole[2].told
        part = [past async for past in history(channels, ROOM, since=since, until=until)]
        assert [past.record.values for past in part] == [{"n": 1}]
        assert [past async for past in history(channels, EntityRef("room", "r9"))] == []
        await channels.close()

    asyncio.run(scenario())


def test_an_event_that_is_no_record_hides_none_of_the_past(tmp_path: Path) -> None:
    """Links bring what nodes of another release wrote."""

    async def scenario() -> None:
        async with kept_broker(tmp_path) as broker:
            await broker.put(a_record(1))
            channels = broker._shell.keeping._channels  # type: ignore[union-attr]
            event = a_record(2).to_event(source="elsewhere")
            await channels.channel("context").append(
                [msgspec.structs.replace(event, data=b'{"provider": 7}')]
            )
            await broker.put(a_record(3))
            past = [one.record.values["n"] async for one in history(channels, ROOM)]
        assert past == [1, 3]

    asyncio.run(scenario())


def test_a_put_that_cannot_be_is_refused_and_says_why(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kept_broker(tmp_path, rights=ContextRights({})) as broker:
            with pytest.raises(InvalidInput):
                await broker.put(ContextRecord("", ROOM, "status", 1, 2))
            with pytest.raises(InvalidInput, match="validity is over"):
                await broker.put(ContextRecord("p", ROOM, "status", 1, 2))
            with pytest.raises(NotAllowed):
                await broker.put(a_record(1), identity="eve")
            with pytest.raises(NotAllowed):
                await broker.ask(ROOM, "status", identity="eve")
            with pytest.raises(ContextNotFound):
                await broker.ask(ROOM, "status", within_ms=200)
        refused = [line for line in await lines_of(tmp_path) if line["what"] == "refused"]
        assert [(line["identity"], line["status"]) for line in refused] == [
            ("local", 301),
            ("eve", 401),
            ("eve", 401),
        ]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "values", [{"n": 2**64}, {"n": [{"m": -(2**63) - 1}]}, {"text": "x" * 300_000}]
)
def test_what_no_message_can_carry_is_not_taken(tmp_path: Path, values: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with kept_broker(tmp_path) as broker:
            now = SystemClock().now_ms()
            with pytest.raises(InvalidInput) as refused:
                await broker.put(ContextRecord("p", ROOM, "status", now, now + 60_000, values))
            assert refused.value.code == "context.bad_message"
            assert broker.status().records == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("scope", ["", "s" * 257])
def test_a_question_that_cannot_be_is_refused_and_says_why(scope: str) -> None:
    async def scenario() -> None:
        broker = await ContextBroker.open(ANYWHERE, clock=SystemClock(), chance=Chance(1))
        consumer = await ContextConsumer.open([broker.address])
        with pytest.raises(InvalidInput, match="scope"):
            await broker.ask(ROOM, scope, within_ms=200)
        with pytest.raises(InvalidInput, match="scope"):
            await consumer.request(ROOM, scope, within_ms=200)
        with pytest.raises(InvalidInput, match="scope"):
            await asyncio.wait_for(anext(consumer.subscribe(ROOM, scope)), 0.2)
        await consumer.close()
        await broker.close()

    asyncio.run(scenario())


def test_names_of_any_characters_are_kept_and_audited(tmp_path: Path) -> None:
    async def scenario() -> None:
        odd = EntityRef("room", "a\nb\x00\u202e/\U0001f600")
        now = SystemClock().now_ms()
        record = ContextRecord("p", odd, "s\t", now, now + 60_000, {"\x01": "\x02"})
        async with (
            kept_broker(tmp_path) as broker,
            await ContextConsumer.open([broker.address]) as consumer,
        ):
            with pytest.raises(ContextNotFound):
                await consumer.request(odd, "s\t")
            await broker.put(record)
            assert (await consumer.request(odd, "s\t")).record == record
        async with kept_broker(tmp_path) as broker:
            assert (await broker.ask(odd, "s\t")).record == record
            assert [one.record async for one in history(_channels(broker), odd)] == [record]
        reads = [line for line in await lines_of(tmp_path) if line["what"] == "read"]
        assert {line["entity"] for line in reads} == {str(odd)}

    asyncio.run(scenario())


def _channels(broker: ContextBroker) -> Any:
    assert broker._shell.keeping is not None
    return broker._shell.keeping._channels


def test_reads_are_summed_up_and_updates_named_by_their_places(tmp_path: Path) -> None:
    async def scenario() -> None:
        keys = DatagramKeys([NETWORK, ANA, BEN])
        async with kept_broker(tmp_path, keys=keys) as broker:
            provider = await ContextProvider.open([broker.address], keys=DatagramKeys([ANA]))
            consumer = await ContextConsumer.open([broker.address], keys=DatagramKeys([BEN]))
            async with provider, consumer:
                await provider.update(ROOM, "status", {"n": 1}, valid_for_ms=60_000)
                for _ in range(5):
                    await consumer.request(ROOM, "status")
        lines = await lines_of(tmp_path)
        (write,) = [line for line in lines if line["what"] == "write"]
        assert (write["identity"], write["positions"], write["count"]) == ("ana", [1, 1], 1)
        (read,) = [line for line in lines if line["what"] == "read"]
        assert (read["identity"], read["entity"], read["count"]) == ("ben", "room/r3", 5)

    asyncio.run(scenario())


@pytest.mark.slow
def test_who_waits_for_a_broker_that_closes_waits_no_longer(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kept_broker(tmp_path) as broker:
            await broker.put(a_record(1))
            broker.machine.adopt([("127.0.0.1", 9)], broker._shell.now())
            asking = asyncio.create_task(broker.ask(EntityRef("room", "r9"), "s", within_ms=60_000))
            await asyncio.sleep(0.01)
            await broker.close()
            with pytest.raises(asyncio.CancelledError):
                await asking
            with pytest.raises(Conflict):
                await broker.put(a_record(2))

    asyncio.run(scenario())


def test_a_record_larger_than_a_datagram_is_sent_and_found(tmp_path: Path) -> None:
    async def scenario() -> None:
        keys = DatagramKeys([NETWORK, ANA])
        async with kept_broker(tmp_path, keys=keys) as broker:
            provider = await ContextProvider.open([broker.address], keys=DatagramKeys([ANA]))
            consumer = await ContextConsumer.open([broker.address], keys=DatagramKeys([ANA]))
            async with provider, consumer:
                values = {f"sensor {n}": "x" * 1_000 for n in range(50)}
                await provider.update(ROOM, "status", values, valid_for_ms=60_000)
                assert (await consumer.request(ROOM, "status")).record.values == values
                with pytest.raises(InvalidInput):
                    await provider.update(
                        ROOM, "status", {"x": "x" * 1_000_000}, valid_for_ms=60_000
                    )

    asyncio.run(scenario())


@pytest.mark.slow
def test_without_the_key_nobody_is_heard() -> None:
    async def scenario() -> None:
        keys = DatagramKeys([NETWORK, ANA])
        broker = await ContextBroker.open(
            ANYWHERE, clock=SystemClock(), chance=Chance(1), keys=keys
        )
        for ring in (None, DatagramKeys([make_key("eve", "client")])):
            eve = await ContextConsumer.open([broker.address], keys=ring)
            with pytest.raises(Unavailable) as unheard:
                await eve.request(ROOM, "status", within_ms=300)
            assert unheard.value.code == "context.no_broker"
            await eve.close()
        status = broker.status()
        assert status.counters["messages_received"] == 0
        assert status.counters["messages_sent"] == 0
        assert status.counters["datagrams_foreign"] >= 1
        assert status.counters["datagrams_unknown_key"] >= 1
        ana = await ContextConsumer.open([broker.address], keys=DatagramKeys([ANA]))
        with pytest.raises(ContextNotFound):
            await ana.request(ROOM, "status", within_ms=500)
        await ana.close()
        await broker.close()

    asyncio.run(scenario())


def test_rights_hold_for_each_identity_on_the_wire() -> None:
    async def scenario() -> None:
        rights = ContextRights(
            {
                "ana": ContextGrant(write=("room/* status",)),
                "ben": ContextGrant(read=("room/* status",)),
            }
        )
        broker = await ContextBroker.open(
            ANYWHERE,
            clock=SystemClock(),
            chance=Chance(1),
            keys=DatagramKeys([NETWORK, ANA, BEN]),
            rights=rights,
        )
        ana = await ContextProvider.open([broker.address], keys=DatagramKeys([ANA]))
        ben = await ContextConsumer.open([broker.address], keys=DatagramKeys([BEN]))
        eve = await ContextProvider.open([broker.address], keys=DatagramKeys([BEN]), name="p")
        async with ana, ben, eve:
            await ana.update(ROOM, "status", {}, valid_for_ms=60_000)
            await ben.request(ROOM, "status")
            with pytest.raises(NotAllowed):
                await ana.update(ROOM, "light", {}, valid_for_ms=60_000)
            with pytest.raises(NotAllowed):
                await eve.update(ROOM, "status", {}, valid_for_ms=60_000)
            with pytest.raises(NotAllowed):
                await ben.request(ROOM, "light")
            with pytest.raises(NotAllowed):
                async for _record in ben.subscribe(ROOM, "light"):
                    pass
        await broker.close()

    asyncio.run(scenario())


def test_who_gets_or_loses_a_key_of_the_network_controls_or_does_not() -> None:
    async def scenario() -> None:
        south, west = make_key("south", "network"), make_key("west", "network")
        ring = DatagramKeys([NETWORK, west], own="brokers")
        broker = await ContextBroker.open(
            ANYWHERE, clock=SystemClock(), chance=Chance(1), keys=ring
        )
        client = make_key("west", "client")
        ring.replace_with(DatagramKeys([NETWORK, south, client], own="brokers"))
        assert broker.rights.allows("south", "control", None, "")
        assert not broker.rights.allows("west", "control", None, "")
        assert broker.rights.allows("west", "write", ROOM, "status")
        await broker.close()

    asyncio.run(scenario())


def test_an_address_that_others_reach_needs_keys() -> None:
    async def scenario() -> None:
        with pytest.raises(InvalidInput) as bare:
            await ContextBroker.open(("192.0.2.1", 0), clock=SystemClock(), chance=Chance(1))
        assert bare.value.code == "context.no_keys"
        assert "rapport context keys make" in bare.value.hint
        with pytest.raises(InvalidInput) as far:
            await ContextConsumer.open([("192.0.2.1", 7411)])
        assert far.value.code == "context.no_keys"
        with pytest.raises(InvalidInput) as every:
            await ContextBroker.open(("0.0.0.0", 0), clock=SystemClock(), chance=Chance(1))
        assert every.value.code == "context.bad_address"

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_restarted_broker_finds_its_way_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        other = await ContextBroker.open(ANYWHERE, clock=SystemClock(), chance=Chance(2))
        async with kept_broker(tmp_path) as broker:
            await broker.join([other.address])
        async with kept_broker(tmp_path) as broker:
            for _ in range(300):
                if broker.status().neighbours:
                    break
                await asyncio.sleep(0.01)
            assert [one.address for one in broker.status().neighbours] == [other.status().address]
        await other.close()

    asyncio.run(scenario())


async def _addresses(count: int) -> list[tuple[str, int]]:
    """Addresses where nobody listens now."""
    brokers = [
        await ContextBroker.open(ANYWHERE, clock=SystemClock(), chance=Chance(3))
        for _ in range(count)
    ]
    for broker in brokers:
        await broker.close()
    return [broker.address for broker in brokers]


@pytest.mark.slow
@pytest.mark.parametrize("wait_s", [0.0, 1.0], ids=["in the middle of a try", "between tries"])
def test_who_was_commanded_to_leave_does_not_go_on_joining(
    monkeypatch: pytest.MonkeyPatch, wait_s: float
) -> None:
    monkeypatch.setattr("rapport.context.broker_server._JOIN_AGAIN_MS", 1_500)

    async def scenario() -> None:
        (place,) = await _addresses(1)
        broker = await ContextBroker.open(ANYWHERE, clock=SystemClock(), chance=Chance(1))
        broker.keep_joining([place])
        await asyncio.sleep(wait_s)
        await broker.leave()
        other = await ContextBroker.open(place, clock=SystemClock(), chance=Chance(2))
        await asyncio.sleep(2.5)
        assert broker.has_left
        assert not broker.status().neighbours
        broker.keep_joining([place])  # who wants it again says so
        for _ in range(500):
            if broker.status().neighbours:
                break
            await asyncio.sleep(0.01)
        assert broker.status().neighbours
        await other.close()
        await broker.close()

    asyncio.run(scenario())


def test_a_forged_update_is_refused_and_audited_also_after_a_restart(tmp_path: Path) -> None:
    def ring(*keys: Any) -> DatagramKeys:
        return DatagramKeys(keys)

    async def forge(broker: ContextBroker) -> None:
        forging = await ContextProvider.open([broker.address], name="door", keys=ring(BEN))
        async with forging as ben:
            with pytest.raises(NotAllowed, match="another key"):
                await ben.update(ROOM, "status", {"open": False}, valid_for_ms=60_000)
        assert (await broker.ask(ROOM, "status")).record.values == {"open": True}

    async def scenario() -> None:
        keys = ring(NETWORK, ANA, BEN)
        async with kept_broker(tmp_path, keys=keys) as broker:
            telling = await ContextProvider.open([broker.address], name="door", keys=ring(ANA))
            async with telling as ana:
                await ana.update(ROOM, "status", {"open": True}, valid_for_ms=60_000)
            await forge(broker)
        async with kept_broker(tmp_path, keys=keys) as broker:
            await forge(broker)
            await broker.put(a_record(7, provider="door"))  # the broker's own process may
        async with kept_broker(tmp_path, keys=keys) as broker:
            assert broker.machine.ownership.owner(("door", "room", "r3", "status")) == "ana"
        refused = [one for one in await lines_of(tmp_path) if one["what"] == "refused"]
        assert [(one["identity"], one["why"], one["status"]) for one in refused] == [
            ("ben", "overwrite", 401)
        ] * 2
        assert refused[0]["entity"] == "room/r3"

    asyncio.run(scenario())


def test_records_of_before_owners_belong_to_who_tells_them_next(tmp_path: Path) -> None:
    async def scenario() -> None:
        channels = open_embedded(tmp_path, SystemClock())
        await channels.channel("context").append([a_record(1).to_event(source="context")])
        await channels.close()
        async with kept_broker(tmp_path, keys=DatagramKeys([NETWORK, ANA, BEN])) as broker:
            await asyncio.sleep(0.002)
            await broker.put(a_record(2), identity="ana")
            await asyncio.sleep(0.002)
            with pytest.raises(NotAllowed):
                await broker.put(a_record(3), identity="ben")

    asyncio.run(scenario())
