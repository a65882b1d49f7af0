"""MQTT out against a real broker."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.mqtt.bridge import Broker, is_topic
from rapport.communication.adapters.base import Failed, Sent
from rapport.communication.adapters.mqtt import MqttAdapter, MqttSettings
from rapport.core.message import Message
from rapport.testing.suites.adapter import make_delivery
from support.servers.mqtt import Device
from support.servers.nats import NatsServer


def adapter_at(broker: NatsServer, **changes) -> MqttAdapter:
    where = Broker(host="127.0.0.1", port=broker.mqtt_port)
    settings = {"broker": where, "timeout_ms": 5_000} | changes
    return MqttAdapter(MqttSettings(**settings), lambda message, peer: f"proof-{message}-{peer}")


def test_a_device_gets_the_message_with_its_key_and_the_proof_for_an_answer(mqtt_broker, mqtt_name):
    async def scenario(device: Device):
        adapter = adapter_at(mqtt_broker)
        delivery = make_delivery(f"mqtt:{mqtt_name}/ana")
        try:
            assert await adapter.send(delivery) == Sent(delivery.key)
        finally:
            await adapter.close()
        topic, heard = await asyncio.to_thread(device.next)
        assert topic == f"{mqtt_name}/ana"
        assert (heard["key"], heard["answer"]) == (delivery.key, "proof-m1-ana")
        assert heard["content"] == delivery.text
        assert heard["receiver"] == "peer:ana"

    with Device(mqtt_broker.mqtt_port, f"{mqtt_name}/#") as device:
        asyncio.run(scenario(device))


def test_the_payload_is_a_message_as_listing_1_has_it(mqtt_broker, mqtt_name):
    async def scenario(device: Device):
        adapter = adapter_at(mqtt_broker)
        await adapter.send(make_delivery(f"mqtt:{mqtt_name}/ana"))
        await adapter.close()
        _, payload = await asyncio.to_thread(device.heard.get, timeout=15)
        assert Message.from_json(payload).content == "Guest 5 alone in r1"

    with Device(mqtt_broker.mqtt_port, f"{mqtt_name}/#") as device:
        asyncio.run(scenario(device))


@pytest.mark.parametrize(
    "topic", ["panels/#", "panels/+/x", "$SYS/broker", "", "a//b", "a\nb", "a\0"]
)
def test_a_topic_with_wildcards_or_controls_is_refused_for_good(topic):
    async def scenario():
        adapter = MqttAdapter(MqttSettings(), lambda _m, _p: "")
        outcome = await adapter.send(make_delivery(f"mqtt:{topic}"))
        assert outcome == Failed("the topic cannot be published to", retry=False)
        await adapter.close()

    asyncio.run(scenario())


@given(st.text(max_size=40))
def test_what_is_a_topic_reaches_one_topic_and_never_a_wildcard(text):
    if is_topic(text):
        assert not set(text) & set("+#\0")
        assert text.isprintable()
        assert not text.startswith("$")


def test_a_payload_that_the_broker_would_hang_up_on_is_never_sent(mqtt_broker):
    async def scenario():
        adapter = adapter_at(mqtt_broker, most_bytes=1_000)
        outcome = await adapter.send(make_delivery("mqtt:a/b", text="x" * 1_000))
        assert isinstance(outcome, Failed)
        assert not outcome.retry
        await adapter.close()

    asyncio.run(scenario())


def test_a_broker_that_is_not_there_is_worth_a_retry():
    async def scenario():
        broker = Broker(host="127.0.0.1", port=1)
        adapter = MqttAdapter(MqttSettings(broker=broker, timeout_ms=300), lambda _m, _p: "")
        outcome = await adapter.send(make_delivery("mqtt:a/b"))
        assert isinstance(outcome, Failed)
        assert outcome.retry
        assert "127.0.0.1:1" in outcome.reason
        await adapter.close()
        await adapter.close()

    asyncio.run(scenario())


@pytest.mark.slow
def test_after_a_broker_was_killed_and_is_back_deliveries_go_on():
    async def scenario(broker: NatsServer):
        adapter = adapter_at(broker, timeout_ms=1_500)
        try:
            assert isinstance(await adapter.send(make_delivery("mqtt:a/b")), Sent)
            await asyncio.to_thread(broker.kill)
            down = await adapter.send(make_delivery("mqtt:a/b", message="m2"))
            assert isinstance(down, Failed)
            assert down.retry
            await asyncio.to_thread(broker.start)
            for _ in range(20):
                outcome = await adapter.send(make_delivery("mqtt:a/b", message="m2", attempt=2))
                if isinstance(outcome, Sent):
                    return
            raise AssertionError(outcome)
        finally:
            await adapter.close()

    with NatsServer(mqtt=True) as broker:
        asyncio.run(scenario(broker))


def test_the_password_is_never_shown():
    settings = MqttSettings(password="hunter2-hunter2")
    assert "hunter2" not in repr(settings)
