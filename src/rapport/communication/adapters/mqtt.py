"""MQTT out and in: `[adapters.mqtt]` and inputs of the kind `mqtt`. [CO-5, CO-16, UX-2]

```toml
[adapters.mqtt]                        # out: addresses are mqtt:TOPIC
broker = "mqtts://broker.example.org"
user = "rapport"
password = "file:broker.secret"

[inputs.panels]                        # in
adapter = "mqtt"
broker = "mqtts://broker.example.org"
trusted = true                         # the broker lets only ana write to panels/ana/...
topics = [
  "rapport/messages",                                          # JSON of a message
  { topic = "panels/{peer}/said/{refers_to}", type = "REPLY" },  # plain text
]
```

A delivery is published with QoS 1 as JSON of listing 1; the broker's PUBACK means sent. The input
acknowledges a packet only when its message is durable: the broker keeps it until then, over
restarts of both sides. A packet that comes again gets the id it had, so that the channel drops it.
A packet that is no message, or is refused for good, becomes a dead letter before it is
acknowledged.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from rapport.channel.access.identities import full_bucket, take
from rapport.channel.mqtt.bridge import (
    Broker,
    Packet,
    check_filter,
    is_topic,
    matches,
    read_broker_address,
)
from rapport.channel.mqtt.client import BrokerClient, ReceivedPacket, check_driver
from rapport.communication.adapters.base import (
    Delivery,
    Failed,
    Outcome,
    Sent,
    adapter,
    delivery_json,
    read_secret_field,
)
from rapport.communication.adapters.input_base import (
    SHOWN_TEXT,
    AdapterState,
    DeadLetterInput,
    Intake,
    RejectedInput,
    drop_input,
    kept_raw,
    refused_input,
)
from rapport.communication.arrivals import TOO_FAST
from rapport.communication.texts import clean
from rapport.core.errors import InvalidInput, Unavailable
from rapport.core.event import content_id
from rapport.core.message import Identifier, Message
from rapport.core.times import format_duration
from rapport.kernel.clock import Chance, Clock, Ids, SystemClock
from rapport.kernel.config_fields import Fields
from rapport.kernel.tasks import first_of
from rapport.kernel.telemetry import get_logger

# --- settings ---


MQTT_KEYS = ("broker", "user", "password", "client", "timeout", "most_bytes")
MQTT_INPUT_KEYS = ("broker", "user", "password", "client", "topics")
TOPIC_KEYS = ("topic", "payload", "type", "subtype", "receiver")
PLACES = ("peer", "refers_to", "conversation")
"""Fields that a topic level in braces may hold."""
LARGEST_PAYLOAD = 16 * 1024 * 1024
_EXAMPLE = '["rapport/messages", { topic = "panels/{peer}/said" }]'
_PLACE = re.compile(r"\{(\w*)\}\Z")


class MqttSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The `[adapters.mqtt]` table. The password is read from a file or variable, never shown."""

    broker: Broker = Broker(host="127.0.0.1", port=1883)
    password: str = ""
    client: str = ""
    """The client id at the broker; empty = a new one at each start, so that several nodes do not
    disconnect each other.
    """
    timeout_ms: Annotated[int, Meta(ge=1)] = 10_000
    """Limit for connecting and the broker's confirmation together."""
    most_bytes: Annotated[int, Meta(ge=1, le=LARGEST_PAYLOAD)] = 256 * 1024
    """Largest payload; stay below the broker's limit. A broker disconnects a client that sends
    more, with all its pending messages.
    """

    def __repr__(self) -> str:
        return f"MqttSettings(broker={self.broker.place!r}, user={self.broker.user!r})"


class TopicPattern(msgspec.Struct, frozen=True, kw_only=True):
    """A topic to subscribe to, and the fields of its messages that the payload lacks."""

    topic: str
    is_text: bool = False
    """Whether the payload is the content itself, not the JSON of a message."""
    type: str = "MESSAGE"
    subtype: str = "TEXT"
    receiver: Identifier | None = None

    @property
    def filter(self) -> str:
        """The subscription: fields are one level each.

        >>> TopicPattern(topic="panels/{peer}/said").filter
        'panels/+/said'
        """
        return "/".join("+" if _PLACE.match(level) else level for level in self.topic.split("/"))

    def fields_in(self, topic: str) -> dict[str, str]:
        """The fields in a matching topic.

        >>> TopicPattern(topic="panels/{peer}/said").fields_in("panels/ana/said")
        {'peer': 'ana'}
        """
        pairs = zip(self.topic.split("/"), topic.split("/"), strict=False)
        return {found[1]: given for level, given in pairs if (found := _PLACE.match(level))}

    def places(self) -> tuple[str, ...]:
        """The fields in the topic."""
        return tuple(found[1] for level in self.topic.split("/") if (found := _PLACE.match(level)))


class MqttInputSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an `[inputs.NAME]` with `adapter = "mqtt"`."""

    broker: Broker
    password: str = ""
    client: str = ""
    """The client id under which the broker keeps messages while the node is away."""
    topics: tuple[TopicPattern, ...] = ()

    def __repr__(self) -> str:
        return f"MqttInputSettings(broker={self.broker.place!r}, client={self.client!r})"


def read_mqtt(table: Fields, directory: Path) -> MqttSettings:
    """The `[adapters.mqtt]` table; an absent one means a broker on this machine."""
    default = MqttSettings()
    return table.settings(
        default,
        broker=_broker(table) if table.section.values else default.broker,
        password=read_secret_field("password", table, directory),
    )


def read_mqtt_input(
    table: Fields, directory: Path, *, client: str, trusted: bool = False
) -> MqttInputSettings:
    """The settings of an MQTT input; `client` is the default client id. `trusted`: its messages
    need no further proof of their sender, so each topic has to name it.
    """
    topics = tuple(_topics(table))
    if trusted and not all("peer" in one.places() for one in topics):
        table.fault(
            "topics",
            "input.trust_without_peer",
            "a trusted input has a topic without a sender",
            hint="name the level that the broker guards, such as panels/{peer}/said",
        )
    if not topics and table.is_empty("topics"):
        message = "the input listens to nothing"
        table.fault("topics", "input.no_topics", message, hint=f"add topics = {_EXAMPLE}")
    return MqttInputSettings(
        broker=_broker(table),
        password=read_secret_field("password", table, directory),
        client=table.filled_text("client", client),
        topics=topics,
    )


def _broker(table: Fields) -> Broker:
    host, port, secure = read_broker_address(table)
    return Broker(host=host, port=port, secure=secure, user=table.text("user", ""))


def _topics(table: Fields) -> list[TopicPattern]:
    given = table.section.values.get("topics", [])
    if not isinstance(given, list) or not all(isinstance(one, str | dict) for one in given):
        table.wrong("topics", "a list of topics", f"topics = {_EXAMPLE}")
        return []
    return [_topic(table, {"topic": one} if isinstance(one, str) else one) for one in given]


def _topic(table: Fields, given: dict[str, Any]) -> TopicPattern:
    """One entry; its faults are reported at `topics`."""
    entry = Fields(_at_topics(table, given), table.problems, known=TOPIC_KEYS, strict=True)
    topic = entry.filled_text("topic", example='"rapport/messages"')
    pattern = TopicPattern(
        topic=topic,
        is_text=entry.choice("payload", ("message", "text"), _default_payload(topic)) == "text",
        type=entry.filled_text("type", "MESSAGE"),
        subtype=entry.filled_text("subtype", "TEXT"),
        receiver=_receiver(entry),
    )
    try:
        if topic:
            check_pattern(pattern)
    except InvalidInput as error:
        entry.report("topic", error)
    return pattern


def check_pattern(pattern: TopicPattern) -> None:
    """Raises InvalidInput unless this can be subscribed to and its fields are known."""
    check_filter(pattern.filter)
    places = pattern.places()
    strange = [place for place in places if place not in PLACES]
    if strange or len(set(places)) < len(places):
        raise InvalidInput(
            f"{pattern.topic[:80]!r} is not a topic to listen to",
            code="mqtt.bad_topic",
            hint=f"levels in braces are {', '.join(PLACES)}, each once",
        )
    if pattern.is_text and "peer" not in places:
        raise InvalidInput(
            f"plain text at {pattern.topic[:80]!r} has no sender",
            code="input.no_sender",
            hint="name the level that does, such as panels/{peer}/said",
        )


def _at_topics(table: Fields, given: dict[str, Any]) -> Any:
    section = table.section
    return type(section)(section.file, (*section.path, "topics"), given)


def _default_payload(topic: str) -> str:
    return "text" if "{peer}" in topic else "message"


def _receiver(entry: Fields) -> Identifier | None:
    text = entry.text("receiver", "")
    if not text:
        return None
    try:
        return Identifier.parse(text)
    except InvalidInput as error:
        entry.report("receiver", error)
        return None


# --- output ---


@adapter("mqtt")
class MqttAdapter:
    """Publishes to the topic in the peer's address (`mqtt:panels/ana/show`). One client connects at
    the first delivery, is kept, and reconnects by itself. Belongs to one event loop.
    """

    name = "mqtt"
    seals = True
    """Addresses that end with `;sealed` carry sealed texts (see factory.py)."""

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
        self._settings, self._proof_for, self._clock = settings, proof_for, clock or SystemClock()
        self._client: BrokerClient | None = None

    async def send(self, delivery: Delivery) -> Outcome:
        """Confirmed by the broker (QoS 1, not retained) = sent; an unavailable broker is worth a
        retry. After a failure it is unknown whether the broker has the message; the driver may
        still send it when it reconnects.
        """
        if not is_topic(delivery.target):
            return Failed("the topic cannot be published to", retry=False)
        payload = delivery_json(delivery, self._proof_for(delivery.message, delivery.peer))
        if len(payload) > self._settings.most_bytes:
            reason = f"{len(payload)} bytes are more than the {self._settings.most_bytes} allowed"
            return Failed(reason, retry=False)
        client, limit_ms = self._client or self._start(), self._settings.timeout_ms
        confirmed = asyncio.Event()

        async def publish() -> None:
            await client.connected.wait()
            await client.publish(delivery.target, payload)
            confirmed.set()

        try:
            await first_of(publish(), self._clock.sleep(limit_ms))
        except Unavailable as error:
            return Failed(clean(error.message)[:200], retry=True)
        if confirmed.is_set():
            return Sent(delivery.key)
        late = f"the broker did not confirm within {format_duration(limit_ms)}"
        return Failed(clean(client.trouble or late)[:200], retry=True)

    async def close(self) -> None:
        """Disconnects; a second call is no error."""
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


# --- packets ---


REMEMBERED = 1_024
"""Packets that are recognised when they are redelivered; as many as brokers have pending for a
client.
"""
MOST_TOPICS = 100_000
"""Topics whose last packet is remembered."""
TOPIC = "topic/"
"""Prefix of the keys of topics."""
PACKETS = "packets"
_SHOWN_TOPIC = 200


class LastPacket(msgspec.Struct, frozen=True, array_like=True):
    """The last packet of a topic: a digest of its payload, and the id of its message."""

    digest: str
    id: str


class PacketIds:
    """The message ids of recent packets: a packet that comes again gets the same id, and the
    channel drops it. MQTT names no message; redelivered packets have the broker's mark, retained
    ones come at every connection without any. Durable before a packet is published and
    acknowledged.
    """

    def __init__(self) -> None:
        self.ids: dict[str, str] = {}
        self.topics: dict[str, LastPacket] = {}
        self._unkept: dict[str, None] = {}
        self._gone: dict[str, None] = {}

    def id_for(self, packet: Packet, fresh: str) -> str:
        """The id of the packet's message: its earlier one when it may have come before. A retained
        packet is a state: with the payload seen last at its topic it is the same message; with
        another it is news, also if the topic had that payload once before. A change and its
        reversal while disconnected cannot be seen.
        """
        mark, key, digest = _mark(packet), TOPIC + content_id(packet.topic), _digest(packet)
        if packet.again and mark in self.ids:
            return self.ids[mark]
        if packet.retained:
            last = self.topics.get(key)
            if last is None:
                fresh = content_id("mqtt retained", packet.topic, digest)
            elif last.digest == digest:
                fresh = last.id
        self.ids.pop(mark, None)
        self.ids[mark] = fresh
        while len(self.ids) > REMEMBERED:
            del self.ids[next(iter(self.ids))]
        self._saw(key, LastPacket(digest, fresh))
        return fresh

    def unkept(self) -> tuple[dict[str, bytes], list[str]]:
        """Values to write by key, and keys to delete; costs what is new since `kept`, and the
        latest packets.
        """
        values = {key: msgspec.msgpack.encode(self.topics[key]) for key in self._unkept}
        return {PACKETS: msgspec.msgpack.encode({"ids": self.ids}), **values}, list(self._gone)

    def kept(self) -> None:
        """The result of `unkept` is durable."""
        self._unkept, self._gone = {}, {}

    def take_back(self, entries: Iterable[tuple[str, bytes]]) -> None:
        """Loads stored values; unreadable ones are ignored: then a repetition may pass once."""
        for key, raw in entries:
            try:
                if key == PACKETS:
                    kept = msgspec.msgpack.decode(raw, type=dict[str, dict[str, str]])
                    self.ids = kept.get("ids", {})
                elif key.startswith(TOPIC):
                    self.topics[key] = msgspec.msgpack.decode(raw, type=LastPacket)
            except msgspec.DecodeError:
                continue

    def _saw(self, key: str, last: LastPacket) -> None:
        if self.topics.pop(key, None) != last:
            self._unkept[key] = None
            self._gone.pop(key, None)
        self.topics[key] = last
        while len(self.topics) > MOST_TOPICS:
            oldest = next(iter(self.topics))
            del self.topics[oldest]
            self._unkept.pop(oldest, None)
            self._gone[oldest] = None


def _digest(packet: Packet) -> str:
    return hashlib.blake2b(packet.payload, digest_size=16).hexdigest()


def _mark(packet: Packet) -> str:
    """Number, topic and payload, since numbers are reused."""
    digest = hashlib.blake2b(packet.payload, digest_size=12)
    digest.update(packet.topic.encode("utf-8", "surrogatepass"))
    return f"{packet.number} {digest.hexdigest()}"


def read_packet(packet: Packet, topics: Sequence[TopicPattern]) -> Message:
    """The message in a packet; raises InvalidInput for a payload that is no message, or names
    another sender than its topic.
    """
    pattern = next((one for one in topics if matches(one.filter, packet.topic)), None)
    if pattern is None:
        raise InvalidInput("this topic is not subscribed to", code="input.strange_topic")
    fields = pattern.fields_in(packet.topic)
    return _as_text(packet, pattern, fields) if pattern.is_text else _as_json(packet, fields)


def rejected_packet(packet: Packet, id: str, error: InvalidInput) -> RejectedInput:
    """The rejected input of a packet that is no message, under the id that its message
    would have.
    """
    return RejectedInput(
        id=id,
        code=error.code,
        reason=f"{error.message} ({error.hint})" if error.hint else error.message,
        subject=packet.topic[:_SHOWN_TOPIC],
        text=packet.payload[:SHOWN_TEXT].decode("utf-8", "replace"),
        raw=kept_raw(packet.payload) if len(packet.topic) <= _SHOWN_TOPIC else b"",
    )


def _as_text(packet: Packet, pattern: TopicPattern, fields: dict[str, str]) -> Message:
    try:
        content = packet.payload.decode()
    except UnicodeDecodeError:
        raise InvalidInput("the payload is not text", code="message.not_a_message") from None
    return Message(
        type=pattern.type,
        subtype=pattern.subtype,
        sender=_sender(fields["peer"]),
        receiver=pattern.receiver,
        conversation=fields.get("conversation", ""),
        refers_to=fields.get("refers_to", ""),
        content=content,
    )


def _as_json(packet: Packet, fields: dict[str, str]) -> Message:
    message = Message.from_json(packet.payload)
    if "peer" in fields and message.sender != _sender(fields["peer"]):
        raise InvalidInput(
            f"{message.sender} was sent to the topic of {fields['peer']!r}",
            code="input.other_sender",
            hint="sender and topic must name the same peer",
        )
    return message


def _sender(name: str) -> Identifier:
    if not name or not name.isprintable():
        raise InvalidInput("the topic names no peer", code="input.no_sender")
    return Identifier("peer", name)


# --- input ---


_log = get_logger(__name__)
T = TypeVar("T")
MOST_TOGETHER = 500
MOST_TRIES = 600
"""Seconds for which a sender that is too fast makes the others wait; then its messages are refused.
"""
ASIDE_RATE, MOST_ASIDE = 10, 1_000
"""Dead letters a second in the long run, and at once: a broken device must not fill the disk."""
_PAGE = 1_000
_PAUSE_MS = 1_000


class MqttInput:
    """A push adapter for the topics of the site. All calls belong to one event loop."""

    name = "mqtt"

    def __init__(
        self,
        settings: MqttInputSettings,
        clock: Clock | None = None,
        set_aside: DeadLetterInput = drop_input,
    ) -> None:
        """`set_aside` writes dead letters."""
        self._settings, self._clock = settings, clock or SystemClock()
        self._set_aside = set_aside
        self._aside = full_bucket(MOST_ASIDE, self._clock.now_ms())
        self._ids = Ids(self._clock, Chance.from_machine())
        self._client: BrokerClient | None = None
        self._packets = PacketIds()
        self.taken = self.refused = 0

    @property
    def trouble(self) -> str:
        """Why nothing arrives; empty while connected."""
        return self._client.trouble if self._client is not None else "not started"

    async def start(self, intake: Intake) -> None:
        """Connects in the background, again and again; raises Unsupported without the driver."""
        settings = self._settings
        self._intake = intake
        self._packets = await _load_packet_ids(intake.state)
        topics = [one.filter for one in settings.topics]
        client = BrokerClient(settings.broker, settings.password, settings.client, topics)
        self._client = client
        client.start()
        intake.schedule(self._receive_packets, name="mqtt")

    async def stop(self) -> None:
        """Disconnects; the broker keeps what comes meanwhile."""
        client, self._client = self._client, None
        if client is not None:
            await client.stop()

    async def read_again(self, found: RejectedInput) -> Message:
        """See RereadsInput; reads by the topics declared now."""
        packet = Packet(topic=found.subject, payload=found.raw, number=0)
        message = read_packet(packet, self._settings.topics)
        return message if message.id else msgspec.structs.replace(message, id=found.id)

    async def _receive_packets(self) -> None:
        client = self._client
        assert client is not None, "start() comes first"
        while True:
            arrived = [await client.arrived.get()]
            while len(arrived) < MOST_TOGETHER and not client.arrived.empty():
                arrived.append(client.arrived.get_nowait())
            await self._process(arrived)
            for one in arrived:
                client.acknowledge(one.packet.number, one.quality)

    async def _process(self, arrived: Sequence[ReceivedPacket]) -> None:
        """Publishes or refuses packets, retrying until each is durable: the broker waits."""
        found = [self._read(one) for one in arrived]
        # The ids are on disk before their messages are: a packet that comes again finds its.
        values, gone = self._packets.unkept()
        await self._until_stored(partial(self._intake.state.put_many, values, forget=gone))
        self._packets.kept()
        for unusable in found:
            if isinstance(unusable, RejectedInput):
                await self._refuse(unusable)
        messages = [one for one in found if isinstance(one, Message)]
        if messages:
            await self._publish_patiently(messages)

    async def _publish_patiently(self, messages: list[Message]) -> None:
        for _ in range(MOST_TRIES):
            messages = await self._publish(messages)
            if not messages:
                return
            await self._clock.sleep(_PAUSE_MS)
        for message in messages:
            await self._refuse(refused_input(message, TOO_FAST))

    async def _publish(self, messages: list[Message]) -> list[Message]:
        """Publishes messages; returns those to try again because their sender is too fast."""
        arrivals = await self._until_stored(partial(self._intake.publish, messages))
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
        """Counts a rejected input and writes its dead letter; of very many only some."""
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
            await self._until_stored(partial(self._set_aside, unusable))

    async def _until_stored(self, work: Callable[[], Awaitable[T]]) -> T:
        """Retries until the store is available: the broker waits."""
        while True:
            try:
                return await work()
            except Unavailable as error:
                _log.warning("messages wait", input=self._intake.name, why=error.message)
                await self._clock.sleep(_PAUSE_MS)

    def _read(self, arrived: ReceivedPacket) -> Message | RejectedInput:
        """The message, or the rejected input: left at the broker it would block all behind it."""
        packet = arrived.packet
        id = self._packets.id_for(packet, self._ids.new())
        try:
            message = read_packet(packet, self._settings.topics)
        except InvalidInput as error:
            return rejected_packet(packet, id, error)
        return message if message.id else msgspec.structs.replace(message, id=id)


async def _load_packet_ids(state: AdapterState) -> PacketIds:
    found, after = PacketIds(), ""
    while page := await state.keys(after=after, limit=_PAGE):
        found.take_back(page)
        after = page[-1][0]
    return found
