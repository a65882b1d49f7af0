"""Stock MQTT clients, a real broker and a node: in and out, over restarts of all three. [CH-12]"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from paho.mqtt import client as paho

from rapport.core.event import Event
from support.processes.node import NodeProcess
from support.servers.nats import NatsServer
from support.written_log import WrittenLog

pytestmark = pytest.mark.slow

SITE = """
[site]
name = "hall"

[concepts.room.attributes]
temperature = "number"

[mqtt.hall]
broker = "mqtt://127.0.0.1:{port}"
in = [{{ topic = "sensors/+/temperature", source = "thermometers" }}]
out = [
  {{ channel = "alarms", topic = "rapport/{{type}}/{{subject}}", query = "type <> 'test'" }},
  {{ channel = "raw.thermometers", topic = "sensors/echo/temperature" }},
]
"""


class Device:
    """A stock client that publishes and listens."""

    def __init__(self, port: int, *topics: str) -> None:
        self.heard: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="device")
        self._ready = threading.Event()
        self._topics = topics
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = lambda *_: self._ready.set()
        self._client.on_message = lambda _c, _d, message: self.heard.put(
            (message.topic, msgspec.json.decode(message.payload))
        )
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        assert self._ready.wait(10)

    def _on_connect(self, client: Any, *_: Any) -> None:
        client.subscribe([(topic, 1) for topic in (*self._topics, "device/ready")])

    def publish(self, topic: str, value: Any) -> None:
        payload = value if isinstance(value, bytes) else msgspec.json.encode(value)
        self._client.publish(topic, payload, qos=1).wait_for_publish(10)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
        # Whatever the driver holds is let go of here, not when the collector comes by.
        self._client.on_connect = self._client.on_subscribe = self._client.on_message = None


@pytest.fixture
def broker() -> Iterator[NatsServer]:
    with NatsServer(mqtt=True, options="max_payload: 2097152") as server:
        yield server


@pytest.fixture
def site(tmp_path: Path, broker: NatsServer) -> Path:
    site = tmp_path / "site"
    site.mkdir()
    (site / "site.toml").write_text(SITE.format(port=broker.mqtt_port))
    return site


def readings(site: Path) -> list[Any]:
    return [one.event.payload() for one in WrittenLog(site / ".rapport/log")["raw.thermometers"]]


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        threading.Event().wait(0.05)
    return True


def test_a_stock_sensor_is_heard_over_restarts_and_nothing_is_lost(broker, site) -> None:
    with NodeProcess(site) as node:
        node.start()
        device = Device(broker.mqtt_port)
        device.publish("sensors/1/temperature", {"celsius": 20})
        assert wait_until(lambda: readings(site) == [{"celsius": 20}])
        node.kill()  # the broker keeps what comes meanwhile
        for number in range(50):
            device.publish("sensors/1/temperature", {"celsius": number})
        device.publish("sensors/2/temperature", b"not JSON \xff")
        device.publish("elsewhere/2", {"celsius": -1})
        device.publish("sensors/2/temperature", b'"' + b"x" * 1_048_577 + b'"')  # too large
        node.start()
        assert wait_until(lambda: len(readings(site)) == 52)
        device.close()
        broker.stop()
        broker.start()
        device = Device(broker.mqtt_port)
        device.publish("sensors/3/temperature", "ON")
        device.publish("sensors/3/temperature", "ON")  # said twice is two readings
        assert wait_until(lambda: readings(site).count("ON") == 2)
        device.close()
        node.stop()
    log = WrittenLog(site / ".rapport/log")
    assert [one.event.payload()["code"] for one in log["dead_letters"]] == ["event.too_large"]
    stored = [one.event for one in log["raw.thermometers"]]
    assert first_of_each(stored) == [20, *range(50), "bm90IEpTT04g/w==", "ON", "ON"]
    assert len({event.id for event in stored}) == len(stored)
    assert stored[0].subject == "sensors/1/temperature"


def first_of_each(stored: list[Event]) -> list[Any]:
    """What was said, in order. A broker that ends may forget that we acknowledged, and gives the
    same again under other numbers: those repetitions (each marked as one by it) are left out.
    """
    told = [event.payload() for event in stored]
    values = [value["celsius"] if isinstance(value, dict) else value for value in told]
    kept: list[Any] = []
    for value in values:
        if value == "ON" or kept.count(value) < [20, *range(50)].count(value) or value not in kept:
            kept.append(value)
    return kept


def test_events_go_out_to_a_stock_listener_and_never_run_in_circles(broker, site) -> None:
    import urllib.request

    def publish(number: int, kind: str) -> None:
        assert node.doors is not None
        event = {"id": f"{kind}{number}", "source": "s", "type": kind, "subject": "door/7"}
        body = msgspec.json.encode({**event, "data": number})
        request = urllib.request.Request(
            "http://{}:{}/channels/alarms/events".format(*node.doors), data=body
        )
        request.add_header("Content-Type", "application/cloudevents+json")
        urllib.request.urlopen(request, timeout=10).close()

    with NodeProcess(site) as node:
        node.start()
        device = Device(broker.mqtt_port, "rapport/#", "sensors/echo/#")
        publish(0, "test")
        for number in range(20):
            publish(number, "alarm")
        heard = [device.heard.get(timeout=20) for _ in range(20)]
        assert heard == [("rapport/alarm/door/7", number) for number in range(20)]
        device.publish("sensors/1/temperature", {"celsius": 20})
        assert wait_until(lambda: len(readings(site)) == 1)
        publish(99, "alarm")  # what follows was not preceded by an echo of the reading
        assert device.heard.get(timeout=20) == ("rapport/alarm/door/7", 99)
        device.close()
        node.stop()
    assert len(readings(site)) == 1
