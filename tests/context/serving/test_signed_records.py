"""Records that nobody but their provider can write, at any broker. [CX-9]"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from rapport.context.broker.broker_machine import BrokerMachine
from rapport.context.broker.broker_settings import BrokerSettings
from rapport.context.clients.consumer import ContextConsumer
from rapport.context.clients.provider import ContextProvider
from rapport.context.protocol import (
    NOT_ALLOWED,
    PROCESSED,
    FoundRecord,
    Put,
    Status,
    decode,
    encode,
)
from rapport.context.rights import is_genuine, sign_record, signed_name
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.errors import NotAllowed
from rapport.kernel.clock import Chance, Now
from rapport.kernel.signing_keys import SigningKey
from rapport.transport.base import Sender
from rapport.transport.keys import DatagramKeys, make_key

ROOM = EntityRef("room", "r3")
NOW = Now(1_000_000, 50.0)
KEY = SigningKey.new()
NAME = signed_name("station", KEY)


def record_of(provider: str, **values: Any) -> ContextRecord:
    return ContextRecord(provider, ROOM, "status", 999_000, 2_000_000, values)


def put(broker: BrokerMachine, record: ContextRecord, identity: str) -> int:
    broker.outbox.clear()
    broker.handle(Put(1, record), Sender(("c", 9), identity, "client"), NOW)
    status = broker.outbox[-1][0]
    assert isinstance(status, Status)
    return status.status


def machine() -> BrokerMachine:
    return BrokerMachine(("b", 1), BrokerSettings(), Chance(1))


def test_a_broker_that_never_met_the_provider_refuses_its_forged_record() -> None:
    forged = record_of(NAME, n=1)
    other = sign_record(forged, SigningKey.new())
    changed = msgspec.structs.replace(sign_record(forged, KEY), values={"n": 2})
    for bad in (forged, other, changed, msgspec.structs.replace(forged, proof=b"x" * 96)):
        broker = machine()
        assert put(broker, bad, "eve") == NOT_ALLOWED  # although eve may take over everything
        assert broker.counts["forged"] == 1
        assert len(broker.table) == 0


def test_a_signed_record_is_taken_at_every_broker_whoever_brings_it() -> None:
    for identity in ("station", "relay"):
        assert put(machine(), sign_record(record_of(NAME, n=1), KEY), identity) == PROCESSED


def test_a_forged_record_that_another_broker_sends_is_dropped() -> None:
    broker = machine()
    found = FoundRecord(1, 0, 1, record_of(NAME, n=1), (("b", 1),), (0,), ("b", 2))
    broker.handle(found, Sender(("b", 2), "brokers", "network"), NOW)
    assert broker.counts["forged"] == 1


def test_only_the_owner_of_a_key_provides_under_the_owners_name() -> None:
    def may(identity: str, right: str, _entity: object, _scope: str) -> bool:
        return right != "take_over" or identity == "admin"

    for identity, expected in (("eve", NOT_ALLOWED), ("gate", PROCESSED), ("admin", PROCESSED)):
        broker = BrokerMachine(("b", 1), BrokerSettings(), Chance(1), allows=may)
        broker.reserve_names(lambda name: name in ("gate", "eve"))
        assert put(broker, record_of("gate", n=1), identity) == expected
        assert put(broker, record_of("any other name", n=1), identity) == PROCESSED


def test_a_signature_survives_the_wire_and_the_log() -> None:
    signed = sign_record(record_of(NAME, n=1.0, open=True, at=[1, "two", None]), KEY)
    sent = decode(encode(Put(1, signed)))
    assert isinstance(sent, Put)
    assert is_genuine(sent.record)
    stored = ContextRecord.from_event(sent.record.to_event(source="broker"))
    assert stored == signed
    assert is_genuine(stored)


def test_old_brokers_read_signed_records_and_old_records_are_read_as_before() -> None:
    class OldRecord(msgspec.Struct, frozen=True, array_like=True):
        provider: str
        entity: EntityRef
        scope: str
        valid_from: int
        valid_until: int
        values: dict[str, Any]

    signed = sign_record(record_of(NAME, n=1), KEY)
    old = msgspec.msgpack.decode(msgspec.msgpack.encode(signed), type=OldRecord)
    assert (old.provider, old.values) == (NAME, {"n": 1})
    plain = OldRecord("p", ROOM, "status", 999_000, 2_000_000, {"n": 1})
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(plain), type=ContextRecord)
    assert read == record_of("p", n=1)
    assert read.to_event(source="b").data == (
        b'{"provider":"p","type":"room","id":"r3","scope":"status",'
        b'"valid_from":999000,"valid_until":2000000,"values":{"n":1}}'
    )


def test_over_sockets_a_signed_provider_is_answered_and_its_forger_is_refused(
    line_of_brokers: Any,
) -> None:
    gate, eve = make_key("gate", "client"), make_key("eve", "client")
    network = make_key("brokers", "network")
    ring = DatagramKeys([network, gate, eve], own="brokers")

    async def scenario() -> None:
        async with line_of_brokers(2, keys=ring) as brokers:
            first, second = ([broker.address] for broker in brokers)
            provider = await ContextProvider.open(first, keys=DatagramKeys([gate]), signing=KEY)
            forger = await ContextProvider.open(
                second, keys=DatagramKeys([eve]), name=provider.name
            )
            consumer = await ContextConsumer.open(second, keys=DatagramKeys([eve]))
            async with provider, forger, consumer:
                with pytest.raises(NotAllowed, match="another key"):
                    await forger.update(ROOM, "status", {"n": 2}, valid_for_ms=60_000)
                await provider.update(ROOM, "status", {"n": 1}, valid_for_ms=60_000)
                found = await consumer.request(ROOM, "status")
                assert found.record.values == {"n": 1}
                assert is_genuine(found.record)
                forger.name = "gate"  # the owner of a key
                with pytest.raises(NotAllowed, match="another key"):
                    await forger.update(ROOM, "door", {"n": 2}, valid_for_ms=60_000)

    asyncio.run(asyncio.wait_for(scenario(), 30))
