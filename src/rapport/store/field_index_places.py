"""Spots of events in the file of the field index. [CH-4]"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from rapport.store.field_index_spots import MOST_SPOTS, SPOT, Spot, Spots

_LOG_BITS = 44
"""Positions of one log stand together: place = log number * 2^44 + position."""

_FIND = f"""
SELECT wanted.value, segment, received,
       substr(spots, 1 + {SPOT.size} * (:base + wanted.value - place), {SPOT.size})
FROM json_each(:positions) AS wanted JOIN spots ON place = (
  SELECT place FROM spots WHERE place <= :base + wanted.value ORDER BY place DESC LIMIT 1
)
WHERE place > :base
"""


def keep_spots(
    connection: sqlite3.Connection, log: int, fresh: Sequence[Spots], *, before: int | None = 0
) -> None:
    """Writes spots; drops those before a position (None: all of them)."""
    base = log << _LOG_BITS
    if before != 0:
        end = base + (before if before is not None else 1 << _LOG_BITS)
        # The last row before the end may reach beyond it: it stays.
        connection.execute(
            "DELETE FROM spots WHERE place >= ? AND place < ?",
            (base, end if before is None else end - MOST_SPOTS),
        )
    connection.executemany(
        "INSERT OR REPLACE INTO spots VALUES (?, ?, ?, ?)",
        [(base + piece.first, piece.segment, piece.received, piece.packed) for piece in fresh],
    )


def find_spots(connection: sqlite3.Connection, log: int, positions: Sequence[int]) -> list[Spot]:
    """The spots of positions, as far as known."""
    encoded = msgspec.json.encode(positions).decode()
    rows = connection.execute(_FIND, {"base": log << _LOG_BITS, "positions": encoded})
    found = [row for row in rows if len(row[3]) == SPOT.size]
    unpacked = SPOT.iter_unpack(b"".join([row[3] for row in found]))
    return [
        Spot(position, segment, received, offset, length, checksum)
        for (position, segment, received, _packed), (offset, length, checksum) in zip(
            found, unpacked, strict=True
        )
    ]
