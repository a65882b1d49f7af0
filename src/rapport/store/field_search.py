"""Searching positions in a field index, one partition of the log at a time. [CH-4]

Entries are ordered by field, then partition of the log (131,072 positions; the column `stretch`),
then value. So a range of values costs at most one partition before the first positions come out in
order, feeding touches only the newest partition, and retention removes whole partitions.

Where a partition has few matches or none, a statement per partition costs more than the search
itself: `PartitionGroups` searches several with one statement. Values that many events of a
partition have ("dense" values) are also kept as one bit per position. A query for two fields walks
along the rarer one and tests the bit of the other one, a tenth of the cost of a look-up. The bits
are made once, when a partition is complete, and repeat information of the entries.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeGuard

import msgspec
import numpy as np

from rapport.store.field_keys import PARTITION_BITS, AllOf, Key, Lookup, Range, RangeLookup

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


def batch_size(looked: int, found: int, wanted: int) -> int:
    """Number of partitions to search next, when `looked` of them held `found` positions.

    >>> [batch_size(*each, 100) for each in ((0, 0), (1, 0), (2, 50), (2, 150))]
    [1, 8, 2, 1]
    """
    if found == 0:
        return min(max(looked * _GROWTH, 1), MOST_AT_ONCE)
    return min(max(-(-(wanted - found) * looked // found), 1), MOST_AT_ONCE)


class PartitionGroups:
    """The partitions from `first` to `last` in groups, sized by the positions `found` so far."""

    def __init__(self, first: int, last: int, wanted: int) -> None:
        self._first, self._next, self._last, self._wanted = first, first, last, wanted
        self.found = 0

    def __iter__(self) -> Iterator[range]:
        while self._next <= self._last:
            count = batch_size(self._next - self._first, self.found, self._wanted)
            group = range(self._next, min(self._next + count, self._last + 1))
            self._next = group.stop
            yield group

    def one_by_one(self, group: range) -> range:
        """The first partition of a group with too many matches; the others are grouped again."""
        self._next = group.start + 1
        return group[:1]


def ends_of(wanted: Range, text: bool) -> tuple[object, object]:
    low: object = wanted.low
    high: object = wanted.high
    if low is None:
        low = _LOWEST_TEXT if text else _LOWEST_NUMBER
    if high is None:
        high = _BEYOND_TEXTS if text else _HIGHEST_NUMBER
    return low, high


def positions_in_partitions(
    connection: sqlite3.Connection,
    field: int,
    ends: tuple[object, object],
    partitions: Sequence[int],
    *,
    after: int,
    limit: int,
) -> list[int]:
    """Positions in partitions, after a position, with a key between two ends, in no order."""
    parameters = (msgspec.json.encode(list(partitions)).decode(), field, *ends, after, limit)
    (rows,) = connection.execute(_ACROSS, parameters).fetchone()
    return _DECODE(rows)


PARTITION_SIZE = 1 << PARTITION_BITS
"""Positions per partition."""
DENSE = PARTITION_SIZE // 32
"""Least events of a partition with a dense value; bits need a fifth of the entries' room."""
DENSE_SCHEMA = """
CREATE TABLE IF NOT EXISTS dense (
  field INTEGER NOT NULL, stretch INTEGER NOT NULL, value, bits BLOB NOT NULL,
  PRIMARY KEY (field, stretch, value)
) WITHOUT ROWID;
"""
_MASK = PARTITION_SIZE - 1
_DENSE_VALUES = (
    "SELECT value FROM entries WHERE field = ? AND stretch = ? GROUP BY value HAVING count(*) >= ?"
)
_PLACES = (
    f"SELECT json_group_array(position & {_MASK}) FROM entries "
    "WHERE field = ? AND stretch = ? AND value = ?"
)
_BITS = "SELECT bits FROM dense WHERE field = ? AND stretch = ? AND value = ?"


def keep_dense(connection: sqlite3.Connection, field: int, partitions: Iterable[int]) -> None:
    """Writes the bits of complete partitions. Cost: one pass over the entries of each."""
    for partition in partitions:
        for (value,) in connection.execute(_DENSE_VALUES, (field, partition, DENSE)).fetchall():
            (places,) = connection.execute(_PLACES, (field, partition, value)).fetchone()
            row = (field, partition, value, _packed(_DECODE(places)))
            connection.execute("INSERT OR REPLACE INTO dense VALUES (?, ?, ?, ?)", row)


