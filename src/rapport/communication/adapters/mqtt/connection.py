"""The connection of the MQTT output adapter: made at the first delivery, kept for all. [CO-16]"""

from __future__ import annotations

import asyncio

from rapport.channel.mqtt.client import BrokerClient
from rapport.communication.adapters.mqtt.settings import MqttSettings
from rapport.core.errors import Unavailable
from rapport.core.times import format_duration
from rapport.kernel.chance import Chance
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import first_of


class MqttConnection:
    """One client of one broker; connects again by itself, later each time. One event loop."""

    def __init__(self, settings: MqttSettings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._client: BrokerClient | None = None

    async def publish(self, topic: str, payload: bytes) -> None:
        """Returns when the broker confirmed it (QoS 1, not retained); raises Unavailable.

        After a failure nobody knows whether the broker has it; the driver may still hand it over
        when it is connected again.
        """
        client = self._client or self._start()
        limit = self._settings.timeout_ms
        confirmed = asyncio.Event()

        async def hand_over() -> None:
            await client.connected.wait()
            await client.publish(topic, payload)
            confirmed.set()

        await first_of(hand_over(), self._clock.sleep(limit))
        if not confirmed.is_set():
            late = f"the broker did not confirm within {format_duration(limit)}"
            raise Unavailable(client.trouble or late, code="mqtt.unreachable")

    async def close(self) -> None:
        """Says goodbye; a second call is no error."""
        client, self._client = self._client, None
        if client is not None:
            await client.stop()

    def _start(self) -> BrokerClient:
        settings = self._settings
        name = settings.client or f"rapport-out-{Chance.from_machine().randbytes(6).hex()}"
        client = self._client = BrokerClient(
            settings.broker, settings.password, name, keeps_place=bool(settings.client)
        )
        client.start()
        return client
