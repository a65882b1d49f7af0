"""What changed between two lists of rows, so that one and the change give the other. Pure. [PO-2]

Rows are told apart by all their fields and keep their order, so rows with the same key, as pairs
have, need no care of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from rapport.core.errors import Corrupt

Rows = Sequence[Sequence[str]]


class Edit(msgspec.Struct, frozen=True, array_like=True):
    """`count` rows of before from `start` on (counted from 0), then new rows."""

    start: int
    count: int
    rows: tuple[tuple[str, ...], ...] = ()


class Counts(msgspec.Struct, frozen=True):
    """How many rows are new, have another field than before, and are gone."""

    added: int
    changed: int
    removed: int


def edits_between(before: Rows, after: Rows) -> list[Edit]:
    """Edits that make `after` of `before`; costs a look at each row of both.

    >>> edits_between([["a"], ["b"]], [["a"], ["c"]])
    [Edit(start=0, count=1, rows=(('c',),))]
    """
    places = {tuple(row): place for place, row in reversed(list(enumerate(before)))}
    edits: list[Edit] = []
    start = count = 0
    rows: list[tuple[str, ...]] = []
    for row in after:
        fields = tuple(row)
        following = start + count
        if not rows and following < len(before) and tuple(before[following]) == fields:
            count += 1
            continue
        place = places.get(fields)
        if place is None:
            rows.append(fields)
            continue
        if count or rows:
            edits.append(Edit(start, count, tuple(rows)))
        start, count, rows = place, 1, []
    if count or rows:
        edits.append(Edit(start, count, tuple(rows)))
    return edits


def apply_edits(before: Rows, edits: Iterable[Edit], most: int) -> list[tuple[str, ...]]:
    """The rows after the edits; raises Corrupt for edits that do not fit, or give more than `most`
    rows.
    """
    found: list[tuple[str, ...]] = []
    for edit in edits:
        end = edit.start + edit.count
        if edit.start < 0 or edit.count < 0 or (edit.count and end > len(before)):
            raise Corrupt("rows are kept that were not there", code="tables.bad_record")
        if len(found) + edit.count + len(edit.rows) > most:
            raise Corrupt("there are more rows than were told", code="tables.bad_record")
        found += [tuple(row) for row in before[edit.start : end]]
        found += edit.rows
    return found


def whole_edits(rows: Rows) -> list[Edit]:
    """Edits that give these rows whatever there was before."""
    return [Edit(0, 0, tuple(tuple(row) for row in rows))] if rows else []


def counts_between(before: Rows, after: Rows, keys: Sequence[int]) -> Counts:
    """For people: by the fields at `keys`, which tell rows apart."""
    old, new = (Counter(tuple(row[at] for at in keys) for row in rows) for rows in (before, after))
    added, removed = (new - old).total(), (old - new).total()
    same = Counter(map(tuple, before)) & Counter(map(tuple, after))
    return Counts(added, len(after) - added - same.total(), removed)


def in_pieces(edits: Iterable[Edit], most_bytes: int) -> Iterator[list[Edit]]:
    """The edits in the same order, cut so that no piece is larger as JSON, unless one row is."""
    piece: list[Edit] = []
    size = 0
    for edit in edits:
        rows: list[tuple[str, ...]] = []
        start, count = edit.start, edit.count
        size += _EDIT_BYTES
        for row in edit.rows:
            needed = len(msgspec.json.encode(row)) + 1
            if size + needed > most_bytes and (piece or rows or count):
                if rows or count:
                    piece.append(Edit(start, count, tuple(rows)))
                yield piece
                piece, rows, size = [], [], _EDIT_BYTES
                start = count = 0
            rows.append(row)
            size += needed
        if rows or count:
            piece.append(Edit(start, count, tuple(rows)))
        if size > most_bytes:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


_EDIT_BYTES = 48
"""Of an edit without rows, at most."""
