"""MQTT bridges: messages in, events out, each kept until the other side has it. [CH-12]"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from rapport.channel.channel import AppendResult, Channels, events_between
from rapport.channel.dead_letters import append_dead_letter
from rapport.channel.mqtt.bridge import (
    BRIDGE,
    Bridge,
    IncomingTopic,
    OutgoingTopic,
    Packet,
    is_redelivery,
    last_of_topics,
    matches,
    named_levels,
    payload_of,
    to_event,
    topic_of,
)
from rapport.channel.mqtt.client import BrokerClient, ReceivedPacket
from rapport.channel.query.query_kinds import make_query
from rapport.core.errors import InvalidInput, RapportError, Unavailable
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import Chance, Clock, Ids
from rapport.kernel.tasks import Tasks, close_all
from rapport.kernel.telemetry import get_logger
from rapport.node.links import ChannelStatus, LinkStatus

_log = get_logger(__name__)

MOST_TOGETHER = 500
RECENT = 2_000
"""Latest events compared with a packet that may be a repetition; more than any broker has under
way for one client.
"""
MOST_TOPICS = 100_000
"""Topics of a channel whose last event is known."""
_PAUSE_MS = 1_000

Append = Callable[[str, Sequence[Event]], Awaitable[AppendResult]]


class RunningBridge:
    """See the module. All calls belong to one event loop."""

    def __init__(
        self,
        bridge: Bridge,
        password: str,
        site: str,
        channels: Channels,
        append: Append,
        clock: Clock,
        declared_id: Callable[[Event], str] = lambda _event: "",
    ) -> None:
        """`declared_id`: the id in the payload of a raw event, empty for none."""
        self.bridge, self._password, self._declared_id = bridge, password, declared_id
        self._client_id = bridge.client or f"rapport-{site}-{bridge.name}"
        self._channels, self._append, self._clock = channels, append, clock
        self._ids = Ids(clock, Chance.from_machine())
        self._tasks = Tasks(clock)
        self._client: BrokerClient | None = None
        self._lasts: dict[str, dict[str, Event]] = {}
        """By channel the last event of each topic, as far as known."""
        self.taken = self.repeated = self.refused = self.published = 0
        self.last_taken = self.last_published = 0

    @property
    def trouble(self) -> str:
        """Why nothing moves; empty while all is well."""
        return self._client.trouble if self._client is not None else "not started"

    def start(self) -> None:
        """Connects in the background, for ever."""
        topics = list(dict.fromkeys(one.filter for one in self.bridge.incoming))
        self._client = BrokerClient(self.bridge.broker, self._password, self._client_id, topics)
        self._client.start()
        if self.bridge.incoming:
            self._tasks.start(f"mqtt {self.bridge.name} in", self._take_in)
        for number, outgoing in enumerate(self.bridge.outgoing):
            sending = _Sending(self, outgoing, number, self._channels, self._clock)
            self._tasks.start(f"mqtt {self.bridge.name} out {number}", sending.run)

    async def stop(self) -> None:
        """Ends; unacknowledged messages come again at the next start."""
        await self._tasks.stop()
        if self._client is not None:
            await self._client.stop()

    async def publish(self, event: Event, outgoing: OutgoingTopic) -> None:
        assert self._client is not None
        await self._client.publish(topic_of(event, outgoing.topic), payload_of(event, outgoing))
        self.published += 1
        self.last_published = self._clock.now_ms()

    # --- in ---------------------------------------------------------------------------------------

    async def _take_in(self) -> None:
        client = self._client
        assert client is not None
        recent = {one.channel: await self._recent(one.channel) for one in self.bridge.incoming}
        while True:
            arrived = [await client.arrived.get()]
            while len(arrived) < MOST_TOGETHER and not client.arrived.empty():
                arrived.append(client.arrived.get_nowait())
            await self._store(arrived, recent)
            for one in arrived:
                client.acknowledge(one.packet.number, one.quality)

    async def _store(
        self, arrived: list[ReceivedPacket], recent: dict[str, deque[StoredEvent]]
    ) -> None:
        """On disk when it returns; tries again until it is, for the broker waits."""
        groups: dict[str, list[Event]] = {}
        for one in arrived:
            receivers = self._receivers(one.packet.topic)
            if not receivers:
                self.refused += 1
                _log.warning("unexpected topic", bridge=self.bridge.name)
            for incoming in receivers:
                if is_redelivery(one.packet, recent[incoming.channel], self.bridge.name):
                    self.repeated += 1
                    continue
                event = self._event(one.packet, incoming, recent[incoming.channel])
                groups.setdefault(incoming.channel, []).append(event)
                # At once: after a broken connection a packet may come again in the same batch.
                recent[incoming.channel].append(StoredEvent(0, 0, event))
        for channel, events in groups.items():
            await self._append_surely(channel, events)

    async def _append_surely(self, channel: str, events: list[Event]) -> None:
        while True:
            try:
                await self._append(channel, events)
                self.taken += len(events)
                self.last_taken = self._clock.now_ms()
                return
            except InvalidInput as error:
                await self._part(channel, events, error)
                return
            except RapportError as error:
                _log.warning("message waits", bridge=self.bridge.name, why=error.message)
                await self._clock.sleep(_PAUSE_MS)

    async def _part(self, channel: str, events: list[Event], error: InvalidInput) -> None:
        """One of the events can never be stored: buried with the reason. Kept by the broker it
        would block all behind it.
        """
        if len(events) > 1:
            for event in events:
                await self._append_surely(channel, [event])
            return
        self.refused += 1
        _log.warning("message refused", bridge=self.bridge.name, why=error.message)
        await self._bury_surely(channel, StoredEvent(0, 0, events[0]), error)

    async def _bury_surely(self, channel: str, stored: StoredEvent, error: InvalidInput) -> None:
        # Given up here, all that came with it would be forgotten without an acknowledgement.
        reader = f"mqtt:{self.bridge.name}"
        while True:
            try:
                await append_dead_letter(self._channels, channel, reader, stored, error, attempts=1)
                return
            except Unavailable as trouble:
                _log.warning("message waits", bridge=self.bridge.name, why=trouble.message)
                await self._clock.sleep(_PAUSE_MS)

    def _event(
        self, packet: Packet, incoming: IncomingTopic, recent: Sequence[StoredEvent]
    ) -> Event:
        """The event of a packet, which is the last of its topic from now on."""
        lasts = self._lasts.get(incoming.channel)
        if lasts is None:
            lasts = self._lasts[incoming.channel] = last_of_topics(recent, self.bridge.name)
        event = to_event(
            packet,
            bridge=self.bridge.name,
            source=incoming.source,
            fresh_id=self._ids.new(),
            now_ms=self._clock.now_ms(),
            last=lasts.get(packet.topic),
            fields=named_levels(incoming.topic, packet.topic),
        )
        if declared := self._declared_id(event):
            event = msgspec.structs.replace(event, id=declared)
        lasts.pop(packet.topic, None)
        lasts[packet.topic] = event
        while len(lasts) > MOST_TOPICS:
            del lasts[next(iter(lasts))]
        return event

    def _receivers(self, topic: str) -> list[IncomingTopic]:
        """The first declared that covers the topic, and others of the same filter: several sources
        may read different fields of one message.
        """
        first = next((one for one in self.bridge.incoming if matches(one.filter, topic)), None)
        if first is None:
            return []
        return [one for one in self.bridge.incoming if one.filter == first.filter]

    async def _recent(self, channel: str) -> deque[StoredEvent]:
        source = self._channels.channel(channel)
        last = source.last_position()
        return deque(await events_between(source, max(last - RECENT, 0) + 1, last), maxlen=RECENT)


class _Sending:
    """One `out` of a bridge: a reader whose position moves when the broker has the event."""

    def __init__(
        self,
        running: RunningBridge,
        outgoing: OutgoingTopic,
        number: int,
        channels: Channels,
        clock: Clock,
    ) -> None:
        self._running, self._outgoing = running, outgoing
        self._channels, self._clock = channels, clock
        self._reader = f"mqtt:{running.bridge.name}:{number}"
        self._matches = make_query("sql", outgoing.query).matches if outgoing.query else None

    async def run(self) -> None:
        """Sends new events in order, for ever; never raises because of the broker."""
        while True:
            try:
                # Opened anew after a failure: it goes on after its committed position.
                reader = await self._channels.subscribe(self._outgoing.channel, self._reader)
                while True:
                    batch = await reader.next_batch(limit=MOST_TOGETHER)
                    await self._send([one.event for one in batch if self._is_meant(one)])
                    if batch:
                        await reader.commit(batch[-1].position)
            except RapportError as error:
                _log.info("mqtt waits", bridge=self._running.bridge.name, why=error.message)
                await self._clock.sleep(_PAUSE_MS)

    async def _send(self, events: list[Event]) -> None:
        """All are with the broker when it returns; they go out in order, waiting together."""
        sending = [self._running.publish(event, self._outgoing) for event in events]
        for outcome in await asyncio.gather(*sending, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    def _is_meant(self, stored: StoredEvent) -> bool:
        if stored.event.headers.get(BRIDGE) == self._running.bridge.name:
            return False
        return self._matches is None or self._matches(stored)


class Bridges:
    """The node's brokers."""

    def __init__(self, running: Sequence[RunningBridge]) -> None:
        self._running = tuple(running)

    def start(self) -> None:
        """Begins to connect; unreachable brokers are tried again for ever."""
        for bridge in self._running:
            bridge.start()

    async def stop(self) -> None:
        """Ends; brokers keep unacknowledged messages."""
        await close_all((f"mqtt.{one.bridge.name}", one.stop) for one in self._running)

    def status(self) -> list[LinkStatus]:
        return [row for bridge in self._running for row in _rows(bridge)]


def _rows(running: RunningBridge) -> list[LinkStatus]:
    bridge = running.bridge
    counts = {
        "mqtt in": ChannelStatus(
            stored=running.taken,
            known=running.repeated,
            refused=running.refused,
            trouble=running.trouble,
            last=running.last_taken,
        ),
        "mqtt out": ChannelStatus(
            forwarded=running.published, trouble=running.trouble, last=running.last_published
        ),
    }
    channels = {
        "mqtt in": sorted({one.channel for one in bridge.incoming}),
        "mqtt out": sorted({one.channel for one in bridge.outgoing}),
    }
    return [
        LinkStatus(
            link=bridge.name,
            url=f"{bridge.host}:{bridge.port}",
            peer="",
            way=way,
            channel=" ".join(channels[way]),
            counts=counts[way],
        )
        for way in counts
        if channels[way]
    ]
