"""Packets of MQTT to messages, and which of them came before. Pure. [CO-16]"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from rapport.channel.mqtt.mapping import Packet
from rapport.channel.mqtt.topics import matches
from rapport.communication.adapters.mqtt.settings import TopicPattern
from rapport.communication.adapters.unusable import SHOWN_TEXT, Unusable
from rapport.core.errors import InvalidInput
from rapport.core.ids import content_id
from rapport.core.message import Identifier, Message

REMEMBERED = 1_024
"""Packets known again when they come again; as many as brokers have under way for a client."""


def read_packet(packet: Packet, topics: Sequence[TopicPattern]) -> Message:
    """The message in a packet; raises InvalidInput for what is none, or says another sender than
    its topic.
    """
    pattern = next((one for one in topics if matches(one.filter, packet.topic)), None)
    if pattern is None:
        raise InvalidInput("nobody asked for this topic", code="input.strange_topic")
    told = pattern.told_by(packet.topic)
    return _as_text(packet, pattern, told) if pattern.is_text else _as_json(packet, told)


def unusable_packet(packet: Packet, id: str, error: InvalidInput) -> Unusable:
    """What is kept of a packet that is no message. One that the broker retains is the same however
    often it is told.
    """
    return Unusable(
        id=_retained_id(packet) if packet.retained else id,
        code=error.code,
        reason=f"{error.message} ({error.hint})" if error.hint else error.message,
        subject=packet.topic[:200],
        text=packet.payload[:SHOWN_TEXT].decode("utf-8", "replace"),
    )


def _as_text(packet: Packet, pattern: TopicPattern, told: dict[str, str]) -> Message:
    try:
        content = packet.payload.decode()
    except UnicodeDecodeError:
        raise InvalidInput("the payload is not text", code="message.not_a_message") from None
    return Message(
        type=pattern.type,
        subtype=pattern.subtype,
        sender=_sender(told["peer"]),
        receiver=pattern.receiver,
        conversation=told.get("conversation", ""),
        refers_to=told.get("refers_to", ""),
        content=content,
    )


def _as_json(packet: Packet, told: dict[str, str]) -> Message:
    message = Message.from_json(packet.payload)
    if "peer" in told and message.sender != _sender(told["peer"]):
        raise InvalidInput(
            f"{message.sender} spoke at the topic of {told['peer']!r}",
            code="input.other_sender",
            hint="sender and topic must name the same peer",
        )
    return message


def _sender(name: str) -> Identifier:
    if not name or not name.isprintable():
        raise InvalidInput("the topic names no peer", code="input.no_sender")
    return Identifier("peer", name)


class Remembered(msgspec.Struct):
    """The ids given to the latest packets, so that one that comes again gets the same: the channel
    drops it then. Kept durably before the packet is published and acknowledged.
    """

    ids: dict[str, str] = {}

    def id_for(self, packet: Packet, fresh: str) -> str:
        """The id of the packet's message: the one it had when it may have come before.

        One that the broker retains is told again at every connection. It is a state, not news: it
        has the id under which it came when it was news, or one made of what it says.
        """
        mark = _mark(packet)
        if packet.again and mark in self.ids:
            return self.ids[mark]
        if packet.retained:
            fresh = self._came_as(mark) or _retained_id(packet)
        self.ids.pop(mark, None)
        self.ids[mark] = fresh
        while len(self.ids) > REMEMBERED:
            del self.ids[next(iter(self.ids))]
        return fresh

    def _came_as(self, mark: str) -> str | None:
        """The latest id of the same words at the same topic, whatever number they had."""
        said = mark.partition(" ")[2]
        same = (id for known, id in reversed(self.ids.items()) if known.endswith(said))
        return next(same, None)

    def to_bytes(self) -> bytes:
        """As it is kept."""
        return msgspec.msgpack.encode(self)

    @staticmethod
    def from_bytes(kept: bytes | None) -> Remembered:
        """What was kept; nothing when that cannot be read: then a repetition may pass once."""
        if kept is None:
            return Remembered()
        try:
            return msgspec.msgpack.decode(kept, type=Remembered)
        except msgspec.DecodeError:
            return Remembered()


def _retained_id(packet: Packet) -> str:
    digest = hashlib.blake2b(packet.payload, digest_size=16).hexdigest()
    return content_id("mqtt retained", packet.topic, digest)


def _mark(packet: Packet) -> str:
    """Number, topic and bytes: numbers are used again for other messages."""
    digest = hashlib.blake2b(packet.payload, digest_size=12)
    digest.update(packet.topic.encode("utf-8", "surrogatepass"))
    return f"{packet.number} {digest.hexdigest()}"
