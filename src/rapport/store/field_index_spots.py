"""Where each event of an indexed log stands in its segment file, with a checksum of its own. [CH-4]

Matches of a query lie far apart; reading and checking the whole block around each would cost a
hundred times what the event does.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from zlib import crc32

import msgspec

SPOT = Struct("<III")
"""Offset, length, checksum."""
MOST_SPOTS = 256
"""Spots in one row, so that it fits in one page of the file."""


class Spot(msgspec.Struct, frozen=True, gc=False):
    """The bytes of one event: segment (by its first position), offset in its file, length."""

    position: int
    segment: int
    received: int
    offset: int
    length: int
    checksum: int


class Spots(msgspec.Struct, frozen=True):
    """Spots of consecutive events of one segment, received at one moment."""

    first: int
    segment: int
    received: int
    packed: bytes

    @property
    def last(self) -> int:
        """Position of the last one."""
        return self.first + len(self.packed) // SPOT.size - 1


def pack_spots(
    first: int, segment: int, received: int, offset: int, bodies: Sequence[bytes | memoryview]
) -> list[Spots]:
    """Spots of events whose bytes follow each other from `offset` on."""
    packed = []
    for body in bodies:
        packed.append(SPOT.pack(offset, len(body), crc32(body)))
        offset += len(body)
    return [
        Spots(first + start, segment, received, b"".join(packed[start : start + MOST_SPOTS]))
        for start in range(0, len(packed), MOST_SPOTS)
    ]
