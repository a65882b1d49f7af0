"""Packets of MQTT to messages. Pure. [CO-16]"""

from __future__ import annotations

from collections.abc import Sequence

from rapport.channel.mqtt.mapping import Packet
from rapport.channel.mqtt.topics import matches
from rapport.communication.adapters.mqtt.settings import TopicPattern
from rapport.communication.adapters.unusable import SHOWN_TEXT, RejectedInput, kept_raw
from rapport.core.errors import InvalidInput
from rapport.core.message import Identifier, Message

_SHOWN_TOPIC = 200


def read_packet(packet: Packet, topics: Sequence[TopicPattern]) -> Message:
    """The message in a packet; raises InvalidInput for what is none, or says another sender than
    its topic.
    """
    pattern = next((one for one in topics if matches(one.filter, packet.topic)), None)
    if pattern is None:
        raise InvalidInput("nobody asked for this topic", code="input.strange_topic")
    told = pattern.told_by(packet.topic)
    return _as_text(packet, pattern, told) if pattern.is_text else _as_json(packet, told)


def unusable_packet(packet: Packet, id: str, error: InvalidInput) -> RejectedInput:
    """What is kept of a packet that is no message, under the id that its message would have."""
    return RejectedInput(
        id=id,
        code=error.code,
        reason=f"{error.message} ({error.hint})" if error.hint else error.message,
        subject=packet.topic[:_SHOWN_TOPIC],
        text=packet.payload[:SHOWN_TEXT].decode("utf-8", "replace"),
        raw=kept_raw(packet.payload) if len(packet.topic) <= _SHOWN_TOPIC else b"",
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
