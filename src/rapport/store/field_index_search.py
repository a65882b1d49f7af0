"""Looking positions up in a field index, one stretch of the log at a time. [CH-4]

Entries are kept by field, then stretch of the log, then value: so a range of values costs no more
than one stretch before the first positions come out in order, feeding touches only the newest
stretch however long the log is, and what is let go leaves in one piece.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import TypeGuard

import msgspec

from rapport.store.field_index_keys import Both, Lookup, Range, Within

STRETCH_BITS = 17
STRETCH = 1 << STRETCH_BITS
"""Positions per stretch."""
UNORDERED_LIMIT = 2_048
"""A range of values with more positions than this in one stretch is not worth looking up."""
_MOST_STRETCHES = 256

_POINT = (
    "SELECT position FROM entries WHERE field = ? AND stretch = ? AND value = ? AND position > ? "
    "ORDER BY position LIMIT ?"
)
_RANGE = (
    "SELECT position FROM entries WHERE field = ? AND stretch = ? AND value BETWEEN ? AND ? "
    "AND position > ? LIMIT ?"
)
_LEAD = (
    "SELECT position FROM entries AS lead "
    "WHERE field = ? AND stretch = ? AND value = ? AND position > ?"
)
_ALSO = (
    " AND EXISTS (SELECT 1 FROM entries WHERE field = ? AND stretch = lead.stretch AND value = ? "
    "AND position = lead.position)"
)
_FEW = 16
_PROBE = f"""
SELECT wanted.value FROM json_each(:positions) AS wanted WHERE EXISTS (
  SELECT 1 FROM entries WHERE field = :field AND stretch = wanted.value >> {STRETCH_BITS}
  AND value = :key AND position = wanted.value
)
"""
_LOWEST_NUMBER, _HIGHEST_NUMBER = -(2**63), 2**63 - 1
_LOWEST_TEXT, _BEYOND_TEXTS = "", b""  # blobs stand behind all texts


class Candidates(msgspec.Struct):
    """Every position after the one asked from up to `through` that can match is in `positions`; or,
    when `positions` is None, the index cannot say: everything up to `through` is to be read.
    """

    positions: list[int] | None
    through: int


def last_of_stretch(position: int) -> int:
    """The last position of the stretch that holds one."""
    return ((position >> STRETCH_BITS) + 1) * STRETCH - 1


FieldOf = Callable[[str], tuple[int, int, int] | None]
"""From a path to the field's number, the last position before it begins and the last it knows."""


