"""Events as numpy and Arrow columns: envelope tables and log blocks. [CH-1, CH-12]

Separate from `codec.py` because the light client works without numpy and Arrow.
Log blocks are decoded into columns without an object per event; this works for blocks whose events
have one source and one type, as our encoder writes them. `decode_bare_block` decodes all others
and returns the same events. Payloads stay undecoded bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, overload

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rapport.core.event import BareEvent, BareStoredEvent, StoredEvent

Offsets = npt.NDArray[np.int64]

_FRAMES = msgspec.msgpack.Decoder(list[msgspec.Raw])
_UNREADABLE = (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError)
_LARGEST_BYTES = 2**31 - 1
"""Arrow's offsets have 32 bits."""
_HEADER_BYTES = 5
"""Size of the header of an array of any length."""
_SEVEN_FIELDS, _BYTES_8, _LONG_TEXT = 0x97, 0xC4, 0xD9
_UNSIGNED = {0xCE: ">u4", 0xCF: ">u8"}
"""The types of encoded times since 1970, by their msgpack type byte."""


class EventColumns(msgspec.Struct, frozen=True):
    """Events of one source and one type: ids as texts, data as octets. `frames` are the encoded
    bytes of each event.
    """

    source: str
    type: str
    ids: pa.Array
    times: npt.NDArray[np.int64]
    data: pa.Array
    frames: Sequence[msgspec.Raw]

    @property
    def count(self) -> int:
        return len(self.times)

    def part(self, first: int, end: int) -> EventColumns:
        """The events from `first` up to before `end`; copies only the list of frames."""
        return EventColumns(
            self.source,
            self.type,
            self.ids[first:end],
            self.times[first:end],
            self.data[first:end],
            self.frames[first:end],
        )


def decode_columns(blocks: Sequence[bytes]) -> EventColumns | None:
    """Decodes the events of consecutive blocks; None if their sources or types differ, if another
    encoder wrote them, or if a block cannot be read.

    For thousands of events it costs a tenth of `decode_bare_block`; for few it costs more, because
    each column is a separate pass.
    """
    joined = _joined(blocks)
    if joined is None:
        return None
    whole, counts, sizes = joined
    try:
        frames = _FRAMES.decode(whole)
    except _UNREADABLE:
        return None
    if not frames:
        return None
    edges = np.empty(len(frames) + 1, np.int64)
    edges[0] = _HEADER_BYTES
    np.cumsum(np.fromiter(map(len, frames), np.int64, len(frames)), out=edges[1:])
    edges[1:] += _HEADER_BYTES
    if (edges[np.cumsum(counts)] != _HEADER_BYTES + np.cumsum(sizes)).any():
        return None  # a block whose header counts wrongly must not consume its neighbour's events
    return _columns(whole, frames, edges[:-1])


# --- log blocks -----------------------------------------------------------------------------------


def _joined(blocks: Sequence[bytes]) -> tuple[bytes, list[int], list[int]] | None:
    """Joins blocks into one; also returns the number of events and of bytes of each."""
    counts, bodies = [], []
    for block in blocks:
        count, skip = read_array_header(block)
        body = memoryview(block)[skip:]
        if not skip or bool(count) != bool(body):
            return None
        if count:
            counts.append(count)
            bodies.append(body)
    sizes = [len(body) for body in bodies]
    total = sum(counts)
    if not total or sum(sizes) + _HEADER_BYTES > _LARGEST_BYTES or total >= 2**32:
        return None
    return b"".join((b"\xdd", total.to_bytes(4, "big"), *bodies)), counts, sizes


def read_array_header(block: bytes) -> tuple[int, int]:
    """The number of events in a block and the size of its header; zeros if it is no block."""
    first = block[0] if block else 0
    if 0x90 <= first <= 0x9F:
        return first & 0x0F, 1
    width = {0xDC: 2, 0xDD: 4}.get(first, 0)
    if not width or len(block) <= width:
        return 0, 0
    return int.from_bytes(block[1 : 1 + width], "big"), 1 + width


# --- events ---------------------------------------------------------------------------------------


