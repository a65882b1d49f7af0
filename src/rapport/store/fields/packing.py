"""Spots of events as records of equal length: many packed or unpacked at once. [CH-4]"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np

from rapport.store.fields.spots import SPOT_BYTES, Spot, Spots

SPOT = np.dtype(
    [
        ("received", "<i8"),
        ("offset", "<u4"),
        ("length", "<u4"),
        ("checksum", "<u4"),
        ("back", "<u4"),
    ]
)
"""`back` is how many positions before the event its segment begins. A length of 0 says that nothing
is known: no event is empty.
"""
assert SPOT.itemsize == SPOT_BYTES


def pack_spots(
    first: int, segment: int, received: int, offset: int, bodies: Sequence[bytes | memoryview]
) -> Spots:
    """Spots of events of one block, whose bytes follow each other from `offset` on."""
    spots = np.empty(len(bodies), SPOT)
    lengths = np.fromiter(map(len, bodies), np.int64, len(bodies))
    spots["received"] = received
    spots["offset"] = offset + np.cumsum(lengths) - lengths
    spots["length"] = lengths
    spots["checksum"] = [crc32(body) for body in bodies]
    spots["back"] = np.arange(first - segment, first - segment + len(bodies))
    return Spots(first, spots.tobytes())


def unpack_spots(positions: Sequence[int], spots: np.ndarray) -> list[Spot]:
    """The spots at positions, without those that are not known."""
    return [
        Spot(position, position - back, received, offset, length, checksum)
        for position, (received, offset, length, checksum, back) in zip(
            positions, spots.tolist(), strict=True
        )
        if length
    ]
