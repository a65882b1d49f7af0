"""MQTT in against a real broker: nothing is acknowledged that is not durable here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.backends.local import open_memory
from rapport.channel.mqtt.bridge import Broker, Packet
from rapport.channel.mqtt.client import ReceivedPacket
from rapport.communication.adapters import mqtt
from rapport.communication.adapters.input_base import (
    SHOWN_TEXT,
    AdapterState,
    DeadLetterInput,
    dead_letter_inputs,
    drop_input,
)
from rapport.communication.adapters.mqtt import (
    ASIDE_RATE,
    MOST_ASIDE,
    PACKETS,
    REMEMBERED,
    MqttInput,
    MqttInputSettings,
    PacketIds,
    TopicPattern,
    read_packet,
    rejected_packet,
)
from rapport.core.errors import InvalidInput, Unavailable
from rapport.core.message import Message
from rapport.kernel.clock import ManualClock, SystemClock
from rapport.kernel.tasks import Tasks
from rapport.store.memory import MemoryRecordStore
from support.servers.mqtt import Device
from support.servers.nats import NatsServer


class Taken:
    """What became of one message."""

    def __init__(self, id: str, reason: str = "") -> None:
        self.id, self.accepted, self.reason = id, not reason, reason
        self.why, self.fault = reason, None


class Channel:
    """The way in, with the one promise that matters: an id that it has is dropped."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = AdapterState(name, MemoryRecordStore())
        self.stored: dict[str, Message] = {}
        self.refused: dict[str, str] = {}
        self.failures = 0
        self._tasks = Tasks(SystemClock())
        self._grew = asyncio.Event()

    async def publish(self, messages: Sequence[Message]) -> list[Taken]:
        if self.failures:
            self.failures -= 1
            raise Unavailable("the disk is full")
        for message in messages:
            if message.content not in self.refused:
                self.stored.setdefault(message.id, message)
        self._grew.set()
        return [Taken(one.id, self.refused.get(one.content, "")) for one in messages]

    __call__ = publish

    def schedule(self, work, *, name=""):
        self._tasks.start(name, work)

    async def stop(self) -> None:
        await self._tasks.stop()

    def contents(self) -> list[str]:
        return [message.content for message in self.stored.values()]

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.stored) < count:
                self._grew.clear()
                await self._grew.wait()


def settings_for(broker: NatsServer, name: str) -> MqttInputSettings:
    return MqttInputSettings(
        broker=Broker(host="127.0.0.1", port=broker.mqtt_port),
        client=f"rapport-{name}",
        topics=(
            TopicPattern(topic=f"{name}/messages"),
            TopicPattern(topic=f"{name}/{{peer}}/said/{{refers_to}}", is_text=True, type="REPLY"),
        ),
    )


async def until(condition: Callable[[], bool], *, seconds: int = 20) -> None:
    for _ in range(seconds * 50):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come about")


async def started(
    settings: MqttInputSettings, channel: Channel, set_aside: DeadLetterInput = drop_input
) -> MqttInput:
    adapter = MqttInput(settings, set_aside=set_aside)
    await adapter.start(channel)
    await until(lambda: not adapter.trouble)
    await asyncio.sleep(0.2)  # the broker's answer to the subscription
    return adapter


async def ended(adapter: MqttInput, channel: Channel) -> None:
    await channel.stop()
    await adapter.stop()


def said(content: str) -> dict[str, str]:
    return {"type": "T", "subtype": "S", "sender": "peer:ana", "content": content}


def test_messages_and_plain_words_of_a_topic_arrive(mqtt_broker, mqtt_name):
    async def scenario(device: Device):
        channel = Channel("panels")
        adapter = await started(settings_for(mqtt_broker, mqtt_name), channel)
        device.publish(f"{mqtt_name}/messages", said("hello") | {"id": "own-id"})
        device.publish(f"{mqtt_name}/ben/said/m7", "on my way ☃".encode())
        device.publish(f"{mqtt_name}/messages", b"not a message")
        device.publish(f"{mqtt_name}/ben/said/m8", b"\xff")
        device.publish(f"{mqtt_name}/messages", said("last"))
        await channel.wait_for(3)
        await ended(adapter, channel)
        first, second, _third = channel.stored.values()
        assert (first.id, first.content) == ("own-id", "hello")
        assert (str(second.sender), second.refers_to) == ("peer:ben", "m7")
        assert (second.type, second.content) == ("REPLY", "on my way ☃")
        assert adapter.refused == 2

    with Device(mqtt_broker.mqtt_port, client_id=f"d-{mqtt_name}") as device:
        asyncio.run(scenario(device))