def _columns(whole: bytes, frames: list[msgspec.Raw], starts: Offsets) -> EventColumns | None:
    """Reads field by field in all frames at once. A frame is a complete msgpack value, so the size
    that a field's header states always lies within it.
    """
    octets = np.frombuffer(whole, np.uint8)
    if (octets[starts] != _SEVEN_FIELDS).any():
        return None
    source = _shared_text(whole, starts + 1)
    if source is None:
        return None
    ids = _texts(octets, starts + 1 + source.bytes)
    if ids is None:
        return None
    kind = _shared_text(whole, ids.ends)
    if kind is None:
        return None
    subjects = _texts(octets, ids.ends + kind.bytes)
    if subjects is None:
        return None
    timed = _times(whole, octets, subjects.ends)
    if timed is None:
        return None
    times, after = timed
    if (octets[after] != _BYTES_8).any():
        return None
    data = after + 2
    offsets = (ids.starts, ids.ends, subjects.starts, subjects.ends, data, data + octets[after + 1])
    id_octets, subject_octets, cut = slice_columns(
        pa.py_buffer(whole), offsets, pa.binary(), (1, 1, 1)
    )
    id_texts = _as_text(id_octets)
    if id_texts is None or _as_text(subject_octets) is None:
        return None
    return EventColumns(source.text, kind.text, id_texts, times, cut, frames)


class _SharedText(NamedTuple):
    """A text that is the same in every event, and its encoded size."""

    text: str
    bytes: int


class _TextOffsets(NamedTuple):
    starts: Offsets
    ends: Offsets


def _shared_text(whole: bytes, offsets: Offsets) -> _SharedText | None:
    """The text at these offsets if it is the same at all of them."""
    first = int(offsets[0])
    size = _text_bytes(whole, first)
    if size is None:
        return None
    head, taken = size
    wanted = whole[first : first + taken]
    if int(offsets[-1]) + taken > len(whole) or not all_equal(whole, offsets, wanted):
        return None
    try:
        return _SharedText(wanted[head:].decode(), taken)
    except UnicodeDecodeError:
        return None


def _text_bytes(whole: bytes, at: int) -> tuple[int, int] | None:
    """The size of a text's header, and of the text with it."""
    first = whole[at]
    if 0xA0 <= first <= 0xBF:
        return 1, 1 + (first & 0x1F)
    return (2, 2 + whole[at + 1]) if first == _LONG_TEXT else None


def _texts(octets: npt.NDArray[np.uint8], offsets: Offsets) -> _TextOffsets | None:
    """The bounds of the texts at these offsets; None if one is longer than 255 bytes or no text."""
    heads = octets[offsets]
    short = (heads & 0xE0) == 0xA0
    if short.all():
        starts = offsets + 1
        return _TextOffsets(starts, starts + (heads & 0x1F))
    if not (short | (heads == _LONG_TEXT)).all():
        return None
    starts = offsets + np.where(short, 1, 2)
    return _TextOffsets(starts, starts + np.where(short, heads & 0x1F, octets[starts - 1]))


def _times(
    whole: bytes, octets: npt.NDArray[np.uint8], offsets: Offsets
) -> tuple[npt.NDArray[np.int64], Offsets] | None:
    """Times that all have the same width, and the offsets after them."""
    first = int(octets[offsets[0]])
    kind = _UNSIGNED.get(first)
    if kind is None or (octets[offsets] != first).any():
        return None
    times = _items(whole, kind)[offsets + 1]
    if (times >= 2**63).any():
        return None
    return times.astype(np.int64), offsets + 1 + np.dtype(kind).itemsize


def _as_text(column: pa.Array) -> pa.Array | None:
    """Octets as text; None if one is not UTF-8. Each value is checked on its own: half a character
    at the end of one must not be completed by the start of the next.
    """
    texts = pa.Array.from_buffers(pa.string(), len(column), column.buffers())
    if not _is_ascii(column):
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid:
            return None
    return texts


def _is_ascii(column: pa.Array) -> bool:
    octets = column_bytes(column)
    return not len(octets) or int(octets.max()) < 0x80


# --- building blocks of columns -------------------------------------------------------------------


def _items(whole: Any, kind: str) -> npt.NDArray[Any]:
    """A view that reads the bytes at every offset as `kind`, without copying."""
    count = len(whole) - np.dtype(kind).itemsize + 1
    return np.ndarray((max(count, 0),), kind, buffer=whole, strides=(1,))


def all_equal(whole: Any, offsets: Offsets, wanted: bytes) -> bool:
    """Whether these bytes are at all the offsets, which must lie within the buffer."""
    return bool(_items(whole, f"V{len(wanted)}")[offsets].tobytes() == wanted * len(offsets))


