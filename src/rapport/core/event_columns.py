"""Blocks of the log read as columns, without making an object of every name and number. [CH-12]

Apart from `codec.py` because it needs numpy and Arrow, which the light client does without. Only
blocks of the usual kind are read this way: events of one source and one type, as our own encoder
writes them. Everything else is left to `decode_bare_block`, which gives the same events.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

Places = npt.NDArray[np.int64]

_FRAMES = msgspec.msgpack.Decoder(list[msgspec.Raw])
_UNREADABLE = (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError)
_LARGEST_BYTES = 2**31 - 1
"""Arrow's offsets have 32 bits."""
_HEAD_BYTES = 5
"""What an array of any size takes before its elements."""
_SEVEN_FIELDS, _BYTES_8, _LONG_TEXT = 0x97, 0xC4, 0xD9
_UNSIGNED = {0xCE: ">u4", 0xCF: ">u8"}
"""How times since 1970 are written, by the byte before them."""


class EventColumns(msgspec.Struct, frozen=True):
    """Events of one source and one type: ids as texts, data as octets. `frames` are their bytes,
    one by one, for who wants to see one of them after all.
    """

    source: str
    type: str
    ids: pa.Array
    times: npt.NDArray[np.int64]
    data: pa.Array
    frames: Sequence[msgspec.Raw]

    @property
    def count(self) -> int:
        """How many events."""
        return len(self.times)

    def part(self, first: int, end: int) -> EventColumns:
        """The events from one place up to another; nothing is copied but the list of frames."""
        return EventColumns(
            self.source,
            self.type,
            self.ids[first:end],
            self.times[first:end],
            self.data[first:end],
            self.frames[first:end],
        )


