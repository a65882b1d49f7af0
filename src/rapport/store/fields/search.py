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

from rapport.store.fields.dense import (
    STRETCH,
    STRETCH_BITS,
    all_marked,
    find_bits,
    marked,
)
from rapport.store.fields.keys import Both, Key, Lookup, Range, Within
from rapport.store.fields.stretches import Groups, ends_of, positions_across

UNORDERED_LIMIT = 2_048
"""A range of values with more positions than this in one stretch is not worth looking up."""
_MOST_STRETCHES = 256

_POINT = (
    "SELECT position FROM entries WHERE field = ? AND stretch = ? AND value = ? AND position > ? "
    "ORDER BY position LIMIT ?"
)
_POINTS = f"SELECT json_group_array(position) FROM ({_POINT})"
"""The same as one text, in any order: for hundreds of them that is twice as fast."""
_DECODE = msgspec.json.Decoder(list[int]).decode
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
  SELECT 1 FROM entries WHERE field = :field AND stretch = wanted.value >> {STRETCH_BITS}
  AND value = :key AND position = wanted.value
)
"""


class Candidates(msgspec.Struct):
    """Every position after the one asked from up to `through` that can match is in `positions`; or,
    when `positions` is None, the index cannot say: everything up to `through` is to be read.
    """

    positions: list[int] | None
    through: int
    exact: bool = True
    """Whether only such positions are among them at which the keys fulfil the whole lookup."""


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
        through, until, exact = after, min(until, after + _MOST_STRETCHES * STRETCH), True
        while through < until and len(found) < self.limit:
            part = self._look(lookup, through, until)
            if part.positions is None:
                return part if through == after else Candidates(found, through, exact)
            found += part.positions
            through, exact = part.through, exact and part.exact
        return Candidates(found, through, exact)

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
            return self._thinned(lookup, _both(parts, end), parts)  # may have left a part out
        parts = [self._at_points(at_points, after, end)]
        if len(at_points) == len(lookup.parts):
            return parts[0]
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
        keys: list[tuple[int, Key]] = []
        for part in parts:
            number, _begins, fed = self.field_of(part.path) or (0, 0, 0)
            low = part.ranges[0].low
            assert low is not None  # a point has ends
            keys.append((number, low))
            end = min(end, fed)
        stretch = (after + 1) >> STRETCH_BITS
        keys.sort(key=lambda key: self._reach(key, stretch, after), reverse=True)
        statement = f"{_LEAD}{_ALSO * (len(keys) - 1)} ORDER BY position LIMIT ?"
        others = [part for key in keys[1:] for part in key]

        def look(stretch: int, left: int) -> list[int]:
            bits = find_bits(self.connection, stretch, keys[1:])
            if bits is not None:
                return self._walk(keys[0], stretch, bits, after, left)[:left]
            asked = (keys[0][0], stretch, keys[0][1], after, *others, left)
            return [row[0] for row in self.connection.execute(statement, asked)]

        return self._in_order(look, after, end)

    def _walk(
        self, lead: tuple[int, Key], stretch: int, bits: bytes, after: int, left: int
    ) -> list[int]:
        """Positions of a key in a stretch whose bits are set; `left` of them or more when there
        are so many.
        """
        own = find_bits(self.connection, stretch, [lead])
        if own is not None:
            return all_marked(own, bits, stretch, after)
        found: list[int] = []
        at_once = max(_AT_ONCE, left)
        while len(found) < left:
            asked = (lead[0], stretch, lead[1], after, at_once)
            (rows,) = self.connection.execute(_POINTS, asked).fetchone()
            walked = sorted(_DECODE(rows))
            found += marked(bits, walked)
            if len(walked) < at_once:
                break
            after = walked[-1]
        return found

    def _at_point(self, field: int, key: Key | None, after: int, end: int) -> Candidates:
        """Positions of one value, until there are enough."""
        found: list[int] = []
        groups = Groups((after + 1) >> STRETCH_BITS, end >> STRETCH_BITS, self.limit)
        for group in groups:
            left = self.limit - len(found)
            part: list[int] = []
            if len(group) > 1:
                part = self._across(field, (key, key), group, after)
                group = groups.one_by_one(group) if len(part) > UNORDERED_LIMIT else group
            if len(group) == 1:
                asked = (field, group[0], key, after, left)
                part = [row[0] for row in self.connection.execute(_POINT, asked)]
            found += sorted(part)
            groups.found = len(found)
            if len(part) >= left:
                return Candidates(*_cut(found[: self.limit], min(end, found[self.limit - 1])))
        return Candidates(*_cut(found, end))

    def _across(
        self, field: int, ends: tuple[object, object], stretches: range, after: int
    ) -> list[int]:
        """One more than UNORDERED_LIMIT of them when there are too many."""
        return positions_across(
            self.connection, field, ends, stretches, after=after, limit=UNORDERED_LIMIT + 1
        )

    def _in_order(self, look: Callable[[int, int], list[int]], after: int, end: int) -> Candidates:
        """Positions that each stretch gives in order, until there are enough."""
        found: list[int] = []
        for stretch in range((after + 1) >> STRETCH_BITS, (end >> STRETCH_BITS) + 1):
            left = self.limit - len(found)
            part = look(stretch, left)
            found += part
            if len(part) == left:
                end = min(end, found[-1])
                break
        return Candidates([place for place in found if place <= end], end)

    def _reach(self, key: tuple[int, Key], stretch: int, after: int) -> int:
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
                led = Candidates(self._probed(part, led), led.through, exact=False)
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
                parts.append(self._at_point(number, wanted.low, after, end))
            else:
                parts.append(self._among(number, wanted, lookup.text, after, end))
        return parts[0] if len(parts) == 1 else _either(parts, end)

    def _among(self, field: int, wanted: Range, text: bool, after: int, end: int) -> Candidates:
        """Positions of a range of values, whole stretches at a time."""
        found: list[int] = []
        ends = ends_of(wanted, text)
        groups = Groups((after + 1) >> STRETCH_BITS, end >> STRETCH_BITS, self.limit)
        for group in groups:
            rows = self._across(field, ends, group, after)
            if len(rows) > UNORDERED_LIMIT and len(group) > 1:
                group = groups.one_by_one(group)
                rows = self._across(field, ends, group, after)
            last = min(last_of_stretch(group[-1] << STRETCH_BITS), end)
            if len(rows) > UNORDERED_LIMIT:
                before = (group[0] << STRETCH_BITS) - 1
                return Candidates(found, before) if before > after else Candidates(None, last)
            found += sorted({place for place in rows if place <= end})
            groups.found = len(found)
            if len(found) >= self.limit:
                return Candidates(found, last)
        return Candidates(found, end)


def _cut(found: list[int], end: int) -> tuple[list[int], int]:
    """What lies up to an end, and the end."""
    return [place for place in found if place <= end], end


def _both(parts: list[Candidates], end: int) -> Candidates:
    """What reaches farthest leads; others that reach as far thin it out."""
    known = [part for part in parts if part.positions is not None]
    if not known:
        return Candidates(None, min((part.through for part in parts), default=end))
    through = max(part.through for part in known)
    sets = [part.positions for part in known if part.through == through]
    shortest = min((found for found in sets if found is not None), key=len)
    chosen = set(shortest).intersection(*(found for found in sets if found is not None))
    return Candidates(sorted(chosen), through, exact=False)


def _either(parts: Iterable[Candidates], end: int) -> Candidates:
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
