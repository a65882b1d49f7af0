"""The rows that were in force for policies, on record as events of the channel `tables.rows`. Pure.
[PO-2, PO-11]

A change is one moment at which rows of one or more tables were replaced, in pieces of bounded size;
it counts when all of its pieces are there, so a change cut off by a crash has no effect. It has the
edits of the rows before it, or all rows of all tables: then it is a *base*, where reading may
begin. Edits compare rows by all fields and keep their order, so rows with the same key need no
special treatment.

A base comes first, when a table is removed, when the changes since the last base are together
larger than it, and after `BASE_AFTER` changes once reading them costs as much as reading it. So
both the amount that is read back for the rows of a time and the amount that is written are bounded,
and a small table that changes often does not cause large ones to be written again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from rapport.core.errors import Corrupt, InvalidInput
from rapport.core.event import Event, StoredEvent, content_id
from rapport.tables.declaration import PairDeclaration, TableDeclaration
from rapport.tables.loaded_table import LoadedTable
from rapport.tables.rows import MOST_ROWS, rows_digest

Rows = Sequence[Sequence[str]]


class Edit(msgspec.Struct, frozen=True, array_like=True):
    """`count` former rows from `start` on (counted from 0), then new rows."""

    start: int
    count: int
    rows: tuple[tuple[str, ...], ...] = ()


class ChangeCounts(msgspec.Struct, frozen=True):
    """Numbers of added, changed and removed rows."""

    added: int
    changed: int
    removed: int


def edits_between(before: Rows, after: Rows) -> list[Edit]:
    """Edits that turn `before` into `after`; one pass over both.

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
            raise Corrupt("there are more rows than announced", code="tables.bad_record")
        found += [tuple(row) for row in before[edit.start : end]]
        found += edit.rows
    return found


def whole_edits(rows: Rows) -> list[Edit]:
    """Edits that give these rows whatever the former rows were."""
    return [Edit(0, 0, tuple(tuple(row) for row in rows))] if rows else []


def counts_between(before: Rows, after: Rows, keys: Sequence[int]) -> ChangeCounts:
    """Counts for people, by the fields at `keys`, which identify rows."""
    old, new = (Counter(tuple(row[at] for at in keys) for row in rows) for rows in (before, after))
    added, removed = (new - old).total(), (old - new).total()
    same = Counter(map(tuple, before)) & Counter(map(tuple, after))
    return ChangeCounts(added, len(after) - added - same.total(), removed)


def in_pieces(edits: Iterable[Edit], most_bytes: int) -> Iterator[list[Edit]]:
    """The edits in order, cut so that no piece is larger as JSON, unless a single row is."""
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


ROWS_CHANNEL = "tables.rows"
TABLE_ROWS = "rapport.tables.rows"
FROM_THE_BEGINNING = -(2**62)


class RowsPosition(msgspec.Struct, frozen=True, kw_only=True):
    """When rows came into force: by the clock, after the events up to position `after` of the
    stream, for readings with a time from `since` on.
    """

    time: int
    """By the node's clock."""
    after: int = 0
    since: int = FROM_THE_BEGINNING


