"""What makers of packed events know of them, for who reads these in the same process. [CO-7, CO-10]

Nothing here is needed: what is read from the disk says the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, cast

import msgspec

from rapport.channel.channel import Channel, PackedReading, PackedStretch
from rapport.communication.adapters.base import Delivery
from rapport.core.event import CAUSE
from rapport.core.message import RECENT, Message
from rapport.core.packed_events import Carried, packed

CAUSED = packed({CAUSE: ""})[:-1]
"""Headers that name one cause, up to its text."""


def are_uniform(ids: Sequence[str]) -> bool:
    """Whether nothing in an id is ever escaped, and all are of one length."""
    together = "".join(ids)
    is_plain = together.isascii() and together.isprintable()
    alike = len(set(map(len, ids))) == 1
    return is_plain and alike and not any(odd in together for odd in '"\\% ')


class Frame(msgspec.Struct, frozen=True, gc=False, eq=False):
    """What messages of one kind between the same two have in common: the pieces of their JSON, and
    of their events type and subject as a block has them. Each is itself only, so that what is made
    for it is found at once.
    """

    before: bytes
    """Between its id and its conversation."""
    after: bytes
    """Between its content and what it refers to."""
    end: bytes
    """Behind that, without the closing brace."""
    room: int
    """How many characters its conversation and what it refers to may have together; -1: such
    messages are not usual.
    """
    subject: bytes


class InputMessages(msgspec.Struct, frozen=True, gc=False):
    """Messages in `input`, all of one way and one time. `messages` are as they were given, without
    their ids.
    """

    messages: Sequence[Message]
    ids: Sequence[str]
    """Of one length, plain: nothing in them is ever escaped."""
    names: Sequence[bytes]
    """The same as bytes."""
    said: Sequence[bytes]
    """The data of each event but for the closing brace."""
    frames: Sequence[Frame]
    headers: dict[str, str]
    time: int

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, first: int, end: int) -> Self:
        """See Carried."""
        return msgspec.structs.replace(
            self,
            messages=self.messages[first:end],
            ids=self.ids[first:end],
            names=self.names[first:end],
            said=self.said[first:end],
            frames=self.frames[first:end],
        )

    def named(self) -> list[Message]:
        """The messages with their ids."""
        return [
            msgspec.structs.replace(message, id=id)
            for message, id in zip(self.messages, self.ids, strict=True)
        ]


class QueuedDeliveries(msgspec.Struct, frozen=True, gc=False):
    """Deliveries in `output.X`."""

    deliveries: Sequence[Delivery]

    def __len__(self) -> int:
        return len(self.deliveries)

    def part(self, first: int, end: int) -> Self:
        """See Carried."""
        return type(self)(self.deliveries[first:end])


def queued_in(piece: Carried) -> Sequence[Delivery]:
    """The deliveries that are carried; in `output.X` nothing else is."""
    assert isinstance(piece, QueuedDeliveries), "only deliveries stand there"
    return piece.deliveries


class NotifiedMessages(msgspec.Struct, frozen=True, gc=False):
    """Messages in `log` of which callbacks are told."""

    messages: Sequence[Message]

    def __len__(self) -> int:
        return len(self.messages)

    def part(self, first: int, end: int) -> Self:
        """See Carried."""
        return type(self)(self.messages[first:end])


class UnreadLines(msgspec.Struct, frozen=True, gc=False):
    """So many lines of `log` of which no callback is told."""

    count: int

    def __len__(self) -> int:
        return self.count

    def part(self, first: int, end: int) -> Self:
        """See Carried."""
        return type(self)(end - first)


def packed_after(channel: Channel, position: int, *, limit: int) -> list[PackedStretch]:
    """The stretches right after a position, `limit` events at the most; empty when what stands
    there is to be read.
    """
    found: list[PackedStretch] = []
    reading = _as_packed(channel)
    while reading is not None and limit > 0:
        stretch = reading.read_packed_after(position, limit=limit)
        if stretch is None:
            break
        found.append(stretch)
        position, limit = stretch.last, limit - len(stretch)
    return found


def release(channel: Channel, stretches: Sequence[PackedStretch]) -> None:
    """What is carried for these was read by the only one who reads it."""
    reading = _as_packed(channel)
    if reading is not None:
        for stretch in stretches:
            reading.let_packed_go(stretch)


def unpacked_after(channel: Channel, position: int, *, limit: int) -> int:
    """How many events to read, up to where `packed_after` helps again."""
    reading = _as_packed(channel)
    return limit if reading is None else reading.unpacked_after(position, limit=limit)


def _as_packed(channel: Channel) -> PackedReading | None:
    # A look at one name: to ask whether all of a protocol is there takes ten microseconds.
    has_it = hasattr(channel, "read_packed_after")
    return cast(PackedReading, channel) if has_it else None


def cache_messages(stretch: PackedStretch) -> None:
    """For who is about to read these as events: their messages need not be decoded."""
    for piece in stretch.carried:
        if isinstance(piece, InputMessages) and stretch.largest <= RECENT.longest:
            RECENT.note_all([text + b"}" for text in piece.said], piece.named())
