"""A client that knows only Appendix A (sockets and texts, none of our code) talks to a broker that
runs. [CX-2, CX-3]
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from rapport.channel.backends.local import open_memory
from rapport.context.broker.broker_state import AuditEffect
from rapport.context.broker_server import ContextBroker
from rapport.context.rights import ContextRights
from rapport.context.v0.v0_state import V0Settings
from rapport.context.v0_endpoint import V0Endpoint
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.errors import InvalidInput
from rapport.kernel.clock import Chance, SystemClock


class Stranger:
    """Written from the appendix alone."""

    def __init__(self, broker: tuple[str, int]) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.settimeout(5)
        self.broker = broker

    def close(self) -> None:
        self.socket.close()

    def tell(self, *fields: object) -> None:
        header, *rest = fields
        text = "|".join(str(field) for field in (header, self.now(), *rest))
        self.socket.sendto(text.encode("ascii"), self.broker)

    def hear(self) -> list[str]:
        data, _ = self.socket.recvfrom(65536)
        return data.decode("ascii").split("|")

    def advertise(self, flag: str, values: str, *, age_ms: int = 0) -> list[list[str]]:
        begin = self.now() - age_ms
        self.tell(
            2, len(values), flag, "station-7", "city", "porto-alegre", "weather",
            begin, begin + 60_000, values,
        )  # fmt: skip
        return [self.hear(), self.hear()]

    def request(self, entity: str = "porto-alegre") -> list[list[str]]:
        self.tell(3, "city", entity, "weather")
        return [self.hear(), self.hear()]

    @staticmethod
    def now() -> int:
        return int(time.time() * 1000)


def talk(
    conversation: Callable[[Stranger, Any], None],
    *,
    prepare: Callable[[ContextBroker], Any] | None = None,
    settings: V0Settings | None = None,
    audit: Callable[[AuditEffect], None] | None = None,
) -> None:
    """A broker with a door in this thread, the stranger in another."""

    async def scenario() -> None:
        clock, chance = SystemClock(), Chance(1)
        broker = await ContextBroker.open(("127.0.0.1", 0), clock=clock, chance=chance)
        door = await V0Endpoint.open(
            ("127.0.0.1", 0),
            broker,
            clock=clock,
            chance=chance,
            allows=ContextRights.of_this_machine().allows,
            settings=settings,
            audit=audit,
        )
        stranger = Stranger(door.address)
        try:
            if prepare is not None:
                await prepare(broker)
            await asyncio.to_thread(conversation, stranger, door)
        finally:
            stranger.close()
            await door.close()
            await door.close()
            await broker.close()

    asyncio.run(scenario())


def test_a_stranger_advertises_updates_and_requests() -> None:
    def conversation(stranger: Stranger, _door: V0Endpoint) -> None:
        received, processed = stranger.advertise("A", "temperature=31.5;humidity=18%", age_ms=1_000)
        operation = ["Operation Context Update/Advertisement", "Requested by 127.0.0.1"]
        assert received[0] == "5"
        assert received[2:] == ["ACK", "Status:101", *operation]
        assert processed[2:] == ["ACK", "Status:102", *operation]

        received, response = stranger.request()
        asked = ["ACK", "Status:101", "Operation Context Request", "Requested by 127.0.0.1"]
        assert received[2:] == asked
        assert (response[0], response[2]) == ("4", "29")
        assert response[3:7] == ["station-7", "city", "porto-alegre", "weather"]
        assert response[9:] == ["temperature=31.5;humidity=18%"]

        stranger.advertise("U", "temperature=32.0;humidity=17%")
        assert stranger.request()[1][9:] == ["temperature=32.0;humidity=17%"]

    talk(conversation)


def test_a_stranger_pings_and_is_refused_what_is_not_there() -> None:
    def conversation(stranger: Stranger, _door: V0Endpoint) -> None:
        stranger.tell(1)
        answer = stranger.hear()
        assert answer[0] == "9"
        assert answer[2:] == ["Ctx_Broker", "127.0.0.1"]
        received, refused = stranger.request("pelotas")
        assert received[3] == "Status:101"
        assert refused[:1] + refused[2:4] == ["6", "NACK", "Status:202"]
        stranger.tell(3, "city")
        assert stranger.hear()[3] == "Status:301"

    talk(conversation)


def test_a_stranger_reads_what_v1_received_and_the_other_way_round() -> None:
    told: list[AuditEffect] = []
    room = EntityRef("city", "porto-alegre")

    async def prepare(broker: ContextBroker) -> None:
        begin = SystemClock().now_ms()
        values = {"temperature": 30.5, "alert": True}
        await broker.put(ContextRecord("v1", room, "weather", begin, begin + 60_000, values))

    def conversation(stranger: Stranger, _door: V0Endpoint) -> None:
        assert stranger.request()[1][9:] == ["temperature=30.5;alert=true"]

    talk(conversation, prepare=prepare, audit=told.append)
    assert [(one.what, one.identity, one.status) for one in told] == [("request", "v0", 102)]


def test_what_only_another_broker_of_the_v1_network_has_is_found() -> None:
    async def scenario() -> None:
        clock, chance = SystemClock(), Chance(1)
        brokers = [
            await ContextBroker.open(("127.0.0.1", 0), clock=clock, chance=Chance(number))
            for number in range(3)
        ]
        first, *others = brokers
        for one in others:
            await one.join([first.address])
        door = await V0Endpoint.open(
            ("127.0.0.1", 0), first, clock=clock, chance=chance, allows=lambda *_asked: True
        )
        stranger = Stranger(door.address)
        begin = clock.now_ms()
        city = EntityRef("city", "porto-alegre")
        await brokers[2].put(
            ContextRecord("far", city, "weather", begin, begin + 60_000, {"temperature": "29"})
        )
        answers = await asyncio.to_thread(stranger.request)
        assert answers[1][9:] == ["temperature=29"]
        stranger.close()
        await door.close()
        for one in brokers:
            await one.close()

    asyncio.run(scenario())


def test_hosts_that_the_site_does_not_name_hear_nothing() -> None:
    def conversation(stranger: Stranger, door: V0Endpoint) -> None:
        stranger.socket.settimeout(0.1)
        stranger.tell(1)
        with pytest.raises(TimeoutError):
            stranger.hear()
        assert door.machine.counters.withheld == 1

    nobody = V0Settings(clients=("10.0.0.1",), brokers=(), controllers=())
    talk(conversation, settings=nobody)


def test_a_door_needs_one_address() -> None:
    async def scenario() -> None:
        clock, chance = SystemClock(), Chance(1)
        broker = await ContextBroker.open(("127.0.0.1", 0), clock=clock, chance=chance)
        with pytest.raises(InvalidInput) as caught:
            await V0Endpoint.open(
                ("0.0.0.0", 0), broker, clock=clock, chance=chance, allows=lambda *_asked: True
            )
        assert caught.value.code == "context.bad_address"
        await broker.close()

    asyncio.run(scenario())


def test_a_strangers_update_is_on_disk_when_the_second_ack_comes() -> None:
    async def scenario() -> None:
        clock, chance = SystemClock(), Chance(1)
        channels = open_memory(clock)
        broker = await ContextBroker.open(
            ("127.0.0.1", 0), clock=clock, chance=chance, channels=channels
        )
        door = await V0Endpoint.open(
            ("127.0.0.1", 0), broker, clock=clock, chance=chance, allows=lambda *_asked: True
        )
        stranger = Stranger(door.address)
        answers = await asyncio.to_thread(stranger.advertise, "A", "temperature=31.5")
        assert [answer[3] for answer in answers] == ["Status:101", "Status:102"]
        [stored] = await channels.channel("context").read_after(0)
        record = ContextRecord.from_event(stored.event)
        assert (record.provider, record.values) == ("station-7", {"temperature": "31.5"})
        stranger.close()
        await door.close()
        await broker.close()
        await channels.close()

    asyncio.run(scenario())


def test_a_strangers_controller_joins_two_doors_and_a_request_walks_between_them() -> None:
    async def scenario() -> None:
        clock = SystemClock()
        brokers = [
            await ContextBroker.open(("127.0.0.1", 0), clock=clock, chance=Chance(number))
            for number in range(2)
        ]
        doors = [
            await V0Endpoint.open(
                ("127.0.0.1", 0), one, clock=clock, chance=Chance(7), allows=lambda *_asked: True
            )
            for one in brokers
        ]
        near, far = (Stranger(door.address) for door in doors)
        await asyncio.to_thread(far.advertise, "A", "temperature=27")

        near.tell(8, f"127.0.0.1:{doors[1].address[1]}")
        told = [await asyncio.to_thread(near.hear) for _ in range(2)]
        assert [answer[3:5] for answer in told] == [
            ["Status:101", "Operation BrokerJoining"],
            ["Status:102", "Operation BrokerJoining"],
        ]
        assert doors[1].machine.neighbours == (doors[0].address,)
        _received, response = await asyncio.to_thread(near.request)
        assert response[9:] == ["temperature=27"]
        assert doors[0].machine.counters.replicated == 1
        for stranger in (near, far):
            stranger.close()
        for closing in (*doors, *brokers):
            await closing.close()

    asyncio.run(scenario())