def slice_columns(
    whole: pa.Buffer, offsets: Sequence[Offsets], kind: pa.DataType, widths: Sequence[int]
) -> list[pa.Array]:
    """Columns of slices of a buffer, each byte copied at most once.

    `offsets` are the starts and ends of the first slice of every row, then of the second, and so
    on, ascending within a row and from row to row. `widths` states how many kinds of slices each
    column takes. The gaps between slices are slices too, which are left out.
    """
    rows, width = len(offsets[0]), len(offsets)
    edges = np.empty((rows, width), np.int32)
    for number, index in enumerate(offsets):
        edges[:, number] = index
    pieces = pa.Array.from_buffers(kind, rows * width - 1, [None, pa.py_buffer(edges), whole])
    wanted = np.arange(0, rows * width, width) + np.arange(0, width, 2)[:, None]
    lines = np.cumsum((0, *widths))
    return [pieces.take(pa.array(wanted[low:high].reshape(-1))) for low, high in pairwise(lines)]


def column_bytes(column: pa.Array) -> npt.NDArray[np.uint8]:
    """The concatenated bytes of all values of a column of texts or octets."""
    edges = column_offsets(column)
    octets = column.buffers()[2]
    if octets is None:
        return np.empty(0, np.uint8)
    return np.frombuffer(octets, np.uint8, int(edges[-1]))[int(edges[0]) :]


def column_offsets(column: pa.Array) -> npt.NDArray[np.int32]:
    """The starts of the values in the column's buffer, and the end of the last one."""
    edges = np.frombuffer(column.buffers()[1], np.int32)
    return edges[column.offset : column.offset + len(column) + 1]


_READ = msgspec.msgpack.Decoder(BareEvent)


class BlockEvents(Sequence[BareStoredEvent]):
    """Stored events as columns. Indexing decodes a single event; code that reads many uses
    `columns`, `positions` and `received`, which cost a fraction of that.
    """

    __slots__ = ("columns", "positions", "received")

    def __init__(self, columns: EventColumns, positions: Offsets, received: Offsets) -> None:
        self.columns, self.positions, self.received = columns, positions, received

    def __len__(self) -> int:
        return self.columns.count

    @overload
    def __getitem__(self, index: int) -> BareStoredEvent: ...
    @overload
    def __getitem__(self, index: slice) -> BlockEvents: ...
    def __getitem__(self, index: int | slice) -> BareStoredEvent | BlockEvents:
        if isinstance(index, slice):
            return self._part(index)
        event = _READ.decode(self.columns.frames[index])
        return BareStoredEvent(int(self.positions[index]), int(self.received[index]), event)

    def _part(self, index: slice) -> BlockEvents:
        first, end, step = index.indices(len(self))
        if step != 1:
            raise ValueError("slices of block events have step 1")
        end = max(first, end)
        return BlockEvents(
            self.columns.part(first, end), self.positions[first:end], self.received[first:end]
        )


def decode_block_events(blocks: Sequence[tuple[int, int, bytes]]) -> BlockEvents | None:
    """The events of blocks, each a triple of its first position, time of arrival and bytes; None
    where `decode_columns` returns None.
    """
    bodies = [body for _first, _received, body in blocks]
    columns = decode_columns(bodies)
    if columns is None:
        return None
    counts = np.array([read_array_header(body)[0] for body in bodies])
    firsts = np.array([first for first, _received, _body in blocks], np.int64)
    received = np.array([received for _first, received, _body in blocks], np.int64)
    before = np.cumsum(counts) - counts
    positions = np.repeat(firsts - before, counts) + np.arange(columns.count)
    return BlockEvents(columns, positions, np.repeat(received, counts))


ENVELOPE = pa.schema(
    [
        pa.field("position", pa.uint64(), nullable=False),
        pa.field("received", pa.int64(), nullable=False),
        pa.field("time", pa.int64(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("type", pa.string(), nullable=False),
        pa.field("subject", pa.string(), nullable=False),
        pa.field("headers", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("data", pa.binary(), nullable=False),
    ]
)


def envelope_table(stored: Sequence[StoredEvent]) -> pa.RecordBatch:
    """The events as one record batch with the ENVELOPE schema, in their order."""
    events = [item.event for item in stored]
    arrays = [
        pa.array([item.position for item in stored], pa.uint64()),
        pa.array([item.received for item in stored], pa.int64()),
        pa.array([event.time for event in events], pa.int64()),
        pa.array([event.source for event in events], pa.string()),
        pa.array([event.id for event in events], pa.string()),
        pa.array([event.type for event in events], pa.string()),
        pa.array([event.subject for event in events], pa.string()),
        pa.array([list(event.headers.items()) for event in events], ENVELOPE.field(7).type),
        pa.array([event.data for event in events], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ENVELOPE)
