"""Messages of MQTT to events and back. Pure. [CH-12, CH-6]

MQTT names no message. A packet that is delivered again (its sender did not learn that we have it)
is told by the broker's DUP flag together with the packet's number, topic and bytes, compared with
the latest events of the bridge: a broker has a bounded number of packets under way. One that the
broker retains has no flag when it comes again: it is compared with the last event of its topic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from rapport.channel.mqtt.declare import Outgoing
from rapport.channel.mqtt.topics import clean_level
from rapport.core.codec import encode_cloudevent
from rapport.core.event import ADDED_FIELDS, MAX_NAME, Event, StoredEvent

BRIDGE = "mqttbridge"
"""Header: the bridge an event came in by, so that the same bridge never sends it out again."""
PACKET = "mqttpacket"
"""Header: the number of the packet that brought it."""
TOPIC = "mqtttopic"


class Packet(msgspec.Struct, frozen=True, kw_only=True):
    """A message as the broker gave it."""

    topic: str
    payload: bytes
    number: int
    again: bool = False
    """The DUP flag: it may have been delivered before."""
    retained: bool = False
    """The last message of its topic, told to a new subscriber."""


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
    """The event of a message; `fields` are those that its topic says.

    `last` is the last one of its topic, where it is known. A retained one is a state: like the last
    it is the same event, so that it is stored once; unlike it, it is news.
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
    """Whether a packet that may have come before is among the latest events."""
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
    """The last event of each topic among the latest events that came in by the bridge."""
    return {
        stored.event.headers.get(TOPIC, ""): stored.event
        for stored in recent
        if stored.event.headers.get(BRIDGE) == bridge
    }


def topic_of(event: Event, template: str) -> str:
    """Where an event is published."""
    fields = {"type": event.type, "subject": event.subject, "source": event.source, "id": event.id}
    return template.format(**{name: clean_level(text) for name, text in fields.items()})


def payload_of(event: Event, outgoing: Outgoing) -> bytes:
    """What is published: the data alone, or the whole CloudEvent."""
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
