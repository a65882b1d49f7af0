"""The shared adapter suite bound to MQTT (a real broker) and to open pages."""

from __future__ import annotations

import asyncio
import queue
from contextlib import asynccontextmanager

import pytest

from rapport.channel.mqtt.bridge import Broker
from rapport.communication.adapters.inbox import OpenPages, PageAdapter, PageSettings
from rapport.communication.adapters.mqtt import MqttAdapter, MqttSettings
from rapport.kernel.clock import SystemClock
from rapport.testing.suites.adapter import AdapterSuite, Medium
from support.servers.mqtt import Device
from support.servers.nats import NatsServer


@pytest.mark.slow
class TestMqtt(AdapterSuite):
    @asynccontextmanager
    async def open_medium(self):
        with NatsServer(mqtt=True) as broker, Device(broker.mqtt_port, "panels/#") as device:
            where = Broker(host="127.0.0.1", port=broker.mqtt_port)
            settings = MqttSettings(broker=where, timeout_ms=8_000)
            medium = Medium(MqttAdapter(settings, lambda _m, _p: ""), "mqtt:panels/ana")

            async def received():
                found = []
                while True:
                    try:
                        _, told = await asyncio.to_thread(device.next, 1 if found else 10)
                    except queue.Empty:
                        return found
                    found.append((told["key"], told["content"]))

            async def go_down():
                await asyncio.to_thread(broker.kill)

            async def come_up():
                await asyncio.to_thread(broker.start)

            medium.received, medium.go_down, medium.come_up = received, go_down, come_up
            yield medium


class TestPage(AdapterSuite):
    @asynccontextmanager
    async def open_medium(self):
        pages, page = OpenPages(), Page()
        page.pages = pages
        adapter = PageAdapter(pages, PageSettings(wait_ms=200), SystemClock())
        medium = Medium(adapter, "ws:")

        async def received():
            return [(delivery.key, delivery.text) for delivery in page.taken]

        async def go_down():
            pages.leave("ana", page)

        async def come_up():
            pages.enter("ana", page)

        medium.received, medium.go_down, medium.come_up = received, go_down, come_up
        await come_up()
        yield medium


class Page:
    """A page that shows everything at once."""

    def __init__(self):
        self.taken = []

    def take(self, delivery):
        self.taken.append(delivery)
        asyncio.get_running_loop().call_soon(self.pages.shown, delivery.peer, delivery.key)
        return True