def drop_dense(connection: sqlite3.Connection, field: int, *, through: int | None = None) -> None:
    """Drops the bits of a field, of partitions up to `through` if given."""
    last = through if through is not None else 1 << 62
    connection.execute("DELETE FROM dense WHERE field = ? AND stretch <= ?", (field, last))


def completed_partitions(before: int, reached: int, pieces: Iterable[tuple[int, int]]) -> list[int]:
    """The partitions with entries that end when a field that was fed up to `before` is fed up to
    `reached`; `pieces` are the (first, last) positions that were fed now.
    """
    touched = {(before + 1) >> PARTITION_BITS}
    for first, last in pieces:
        touched.update(range(first >> PARTITION_BITS, (last >> PARTITION_BITS) + 1))
    return sorted(partition for partition in touched if partition < (reached + 1) >> PARTITION_BITS)


def find_bits(
    connection: sqlite3.Connection, partition: int, keys: Sequence[tuple[int, Key]]
) -> bytes | None:
    """Bits of the positions where all of these fields have these values; None when a value is not
    dense there or the partition is not complete.
    """
    found: bytes | None = None
    for field, value in keys:
        row = connection.execute(_BITS, (field, partition, value)).fetchone()
        if row is None:
            return None
        found = row[0] if found is None else _bits_and(found, row[0])
    return found


def positions_with_bit(bits: bytes, positions: Sequence[int]) -> list[int]:
    places = np.array(positions, np.int64)
    eights = np.frombuffer(bits, np.uint8)[(places & _MASK) >> 3]
    found: list[int] = places[(eights >> (places & 7).astype(np.uint8) & 1) == 1].tolist()
    return found


def positions_with_both_bits(one: bytes, other: bytes, partition: int, after: int) -> list[int]:
    """The positions of a partition after `after`, in order."""
    bits = np.frombuffer(_bits_and(one, other), np.uint8)
    places = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
    places += partition << PARTITION_BITS
    found: list[int] = places[places.searchsorted(after, "right") :].tolist()
    return found


def _packed(places: Sequence[int]) -> bytes:
    flags = np.zeros(PARTITION_SIZE, np.uint8)
    flags[places] = 1
    return np.packbits(flags, bitorder="little").tobytes()


def _bits_and(one: bytes, other: bytes) -> bytes:
    return (np.frombuffer(one, np.uint8) & np.frombuffer(other, np.uint8)).tobytes()


UNORDERED_LIMIT = 2_048
"""Most positions of a range in one partition; with more, reading the partition is cheaper."""
_MOST_PARTITIONS = 256

_POINT = (
    "SELECT position FROM entries WHERE field = ? AND stretch = ? AND value = ? AND position > ? "
    "ORDER BY position LIMIT ?"
)
_POINTS = f"SELECT json_group_array(position) FROM ({_POINT})"
"""The positions as one JSON text, in any order: twice as fast for hundreds of them."""

_LEAD = (
    "SELECT position FROM entries AS lead "
    "WHERE field = ? AND stretch = ? AND value = ? AND position > ?"
)
_ALSO = (
    " AND EXISTS (SELECT 1 FROM entries WHERE field = ? AND stretch = lead.stretch AND value = ? "
    "AND position = lead.position)"
)
_FEW, _AT_ONCE = 16, 512
_PROBE = f"""
SELECT wanted.value FROM json_each(:positions) AS wanted WHERE EXISTS (
  SELECT 1 FROM entries WHERE field = :field AND stretch = wanted.value >> {PARTITION_BITS}
  AND value = :key AND position = wanted.value
)
"""


class Candidates(msgspec.Struct):
    """All positions up to `through` that can match; None when the index does not know and the
    caller must read everything up to `through`.
    """

    positions: list[int] | None
    through: int
    exact: bool = True
    """Whether the keys at all positions fulfil the whole lookup."""


def last_of_partition(position: int) -> int:
    return ((position >> PARTITION_BITS) + 1) * PARTITION_SIZE - 1


FieldOf = Callable[[str], tuple[int, int, int] | None]
"""From a path to the field's number, the last position before its entries and the last fed one."""