def event_columns(blocks: Sequence[bytes]) -> EventColumns | None:
    """The events of blocks, one after the other; None when some of them are not of the usual kind,
    which includes blocks that cannot be read at all.

    Costs a tenth of `decode_bare_block` per event when there are thousands, more when there are
    few: every column is a pass of its own.
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
    edges[0] = _HEAD_BYTES
    np.cumsum(np.fromiter(map(len, frames), np.int64, len(frames)), out=edges[1:])
    edges[1:] += _HEAD_BYTES
    if (edges[np.cumsum(counts)] != _HEAD_BYTES + np.cumsum(sizes)).any():
        return None  # a block that does not hold what it says must not borrow from its neighbour
    return _columns(whole, frames, edges[:-1])


# --- blocks ---------------------------------------------------------------------------------------


def _joined(blocks: Sequence[bytes]) -> tuple[bytes, list[int], list[int]] | None:
    """All blocks as one, and of each how many events and how many bytes it has."""
    counts, bodies = [], []
    for block in blocks:
        count, skip = array_head(block)
        body = memoryview(block)[skip:]
        if not skip or bool(count) != bool(body):
            return None
        if count:
            counts.append(count)
            bodies.append(body)
    sizes = [len(body) for body in bodies]
    total = sum(counts)
    if not total or sum(sizes) + _HEAD_BYTES > _LARGEST_BYTES or total >= 2**32:
        return None
    return b"".join((b"\xdd", total.to_bytes(4, "big"), *bodies)), counts, sizes


def array_head(block: bytes) -> tuple[int, int]:
    """How many events a block says it has, and how many bytes say so; zeros when it is none."""
    first = block[0] if block else 0
    if 0x90 <= first <= 0x9F:
        return first & 0x0F, 1
    width = {0xDC: 2, 0xDD: 4}.get(first, 0)
    if not width or len(block) <= width:
        return 0, 0
    return int.from_bytes(block[1 : 1 + width], "big"), 1 + width


# --- events ---------------------------------------------------------------------------------------


def _columns(whole: bytes, frames: list[msgspec.Raw], starts: Places) -> EventColumns | None:
    """The frames are whole values, so whatever the first bytes of one announce lies within it."""
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
    places = (ids.starts, ids.ends, subjects.starts, subjects.ends, data, data + octets[after + 1])
    id_octets, subject_octets, cut = cut_pieces(pa.py_buffer(whole), places, pa.binary(), (1, 1, 1))
    id_texts = _as_text(id_octets)
    if id_texts is None or _as_text(subject_octets) is None:
        return None
    return EventColumns(source.text, kind.text, id_texts, times, cut, frames)


class _SharedText(NamedTuple):
    """A text that stands in the same way in every event, and the bytes that it takes."""

    text: str
    bytes: int


class _Texts(NamedTuple):
    """Where texts begin and end."""

    starts: Places
    ends: Places


def _shared_text(whole: bytes, places: Places) -> _SharedText | None:
    """The text at the places, when it is the same at all of them."""
    first = int(places[0])
    size = _text_bytes(whole, first)
    if size is None:
        return None
    head, taken = size
    wanted = whole[first : first + taken]
    if int(places[-1]) + taken > len(whole) or not all_are(whole, places, wanted):
        return None
    try:
        return _SharedText(wanted[head:].decode(), taken)
    except UnicodeDecodeError:
        return None


def _text_bytes(whole: bytes, at: int) -> tuple[int, int] | None:
    """How many bytes say how long a text is, and how many it takes with them."""
    first = whole[at]
    if 0xA0 <= first <= 0xBF:
        return 1, 1 + (first & 0x1F)
    return (2, 2 + whole[at + 1]) if first == _LONG_TEXT else None


def _texts(octets: npt.NDArray[np.uint8], places: Places) -> _Texts | None:
    """Where the texts at the places are; None when one is longer than 255 bytes, or is no text."""
    heads = octets[places]
    short = (heads & 0xE0) == 0xA0
    if short.all():
        starts = places + 1
        return _Texts(starts, starts + (heads & 0x1F))
    if not (short | (heads == _LONG_TEXT)).all():
        return None
    starts = places + np.where(short, 1, 2)
    return _Texts(starts, starts + np.where(short, heads & 0x1F, octets[starts - 1]))


def _times(
    whole: bytes, octets: npt.NDArray[np.uint8], places: Places
) -> tuple[npt.NDArray[np.int64], Places] | None:
    """Times that are all written alike, and where they end."""
    first = int(octets[places[0]])
    kind = _UNSIGNED.get(first)
    if kind is None or (octets[places] != first).any():
        return None
    times = _items(whole, kind)[places + 1]
    if (times >= 2**63).any():
        return None
    return times.astype(np.int64), places + 1 + np.dtype(kind).itemsize


def _as_text(column: pa.Array) -> pa.Array | None:
    """Octets as text; None when one is not UTF-8. Said of each, not of all together: half a
    character at the end of one must not be completed by the beginning of the next.
    """
    texts = pa.Array.from_buffers(pa.string(), len(column), column.buffers())
    if not _is_ascii(column):
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid:
            return None
    return texts


def _is_ascii(column: pa.Array) -> bool:
    octets = column_octets(column)
    return not len(octets) or int(octets.max()) < 0x80


# --- what columns are made with -------------------------------------------------------------------


def _items(whole: Any, kind: str) -> npt.NDArray[Any]:
    """At every place what stands there, read as `kind`; a view, nothing is copied."""
    count = len(whole) - np.dtype(kind).itemsize + 1
    return np.ndarray((max(count, 0),), kind, buffer=whole, strides=(1,))


def all_are(whole: Any, places: Places, wanted: bytes) -> bool:
    """Whether these bytes stand at all of the places; they must lie within the whole."""
    return bool(_items(whole, f"V{len(wanted)}")[places].tobytes() == wanted * len(places))


def cut_pieces(
    whole: pa.Buffer, places: Sequence[Places], kind: pa.DataType, widths: Sequence[int]
) -> list[pa.Array]:
    """Columns of pieces of a buffer. `places` are where the first begin and end, then the second,
    and so on, ascending in every row and from row to row. Each column takes so many kinds of
    pieces, one after the other, as `widths` says.

    What lies between pieces is cut as one, too, and left out: so nothing is copied but what is
    wanted, and that once.
    """
    rows, width = len(places[0]), len(places)
    edges = np.empty((rows, width), np.int32)
    for number, place in enumerate(places):
        edges[:, number] = place
    pieces = pa.Array.from_buffers(kind, rows * width - 1, [None, pa.py_buffer(edges), whole])
    wanted = np.arange(0, rows * width, width) + np.arange(0, width, 2)[:, None]
    lines = np.cumsum((0, *widths))
    return [pieces.take(pa.array(wanted[low:high].reshape(-1))) for low, high in pairwise(lines)]


def column_octets(column: pa.Array) -> npt.NDArray[np.uint8]:
    """The bytes of all values of a column of texts or octets, one after the other."""
    edges = column_edges(column)
    octets = column.buffers()[2]
    if octets is None:
        return np.empty(0, np.uint8)
    return np.frombuffer(octets, np.uint8, int(edges[-1]))[int(edges[0]) :]


def column_edges(column: pa.Array) -> npt.NDArray[np.int32]:
    """Where the values begin in the buffer of the column, and where the last one ends."""
    edges = np.frombuffer(column.buffers()[1], np.int32)
    return edges[column.offset : column.offset + len(column) + 1]
