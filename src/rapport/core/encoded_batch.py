"""Batches of events that exist only as their encoded log bytes. [CH-1, CH-12]

A producer of thousands of similar events a second spends most of its time on objects: an event,
its names and its headers. An `EncodedBatch` holds the msgpack parts of its events, ready to be
joined into a log block; `Event` objects are decoded from these bytes only if somebody reads them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Protocol, Self, overload

import msgspec

from rapport.core.event import Event

_ENCODER = msgspec.msgpack.Encoder()
_EVENTS = msgspec.msgpack.Decoder(list[Event])
EVENT_HEADER = bytes((0x90 | len(Event.__struct_fields__),))
"""The msgpack array header that every encoded event begins with."""
_CACHED_SIZES = 4_096


class BatchPayload(Protocol):
    """What the producer knows about its events beside their bytes, for readers in the same process,
    which then need not decode them. One entry for each event.
    """

    def __len__(self) -> int: ...

    def part(self, first: int, end: int) -> Self:
        """The payload of the events from `first` up to before `end`."""


class _LazyEvents(Sequence[Event]):
    """Decodes all its events when one of them is first read."""

    __slots__ = ("_events",)

    def __init__(self) -> None:
        self._events: list[Event] | None = None

    @abstractmethod
    def block(self) -> bytes:
        """The log block of the events; the same bytes as those of `encode_block`."""

    def __iter__(self) -> Iterator[Event]:
        return iter(self._decoded())

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        return self._decoded()[index]

    def _decoded(self) -> list[Event]:
        """Decoded once; two threads at the same time may both decode, with equal results."""
        if self._events is None:
            self._events = _EVENTS.decode(self.block())
        return self._events


class EncodedBatch(_LazyEvents):
    """An immutable batch on its way to the log. As for TrustedEvents, the producer has checked
    names and headers; no event has publisher sequence numbers or a time to live.
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
        carried: Sequence[BatchPayload] = (),
    ) -> None:
        """Args:
        source: The source of all events; empty if they have several.
        parts: The events when joined; each event has the same number of parts.
        data_bytes: Size of the data of all events.
        largest: Size of the largest data of one event, or an upper bound.
        carried: Empty, or payloads for all events in their order.
        """
        super().__init__()
        self.source, self.ids, self._parts = source, ids, parts
        self.data_bytes, self.largest, self.carried = data_bytes, largest, carried

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def width(self) -> int:
        """The number of parts of each event; 0 without events."""
        return len(self._parts) // len(self.ids) if self.ids else 0

    def block(self) -> bytes:
        return b"".join((array_header(len(self.ids)), *self._parts))

    def pieces(self, most: int) -> list[EncodedBatch]:
        """Splits the batch into batches of at most `most` events."""
        count, width = len(self.ids), self.width
        if count <= most:
            return [self]
        return [
            EncodedBatch(
                self.source,
                self.ids[at : at + most],
                self._parts[at * width : (at + most) * width],
                data_bytes=self.data_bytes,
                largest=self.largest,
                carried=payload_slice(self.carried, at, at + most),
            )
            for at in range(0, count, most)
        ]

    @staticmethod
    def joined(batches: Sequence[EncodedBatch]) -> EncodedBatch:
        """Joins batches of the same width; the payloads are dropped if one batch has none."""
        if len(batches) == 1:
            return batches[0]
        sources = {batch.source for batch in batches}
        carried = [payload for batch in batches for payload in batch.carried]
        ids: list[str] = []
        parts: list[bytes] = []
        for batch in batches:
            ids += batch.ids
            parts += batch._parts
        return EncodedBatch(
            sources.pop() if len(sources) == 1 else "",
            ids,
            parts,
            data_bytes=sum(batch.data_bytes for batch in batches),
            largest=max(batch.largest for batch in batches),
            carried=carried if all(batch.carried for batch in batches) else (),
        )


class LoggedBatch(_LazyEvents):
    """An encoded batch after it was written to the log: its block, and for a while its payloads.
    The parts are released.
    """

    __slots__ = ("_block", "_count", "carried", "largest")

    def __init__(self, events: EncodedBatch, block: bytes) -> None:
        super().__init__()
        self._block, self._count = block, len(events)
        self.carried, self.largest = events.carried, events.largest

    def __len__(self) -> int:
        return self._count

    def block(self) -> bytes:
        return self._block


def payload_slice(carried: Sequence[BatchPayload], first: int, end: int) -> list[BatchPayload]:
    """The payloads of the events from `first` up to before `end`, without empty ones."""
    chosen: list[BatchPayload] = []
    for payload in carried:
        count = len(payload)
        if first < count and end > 0:
            is_whole = first <= 0 and end >= count
            chosen.append(payload if is_whole else payload.part(max(first, 0), min(end, count)))
        first, end = first - count, end - count
    return chosen


# --- msgpack parts ---


def encode_value(value: object) -> bytes:
    """A text, number or table in msgpack."""
    return _ENCODER.encode(value)


def array_header(count: int) -> bytes:
    """The header of an array of `count` elements.

    >>> array_header(500) + encode_value(0) * 500 == encode_value([0] * 500)
    True
    """
    return bytes((0x90 | count,)) if count < 16 else _sized_header(b"\0\xdc\xdd", count)


def text_header(size: int) -> bytes:
    """The header of a text of `size` bytes."""
    return _TEXT_HEADERS[size] if size < _CACHED_SIZES else _sized_header(b"\xd9\xda\xdb", size)


def bytes_header(size: int) -> bytes:
    """The header of `size` octets."""
    return _BYTES_HEADERS[size] if size < _CACHED_SIZES else _sized_header(b"\xc4\xc5\xc6", size)


def _sized_header(kinds: bytes, size: int) -> bytes:
    """`kinds` are the type bytes for sizes of one, two and four bytes; 0: there is no such form."""
    for kind, width in zip(kinds, (1, 2, 4), strict=True):
        if kind and size < 1 << 8 * width:
            return bytes((kind,)) + size.to_bytes(width, "big")
    raise OverflowError("msgpack sizes have at most 32 bits")


_TEXT_HEADERS = [bytes((0xA0 | size,)) for size in range(32)]
_TEXT_HEADERS += [_sized_header(b"\xd9\xda\xdb", size) for size in range(32, _CACHED_SIZES)]
_BYTES_HEADERS = [_sized_header(b"\xc4\xc5\xc6", size) for size in range(_CACHED_SIZES)]
