"""MQTT out: a delivery becomes a message of a topic, with QoS 1: the broker's PUBACK is "handed".
[CO-16]

The payload is the JSON of the source's listing 1, with the idempotency `key`, and with `answer`,
the token that proves an answer to this message by this peer.
"""

from __future__ import annotations

from collections.abc import Callable

from rapport.channel.mqtt.bridge import is_topic
from rapport.channel.mqtt.client import check_driver
from rapport.communication.adapters.base import Delivery, Failed, Outcome, Sent, adapter
from rapport.communication.adapters.delivery_json import delivery_json
from rapport.communication.adapters.mqtt.connection import MqttConnection
from rapport.communication.adapters.mqtt.settings import MqttSettings
from rapport.communication.templates import clean
from rapport.core.errors import Unavailable
from rapport.kernel.clock import Clock, SystemClock


@adapter("mqtt")
class MqttAdapter:
    """Publishes to the topic in the peer's address (`mqtt:panels/ana/show`); stateless."""

    name = "mqtt"
    seals = True
    """Addresses that end with `;sealed` carry sealed texts (see sealed.py)."""

    def __init__(
        self,
        settings: MqttSettings,
        proof_for: Callable[[str, str], str],
        clock: Clock | None = None,
    ) -> None:
        """`proof_for(message, peer)` gives the token that proves an answer; empty = none. Raises
        Unsupported without the driver.
        """
        check_driver()
        self._settings, self._proof_for = settings, proof_for
        self._connection = MqttConnection(settings, clock or SystemClock())

    async def send(self, delivery: Delivery) -> Outcome:
        """Confirmed by the broker = sent; a broker that is away is worth a retry."""
        if not is_topic(delivery.target):
            return Failed("the topic cannot be published to", retry=False)
        payload = delivery_json(delivery, self._proof_for(delivery.message, delivery.peer))
        if len(payload) > self._settings.most_bytes:
            reason = f"{len(payload)} bytes are more than the {self._settings.most_bytes} allowed"
            return Failed(reason, retry=False)
        try:
            await self._connection.publish(delivery.target, payload)
        except Unavailable as error:
            return Failed(clean(error.message)[:200], retry=True)
        return Sent(delivery.key)

    async def close(self) -> None:
        """Ends the connection."""
        await self._connection.close()
