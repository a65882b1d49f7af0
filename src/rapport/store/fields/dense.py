"""Values that many events of a stretch have, as one bit per position. [CH-4]

Where two fields are asked for together, the rarer one is walked along and the other one is asked
about at each position. A descent of the index for that costs ten times what a bit does. Bits are
made once, when a stretch is complete, and say nothing that the entries do not say too.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from rapport.store.fields.keys import Key

STRETCH_BITS = 17
STRETCH = 1 << STRETCH_BITS
"""Positions per stretch."""
DENSE = STRETCH // 32
"""Events of a stretch that have a dense value, at least; so bits need a fifth of the room of their
entries at most.
"""
DENSE_SCHEMA = """
CREATE TABLE IF NOT EXISTS dense (
  field INTEGER NOT NULL, stretch INTEGER NOT NULL, value, bits BLOB NOT NULL,
  PRIMARY KEY (field, stretch, value)
) WITHOUT ROWID;
"""
_MASK = STRETCH - 1
_DENSE_VALUES = (
    "SELECT value FROM entries WHERE field = ? AND stretch = ? GROUP BY value HAVING count(*) >= ?"
)
_PLACES = (
    f"SELECT json_group_array(position & {_MASK}) FROM entries "
    "WHERE field = ? AND stretch = ? AND value = ?"
)
_BITS = "SELECT bits FROM dense WHERE field = ? AND stretch = ? AND value = ?"
_DECODE = msgspec.json.Decoder(list[int]).decode


def keep_dense(connection: sqlite3.Connection, field: int, stretches: Iterable[int]) -> None:
    """Makes the bits of complete stretches. Cost: one pass over the entries of each."""
    for stretch in stretches:
        for (value,) in connection.execute(_DENSE_VALUES, (field, stretch, DENSE)).fetchall():
            (places,) = connection.execute(_PLACES, (field, stretch, value)).fetchone()
            row = (field, stretch, value, _packed(_DECODE(places)))
            connection.execute("INSERT OR REPLACE INTO dense VALUES (?, ?, ?, ?)", row)


def drop_dense(connection: sqlite3.Connection, field: int, *, through: int | None = None) -> None:
    """Drops the bits of a field, those of stretches up to `through` when it is given."""
    last = through if through is not None else 1 << 62
    connection.execute("DELETE FROM dense WHERE field = ? AND stretch <= ?", (field, last))


def completed(before: int, reached: int, pieces: Iterable[tuple[int, int]]) -> list[int]:
    """The stretches that hold something and end when a field that was fed up to `before` is fed up
    to `reached`; `pieces` are the (first, last) positions that were fed now.

    >>> completed(5, STRETCH + 7, [(6, STRETCH + 7)])
    [0]
    """
    touched = {(before + 1) >> STRETCH_BITS}
    for first, last in pieces:
        touched.update(range(first >> STRETCH_BITS, (last >> STRETCH_BITS) + 1))
    return sorted(stretch for stretch in touched if stretch < (reached + 1) >> STRETCH_BITS)


def find_bits(
    connection: sqlite3.Connection, stretch: int, keys: Sequence[tuple[int, Key]]
) -> bytes | None:
    """Where in a stretch all of these fields have these values; None when one is not dense there,
    or the stretch is not complete.
    """
    found: bytes | None = None
    for field, value in keys:
        row = connection.execute(_BITS, (field, stretch, value)).fetchone()
        if row is None:
            return None
        found = row[0] if found is None else _both(found, row[0])
    return found


def marked(bits: bytes, positions: Sequence[int]) -> list[int]:
    """Those positions of a stretch whose bit is set."""
    places = np.array(positions, np.int64)
    eights = np.frombuffer(bits, np.uint8)[(places & _MASK) >> 3]
    found: list[int] = places[(eights >> (places & 7).astype(np.uint8) & 1) == 1].tolist()
    return found


def all_marked(one: bytes, other: bytes, stretch: int, after: int) -> list[int]:
    """All positions of a stretch, after a position, with both bits set, in order."""
    bits = np.frombuffer(_both(one, other), np.uint8)
    places = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
    places += stretch << STRETCH_BITS
    found: list[int] = places[places.searchsorted(after, "right") :].tolist()
    return found


def _packed(places: Sequence[int]) -> bytes:
    flags = np.zeros(STRETCH, np.uint8)
    flags[places] = 1
    return np.packbits(flags, bitorder="little").tobytes()


def _both(one: bytes, other: bytes) -> bytes:
    return (np.frombuffer(one, np.uint8) & np.frombuffer(other, np.uint8)).tobytes()
