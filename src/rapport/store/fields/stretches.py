"""Looking into several stretches of a field index with one statement. [CH-4]

A statement of its own for every stretch costs more than the look itself, where a stretch holds few
matches or none.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence

import msgspec

from rapport.store.fields.keys import Range

MOST_AT_ONCE = 64
_GROWTH = 8
_ACROSS = (
    "SELECT json_group_array(position) FROM (SELECT position FROM json_each(?) AS wanted "
    "CROSS JOIN entries WHERE field = ? AND stretch = wanted.value "
    "AND entries.value BETWEEN ? AND ? AND position > ? LIMIT ?)"
)
_LOWEST_NUMBER, _HIGHEST_NUMBER = -(2**63), 2**63 - 1
_LOWEST_TEXT, _BEYOND_TEXTS = "", b""  # blobs stand behind all texts
_DECODE = msgspec.json.Decoder(list[int]).decode


def at_once(looked: int, found: int, wanted: int) -> int:
    """How many stretches to look into next, when `looked` of them held `found` positions.

    >>> at_once(0, 0, 100), at_once(1, 0, 100), at_once(2, 50, 100), at_once(2, 150, 100)
    (1, 8, 2, 1)
    """
    if found == 0:
        return min(max(looked * _GROWTH, 1), MOST_AT_ONCE)
    return min(max(-(-(wanted - found) * looked // found), 1), MOST_AT_ONCE)


class Groups:
    """The stretches from `first` to `last` in groups; whoever looks says what it `found` so far."""

    def __init__(self, first: int, last: int, wanted: int) -> None:
        self._first, self._next, self._last, self._wanted = first, first, last, wanted
        self.found = 0

    def __iter__(self) -> Iterator[range]:
        while self._next <= self._last:
            count = at_once(self._next - self._first, self.found, self._wanted)
            group = range(self._next, min(self._next + count, self._last + 1))
            self._next = group.stop
            yield group

    def one_by_one(self, group: range) -> range:
        """The first stretch of a group that holds too much; the others come again."""
        self._next = group.start + 1
        return group[:1]


def ends_of(wanted: Range, text: bool) -> tuple[object, object]:
    """The least and the greatest that a value in a range can be."""
    low: object = wanted.low
    high: object = wanted.high
    if low is None:
        low = _LOWEST_TEXT if text else _LOWEST_NUMBER
    if high is None:
        high = _BEYOND_TEXTS if text else _HIGHEST_NUMBER
    return low, high


def positions_across(
    connection: sqlite3.Connection,
    field: int,
    ends: tuple[object, object],
    stretches: Sequence[int],
    *,
    after: int,
    limit: int,
) -> list[int]:
    """Positions in stretches, after a position, whose value lies between two keys, in no order;
    `limit` of them when there are so many or more.
    """
    asked = (msgspec.json.encode(list(stretches)).decode(), field, *ends, after, limit)
    (rows,) = connection.execute(_ACROSS, asked).fetchone()
    return _DECODE(rows)
