"""MQTT in: a push adapter that acknowledges to the broker only what is durable here. [CO-16, CO-5]

The broker keeps what it has under way until we acknowledge, over restarts of both sides. A packet
that comes again gets the id it had, so that the channel drops it. What is no message, or is refused
for good, becomes a dead letter with the reason before it is acknowledged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from rapport.channel.access.rates import full_bucket, take
from rapport.channel.mqtt.client import Arrived, BrokerClient
from rapport.channel.mqtt.mapping import Packet
from rapport.communication.adapters.incoming.input_base import AdapterState, Intake
from rapport.communication.adapters.mqtt.messages import read_packet, unusable_packet
from rapport.communication.adapters.mqtt.remembered import PacketIds
from rapport.communication.adapters.mqtt.settings import MqttInputSettings
from rapport.communication.adapters.unusable import (
    TOO_FAST,
    DeadLetterInput,
    RejectedInput,
    drop_input,
    refused_input,
)
from rapport.core.errors import InvalidInput, Unavailable
from rapport.core.message import Message
from rapport.kernel.chance import Chance, Ids
from rapport.kernel.clock import Clock, SystemClock
from rapport.kernel.telemetry import get_logger

_log = get_logger(__name__)
T = TypeVar("T")

MOST_TOGETHER = 500
MOST_TRIES = 600
"""Seconds for which a sender that is too fast makes the others wait; then its messages go."""
ASIDE_RATE, MOST_ASIDE = 10, 1_000
"""Dead letters a second in the long run, and at once: a broken device shall not fill the disk."""
_PAGE = 1_000
_PAUSE_MS = 1_000


class MqttInput:
    """Listens to the topics of the site. All calls belong to one event loop."""

    name = "mqtt"

    def __init__(
        self,
        settings: MqttInputSettings,
        clock: Clock | None = None,
        set_aside: DeadLetterInput = drop_input,
    ) -> None:
        """`set_aside` keeps what is no message, and why."""
        self._settings, self._clock = settings, clock or SystemClock()
        self._set_aside = set_aside
        self._aside = full_bucket(MOST_ASIDE, self._clock.now_ms())
        self._ids = Ids(self._clock, Chance.from_machine())
        self._client: BrokerClient | None = None
        self._remembered = PacketIds()
        self.taken = self.refused = 0

    @property
    def trouble(self) -> str:
        """Why nothing arrives; empty while all is well."""
        return self._client.trouble if self._client is not None else "not started"

    async def start(self, intake: Intake) -> None:
        """Connects in the background, for ever; raises Unsupported without the driver."""
        settings = self._settings
        self._intake = intake
        self._remembered = await _remembered_in(intake.state)
        topics = [one.filter for one in settings.topics]
        client = BrokerClient(settings.broker, settings.password, settings.client, topics)
        self._client = client
        client.start()
        intake.schedule(self._take_in, name="mqtt")

    async def stop(self) -> None:
        """Says goodbye; the broker keeps what comes meanwhile."""
        client, self._client = self._client, None
        if client is not None:
            await client.stop()

    async def read_again(self, found: RejectedInput) -> Message:
        """See ReadsAgain: by the topics that are declared now."""
        packet = Packet(topic=found.subject, payload=found.raw, number=0)
        message = read_packet(packet, self._settings.topics)
        return message if message.id else msgspec.structs.replace(message, id=found.id)

    async def _take_in(self) -> None:
        client = self._client
        assert client is not None, "start() comes first"
        while True:
            arrived = [await client.arrived.get()]
            while len(arrived) < MOST_TOGETHER and not client.arrived.empty():
                arrived.append(client.arrived.get_nowait())
            await self._take(arrived)
            for one in arrived:
                client.acknowledge(one.packet.number, one.quality)

    async def _take(self, arrived: Sequence[Arrived]) -> None:
        """Durable or refused when it returns; tries again as long as it is neither, for the broker
        waits.
        """
        found = [self._read(one) for one in arrived]
        # The ids are on disk before their messages are: a packet that comes again finds its.
        values, gone = self._remembered.unkept()
        await self._surely(partial(self._intake.state.put_many, values, forget=gone))
        self._remembered.kept()
        for unusable in found:
            if isinstance(unusable, RejectedInput):
                await self._refuse(unusable)
        messages = [one for one in found if isinstance(one, Message)]
        if messages:
            await self._hand_in(messages)

    async def _hand_in(self, messages: list[Message]) -> None:
        for _ in range(MOST_TRIES):
            messages = await self._publish(messages)
            if not messages:
                return
            await self._clock.sleep(_PAUSE_MS)
        for message in messages:
            await self._refuse(refused_input(message, TOO_FAST))

    async def _publish(self, messages: list[Message]) -> list[Message]:
        """Those that have to be tried again, as their sender is too fast."""
        arrivals = await self._surely(partial(self._intake.publish, messages))
        again = []
        for message, arrival in zip(messages, arrivals, strict=True):
            if arrival.reason == TOO_FAST:
                again.append(message)
                continue
            self.taken += arrival.accepted
            if not arrival.accepted:
                await self._refuse(refused_input(message, arrival.why))
        return again

    async def _refuse(self, unusable: RejectedInput) -> None:
        """Counts it and keeps it aside, durably; of very many only some."""
        self.refused += 1
        now_ms = self._clock.now_ms()
        is_kept = not take(self._aside, 1, rate=ASIDE_RATE, burst=MOST_ASIDE, now_ms=now_ms)
        _log.warning(
            "not taken",
            input=self._intake.name,
            topic=unusable.subject,
            why=unusable.reason,
            kept=is_kept,
        )
        if is_kept:
            await self._surely(partial(self._set_aside, unusable))

    async def _surely(self, work: Callable[[], Awaitable[T]]) -> T:
        """Tries again until the store is there, however long it takes: the broker waits."""
        while True:
            try:
                return await work()
            except Unavailable as error:
                _log.warning("messages wait", input=self._intake.name, why=error.message)
                await self._clock.sleep(_PAUSE_MS)

    def _read(self, arrived: Arrived) -> Message | RejectedInput:
        """The message, or why there is none: kept by the broker it would block all behind it."""
        packet = arrived.packet
        id = self._remembered.id_for(packet, self._ids.new())
        try:
            message = read_packet(packet, self._settings.topics)
        except InvalidInput as error:
            return unusable_packet(packet, id, error)
        return message if message.id else msgspec.structs.replace(message, id=id)


async def _remembered_in(state: AdapterState) -> PacketIds:
    """What was kept before, read a page at a time."""
    found, after = PacketIds(), ""
    while page := await state.keys(after=after, limit=_PAGE):
        found.take_back(page)
        after = page[-1][0]
    return found
