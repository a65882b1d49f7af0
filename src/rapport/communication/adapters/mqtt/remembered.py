"""Which packets of MQTT came before: what is delivered again, and what is retained. [CO-16]

MQTT names no message. A packet that is delivered again has the broker's mark. One that the broker
retains comes again at every connection without any: whether it is news is told by what was seen
last at its topic. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from rapport.channel.mqtt.mapping import Packet
from rapport.core.ids import content_id

REMEMBERED = 1_024
"""Packets known again when they come again; as many as brokers have under way for a client."""
MOST_TOPICS = 100_000
"""Topics whose last packet is known."""
TOPIC = "topic/"
"""Keys of what is kept of topics begin with it."""
PACKETS = "packets"


class LastPacket(msgspec.Struct, frozen=True, array_like=True):
    """The last packet of a topic: a digest of its bytes, and the id of its message."""

    digest: str
    id: str


class PacketIds:
    """The ids given to packets, so that one that comes again gets the same: the channel drops it
    then. Kept durably before the packet is published and acknowledged.
    """

    def __init__(self) -> None:
        self.ids: dict[str, str] = {}
        self.topics: dict[str, LastPacket] = {}
        self._unkept: dict[str, None] = {}
        self._gone: dict[str, None] = {}

    def id_for(self, packet: Packet, fresh: str) -> str:
        """The id of the packet's message: the one it had when it may have come before.

        One that the broker retains is a state, told again at every connection: with the bytes that
        were seen last at its topic it is the same message; with others it is news, also when the
        topic said so once before. A change and its way back that nobody told us cannot be seen.
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
        """What has to be kept, by its key, and the keys to let go of; costs what was new since
        `kept`, and the latest packets.
        """
        values = {key: msgspec.msgpack.encode(self.topics[key]) for key in self._unkept}
        return {PACKETS: msgspec.msgpack.encode({"ids": self.ids}), **values}, list(self._gone)

    def kept(self) -> None:
        """What `unkept` gave is on disk."""
        self._unkept, self._gone = {}, {}

    def take_back(self, entries: Iterable[tuple[str, bytes]]) -> None:
        """What was kept; what cannot be read is passed over: then a repetition may pass once."""
        for key, raw in entries:
            try:
                if key == PACKETS:
                    self.ids = msgspec.msgpack.decode(raw, type=_Packets).ids
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


class _Packets(msgspec.Struct):
    ids: dict[str, str] = {}


def _digest(packet: Packet) -> str:
    return hashlib.blake2b(packet.payload, digest_size=16).hexdigest()


def _mark(packet: Packet) -> str:
    """Number, topic and bytes: numbers are used again for other messages."""
    digest = hashlib.blake2b(packet.payload, digest_size=12)
    digest.update(packet.topic.encode("utf-8", "surrogatepass"))
    return f"{packet.number} {digest.hexdigest()}"
