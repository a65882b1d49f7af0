"""Events made many at a time, as the bytes that a log block has for them. [CH-1, CH-12]

Where one process makes thousands of like events a second, most of the cost is objects: an event,
its names, its headers, each made by one thread and freed by another. Here the pieces that differ
and the pieces that are the same lie in one row, ready to be joined into a block; an event is made
when somebody looks at one, and then by the decoder that reads it back from the disk.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Protocol, Self, overload

import msgspec

from rapport.core.event import Event

_PACKER = msgspec.msgpack.Encoder()
_EVENTS = msgspec.msgpack.Decoder(list[Event])
_FIELDS = len(Event.__struct_fields__)
EVENT_HEAD = bytes((0x90 | _FIELDS,))
"""How the bytes of an event begin: so many fields follow."""
_MOST_HEADS = 4_096


class Carried(Protocol):
    """What the maker of events knows of them beside their bytes, for who reads them in the same
    process: it need not be decoded again. One entry for each event.
    """

    def __len__(self) -> int: ...

    def part(self, first: int, end: int) -> Self:
        """The same of the events from `first` up to before `end`."""


class _FromBytes(Sequence[Event]):
    """Events that are made when somebody looks at one, all at once."""

    __slots__ = ("_events",)

    def __init__(self) -> None:
        self._events: list[Event] | None = None

    @abstractmethod
    def block(self) -> bytes:
        """The bytes that the log keeps for them; the same as those of `encode_block`."""

    def __iter__(self) -> Iterator[Event]:
        return iter(self._made())

    @overload
    def __getitem__(self, place: int) -> Event: ...
    @overload
    def __getitem__(self, place: slice) -> list[Event]: ...
    def __getitem__(self, place: int | slice) -> Event | list[Event]:
        return self._made()[place]

    def _made(self) -> list[Event]:
        """Made once; two threads at once make the same twice."""
        if self._events is None:
            self._events = _EVENTS.decode(self.block())
        return self._events


class PackedEvents(_FromBytes):
    """Sound events, as SoundEvents are: names and headers checked by their maker, no publisher
    counts them, none has a time to live. On their way to the log; cannot be changed.
    """

    __slots__ = ("_parts", "carried", "data_bytes", "ids", "largest", "source")

    def __init__(
        self,
        source: str,
        ids: Sequence[str],
        parts: Sequence[bytes],
        *,
        data_bytes: int,
        largest: int,
        carried: Sequence[Carried] = (),
    ) -> None:
        """`parts`: joined they are the events, as many parts for each; `data_bytes`: of all of
        them; `largest`: of the data of one, or more; `carried`: empty, or for all events in their
        order. `source`: empty where they have several.
        """
        super().__init__()
        self.source, self.ids, self._parts = source, ids, parts
        self.data_bytes, self.largest, self.carried = data_bytes, largest, carried

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def width(self) -> int:
        """How many parts an event has; 0 when there is no event."""
        return len(self._parts) // len(self.ids) if self.ids else 0

    def block(self) -> bytes:
        """See _FromBytes."""
        return b"".join((list_head(len(self.ids)), *self._parts))

    def pieces(self, most: int) -> list[PackedEvents]:
        """All of them, at most so many in a piece."""
        count, width = len(self.ids), self.width
        if count <= most:
            return [self]
        return [
            PackedEvents(
                self.source,
                self.ids[at : at + most],
                self._parts[at * width : (at + most) * width],
                data_bytes=self.data_bytes,
                largest=self.largest,
                carried=carried_part(self.carried, at, at + most),
            )
            for at in range(0, count, most)
        ]

    @staticmethod
    def joined(packs: Sequence[PackedEvents]) -> PackedEvents:
        """All of them as one; they are of one width. Where one carries nothing, nothing is."""
        if len(packs) == 1:
            return packs[0]
        sources = {pack.source for pack in packs}
        carried = [piece for pack in packs for piece in pack.carried]
        ids: list[str] = []
        parts: list[bytes] = []
        for pack in packs:
            ids += pack.ids
            parts += pack._parts
        return PackedEvents(
            sources.pop() if len(sources) == 1 else "",
            ids,
            parts,
            data_bytes=sum(pack.data_bytes for pack in packs),
            largest=max(pack.largest for pack in packs),
            carried=carried if all(pack.carried for pack in packs) else (),
        )


class HeldEvents(_FromBytes):
    """Events that came packed and are in the log now: their bytes, and for a while what is carried
    for them. The pieces they were made of are let go.
    """

    __slots__ = ("_block", "_count", "carried", "largest")

    def __init__(self, events: PackedEvents, block: bytes) -> None:
        super().__init__()
        self._block, self._count = block, len(events)
        self.carried, self.largest = events.carried, events.largest

    def __len__(self) -> int:
        return self._count

    def block(self) -> bytes:
        """See _FromBytes."""
        return self._block


def carried_part(carried: Sequence[Carried], first: int, end: int) -> list[Carried]:
    """What is carried for the events from `first` up to before `end`, without empty pieces."""
    found: list[Carried] = []
    for piece in carried:
        count = len(piece)
        if first < count and end > 0:
            is_whole = first <= 0 and end >= count
            found.append(piece if is_whole else piece.part(max(first, 0), min(end, count)))
        first, end = first - count, end - count
    return found


# --- bytes ---


def packed(value: object) -> bytes:
    """A text, number or table as it stands in a block."""
    return _PACKER.encode(value)


def list_head(count: int) -> bytes:
    """How a list of so many begins.

    >>> list_head(500) + packed(0) * 500 == packed([0] * 500)
    True
    """
    return bytes((0x90 | count,)) if count < 16 else _head(b"\0\xdc\xdd", count)


def text_head(size: int) -> bytes:
    """How a text of so many bytes begins."""
    return _TEXT_HEADS[size] if size < _MOST_HEADS else _head(b"\xd9\xda\xdb", size)


def octets_head(size: int) -> bytes:
    """How so many octets begin."""
    return _OCTETS_HEADS[size] if size < _MOST_HEADS else _head(b"\xc4\xc5\xc6", size)


def _head(kinds: bytes, size: int) -> bytes:
    """`kinds`: what says that the size follows in one, two or four bytes; 0: it never does."""
    for kind, width in zip(kinds, (1, 2, 4), strict=True):
        if kind and size < 1 << 8 * width:
            return bytes((kind,)) + size.to_bytes(width, "big")
    raise OverflowError("no block has so many")


_SHORT_TEXTS = [bytes((0xA0 | size,)) for size in range(32)]
_TEXT_HEADS = _SHORT_TEXTS + [_head(b"\xd9\xda\xdb", size) for size in range(32, _MOST_HEADS)]
_OCTETS_HEADS = [_head(b"\xc4\xc5\xc6", size) for size in range(_MOST_HEADS)]
