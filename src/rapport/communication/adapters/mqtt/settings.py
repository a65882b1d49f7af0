"""How MQTT brokers are reached by the adapter `mqtt`, out and in: what the site says. [CO-16, UX-2]

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
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from rapport.channel.mqtt.bridge import Broker, check_filter, read_broker_address
from rapport.communication.adapters.secrets import read_secret_field
from rapport.core.errors import InvalidInput
from rapport.core.message import Identifier
from rapport.kernel.config_fields import Fields

MQTT_KEYS = ("broker", "user", "password", "client", "timeout", "most_bytes")
MQTT_INPUT_KEYS = ("broker", "user", "password", "client", "topics")
TOPIC_KEYS = ("topic", "payload", "type", "subtype", "receiver")
PLACES = ("peer", "refers_to", "conversation")
"""What a level of a topic may tell, written in braces."""
LARGEST_PAYLOAD = 16 * 1024 * 1024
_EXAMPLE = '["rapport/messages", { topic = "panels/{peer}/said" }]'
_PLACE = re.compile(r"\{(\w*)\}\Z")


class MqttSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The `[adapters.mqtt]` table. The password is read from a file or variable, never shown."""

    broker: Broker = Broker(host="127.0.0.1", port=1883)
    password: str = ""
    client: str = ""
    """The client id at the broker; empty = a new one at each start, so that several nodes do not
    push each other out."""
    timeout_ms: int = 10_000
    """How long the broker may take to be reached and to confirm, all in all."""
    most_bytes: int = 256 * 1024
    """Largest payload. A broker cuts off who sends more than it takes, and with it all that is on
    its way: stay below its limit."""

    def __repr__(self) -> str:
        return f"MqttSettings(broker={self.broker.place!r}, user={self.broker.user!r})"


class TopicPattern(msgspec.Struct, frozen=True, kw_only=True):
    """A topic to listen to, and what is known of its messages beside their payload."""

    topic: str
    is_text: bool = False
    """Whether the payload is the content itself, not the JSON of a message."""
    type: str = "MESSAGE"
    subtype: str = "TEXT"
    receiver: Identifier | None = None

    @property
    def filter(self) -> str:
        """What the broker is asked for: places are one level each.

        >>> TopicPattern(topic="panels/{peer}/said").filter
        'panels/+/said'
        """
        return "/".join("+" if _PLACE.match(level) else level for level in self.topic.split("/"))

    def told_by(self, topic: str) -> dict[str, str]:
        """What a topic that fits tells.

        >>> TopicPattern(topic="panels/{peer}/said").told_by("panels/ana/said")
        {'peer': 'ana'}
        """
        pairs = zip(self.topic.split("/"), topic.split("/"), strict=False)
        return {found[1]: given for level, given in pairs if (found := _PLACE.match(level))}

    def places(self) -> tuple[str, ...]:
        """The places in it."""
        return tuple(found[1] for level in self.topic.split("/") if (found := _PLACE.match(level)))


class MqttInputSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an `[inputs.NAME]` with `adapter = "mqtt"`."""

    broker: Broker
    password: str = ""
    client: str = ""
    """The client id under which the broker keeps what comes while we are away."""
    topics: tuple[TopicPattern, ...] = ()

    def __repr__(self) -> str:
        return f"MqttInputSettings(broker={self.broker.place!r}, client={self.client!r})"


def read_mqtt(table: Fields, directory: Path) -> MqttSettings:
    """What `[adapters.mqtt]` says; an absent table means a broker on this machine."""
    default = MqttSettings()
    return MqttSettings(
        broker=_broker(table) if table.section.values else default.broker,
        password=read_secret_field("password", table, directory),
        client=table.text("client", ""),
        timeout_ms=table.duration_ms("timeout", default.timeout_ms, least=1),
        most_bytes=table.number("most_bytes", default.most_bytes, low=1, high=LARGEST_PAYLOAD),
    )


def read_mqtt_input(
    table: Fields, directory: Path, *, client: str, trusted: bool = False
) -> MqttInputSettings:
    """What an input of MQTT says; `client` is the client id when it says none. `trusted`: its
    messages need no further proof of who sends them, so each topic has to tell that.
    """
    topics = tuple(_topics(table))
    if trusted and not all("peer" in one.places() for one in topics):
        table.fault(
            "topics",
            "input.trust_without_peer",
            "a trusted input has a topic that does not tell who sends",
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
    """One entry; its faults stand at `topics`."""
    entry = Fields(_at_topics(table, given), table.problems, known=TOPIC_KEYS, strict=True)
    topic = entry.filled_text("topic", example='"rapport/messages"')
    pattern = TopicPattern(
        topic=topic,
        is_text=entry.choice("payload", ("message", "text"), _usual_payload(topic)) == "text",
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
    """Raises InvalidInput unless the broker can be asked for it and its places are known ones."""
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
            f"plain text at {pattern.topic[:80]!r} does not tell who says it",
            code="input.no_sender",
            hint="name the level that does, such as panels/{peer}/said",
        )


def _at_topics(table: Fields, given: dict[str, Any]) -> Any:
    section = table.section
    return type(section)(section.file, (*section.path, "topics"), given)


def _usual_payload(topic: str) -> str:
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