class Search(msgspec.Struct, frozen=True):
    """One search in one log for `limit` positions at a time."""

    connection: sqlite3.Connection
    field_of: FieldOf
    limit: int

    def run(self, lookup: Lookup, after: int, until: int) -> Candidates:
        """Candidates until there are `limit` or `until` is reached; at most 256 partitions."""
        found: list[int] = []
        through, until, exact = after, min(until, after + _MOST_PARTITIONS * PARTITION_SIZE), True
        while through < until and len(found) < self.limit:
            part = self._look(lookup, through, until)
            if part.positions is None:
                return part if through == after else Candidates(found, through, exact)
            found += part.positions
            through, exact = part.through, exact and part.exact
        return Candidates(found, through, exact)

    def _look(self, lookup: Lookup, after: int, end: int) -> Candidates:
        if isinstance(lookup, RangeLookup):
            return self._within(lookup, after, end)
        if isinstance(lookup, AllOf):
            return self._both(lookup, after, end)
        return _union([self._look(part, after, end) for part in lookup.parts], end)

    def _both(self, lookup: AllOf, after: int, end: int) -> Candidates:
        at_points = [part for part in lookup.parts if self._is_point(part, after)]
        if len(at_points) < 2:
            parts = [self._look(part, after, end) for part in lookup.parts]
            return self._thinned(
                lookup, _intersection(parts, end), parts
            )  # may have left a part out
        parts = [self._at_points(at_points, after, end)]
        if len(at_points) == len(lookup.parts):
            return parts[0]
        parts += [self._look(part, after, end) for part in lookup.parts if part not in at_points]
        return _intersection(parts, end)

    def _is_point(self, lookup: Lookup, after: int) -> TypeGuard[RangeLookup]:
        if not isinstance(lookup, RangeLookup):
            return False
        field = self.field_of(lookup.path)
        is_known = field is not None and field[1] <= after < field[2]
        return is_known and len(lookup.ranges) == 1 and lookup.ranges[0].is_point

    def _at_points(self, parts: Sequence[RangeLookup], after: int, end: int) -> Candidates:
        """Positions with one value in each of several fields: walks along the rarest."""
        keys: list[tuple[int, Key]] = []
        for part in parts:
            number, _begins, fed = self.field_of(part.path) or (0, 0, 0)
            low = part.ranges[0].low
            assert low is not None  # a point has ends
            keys.append((number, low))
            end = min(end, fed)
        partition = (after + 1) >> PARTITION_BITS
        keys.sort(key=lambda key: self._reach(key, partition, after), reverse=True)
        statement = f"{_LEAD}{_ALSO * (len(keys) - 1)} ORDER BY position LIMIT ?"
        others = [part for key in keys[1:] for part in key]

        def look(partition: int, left: int) -> list[int]:
            bits = find_bits(self.connection, partition, keys[1:])
            if bits is not None:
                return self._walk(keys[0], partition, bits, after, left)[:left]
            parameters = (keys[0][0], partition, keys[0][1], after, *others, left)
            return [row[0] for row in self.connection.execute(statement, parameters)]

        return self._in_order(look, after, end)

    def _walk(
        self, lead: tuple[int, Key], partition: int, bits: bytes, after: int, left: int
    ) -> list[int]:
        """Positions of a key in a partition whose bits are set; `left` of them or a few more."""
        own = find_bits(self.connection, partition, [lead])
        if own is not None:
            return positions_with_both_bits(own, bits, partition, after)
        found: list[int] = []
        batch_size = max(_AT_ONCE, left)
        while len(found) < left:
            parameters = (lead[0], partition, lead[1], after, batch_size)
            (rows,) = self.connection.execute(_POINTS, parameters).fetchone()
            walked = sorted(_DECODE(rows))
            found += positions_with_bit(bits, walked)
            if len(walked) < batch_size:
                break
            after = walked[-1]
        return found

    def _at_point(self, field: int, key: Key | None, after: int, end: int) -> Candidates:
        """Positions of one value, until there are enough."""
        found: list[int] = []
        groups = PartitionGroups((after + 1) >> PARTITION_BITS, end >> PARTITION_BITS, self.limit)
        for group in groups:
            left = self.limit - len(found)
            part: list[int] = []
            if len(group) > 1:
                part = self._across(field, (key, key), group, after)
                group = groups.one_by_one(group) if len(part) > UNORDERED_LIMIT else group
            if len(group) == 1:
                parameters = (field, group[0], key, after, left)
                part = [row[0] for row in self.connection.execute(_POINT, parameters)]
            found += sorted(part)
            groups.found = len(found)
            if len(part) >= left:
                return Candidates(*_cut(found[: self.limit], min(end, found[self.limit - 1])))
        return Candidates(*_cut(found, end))

    def _across(
        self, field: int, ends: tuple[object, object], partitions: range, after: int
    ) -> list[int]:
        """At most UNORDERED_LIMIT + 1 positions."""
        return positions_in_partitions(
            self.connection, field, ends, partitions, after=after, limit=UNORDERED_LIMIT + 1
        )

    def _in_order(self, look: Callable[[int, int], list[int]], after: int, end: int) -> Candidates:
        """Ordered positions of each partition, until there are enough."""
        found: list[int] = []
        for partition in range((after + 1) >> PARTITION_BITS, (end >> PARTITION_BITS) + 1):
            left = self.limit - len(found)
            part = look(partition, left)
            found += part
            if len(part) == left:
                end = min(end, found[-1])
                break
        return Candidates([place for place in found if place <= end], end)

    def _reach(self, key: tuple[int, Key], partition: int, after: int) -> int:
        """Position of the last of the next few entries of a key: farther away for a rarer key."""
        parameters = (key[0], partition, key[1], after, _FEW)
        rows = self.connection.execute(_POINT, parameters).fetchall()
        return rows[-1][0] if len(rows) == _FEW else (partition + 2 << PARTITION_BITS) - len(rows)

    def _thinned(self, lookup: AllOf, led: Candidates, parts: list[Candidates]) -> Candidates:
        """Removes positions that a part with a shorter reach rules out: probing the index costs a
        tenth of reading the event.
        """
        for part, reached in zip(lookup.parts, parts, strict=True):
            is_short = reached.positions is not None and reached.through < led.through
            if is_short and led.positions and isinstance(part, RangeLookup):
                led = Candidates(self._probed(part, led), led.through, exact=False)
        return led

    def _probed(self, lookup: RangeLookup, led: Candidates) -> list[int] | None:
        field = self.field_of(lookup.path)
        is_point = len(lookup.ranges) == 1 and lookup.ranges[0].is_point
        if not is_point or field is None or led.through > field[2]:
            return led.positions
        parameters = {
            "positions": msgspec.json.encode(led.positions).decode(),
            "field": field[0],
            "key": lookup.ranges[0].low,
        }
        return [row[0] for row in self.connection.execute(_PROBE, parameters)]

    def _within(self, lookup: RangeLookup, after: int, end: int) -> Candidates:
        field = self.field_of(lookup.path)
        if field is None or after < field[1] or after >= field[2]:
            return Candidates(None, min(end, last_of_partition(after + 1)))
        number, _begins, fed = field
        end = min(end, fed)
        parts = []
        for wanted in lookup.ranges:
            if wanted.is_point:
                parts.append(self._at_point(number, wanted.low, after, end))
            else:
                parts.append(self._among(number, wanted, lookup.text, after, end))
        return parts[0] if len(parts) == 1 else _union(parts, end)

    def _among(self, field: int, wanted: Range, text: bool, after: int, end: int) -> Candidates:
        """Positions of a range of values, whole partitions at a time."""
        found: list[int] = []
        ends = ends_of(wanted, text)
        groups = PartitionGroups((after + 1) >> PARTITION_BITS, end >> PARTITION_BITS, self.limit)
        for group in groups:
            rows = self._across(field, ends, group, after)
            if len(rows) > UNORDERED_LIMIT and len(group) > 1:
                group = groups.one_by_one(group)
                rows = self._across(field, ends, group, after)
            last = min(last_of_partition(group[-1] << PARTITION_BITS), end)
            if len(rows) > UNORDERED_LIMIT:
                before = (group[0] << PARTITION_BITS) - 1
                return Candidates(found, before) if before > after else Candidates(None, last)
            found += sorted({place for place in rows if place <= end})
            groups.found = len(found)
            if len(found) >= self.limit:
                return Candidates(found, last)
        return Candidates(found, end)


def _cut(found: list[int], end: int) -> tuple[list[int], int]:
    return [place for place in found if place <= end], end


def _intersection(parts: list[Candidates], end: int) -> Candidates:
    """The part with the farthest reach, intersected with others that reach as far."""
    known = [part for part in parts if part.positions is not None]
    if not known:
        return Candidates(None, min((part.through for part in parts), default=end))
    through = max(part.through for part in known)
    sets = [part.positions for part in known if part.through == through]
    shortest = min((found for found in sets if found is not None), key=len)
    chosen = set(shortest).intersection(*(found for found in sets if found is not None))
    return Candidates(sorted(chosen), through, exact=False)


def _union(parts: Iterable[Candidates], end: int) -> Candidates:
    found: set[int] = set()
    through, is_known, exact = end, True, True
    for part in parts:
        through, exact = min(through, part.through), exact and part.exact
        if part.positions is None:
            is_known = False
        else:
            found.update(part.positions)
    if not is_known:
        return Candidates(None, through)
    return Candidates(sorted(place for place in found if place <= through), through, exact)
