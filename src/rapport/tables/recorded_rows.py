"""Rows that came into force for policies, as events of the channel `tables.rows`; and what they
come to, read back. Pure. [PO-2, PO-11]

A change is one moment at which rows of one or more tables were exchanged, in pieces of bounded
size; it counts when all of its pieces are there, so one that was cut off by a crash is none. It
says what became of the rows before it, or has all rows of all tables: then it is a *base*, where
reading can begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rapport.core.errors import Corrupt, InvalidInput
from rapport.core.event import Event, StoredEvent
from rapport.core.ids import content_id
from rapport.tables.row_edits import Edit, apply_edits
from rapport.tables.row_file import MOST_ROWS, rows_digest

ROWS_CHANNEL = "tables.rows"
TABLE_ROWS = "rapport.tables.rows"
FROM_THE_BEGINNING = -(2**62)


class RowsPlace(msgspec.Struct, frozen=True, kw_only=True):
    """When rows came into force, and where in the stream: after the events up to position `after`,
    for readings with a time from `since` on.
    """

    time: int
    """By the node's clock."""
    after: int = 0
    since: int = FROM_THE_BEGINNING


class RowsPiece(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a change: what became of the rows of one table, or of some of them.

    Fields that a later version adds are passed over.
    """

    change: str
    part: int
    parts: int
    place: RowsPlace
    table: str = ""
    """Empty in a base without any table."""
    header: tuple[str, ...] = ()
    digest: str = ""
    """Of header and rows after the change."""
    count: int = 0
    """Rows after the change."""
    of: str = ""
    """The digest of the rows that edits are of; empty: the edits give all rows."""
    edits: tuple[Edit, ...] = ()
    added: int = 0
    changed: int = 0
    removed: int = 0
    is_base: bool = False
    base: int = 0
    """Where the last base begins: the position before its first piece; of a base nothing."""
    is_counted: bool = False
    """Whether there were too many rows to record: only their digest and number are known."""

    def to_event(self, *, source: str) -> Event:
        """As an event of the channel; written twice it is one."""
        return Event(
            source=source,
            id=content_id(TABLE_ROWS, self.change, str(self.part)),
            type=TABLE_ROWS,
            subject=f"table/{self.table}",
            time=self.place.time,
            data=msgspec.json.encode(self),
        )


def piece_of(stored: StoredEvent) -> RowsPiece | None:
    """The piece that an event of the channel is; None for others, and for what cannot be read."""
    if stored.event.type != TABLE_ROWS:
        return None
    try:
        piece: RowsPiece = stored.event.payload_as(RowsPiece)
    except InvalidInput:
        return None
    return piece if 0 <= piece.part < piece.parts <= _MOST_PIECES else None


class TableRows(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a table at one time; `is_known` is False when the record has only their number,
    or not what they followed from.
    """

    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    digest: str
    count: int
    is_known: bool = True

    @staticmethod
    def of(header: Sequence[str], rows: Sequence[Sequence[str]]) -> TableRows:
        """Rows that are known."""
        made = [tuple(row) for row in rows]
        return TableRows(
            header=tuple(header),
            rows=made,
            digest=digest_of_rows(header, made),
            count=len(made),
        )


class RowsVersion(msgspec.Struct, frozen=True, kw_only=True):
    """What all tables held from one place on."""

    change: str
    place: RowsPlace
    tables: Mapping[str, TableRows]
    changed: frozenset[str]
    """The tables whose rows are others than before, gone ones among them."""
    is_base: bool = False
    position: int = 0
    """Of its last piece."""


def digest_of_rows(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A name for rows, however they were read."""
    return rows_digest(list(header), rows)


class RowsFolded:
    """Pieces in the order of the log become versions, one for each change that is whole.

    Holds the rows of now, and the pieces of the change that is not whole yet.
    """

    def __init__(self) -> None:
        self.now: RowsVersion | None = None
        self._seen: set[str] = set()
        self._pieces: dict[int, RowsPiece] = {}

    def take(self, stored: StoredEvent) -> RowsVersion | None:
        """The version that is whole with this event; None when none is, and for an event that was
        taken before.

        Before the first base nothing is known, and what is there is passed over.
        """
        piece = piece_of(stored)
        if piece is None or piece.change in self._seen:
            return None
        if self._pieces and next(iter(self._pieces.values())).change != piece.change:
            self._pieces = {}  # the rest of that one was never written
        self._pieces[piece.part] = piece
        if len(self._pieces) < piece.parts:
            return None
        whole = [self._pieces[part] for part in sorted(self._pieces)]
        self._pieces = {}
        self._seen.add(piece.change)
        if self.now is None and not piece.is_base:
            return None
        self.now = self._version(whole, stored.position)
        return self.now

    def _version(self, whole: Sequence[RowsPiece], position: int) -> RowsVersion:
        first = whole[0]
        before: Mapping[str, TableRows] = {} if self.now is None else self.now.tables
        by_table: dict[str, list[RowsPiece]] = {}
        for piece in whole:
            by_table.setdefault(piece.table, []).append(piece)
        told = {
            name: _rows_after(before.get(name), pieces) for name, pieces in by_table.items() if name
        }
        tables = told if first.is_base else {**before, **told}
        changed = {
            name
            for name in before.keys() | tables.keys()
            if name not in before
            or name not in tables
            or before[name].digest != tables[name].digest
            or before[name].is_known != tables[name].is_known
        }
        return RowsVersion(
            change=first.change,
            place=_rising(first.place, self.now),
            tables=tables,
            changed=frozenset(changed),
            is_base=first.is_base,
            position=position,
        )


def _rows_after(before: TableRows | None, pieces: Sequence[RowsPiece]) -> TableRows:
    """What a table holds after a change; not known where its record does not fit what was there."""
    first = pieces[0]
    unknown = TableRows(
        header=first.header, rows=(), digest=first.digest, count=first.count, is_known=False
    )
    if first.is_counted or first.count > MOST_ROWS:
        return unknown
    if before is not None and before.is_known and before.digest == first.digest:
        return before  # rows that are told once more are held once
    start: Sequence[tuple[str, ...]] = ()
    if first.of:
        if before is None or not before.is_known or before.digest != first.of:
            return unknown
        start = before.rows
    try:
        rows = apply_edits(start, _edits(pieces), first.count)
    except Corrupt:
        return unknown
    fits = all(len(row) == len(first.header) for row in rows)
    if not fits or digest_of_rows(first.header, rows) != first.digest:
        return unknown
    return TableRows(header=first.header, rows=rows, digest=first.digest, count=len(rows))


def _edits(pieces: Iterable[RowsPiece]) -> Iterable[Edit]:
    return (edit for piece in pieces for edit in piece.edits)


def _rising(place: RowsPlace, before: RowsVersion | None) -> RowsPlace:
    """Also where policies began anew: what was decided by other rows stays decided by them."""
    if before is None or place.since >= before.place.since:
        return place
    return msgspec.structs.replace(place, since=before.place.since)


_MOST_PIECES = 1_000_000