class Search(msgspec.Struct, frozen=True):
    """One search in one log; `limit` positions are asked for at a time."""

    connection: sqlite3.Connection
    field_of: FieldOf
    limit: int

    def run(self, lookup: Lookup, after: int, until: int) -> Candidates:
        """Candidates after a position, until there are `limit` or `until` is reached. Cost: at most
        256 stretches.
        """
        found: list[int] = []
        through, until = after, min(until, after + _MOST_STRETCHES * STRETCH)
        while through < until and len(found) < self.limit:
            part = self._look(lookup, through, until)
            if part.positions is None:
                return part if through == after else Candidates(found, through)
            found += part.positions
            through = part.through
        return Candidates(found, through)

    def _look(self, lookup: Lookup, after: int, end: int) -> Candidates:
        if isinstance(lookup, Within):
            return self._within(lookup, after, end)
        if isinstance(lookup, Both):
            return self._both(lookup, after, end)
        return _either([self._look(part, after, end) for part in lookup.parts], end)

    def _both(self, lookup: Both, after: int, end: int) -> Candidates:
        at_points = [part for part in lookup.parts if self._is_point(part, after)]
        if len(at_points) < 2:
            parts = [self._look(part, after, end) for part in lookup.parts]
            return self._thinned(lookup, _both(parts, end), parts)
        parts = [self._at_points(at_points, after, end)]
        parts += [self._look(part, after, end) for part in lookup.parts if part not in at_points]
        return _both(parts, end)

    def _is_point(self, lookup: Lookup, after: int) -> TypeGuard[Within]:
        if not isinstance(lookup, Within):
            return False
        field = self.field_of(lookup.path)
        is_known = field is not None and field[1] <= after < field[2]
        return is_known and len(lookup.ranges) == 1 and lookup.ranges[0].is_point

    def _at_points(self, parts: Sequence[Within], after: int, end: int) -> Candidates:
        """Where several fields have one value each: walks along the rarest, one statement."""
        keys = []
        for part in parts:
            number, _begins, fed = self.field_of(part.path) or (0, 0, 0)
            keys.append((number, part.ranges[0].low))
            end = min(end, fed)
        stretch = (after + 1) >> STRETCH_BITS
        keys.sort(key=lambda key: self._reach(key, stretch, after), reverse=True)
        others = [part for key in keys[1:] for part in key]
        statement = f"{_LEAD}{_ALSO * (len(keys) - 1)} ORDER BY position LIMIT ?"
        return self._in_order(statement, keys[0], others, after, end)

    def _in_order(
        self,
        statement: str,
        key: tuple[int, object],
        others: Sequence[object],
        after: int,
        end: int,
    ) -> Candidates:
        """Positions that each stretch gives in order, until there are enough."""
        found: list[int] = []
        execute, (field, value) = self.connection.execute, key
        for stretch in range((after + 1) >> STRETCH_BITS, (end >> STRETCH_BITS) + 1):
            left = self.limit - len(found)
            asked = (field, stretch, value, after, *others, left)
            rows = execute(statement, asked).fetchall()
            found += [row[0] for row in rows]
            if len(rows) == left:
                end = min(end, found[-1])
                break
        return Candidates([place for place in found if place <= end], end)

    def _reach(self, key: tuple[int, object], stretch: int, after: int) -> int:
        """How far the next few positions of a key reach: farther for a rarer one."""
        asked = (key[0], stretch, key[1], after, _FEW)
        rows = self.connection.execute(_POINT, asked).fetchall()
        return rows[-1][0] if len(rows) == _FEW else (stretch + 2 << STRETCH_BITS) - len(rows)

    def _thinned(self, lookup: Both, led: Candidates, parts: list[Candidates]) -> Candidates:
        """Without the positions that a part denies which does not reach as far: asking the index
        about a position costs a tenth of reading the event.
        """
        for part, reached in zip(lookup.parts, parts, strict=True):
            is_short = reached.positions is not None and reached.through < led.through
            if is_short and led.positions and isinstance(part, Within):
                led = Candidates(self._probed(part, led), led.through)
        return led

    def _probed(self, lookup: Within, led: Candidates) -> list[int] | None:
        field = self.field_of(lookup.path)
        is_point = len(lookup.ranges) == 1 and lookup.ranges[0].is_point
        if not is_point or field is None or led.through > field[2]:
            return led.positions
        asked = {
            "positions": msgspec.json.encode(led.positions).decode(),
            "field": field[0],
            "key": lookup.ranges[0].low,
        }
        return [row[0] for row in self.connection.execute(_PROBE, asked)]

    def _within(self, lookup: Within, after: int, end: int) -> Candidates:
        field = self.field_of(lookup.path)
        if field is None or after < field[1] or after >= field[2]:
            return Candidates(None, min(end, last_of_stretch(after + 1)))
        number, _begins, fed = field
        end = min(end, fed)
        parts = []
        for wanted in lookup.ranges:
            if wanted.is_point:
                parts.append(self._in_order(_POINT, (number, wanted.low), [], after, end))
            else:
                parts.append(self._among(number, wanted, lookup.text, after, end))
        return parts[0] if len(parts) == 1 else _either(parts, end)

    def _among(self, field: int, wanted: Range, text: bool, after: int, end: int) -> Candidates:
        """Positions of a range of values, whole stretches at a time."""
        found: list[int] = []
        low, high = _ends(wanted, text)
        for stretch in range((after + 1) >> STRETCH_BITS, (end >> STRETCH_BITS) + 1):
            among = (field, stretch, low, high, after, UNORDERED_LIMIT + 1)
            rows = self.connection.execute(_RANGE, among).fetchall()
            last = min(last_of_stretch(stretch << STRETCH_BITS), end)
            if len(rows) > UNORDERED_LIMIT:
                before = (stretch << STRETCH_BITS) - 1
                return Candidates(found, before) if before > after else Candidates(None, last)
            found += sorted({row[0] for row in rows if row[0] <= end})
            if len(found) >= self.limit:
                return Candidates(found, last)
        return Candidates(found, end)


def _ends(wanted: Range, text: bool) -> tuple[object, object]:
    low: object = wanted.low
    high: object = wanted.high
    if low is None:
        low = _LOWEST_TEXT if text else _LOWEST_NUMBER
    if high is None:
        high = _BEYOND_TEXTS if text else _HIGHEST_NUMBER
    return low, high


def _both(parts: list[Candidates], end: int) -> Candidates:
    """What reaches farthest leads; others that reach as far thin it out."""
    known = [part for part in parts if part.positions is not None]
    if not known:
        return Candidates(None, min((part.through for part in parts), default=end))
    through = max(part.through for part in known)
    sets = [part.positions for part in known if part.through == through]
    shortest = min((found for found in sets if found is not None), key=len)
    chosen = set(shortest).intersection(*(found for found in sets if found is not None))
    return Candidates(sorted(chosen), through)


def _either(parts: Iterable[Candidates], end: int) -> Candidates:
    found: set[int] = set()
    through, is_known = end, True
    for part in parts:
        through = min(through, part.through)
        if part.positions is None:
            is_known = False
        else:
            found.update(part.positions)
    if not is_known:
        return Candidates(None, through)
    return Candidates(sorted(position for position in found if position <= through), through)
