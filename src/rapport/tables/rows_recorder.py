"""What is to be put on record when rows come into force: the smallest change, or now and then a
base. Pure. [PO-2]

A base comes first, when a table goes, when the changes since the last one are together larger than
it, and after `BASE_AFTER` changes once reading them costs as much as reading it: so what is read
back to know all rows of a time is bounded, and so is what is written; a small table that changes
all the time, such as one of context, does not make large ones be written again and again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from rapport.core.ids import content_id
from rapport.tables.declaration import PairDeclaration, TableDeclaration
from rapport.tables.loaded import LoadedTable
from rapport.tables.recorded_rows import (
    RowsPiece,
    RowsPlace,
    RowsVersion,
    TableRows,
)
from rapport.tables.row_edits import (
    counts_between,
    edits_between,
    in_pieces,
    whole_edits,
)

BASE_AFTER = 64
BASE_AT_LAST_AFTER = 1_024
"""However little they say: so many are read back in some tens of milliseconds."""
PIECE_BYTES = 256 * 1024
_LARGEST_ROW = 512 * 1024
"""A table with a larger row is recorded by its digest only: an event has its bounds."""
_LEAST_BASE_BYTES = 64 * 1024
_NOWHERE = RowsPlace(time=0)


class RowsOfTable(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a table that policies look at, as they are to be recorded."""

    rows: TableRows
    keys: tuple[int, ...]
    """Which columns tell rows apart."""
    is_counted: bool
    """Whether only digest and number are recorded."""


def recorded_columns(
    declared: TableDeclaration, pairs: Sequence[PairDeclaration]
) -> tuple[str, ...]:
    """The columns of a table that policies look at: nothing that is not declared. Empty for tables
    that only serve look-ups of mediation. Those of context have a record of their own, which says
    who told what; here is what of it policies saw, and from where in the stream on.
    """
    own = [pair for pair in pairs if pair.table == declared.name]
    if not (declared.concept or own):
        return ()
    named = [declared.key, *declared.further_keys]
    named += [name for names in declared.columns.values() for name in names]
    named += [name for pair in own for name in (*pair.keys, pair.value)]
    return tuple(dict.fromkeys(named))


def rows_to_record(table: LoadedTable, pairs: Sequence[PairDeclaration]) -> RowsOfTable | None:
    """What of a table is recorded; None for one that is not. 100,000 rows take some 0.1 s."""
    header = recorded_columns(table.declared, pairs)
    if not header:
        return None
    columns = [table.file.column(name) for name in header]
    rows = TableRows.of(header, list(zip(*columns, strict=True)))
    keys = {table.declared.key, *table.declared.further_keys}
    return RowsOfTable(
        rows=rows,
        keys=tuple(at for at, name in enumerate(header) if name in keys),
        is_counted=rows.count > table.declared.record_rows or _has_large_row(rows),
    )


def _has_large_row(rows: TableRows) -> bool:
    return any(sum(map(len, row)) * 6 > _LARGEST_ROW for row in rows.rows)


class RecordStanding(msgspec.Struct, frozen=True, kw_only=True):
    """Where the record stands: its last version, and what was written since the last base."""

    version: RowsVersion | None = None

    @property
    def change(self) -> str:
        """The id of the last change; empty when there is none."""
        return self.version.change if self.version is not None else ""

    base: int = 0
    """The position before the last base's first piece."""
    base_bytes: int = 0
    base_rows: int = 0
    """Rows of all tables together, then."""
    changes: int = 0
    bytes: int = 0
    rows: int = 0
    """Rows of the tables that changed, added up over the changes: what reading them costs."""

    def after(self, version: RowsVersion, size: int, begins: int) -> RecordStanding:
        """When a version was written in so many bytes, after the position `begins`."""
        if version.is_base:
            rows = sum(one.count for one in version.tables.values())
            return RecordStanding(version=version, base=begins, base_bytes=size, base_rows=rows)
        changed = [version.tables[name].count for name in version.changed & version.tables.keys()]
        return msgspec.structs.replace(
            self,
            version=version,
            changes=self.changes + 1,
            bytes=self.bytes + size,
            rows=self.rows + sum(changed),
        )

    def wants_base(self) -> bool:
        """Whether the next change should have all rows, whatever it is."""
        changes = self.changes + 1
        if changes >= BASE_AT_LAST_AFTER:
            return True
        return changes >= BASE_AFTER and self.rows >= self.base_rows


class RowsDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A change that is ready to be written, but for its place; without pieces nothing changed."""

    pieces: tuple[RowsPiece, ...] = ()
    bytes: int = 0
    tables: Mapping[str, TableRows] = {}
    """What all tables hold after it."""
    follows: str = ""
    """The change after which it can be written; empty: it is the first."""

    @property
    def is_base(self) -> bool:
        """Whether it has all rows of all tables."""
        return bool(self.pieces) and self.pieces[0].is_base

    def at(self, place: RowsPlace, base: int) -> list[RowsPiece]:
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


def draft_change(now: Mapping[str, RowsOfTable], standing: RecordStanding) -> RowsDraft:
    """What is to be written so that the record says what tables hold now; empty when it does."""
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


def _base(now: Mapping[str, RowsOfTable], standing: RecordStanding) -> RowsDraft:
    pieces = [piece for name, table in now.items() for piece in _whole(name, table, is_base=True)]
    if not pieces:
        pieces = [RowsPiece(change="", part=0, parts=1, place=_NOWHERE, is_base=True)]
    return RowsDraft(
        pieces=tuple(pieces),
        bytes=_size(pieces),
        tables=_tables(now),
        follows=standing.change,
    )


def _tables(now: Mapping[str, RowsOfTable]) -> dict[str, TableRows]:
    return {
        name: msgspec.structs.replace(table.rows, rows=(), is_known=False)
        if table.is_counted
        else table.rows
        for name, table in now.items()
    }


def _size(pieces: Sequence[RowsPiece]) -> int:
    return sum(len(msgspec.json.encode(piece)) for piece in pieces)


def _change(name: str, before: TableRows | None, table: RowsOfTable) -> list[RowsPiece]:
    """By what changed, unless all rows take no more."""
    rows = table.rows
    if table.is_counted or before is None or not before.is_known or before.header != rows.header:
        return _whole(name, table)
    edits = edits_between(before.rows, rows.rows)
    if len(edits) > rows.count // 2 + 8:
        return _whole(name, table)
    told = counts_between(before.rows, rows.rows, table.keys)
    head = msgspec.structs.replace(
        _head(name, rows),
        of=before.digest,
        added=told.added,
        changed=told.changed,
        removed=told.removed,
    )
    return [
        msgspec.structs.replace(head, edits=tuple(some))
        for some in list(in_pieces(edits, PIECE_BYTES)) or [[]]
    ]


def _whole(name: str, table: RowsOfTable, *, is_base: bool = False) -> list[RowsPiece]:
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
