"""Bridges to MQTT brokers, from the site's `[mqtt]`. [CH-12]

```toml
[mqtt.hall]
broker = "mqtt://127.0.0.1:1883"      # mqtts:// with TLS
user = "rapport"
password = "file:hall.secret"
in = [{ topic = "sensors/{room}/temperature", source = "thermometers" }]
out = [{ channel = "alarms", topic = "rapport/{type}/{subject}", query = "type <> 'test'" }]
```
"""

from __future__ import annotations

import string

import msgspec

from rapport.channel.checking import check_channel_name
from rapport.channel.mqtt.topics import check_subscription, filter_of
from rapport.channel.query.kinds import make_query
from rapport.channel.reserved import is_reserved
from rapport.core.errors import InvalidInput, Problem
from rapport.core.urls import address_parts
from rapport.kernel.config_fields import Fields
from rapport.kernel.toml import TomlFile

_KEYS = ("broker", "user", "password", "client", "in", "out")
_IN_KEYS, _OUT_KEYS = ("topic", "source", "channel"), ("channel", "topic", "query", "payload")
TOPIC_FIELDS = ("type", "subject", "source", "id")
PAYLOADS = ("data", "cloudevent")


class Incoming(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a topic filter become events of a source, in `raw.SOURCE` or another channel.

    Levels of the topic in braces, `{device}`, are fields of the payload.
    """

    topic: str
    source: str
    channel: str

    @property
    def filter(self) -> str:
        """What the broker is asked for."""
        return filter_of(self.topic)


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """Events of a channel become messages; `topic` may hold {type}, {subject}, {source}, {id}."""

    channel: str
    topic: str
    query: str = ""
    payload: str = "data"


class Broker(msgspec.Struct, frozen=True, kw_only=True):
    """Where a broker is and as whom we come; the password is kept apart from it."""

    host: str
    port: int
    secure: bool = False
    user: str = ""

    @property
    def place(self) -> str:
        """Host and port, for people."""
        return f"{self.host}:{self.port}"


class Bridge(msgspec.Struct, frozen=True, kw_only=True):
    """What the site says of one broker."""

    name: str
    host: str
    port: int
    secure: bool = False
    user: str = ""
    password: str = ""
    """Named as a secret (`env:NAME`, `file:PATH`)."""
    client: str = ""
    """The client id at the broker, which keeps our place there; default `rapport-SITE-NAME`."""
    incoming: tuple[Incoming, ...] = ()
    outgoing: tuple[Outgoing, ...] = ()

    @property
    def broker(self) -> Broker:
        """Whom to connect to."""
        return Broker(host=self.host, port=self.port, secure=self.secure, user=self.user)


def bridges_from_site(file: TomlFile) -> tuple[tuple[Bridge, ...], list[Problem]]:
    """What `[mqtt]` says, and all its problems; never raises for a wrong site."""
    problems: list[Problem] = []
    section = file.section("mqtt")
    Fields(section, problems, known=dict(section.sections()), strict=True)
    bridges = [
        _bridge(name, Fields(table, problems, known=_KEYS, strict=True))
        for name, table in section.sections()
    ]
    return tuple(bridges), problems


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


def _incoming(fields: Fields) -> Incoming:
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
    return Incoming(topic=topic, source=source, channel=channel)


def _outgoing(fields: Fields) -> Outgoing:
    outgoing = Outgoing(
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
    """Raises InvalidInput unless the fields in braces exist and no wildcard stands in it."""
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
