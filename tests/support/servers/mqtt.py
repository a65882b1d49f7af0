"""A real MQTT broker for tests: the MQTT listener of nats-server, and a stock client. [CO-16]"""

from __future__ import annotations

import atexit
import itertools
import os
import queue
import threading
from functools import cache
from typing import Any

import msgspec
import pytest

from support.servers.nats import NatsServer

_topics = itertools.count(1)
_START_SECONDS = 15


class Device:
    """A stock client that publishes and listens; calls block. A context manager."""

    def __init__(self, port: int, *topics: str, client_id: str = "device") -> None:
        from paho.mqtt import client as paho

        self.heard: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self._ready = threading.Event()
        self._topics = topics
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=client_id)
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = lambda *_: self._ready.set()
        self._client.on_message = lambda _c, _d, message: self.heard.put(
            (message.topic, bytes(message.payload))
        )
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        assert self._ready.wait(_START_SECONDS)

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def publish(
        self, topic: str, value: Any, *, retain: bool = False, is_confirmed: bool = True
    ) -> None:
        """Returns when the broker has it. Not confirmed (QoS 0) it is on its way only, and no
        broker keeps it for who is away.
        """
        payload = value if isinstance(value, bytes) else msgspec.json.encode(value)
        told = self._client.publish(topic, payload, qos=int(is_confirmed), retain=retain)
        told.wait_for_publish(_START_SECONDS)

    def next(self, seconds: float = 15) -> tuple[str, Any]:
        """The next message heard, as topic and JSON."""
        topic, payload = self.heard.get(timeout=seconds)
        return topic, msgspec.json.decode(payload)

    def close(self) -> None:
        """Ends the connection, and lets go of all the driver holds."""
        self._client.disconnect()
        self._client.loop_stop()
        self._client.on_connect = self._client.on_subscribe = self._client.on_message = None

    def _on_connect(self, client: Any, *_: Any) -> None:
        client.subscribe([(topic, 1) for topic in (*self._topics, "device/ready")])


@cache
def _shared_broker() -> NatsServer:
    # Packets that were not acknowledged come again soon, not after half a minute.
    server = NatsServer(mqtt=True, mqtt_options='ack_wait: "1s"')
    atexit.register(server.__exit__, None, None, None)
    server.start()
    return server


@pytest.fixture(scope="session")
def mqtt_broker() -> NatsServer:
    """One broker for the whole run of a worker; tests that stop it start one of their own."""
    return _shared_broker()


@pytest.fixture
def mqtt_name() -> str:
    """A level of topics, and a client id, that no other test uses."""
    return f"t{next(_topics)}-{os.getpid()}"
