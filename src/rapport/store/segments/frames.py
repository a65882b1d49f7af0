"""One frame of a segment file: a header with its own checksum, then the body. Pure. [CH-13]

The header names the body's checksum and is itself checksummed, so every byte is covered and a
reader can tell a broken header (length unknown: search for the next) from a broken body (length
known: step over it). `index` and `remaining` place a frame in the group it was written with: a
group counts only when it is whole.
"""

from __future__ import annotations

import struct
from zlib import crc32

import msgspec

MAGIC = b"\xa7RPF"
VERSION = 1
MAX_BODY_BYTES = 64 * 1024 * 1024
"""Longest body; a header that claims more is broken, so no reader allocates for an absurd length.
"""

_FIELDS = struct.Struct("<4sBxxxIIIQIqI")
_CHECKSUM = struct.Struct("<I")
HEADER_BYTES = _FIELDS.size + _CHECKSUM.size

_LARGEST_POSITION = 2**63


class Header(msgspec.Struct, frozen=True, gc=False):
    """What stands before a body; positions `first` .. `first + count - 1`."""

    index: int
    remaining: int
    length: int
    first: int
    count: int
    received: int
    body_checksum: int

    @property
    def last(self) -> int:
        """Position of the last record."""
        return self.first + self.count - 1

    @property
    def frame_bytes(self) -> int:
        """Bytes of header and body."""
        return HEADER_BYTES + self.length


def encode_header(
    body: bytes, *, first: int, count: int, received: int, index: int = 0, remaining: int = 0
) -> bytes:
    """What is written before the body of one block."""
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
    """Whether these bytes are the body the header was written with."""
    return len(body) == header.length and crc32(body) == header.body_checksum