class RowsPiece(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a change: edits of the rows of one table. Unknown fields are ignored."""

    change: str
    part: int
    parts: int
    place: RowsPosition
    table: str = ""
    """Empty in a base without any table."""
    header: tuple[str, ...] = ()
    digest: str = ""
    """Of header and rows after the change."""
    count: int = 0
    """Rows after the change."""
    of: str = ""
    """The digest of the rows that the edits apply to; empty: the edits give all rows."""
    edits: tuple[Edit, ...] = ()
    added: int = 0
    changed: int = 0
    removed: int = 0
    is_base: bool = False
    base: int = 0
    """The position before the first piece of the last base; 0 in a base itself."""
    is_counted: bool = False
    """Whether there were too many rows to record: only digest and number are known."""

    def to_event(self, *, source: str) -> Event:
        """The event of the channel; its id makes a second write a duplicate."""
        return Event(
            source=source,
            id=content_id(TABLE_ROWS, self.change, str(self.part)),
            type=TABLE_ROWS,
            subject=f"table/{self.table}",
            time=self.place.time,
            data=msgspec.json.encode(self),
        )


def decode_piece(stored: StoredEvent) -> RowsPiece | None:
    """The piece of an event of the channel; None for other events and unreadable ones."""
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
        made = [tuple(row) for row in rows]
        return TableRows(
            header=tuple(header),
            rows=made,
            digest=rows_digest(header, made),
            count=len(made),
        )


class RowsVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of all tables from one position on."""

    change: str
    place: RowsPosition
    tables: Mapping[str, TableRows]
    changed: frozenset[str]
    """The tables whose rows changed, removed ones included."""
    is_base: bool = False
    position: int = 0
    """Of its last piece."""


class RowHistory:
    """Builds versions from pieces in the order of the log, one per complete change.

    Holds the present rows and the pieces of an incomplete change.
    """

    def __init__(self) -> None:
        self.now: RowsVersion | None = None
        self._seen: set[str] = set()
        self._pieces: dict[int, RowsPiece] = {}

    def take(self, stored: StoredEvent) -> RowsVersion | None:
        """The version that this event completes; None when it completes none, or is a duplicate.
        Changes before the first base are ignored.
        """
        piece = decode_piece(stored)
        if piece is None or piece.change in self._seen:
            return None
        if self._pieces and next(iter(self._pieces.values())).change != piece.change:
            self._pieces = {}  # the rest of that change was never written
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
        recorded = {
            name: _rows_after(before.get(name), pieces) for name, pieces in by_table.items() if name
        }
        tables = recorded if first.is_base else {**before, **recorded}
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
    """The rows of a table after a change; unknown where the edits do not fit the former rows."""
    first = pieces[0]
    unknown = TableRows(
        header=first.header, rows=(), digest=first.digest, count=first.count, is_known=False
    )
    if first.is_counted or first.count > MOST_ROWS:
        return unknown
    if before is not None and before.is_known and before.digest == first.digest:
        return before  # one copy of repeated rows
    start: Sequence[tuple[str, ...]] = ()
    if first.of:
        if before is None or not before.is_known or before.digest != first.of:
            return unknown
        start = before.rows
    try:
        rows = apply_edits(start, (edit for piece in pieces for edit in piece.edits), first.count)
    except Corrupt:
        return unknown
    fits = all(len(row) == len(first.header) for row in rows)
    if not fits or rows_digest(first.header, rows) != first.digest:
        return unknown
    return TableRows(header=first.header, rows=rows, digest=first.digest, count=len(rows))


def _rising(place: RowsPosition, before: RowsVersion | None) -> RowsPosition:
    """A position that never falls, also where policies were restarted."""
    if before is None or place.since >= before.place.since:
        return place
    return msgspec.structs.replace(place, since=before.place.since)


_MOST_PIECES = 1_000_000


BASE_AFTER = 64
BASE_AT_LAST_AFTER = 1_024
"""Most changes of any size; so many are read back in some tens of milliseconds."""
PIECE_BYTES = 256 * 1024
_LARGEST_ROW = 512 * 1024
"""A table with a larger row is recorded by its digest only: the size of an event is limited."""
_LEAST_BASE_BYTES = 64 * 1024
_NOWHERE = RowsPosition(time=0)


class RecordableRows(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a table that policies use, as they are recorded."""

    rows: TableRows
    keys: tuple[int, ...]
    """The columns that identify rows."""
    is_counted: bool
    """Whether only digest and number are recorded."""


def recorded_columns(
    declared: TableDeclaration, pairs: Sequence[PairDeclaration]
) -> tuple[str, ...]:
    """The declared columns of a table that policies use; empty for tables that only serve look-ups
    of mediation. Tables of context are recorded too: `context.found` has the answers, this record
    the rows in force and their position in the stream.
    """
    own = [pair for pair in pairs if pair.table == declared.name]
    if not (declared.concept or own):
        return ()
    named = [declared.key, *declared.further_keys]
    named += [name for names in declared.columns.values() for name in names]
    named += [name for pair in own for name in (*pair.keys, pair.value)]
    return tuple(dict.fromkeys(named))


def rows_to_record(table: LoadedTable, pairs: Sequence[PairDeclaration]) -> RecordableRows | None:
    """The recorded part of a table; None for a table without one. 100,000 rows take some 0.1 s."""
    header = recorded_columns(table.declared, pairs)
    if not header:
        return None
    columns = [table.file.column(name) for name in header]
    rows = TableRows.of(header, list(zip(*columns, strict=True)))
    keys = {table.declared.key, *table.declared.further_keys}
    return RecordableRows(
        rows=rows,
        keys=tuple(at for at, name in enumerate(header) if name in keys),
        is_counted=rows.count > table.declared.record_rows or _has_large_row(rows),
    )


def _has_large_row(rows: TableRows) -> bool:
    return any(sum(map(len, row)) * 6 > _LARGEST_ROW for row in rows.rows)


class RecordState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the record: its last version, and the amount written since the last base."""

    version: RowsVersion | None = None

    @property
    def change(self) -> str:
        """The id of the last change; empty when there is none."""
        return self.version.change if self.version is not None else ""

    base: int = 0
    """The position before the last base's first piece."""
    base_bytes: int = 0
    base_rows: int = 0
    """Rows of all tables together in the base."""
    changes: int = 0
    bytes: int = 0
    rows: int = 0
    """Rows of the changed tables, summed over the changes: the cost of reading them."""

    def after(self, version: RowsVersion, size: int, begins: int) -> RecordState:
        """The state after a version was written in `size` bytes, after the position `begins`."""
        if version.is_base:
            rows = sum(one.count for one in version.tables.values())
            return RecordState(version=version, base=begins, base_bytes=size, base_rows=rows)
        changed = [version.tables[name].count for name in version.changed & version.tables.keys()]
        return msgspec.structs.replace(
            self,
            version=version,
            changes=self.changes + 1,
            bytes=self.bytes + size,
            rows=self.rows + sum(changed),
        )

    def wants_base(self) -> bool:
        """Whether the next change should be a base."""
        changes = self.changes + 1
        if changes >= BASE_AT_LAST_AFTER:
            return True
        return changes >= BASE_AFTER and self.rows >= self.base_rows


class RowsDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A change that lacks only its position; without pieces nothing changed."""

    pieces: tuple[RowsPiece, ...] = ()
    bytes: int = 0
    tables: Mapping[str, TableRows] = {}
    """The rows of all tables after it."""
    follows: str = ""
    """The change that it follows; empty: it is the first."""

    @property
    def is_base(self) -> bool:
        """Whether it has all rows of all tables."""
        return bool(self.pieces) and self.pieces[0].is_base

    def at(self, place: RowsPosition, base: int) -> list[RowsPiece]:
        """The pieces as they are written; `base` is the position before the last base."""
        digests = [f"{name}={rows.digest}" for name, rows in sorted(self.tables.items())]
        change = content_id(
            "tables", self.follows, str(place.time), str(place.after), str(place.since), *digests
        )
        base = 0 if self.is_base else base
        return [
            msgspec.structs.replace(
                piece, change=change, place=place, base=base, part=part, parts=len(self.pieces)
            )
            for part, piece in enumerate(self.pieces)
        ]


def draft_change(now: Mapping[str, RecordableRows], standing: RecordState) -> RowsDraft:
    """The change to be written for the present rows; empty when the record has them."""
    known = standing.version.tables if standing.version is not None else {}
    changed = {
        name: table
        for name, table in now.items()
        if name not in known
        or known[name].digest != table.rows.digest
        or known[name].is_known == table.is_counted
    }
    gone = known.keys() - now.keys()
    if not changed and not gone:
        return RowsDraft(follows=standing.change)
    if standing.version is None or gone or standing.wants_base():
        return _base(now, standing)
    pieces = [
        piece for name, table in changed.items() for piece in _change(name, known.get(name), table)
    ]
    size = _size(pieces)
    if standing.bytes + size > max(standing.base_bytes, _LEAST_BASE_BYTES):
        return _base(now, standing)
    return RowsDraft(pieces=tuple(pieces), bytes=size, tables=_tables(now), follows=standing.change)


def _base(now: Mapping[str, RecordableRows], standing: RecordState) -> RowsDraft:
    pieces = [piece for name, table in now.items() for piece in _whole(name, table, is_base=True)]
    if not pieces:
        pieces = [RowsPiece(change="", part=0, parts=1, place=_NOWHERE, is_base=True)]
    return RowsDraft(
        pieces=tuple(pieces),
        bytes=_size(pieces),
        tables=_tables(now),
        follows=standing.change,
    )


def _tables(now: Mapping[str, RecordableRows]) -> dict[str, TableRows]:
    return {
        name: msgspec.structs.replace(table.rows, rows=(), is_known=False)
        if table.is_counted
        else table.rows
        for name, table in now.items()
    }


def _size(pieces: Sequence[RowsPiece]) -> int:
    return sum(len(msgspec.json.encode(piece)) for piece in pieces)


def _change(name: str, before: TableRows | None, table: RecordableRows) -> list[RowsPiece]:
    """Edits, or all rows where that takes no more."""
    rows = table.rows
    if table.is_counted or before is None or not before.is_known or before.header != rows.header:
        return _whole(name, table)
    edits = edits_between(before.rows, rows.rows)
    if len(edits) > rows.count // 2 + 8:
        return _whole(name, table)
    counts = counts_between(before.rows, rows.rows, table.keys)
    head = msgspec.structs.replace(
        _head(name, rows),
        of=before.digest,
        added=counts.added,
        changed=counts.changed,
        removed=counts.removed,
    )
    return [
        msgspec.structs.replace(head, edits=tuple(some))
        for some in list(in_pieces(edits, PIECE_BYTES)) or [[]]
    ]


def _whole(name: str, table: RecordableRows, *, is_base: bool = False) -> list[RowsPiece]:
    rows = table.rows
    head = msgspec.structs.replace(
        _head(name, rows), is_base=is_base, is_counted=table.is_counted, added=rows.count
    )
    if table.is_counted:
        return [head]
    return [
        msgspec.structs.replace(head, edits=tuple(some))
        for some in list(in_pieces(whole_edits(rows.rows), PIECE_BYTES)) or [[]]
    ]


def _head(name: str, rows: TableRows) -> RowsPiece:
    return RowsPiece(
        change="",
        part=0,
        parts=1,
        place=_NOWHERE,
        table=name,
        header=rows.header,
        digest=rows.digest,
        count=rows.count,
    )