def test_what_is_no_message_or_is_refused_becomes_a_dead_letter_with_the_reason(
    mqtt_broker, mqtt_name
):
    async def scenario(device: Device):
        channels = open_memory(SystemClock())
        channel = Channel("panels")
        channel.refused = {"heavy": "message.bad_content: it weighs too much"}
        aside = dead_letter_inputs("panels", channels, SystemClock())
        adapter = await started(settings_for(mqtt_broker, mqtt_name), channel, aside)
        device.publish(f"{mqtt_name}/messages", b"not a message")
        device.publish(f"{mqtt_name}/ben/said/m8", b"\xff")
        device.publish(f"{mqtt_name}/messages", said("heavy"))
        device.publish(f"{mqtt_name}/messages", said("last"))
        await channel.wait_for(1)
        await until(lambda: adapter.refused == 3)
        letters = await channels.channel("dead_letters").read_after(0)
        failures = [one.event.payload() for one in letters]
        assert [one["code"] for one in failures] == [
            "message.not_a_message",
            "message.not_a_message",
            "input.not_accepted",
        ]
        assert {one["reader"] for one in failures} == {"input.panels"}
        first, _second, third = [one["event"]["data"] for one in failures]
        assert (first["subject"], first["text"]) == (f"{mqtt_name}/messages", "not a message")
        assert 'a message needs "type"' in first["reason"]
        assert third["reason"] == "message.bad_content: it weighs too much"
        await ended(adapter, channel)

    with Device(mqtt_broker.mqtt_port, client_id=f"d-{mqtt_name}") as device:
        asyncio.run(scenario(device))


def test_a_packet_that_is_no_message_has_one_dead_letter_however_often_it_comes():
    error = InvalidInput("no", code="message.not_a_message")
    known, kept = PacketIds(), Packet(topic="t", payload=b"x", number=0, retained=True)
    assert known.id_for(kept, "a") == known.id_for(kept, "b")
    sent = Packet(topic="t", payload=b"x" * 5_000, number=1)
    assert rejected_packet(sent, "a", error) != rejected_packet(sent, "b", error)
    assert len(rejected_packet(sent, "a", error).text) == SHOWN_TEXT


def test_a_flood_of_nonsense_fills_no_disk():
    async def scenario():
        kept, clock = [], ManualClock(0)

        async def keep(found):
            kept.append(found)

        nowhere = MqttInputSettings(broker=Broker(host="h", port=1883), client="c")
        adapter = MqttInput(nowhere, clock, keep)
        adapter._intake = Channel("panels")
        packets = [Packet(topic="t", payload=b"?", number=one) for one in range(3_000)]
        await adapter._process([ReceivedPacket(packet, 1) for packet in packets])
        assert (adapter.refused, len(kept)) == (3_000, MOST_ASIDE)
        await clock.advance(1_000)
        await adapter._process([ReceivedPacket(packet, 1) for packet in packets])
        assert len(kept) == MOST_ASIDE + ASIDE_RATE

    asyncio.run(scenario())


def test_what_comes_while_we_are_away_waits_at_the_broker(mqtt_broker, mqtt_name):
    async def scenario(device: Device):
        channel = Channel("panels")
        where = settings_for(mqtt_broker, mqtt_name)
        await ended(await started(where, channel), channel)
        for number in range(20):
            device.publish(f"{mqtt_name}/messages", said(str(number)))
        adapter = await started(where, channel)
        await channel.wait_for(20)
        await ended(adapter, channel)
        assert channel.contents() == [str(number) for number in range(20)]

    with Device(mqtt_broker.mqtt_port, client_id=f"d-{mqtt_name}") as device:
        asyncio.run(scenario(device))


def test_a_message_is_not_acknowledged_before_it_is_durable(mqtt_broker, mqtt_name):
    """The adapter ends while the store refuses: the broker gives the message again."""

    async def scenario(device: Device):
        channel = Channel("panels")
        channel.failures = 1_000
        where = settings_for(mqtt_broker, mqtt_name)
        adapter = await started(where, channel)
        device.publish(f"{mqtt_name}/messages", said("patience"))
        await until(lambda: channel.failures < 1_000)
        await ended(adapter, channel)
        assert channel.stored == {}
        channel.failures = 0
        again = await started(where, channel)
        await channel.wait_for(1)
        await ended(again, channel)
        assert channel.contents() == ["patience"]

    with Device(mqtt_broker.mqtt_port, client_id=f"d-{mqtt_name}") as device:
        asyncio.run(scenario(device))


class Hasty(Channel):
    """Says once that the sender is too fast."""

    refusals = 1

    async def publish(self, messages: Sequence[Message]) -> list[Taken]:
        if not self.refusals:
            return await super().publish(messages)
        self.refusals -= 1
        taken = [Taken(message.id) for message in messages]
        for one in taken:
            one.accepted, one.reason = False, "message.too_fast"
        return taken


