"""Sealed texts can be read by the peer they are for, and by nobody on the way."""

from __future__ import annotations

import asyncio

from rapport.communication.adapters.base import Delivery, Failed, Outcome, Sent, adapter
from rapport.communication.adapters.factory import SealingAdapter, with_seals
from rapport.communication.peers import address_fault
from rapport.communication.sessions.seals import FRESH_MS, from_text, open_text
from rapport.communication.sessions.sessions import Sessions
from rapport.kernel.clock import ManualClock
from rapport.store.memory import MemoryRecordStore

NOON = 1_772_452_800_000
TEXT = "the code of the gate is 4711"


@adapter("carrier")
class Carrier:
    """Keeps what it is handed."""

    name = "carrier"
    seals = True

    def __init__(self) -> None:
        self.sent: list[Delivery] = []
        self.closed = False

    async def send(self, delivery: Delivery) -> Outcome:
        self.sent.append(delivery)
        return Sent()

    async def close(self) -> None:
        self.closed = True


def delivery(address: str) -> Delivery:
    return Delivery(message="m1", peer="ana", address=address, attempt=1, text=TEXT)


def test_a_sealed_text_is_opened_by_its_peer_only():
    async def scenario():
        clock = ManualClock(NOON)
        sessions = Sessions(MemoryRecordStore(), clock)
        ana, ben = await sessions.begin("ana"), await sessions.begin("ben")
        carrier = Carrier()
        sealed = with_seals(carrier, sessions, clock)
        assert isinstance(sealed, SealingAdapter)
        assert await sealed.send(delivery("carrier:roof;sealed")) == Sent()
        [sent] = carrier.sent
        assert (sent.address, sent.message) == ("carrier:roof", "m1")
        assert "4711" not in sent.text
        key = from_text(ana.seal_key)
        assert open_text(key, "m1", "ana", sent.text, NOON) == TEXT
        assert open_text(key, "m2", "ana", sent.text, NOON) is None
        assert open_text(key, "m1", "ana", sent.text + "x", NOON) is None
        assert open_text(key, "m1", "ana", sent.text, NOON + FRESH_MS + 1) is None
        assert open_text(key, "m1", "ana", TEXT, NOON) is None
        assert open_text(from_text(ben.seal_key), "m1", "ana", sent.text, NOON) is None

    asyncio.run(scenario())


def test_two_deliveries_of_one_text_look_different():
    async def scenario():
        clock = ManualClock(NOON)
        sessions = Sessions(MemoryRecordStore(), clock)
        await sessions.begin("ana")
        carrier = Carrier()
        for _ in range(2):
            await with_seals(carrier, sessions, clock).send(delivery("carrier:roof;sealed"))
        assert carrier.sent[0].text != carrier.sent[1].text

    asyncio.run(scenario())


def test_without_an_open_session_nothing_goes_out_unsealed():
    async def scenario():
        clock = ManualClock(NOON)
        sessions = Sessions(MemoryRecordStore(), clock)
        opened = await sessions.begin("ana")
        await sessions.end(opened.token)
        carrier = Carrier()
        outcome = await with_seals(carrier, sessions, clock).send(delivery("carrier:roof;sealed"))
        assert isinstance(outcome, Failed)
        assert outcome.retry
        assert carrier.sent == []

    asyncio.run(scenario())


def test_other_addresses_and_other_adapters_are_left_alone():
    async def scenario():
        clock = ManualClock(NOON)
        sessions = Sessions(MemoryRecordStore(), clock)
        carrier = Carrier()
        sealed = with_seals(carrier, sessions, clock)
        await sealed.send(delivery("carrier:roof"))
        assert carrier.sent == [delivery("carrier:roof")]
        await sealed.close()
        assert carrier.closed
        plain = Carrier()
        plain.seals = False
        assert with_seals(plain, sessions, clock) is plain

    asyncio.run(scenario())


def test_an_address_cannot_ask_for_seals_that_its_adapter_does_not_carry():
    known = ("mail", "webhook", "mqtt", "inbox", "apprise")
    for address in ("webhook:https://example.org/hook;sealed", "mqtt:phones/ana;sealed"):
        assert address_fault(address, known) is None
    for address in ("mail:ana@example.org;sealed", "inbox:;sealed", "apprise:alarms;sealed"):
        fault = address_fault(address, known)
        assert fault is not None
        assert fault.code == "peer.cannot_seal"
