"""Bridges to MQTT brokers, from the site's `[mqtt]`: topics, filters, messages as events. [CH-6,
CH-12]

```toml
[mqtt.hall]
broker = "mqtt://127.0.0.1:1883"      # mqtts:// with TLS
user = "rapport"
password = "file:hall.secret"
in = [{ topic = "sensors/{room}/temperature", source = "thermometers" }]
out = [{ channel = "alarms", topic = "rapport/{type}/{subject}", query = "type <> 'test'" }]
```

MQTT messages have no ids. A redelivered packet is recognised by the broker's DUP flag together with
the packet's number, topic and bytes, compared with the latest events of the bridge: a broker has a
bounded number of unacknowledged packets. A retained message has no flag when it is sent again: it
is compared with the last event of its topic.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence

import msgspec

from rapport.channel.query.query_kinds import make_query
from rapport.channel.validation import check_channel_name, is_reserved
from rapport.core.codec import encode_cloudevent
from rapport.core.errors import InvalidInput, Problem
from rapport.core.event import ADDED_FIELDS, MAX_NAME, Event, StoredEvent
from rapport.core.urls import address_parts
from rapport.kernel.config_fields import Fields, named_tables
from rapport.kernel.toml import TomlFile

LONGEST_TOPIC = 65_535
LONGEST_ADDRESS = 1_000
"""Most bytes of a topic that is a person's address."""
_NAMED_LEVEL = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]{0,99})\}", re.ASCII)
_KEYS = ("broker", "user", "password", "client", "in", "out")
_IN_KEYS, _OUT_KEYS = ("topic", "source", "channel"), ("channel", "topic", "query", "payload")
TOPIC_FIELDS = ("type", "subject", "source", "id")
PAYLOADS = ("data", "cloudevent")
BRIDGE = "mqttbridge"
"""Header: the bridge an event arrived by, so that the same bridge never sends it out again."""
PACKET = "mqttpacket"
"""Header: the number of the packet that brought it."""
TOPIC = "mqtttopic"


def check_filter(text: str) -> None:
    """Raises InvalidInput unless it is a topic filter: `+` stands for one level, `#` for the rest.

    >>> check_filter("hall/+/temperature")
    """
    levels = text.split("/")
    bad = (
        not text
        or "\0" in text
        or len(text.encode("utf-8", "surrogatepass")) > LONGEST_TOPIC
        or "#" in levels[:-1]
        or any(len(level) > 1 and ("#" in level or "+" in level) for level in levels)
    )
    if bad:
        raise InvalidInput(
            f"{text[:80]!r} is not a topic filter",
            code="mqtt.bad_topic",
            hint="such as sensors/+/temperature or sensors/#",
        )


def check_subscription(text: str) -> None:
    """Raises InvalidInput unless it is a topic filter in which a level may be named in braces.

    >>> check_subscription("zigbee2mqtt/{device}/temperature")
    """
    names = [level for level in text.split("/") if _NAMED_LEVEL.fullmatch(level)]
    if len(set(names)) < len(names) or set("{}") & set(filter_of(text)):
        raise InvalidInput(
            f"{text[:80]!r} is not a topic filter",
            code="mqtt.bad_topic",
            hint="a name in braces stands for one whole level, each once: sensors/{device}/state",
        )
    check_filter(filter_of(text))


def filter_of(subscription: str) -> str:
    """The filter that a broker is given: named levels are wildcards there.

    >>> filter_of("tele/{device}/SENSOR")
    'tele/+/SENSOR'
    """
    levels = subscription.split("/")
    return "/".join("+" if _NAMED_LEVEL.fullmatch(level) else level for level in levels)


def named_levels(subscription: str, topic: str) -> dict[str, str]:
    """What the named levels of a subscription are in a topic that it covers.

    >>> named_levels("tele/{device}/SENSOR", "tele/kitchen/SENSOR")
    {'device': 'kitchen'}
    """
    found = {}
    for level, part in zip(subscription.split("/"), topic.split("/"), strict=False):
        if name := _NAMED_LEVEL.fullmatch(level):
            found[name[1]] = part
    return found


def is_topic(text: str) -> bool:
    """Whether it is one topic to publish to: no wildcards, no controls, no empty level, and none of
    the broker's own.

    >>> is_topic("panels/ana/show"), is_topic("panels/#"), is_topic("$SYS/x"), is_topic("a//b")
    (True, False, False, False)
    """
    return (
        0 < len(text.encode("utf-8", "surrogatepass")) <= LONGEST_ADDRESS
        and text.isprintable()
        and not set(text) & set("+#")
        and not text.startswith("$")
        and all(text.split("/"))
    )