def test_a_message_that_came_too_fast_is_tried_again_not_lost(mqtt_broker, mqtt_name):
    async def scenario(device: Device):
        channel = Hasty("panels")
        adapter = await started(settings_for(mqtt_broker, mqtt_name), channel)
        device.publish(f"{mqtt_name}/messages", said("hurry"))
        await channel.wait_for(1)
        await ended(adapter, channel)
        assert channel.contents() == ["hurry"]
        assert (adapter.taken, adapter.refused) == (1, 0)

    with Device(mqtt_broker.mqtt_port, client_id=f"d-{mqtt_name}") as device:
        asyncio.run(scenario(device))


class Deaf(Channel):
    """Stores, and then fails as a process does that is killed before it acknowledges."""

    async def publish(self, messages: Sequence[Message]) -> list[Taken]:
        await super().publish(messages)
        self.killed.set()
        await asyncio.Event().wait()
        raise AssertionError


def test_a_message_that_was_durable_and_not_acknowledged_is_stored_once(mqtt_broker, mqtt_name):
    async def scenario(device: Device):
        channel, where = Deaf("panels"), settings_for(mqtt_broker, mqtt_name)
        channel.killed = asyncio.Event()
        adapter = await started(where, channel)
        device.publish(f"{mqtt_name}/messages", said("once"))
        async with asyncio.timeout(20):
            await channel.killed.wait()
        await ended(adapter, channel)
        after = Channel("panels")
        after.state, after.stored = channel.state, channel.stored
        again = await started(where, after)
        device.publish(f"{mqtt_name}/messages", said("next"))
        await after.wait_for(2)
        await ended(again, after)
        assert after.contents() == ["once", "next"]

    with Device(mqtt_broker.mqtt_port, client_id=f"d-{mqtt_name}") as device:
        asyncio.run(scenario(device))


@pytest.mark.slow
def test_a_broker_that_is_killed_and_comes_back_loses_nothing():
    async def scenario(broker: NatsServer):
        channel = Channel("panels")
        adapter = await started(settings_for(broker, "k"), channel)
        with Device(broker.mqtt_port) as device:
            for number in range(30):
                device.publish("k/messages", said(f"before {number}"))
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        with Device(broker.mqtt_port) as device:
            for number in range(30):
                device.publish("k/messages", said(f"after {number}"))
        wanted = {f"{when} {number}" for when in ("before", "after") for number in range(30)}
        await until(lambda: set(channel.contents()) == wanted, seconds=60)
        await ended(adapter, channel)

    with NatsServer(mqtt=True) as broker:
        asyncio.run(scenario(broker))


# --- pure ---


def read_again(known: PacketIds) -> PacketIds:
    """As it is after a restart."""
    after = PacketIds()
    after.take_back(known.unkept()[0].items())
    return after


def packet(topic: str, payload: bytes = b"x", *, number: int = 1, again: bool = False) -> Packet:
    return Packet(topic=topic, payload=payload, number=number, again=again)


def test_a_message_that_names_another_sender_than_its_topic_is_refused():
    topics = (TopicPattern(topic="panels/{peer}"),)
    spoof = b'{"type":"T","subtype":"S","sender":"peer:eve"}'
    with pytest.raises(InvalidInput) as raised:
        read_packet(packet("panels/ana", spoof), topics)
    assert raised.value.code == "input.other_sender"
    assert read_packet(packet("panels/eve", spoof), topics).sender.name == "eve"


@given(st.text(max_size=30), st.binary(max_size=60))
def test_whatever_a_broker_sends_is_a_message_or_a_fault_with_a_code(topic, payload):
    topics = (TopicPattern(topic="{peer}/a", is_text=True), TopicPattern(topic="#"))
    try:
        message = read_packet(packet(topic, payload), topics)
    except InvalidInput as error:
        assert error.code
    else:
        assert message.sender.name


def test_only_a_packet_marked_as_coming_again_gets_an_id_that_was_given_before():
    known = PacketIds()
    assert known.id_for(packet("a"), "one") == "one"
    assert known.id_for(packet("a"), "two") == "two"  # said twice is two messages
    assert known.id_for(packet("a", again=True), "three") == "two"
    assert known.id_for(packet("a", b"y", again=True), "four") == "four"
    assert read_again(known).id_for(packet("a", again=True), "five") == "two"
    broken = PacketIds()
    broken.take_back([(PACKETS, b"\xc1 broken"), ("topic/x", b"\xc1"), ("other", b"")])
    assert (broken.ids, broken.topics) == ({}, {})


def test_what_is_remembered_stays_bounded():
    known = PacketIds()
    for number in range(REMEMBERED + 100):
        known.id_for(packet("a", number=number), str(number))
    assert len(known.ids) == REMEMBERED
    assert known.id_for(packet("a", number=0, again=True), "fresh") == "fresh"


