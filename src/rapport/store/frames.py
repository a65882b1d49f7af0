"""Frames of a segment file: a header with its own checksum, then the body. Pure. [CH-13]

The header names the body's checksum and is itself checksummed, so every byte is covered and a
reader can tell a broken header (length unknown: search for the next) from a broken body (length
known: step over it). `index` and `remaining` place a frame in the group it was written with: a
group counts only when it is whole.

`scan` walks a file frame by frame, past damage; the bytes come from a function.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from zlib import crc32

import msgspec

from rapport.store.base import MAX_BODY_BYTES

MAGIC = b"\xa7RPF"
VERSION = 1
_FIELDS = struct.Struct("<4sBxxxIIIQIqI")
_CHECKSUM = struct.Struct("<I")
HEADER_BYTES = _FIELDS.size + _CHECKSUM.size

_LARGEST_POSITION = 2**63


class Header(msgspec.Struct, frozen=True, gc=False):
    """The header of a block at positions `first` .. `first + count - 1`."""

    index: int
    remaining: int
    length: int
    first: int
    count: int
    received: int
    body_checksum: int

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    @property
    def frame_bytes(self) -> int:
        return HEADER_BYTES + self.length


def encode_header(
    body: bytes, *, first: int, count: int, received: int, index: int = 0, remaining: int = 0
) -> bytes:
    fields = _FIELDS.pack(
        MAGIC, VERSION, index, remaining, len(body), first, count, received, crc32(body)
    )
    return fields + _CHECKSUM.pack(crc32(fields))


def decode_header(buffer: bytes | memoryview, offset: int = 0) -> Header | None:
    """The header at `offset`; None when there are too few bytes or they are not a sound header."""
    if offset < 0 or len(buffer) - offset < HEADER_BYTES:
        return None
    magic, version, index, remaining, length, first, count, received, body_checksum = (
        _FIELDS.unpack_from(buffer, offset)
    )
    if magic != MAGIC or version != VERSION:
        return None
    (checksum,) = _CHECKSUM.unpack_from(buffer, offset + _FIELDS.size)
    if checksum != crc32(memoryview(buffer)[offset : offset + _FIELDS.size]):
        return None
    if length > MAX_BODY_BYTES or count < 1 or not 1 <= first < _LARGEST_POSITION:
        return None
    return Header(index, remaining, length, first, count, received, body_checksum)


def body_is_sound(header: Header, body: bytes | memoryview) -> bool:
    return len(body) == header.length and crc32(body) == header.body_checksum


ReadAt = Callable[[int, int], bytes]
"""(offset, length) -> bytes; fewer only at the end."""

_WINDOW_BYTES = 1024 * 1024


class Frame(msgspec.Struct, frozen=True, gc=False):
    """A sound header at an offset."""

    offset: int
    header: Header

    @property
    def end(self) -> int:
        return self.offset + self.header.frame_bytes


class Damage(msgspec.Struct, frozen=True):
    """Bytes from `offset` to `end` that are no frame; with a `header` only the body is broken."""

    offset: int
    end: int
    header: Header | None


def scan(read: ReadAt, start: int, end: int, *, bodies: bool = True) -> Iterator[Frame | Damage]:
    """Frames and damage between two offsets, in order; zeros up to `end` are unused room and end
    the walk.

    `bodies=False` trusts the bodies and reads headers only. Memory: one window or one frame,
    whichever is larger; time is linear in the bytes, also on hostile ones.
    """
    window = ByteWindow(read, end, _WINDOW_BYTES)
    offset = start
    while offset < end:
        header = decode_header(window.view(offset, HEADER_BYTES))
        if header is not None and offset + header.frame_bytes <= end:
            frame = Frame(offset, header)
            body_start = offset + HEADER_BYTES
            if not bodies or body_is_sound(header, window.view(body_start, header.length)):
                yield frame
                offset = frame.end
                continue
            after = frame.end if _begins_frame(window, frame.end, end) else None
            damage_end = after or _next_frame(window, offset + 1, end)
            yield Damage(offset, damage_end, header)
        else:
            if _is_zero(window, offset, end):
                return
            damage_end = _next_frame(window, offset + 1, end)
            yield Damage(offset, damage_end, None)
        offset = damage_end


class ByteWindow:
    """The last `size` bytes or more that were read of a file; small frames mostly lie in them and
    need no read each.
    """

    def __init__(self, read: ReadAt, end: int, size: int) -> None:
        self._read, self._end, self._size = read, end, size
        self._start, self._bytes = 0, b""

    def covering(self, offset: int, length: int) -> tuple[bytes, int]:
        """Bytes that reach from `offset` over `length` or to the end, and the place of `offset` in
        them.
        """
        length = max(min(length, self._end - offset), 0)
        relative = offset - self._start
        if relative < 0 or relative + length > len(self._bytes):
            wanted = min(max(length, self._size), self._end - offset)
            self._start, self._bytes = offset, self._read(offset, max(wanted, 0))
            relative = 0
        return self._bytes, relative

    def view(self, offset: int, length: int) -> memoryview:
        """Up to `length` bytes at `offset`, never past the end."""
        found, relative = self.covering(offset, length)
        return memoryview(found)[relative : relative + length]


def _begins_frame(window: ByteWindow, offset: int, end: int) -> bool:
    return offset == end or decode_header(window.view(offset, HEADER_BYTES)) is not None


def _next_frame(window: ByteWindow, offset: int, end: int) -> int:
    """Offset of the next sound header; `end` when there is none."""
    while offset < end:
        piece = bytes(window.view(offset, _WINDOW_BYTES))
        if not piece:
            return end
        found = piece.find(MAGIC)
        while found >= 0:
            if decode_header(window.view(offset + found, HEADER_BYTES)) is not None:
                return offset + found
            found = piece.find(MAGIC, found + 1)
        # A magic may lie across two pieces.
        offset += max(len(piece) - len(MAGIC) + 1, 1)
    return end


def _is_zero(window: ByteWindow, offset: int, end: int) -> bool:
    while offset < end:
        piece = window.view(offset, _WINDOW_BYTES)
        if not piece or bytes(piece).strip(b"\0"):
            return not piece
        offset += len(piece)
    return True