def matches(topic_filter: str, topic: str) -> bool:
    """Whether a filter covers a topic.

    >>> matches("a/#", "a"), matches("a/+", "a/b/c"), matches("#", "$SYS/load")
    (True, False, False)
    """
    wanted, given = topic_filter.split("/"), topic.split("/")
    if topic.startswith("$") and wanted[0] in ("#", "+"):
        return False
    for index, level in enumerate(wanted):
        if level == "#":
            return True
        if index >= len(given) or level not in ("+", given[index]):
            return False
    return len(given) == len(wanted)


def clean_level(text: str) -> str:
    """Text as a part of a topic: wildcards and controls become `_`, slashes part levels as written.

    >>> clean_level("room/7+#")
    'room/7__'
    """
    kept = "".join(sign if sign.isprintable() and sign not in "+#" else "_" for sign in text)
    return kept.strip("/") or "_"


class IncomingTopic(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a topic filter become events of a source, in `raw.SOURCE` or another channel.

    Levels of the topic in braces, `{device}`, are fields of the payload.
    """

    topic: str
    source: str
    channel: str

    @property
    def filter(self) -> str:
        return filter_of(self.topic)


class OutgoingTopic(msgspec.Struct, frozen=True, kw_only=True):
    """Events of a channel become messages; `topic` may hold {type}, {subject}, {source}, {id}."""

    channel: str
    topic: str
    query: str = ""
    payload: str = "data"


class Broker(msgspec.Struct, frozen=True, kw_only=True):
    """Address and credentials of a broker; the password is kept apart."""

    host: str
    port: int
    secure: bool = False
    user: str = ""

    @property
    def place(self) -> str:
        return f"{self.host}:{self.port}"


class Bridge(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    host: str
    port: int
    secure: bool = False
    user: str = ""
    password: str = ""
    """Named as a secret (`env:NAME`, `file:PATH`)."""
    client: str = ""
    """The client id at the broker, which stores our session; default `rapport-SITE-NAME`."""
    incoming: tuple[IncomingTopic, ...] = ()
    outgoing: tuple[OutgoingTopic, ...] = ()

    @property
    def broker(self) -> Broker:
        return Broker(host=self.host, port=self.port, secure=self.secure, user=self.user)


def bridges_from_site(file: TomlFile) -> tuple[tuple[Bridge, ...], list[Problem]]:
    """The `[mqtt]` table, and all its problems; never raises for a wrong site."""
    problems: list[Problem] = []
    tables = named_tables(file.section("mqtt"), problems, _KEYS)
    return tuple(_bridge(name, fields) for name, fields in tables), problems


def _bridge(name: str, fields: Fields) -> Bridge:
    host, port, secure = read_broker_address(fields)
    incoming = [
        _incoming(entry)
        for entry in fields.entries("in", _IN_KEYS, '[{ topic = "a/#", source = "a" }]')
    ]
    outgoing = [
        _outgoing(entry)
        for entry in fields.entries("out", _OUT_KEYS, '[{ channel = "alarms", topic = "alarms" }]')
    ]
    if not incoming and not outgoing:
        hint = 'such as in = [{ topic = "sensors/#", source = "sensors" }]'
        fields.fault("", "mqtt.idle", "the bridge carries nothing", hint=hint)
    return Bridge(
        name=name,
        host=host,
        port=port,
        secure=secure,
        user=fields.text("user", ""),
        password=fields.text("password", ""),
        client=fields.text("client", ""),
        incoming=tuple(incoming),
        outgoing=tuple(outgoing),
    )


def read_broker_address(fields: Fields) -> tuple[str, int, bool]:
    """Host, port and whether it is encrypted, of the key `broker`; faults are noted there."""
    text = fields.filled_text("broker", example='"mqtt://127.0.0.1:1883"')
    parts = address_parts(text)
    if text and (parts.scheme not in ("mqtt", "mqtts") or not parts.hostname):
        message = f"{text[:80]!r} is not the address of a broker"
        fields.fault("broker", "mqtt.bad_broker", message, hint="such as mqtt://127.0.0.1:1883")
    secure = parts.scheme == "mqtts"
    return parts.hostname or "", parts.port or (8883 if secure else 1883), secure


def _incoming(fields: Fields) -> IncomingTopic:
    topic = fields.filled_text("topic", example='"sensors/#"')
    source = fields.filled_text("source", example='"sensors"')
    channel = fields.text("channel", f"raw.{source}")
    try:
        if topic:
            check_subscription(topic)
        if source:
            check_channel_name(channel)
    except InvalidInput as error:
        fields.report("topic" if "topic" in error.code else "source", error)
    if is_reserved(channel):
        fields.fault(
            "channel",
            "channel.reserved",
            f"only the node itself appends to {channel!r}",
            hint="leave it out: messages then go to raw.SOURCE and are given a meaning",
        )
    return IncomingTopic(topic=topic, source=source, channel=channel)


def _outgoing(fields: Fields) -> OutgoingTopic:
    outgoing = OutgoingTopic(
        channel=fields.filled_text("channel", example='"alarms"'),
        topic=fields.filled_text("topic", example='"rapport/{type}"'),
        query=fields.text("query", ""),
        payload=fields.choice("payload", PAYLOADS, "data"),
    )
    try:
        if outgoing.channel:
            check_channel_name(outgoing.channel)
        if outgoing.query:
            make_query("sql", outgoing.query)
        check_topic_template(outgoing.topic)
    except InvalidInput as error:
        fields.report("query" if "query" in error.code else "topic", error)
    return outgoing


def check_topic_template(text: str) -> None:
    """Raises InvalidInput unless the fields in braces exist and there is no wildcard."""
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError:
        parts = [("", "?", "", None)]
    fields = [name for _literal, name, _spec, _conversion in parts if name is not None]
    plain = all(not spec and not conversion for _l, name, spec, conversion in parts if name)
    if not plain or any(name not in TOPIC_FIELDS for name in fields) or set(text) & set("+#"):
        raise InvalidInput(
            f"{text[:80]!r} is not a topic to publish to",
            code="mqtt.bad_topic",
            hint=f"no + and #; in braces only {', '.join(TOPIC_FIELDS)}",
        )


class Packet(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    payload: bytes
    number: int
    again: bool = False
    """The DUP flag: it may have been delivered before."""
    retained: bool = False
    """The last message of its topic, sent to a new subscriber."""


def to_event(
    packet: Packet,
    *,
    bridge: str,
    source: str,
    fresh_id: str,
    now_ms: int,
    last: Event | None = None,
    fields: Mapping[str, str] | None = None,
) -> Event:
    """The event of a message; `fields` come from its topic.

    `last` is the last event of its topic, if known. A retained message is a state: if equal to the
    last it is the same event, stored once; otherwise it is new.
    """
    data, kind = _data(packet.payload)
    is_last = packet.retained and last is not None and last.data == data
    identity = last.id if is_last and last is not None else fresh_id
    headers = {BRIDGE: bridge, PACKET: str(packet.number), TOPIC: packet.topic, **kind}
    if fields:
        headers[ADDED_FIELDS] = msgspec.json.encode(fields).decode()
    subject = packet.topic if packet.topic.isprintable() else ""
    return Event(
        source=source,
        id=identity,
        type=f"{source}.raw",
        subject=subject[:MAX_NAME],
        time=now_ms,
        data=data,
        headers=headers,
    )


def is_redelivery(packet: Packet, recent: Sequence[StoredEvent], bridge: str) -> bool:
    """Whether a possibly redelivered packet is among the latest events."""
    if not packet.again:
        return False
    data, _kind = _data(packet.payload)
    for stored in reversed(recent):
        headers = stored.event.headers
        if (
            headers.get(BRIDGE) == bridge
            and headers.get(PACKET) == str(packet.number)
            and headers.get(TOPIC) == packet.topic
        ):
            return stored.event.data == data  # an older packet of the number is another message
    return False


def last_of_topics(recent: Sequence[StoredEvent], bridge: str) -> dict[str, Event]:
    return {
        stored.event.headers.get(TOPIC, ""): stored.event
        for stored in recent
        if stored.event.headers.get(BRIDGE) == bridge
    }


def topic_of(event: Event, template: str) -> str:
    fields = {"type": event.type, "subject": event.subject, "source": event.source, "id": event.id}
    return template.format(**{name: clean_level(text) for name, text in fields.items()})


def payload_of(event: Event, outgoing: OutgoingTopic) -> bytes:
    """The published payload: the data alone, or the whole CloudEvent."""
    return encode_cloudevent(event) if outgoing.payload == "cloudevent" else event.data


def _data(payload: bytes) -> tuple[bytes, dict[str, str]]:
    """JSON as it is, other text as a JSON text, octets as base64."""
    try:
        msgspec.json.decode(payload)
        return payload.strip(), {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return msgspec.json.encode(payload.decode("utf-8")), {"datacontenttype": "text/plain"}
    except UnicodeDecodeError:
        kind = {"datacontenttype": "application/octet-stream", "dataencoding": "base64"}
        return msgspec.json.encode(payload), kind