@pytest.mark.slow
def test_what_the_broker_retains_is_one_message_however_often_we_connect(mqtt_broker, mqtt_name):
    """Heard as news first, then told again by the broker at each connection."""

    async def scenario(device: Device):
        channel = Channel("panels")
        where = settings_for(mqtt_broker, mqtt_name)
        device.publish(f"{mqtt_name}/ana/said/m1", b"no", retain=True)
        adapter = await started(where, channel)
        await channel.wait_for(1)
        device.publish(f"{mqtt_name}/ben/said/m1", b"yes", retain=True)
        await channel.wait_for(2)
        await ended(adapter, channel)
        for _ in range(2):
            again = await started(where, channel)
            await until(lambda again=again: again.taken >= 2)
            await ended(again, channel)
        assert channel.contents() == ["no", "yes"]

    with Device(mqtt_broker.mqtt_port, client_id=f"d-{mqtt_name}") as device:
        asyncio.run(scenario(device))


def test_the_same_text_sent_again_is_another_message_and_retained_ones_are_the_latest():
    known = PacketIds()
    said = Packet(topic="t", payload=b"yes", number=1)
    first, second = known.id_for(said, "a"), known.id_for(said, "b")
    assert (first, second) == ("a", "b")
    kept = Packet(topic="t", payload=b"yes", number=7, retained=True)
    assert known.id_for(kept, "c") == "b"
    elsewhere = Packet(topic="u", payload=b"yes", number=8, retained=True)
    unheard = known.id_for(elsewhere, "d")
    assert unheard == PacketIds().id_for(elsewhere, "e")
    assert unheard not in ("b", "d")


def test_a_retained_state_that_differs_from_the_last_seen_is_news_though_it_was_so_before():
    """ON is retained, OFF is heard, and ON is set while we are away."""
    known = PacketIds()
    on = Packet(topic="lamp", payload=b"ON", number=1, retained=True)
    first = known.id_for(on, "a")
    off = known.id_for(Packet(topic="lamp", payload=b"OFF", number=2), "b")
    second = known.id_for(on, "c")
    assert (off, second) == ("b", "c")
    assert first != second
    assert known.id_for(on, "d") == "c"  # told again at the next connection
    assert read_again(known).id_for(on, "e") == "c"
    # Both were retained ones: the state changed twice between three connections.
    assert known.id_for(Packet(topic="lamp", payload=b"OFF", number=3, retained=True), "f") == "f"
    assert known.id_for(on, "g") == "g"


def test_a_packet_delivered_again_is_no_new_state_of_its_topic():
    known = PacketIds()
    on = Packet(topic="lamp", payload=b"ON", number=1)
    known.id_for(on, "a")
    known.id_for(Packet(topic="lamp", payload=b"OFF", number=2), "b")
    known.id_for(Packet(topic="lamp", payload=b"ON", number=1, again=True), "c")
    kept = Packet(topic="lamp", payload=b"OFF", number=9, retained=True)
    assert known.id_for(kept, "d") == "b"


def test_the_topics_that_are_known_stay_bounded_also_on_disk(monkeypatch):
    monkeypatch.setattr(mqtt, "MOST_TOPICS", 3)
    known = PacketIds()
    for number in range(3):
        known.id_for(packet(f"t{number}", number=number), str(number))
    values, gone = known.unkept()
    assert (len(values), gone) == (4, [])
    known.kept()
    known.id_for(packet("t3"), "3")
    known.id_for(Packet(topic="t1", payload=b"x", number=8, retained=True), "4")
    values, gone = known.unkept()
    assert (len(values), len(gone), len(known.topics)) == (2, 1, 3)  # t3; t1 is as it was
    known.id_for(packet("t0"), "5")  # it comes back before its end was written
    values, gone = known.unkept()
    assert not values.keys() & set(gone)


@pytest.mark.slow
def test_a_state_that_was_set_while_we_were_away_is_reported_though_it_is_an_old_one(
    mqtt_broker, mqtt_name
):
    async def scenario(device: Device):
        channel = Channel("panels")
        where = settings_for(mqtt_broker, mqtt_name)
        topic = f"{mqtt_name}/ana/said/m1"
        device.publish(topic, b"ON", retain=True)
        adapter = await started(where, channel)
        await channel.wait_for(1)
        device.publish(topic, b"OFF", retain=True)
        await channel.wait_for(2)
        await ended(adapter, channel)
        device.publish(topic, b"ON", retain=True, is_confirmed=False)
        device.publish(f"{mqtt_name}/elsewhere", b"the broker has both now")
        again = await started(where, channel)
        await channel.wait_for(3)
        await ended(again, channel)
        assert channel.contents() == ["ON", "OFF", "ON"]

    with Device(mqtt_broker.mqtt_port, client_id=f"d-{mqtt_name}") as device:
        asyncio.run(scenario(device))
