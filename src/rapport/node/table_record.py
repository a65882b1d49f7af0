"""The record of the rows that a node's policies look at: the channel `tables.rows`. [PO-2, PO-11]

What changed is on disk before policies see it. The node's own reader of the channel stands at the
last base, so retention takes only what is not needed to know the rows of now.
"""

from __future__ import annotations

from collections.abc import Sequence

from rapport.channel.channel import Channels, Subscription
from rapport.core.event import Event
from rapport.kernel.threads import run_in_thread
from rapport.tables.loaded_table import LoadedTable
from rapport.tables.row_history import (
    ROWS_CHANNEL,
    RecordableRows,
    RecordState,
    RowHistory,
    RowsDraft,
    RowsPosition,
    RowsVersion,
    draft_change,
    rows_to_record,
)
from rapport.tables.tables import Tables

READER = "tables"
_PAGE = 500
_MOST_AT_ONCE = 16
"""Pieces in one append: some megabytes."""


class TableRecord:
    """Who writes the record. All calls belong to one event loop.

    Holds the rows that are on record and where the last base stands.
    """

    def __init__(self, channels: Channels, *, source: str) -> None:
        """`source`: who the events come from."""
        self._channels, self._source = channels, source
        self._standing: RecordState | None = None
        self._reader: Subscription | None = None
        self._made: dict[str, tuple[LoadedTable, RecordableRows | None]] = {}

    async def read(self, *, keep: bool = True) -> RowsVersion | None:
        """What is on record last; None when nothing is. With `keep` retention is held back."""
        position = 0
        if keep:
            self._reader = await self._channels.subscribe(ROWS_CHANNEL, READER)
            position = self._reader.position
        standing = await self._read_after(position)
        if standing.version is None and position:
            standing = await self._read_after(0)
        self._standing = standing
        return standing.version

    async def draft(self, tables: Tables) -> RowsDraft:
        """What is to be written for these tables, which nobody changes meanwhile; the work is done
        in a thread: some 0.3 s for 100,000 rows that changed, nothing for tables that did not.
        """
        if self._standing is None:
            await self.read()
        standing = self._standing
        assert standing is not None
        return await run_in_thread(lambda: self._drafted(tables, standing), name="tables-record")

    async def put(self, draft: RowsDraft, place: RowsPosition) -> bool:
        """Writes it; durable when it returns. False, and nothing done, when something else was
        written since it was drafted. Raises ChannelUnavailable.
        """
        standing = self._standing
        if standing is None or standing.change != draft.follows:
            return False
        if not draft.pieces:
            return True
        self._standing = None  # until it is known what was written
        pieces = draft.at(place, standing.base)
        positions = await self._append([piece.to_event(source=self._source) for piece in pieces])
        version = RowsVersion(
            change=pieces[0].change,
            place=place,
            tables=draft.tables,
            changed=frozenset(piece.table for piece in pieces),
            is_base=draft.is_base,
            position=positions[-1],
        )
        self._standing = standing.after(version, draft.bytes, positions[0] - 1)
        if draft.is_base and self._reader is not None:
            await self._reader.commit(positions[0] - 1)
        return True

    async def _append(self, events: Sequence[Event]) -> list[int]:
        channel = self._channels.channel(ROWS_CHANNEL)
        positions: list[int] = []
        for start in range(0, len(events), _MOST_AT_ONCE):
            appended = await channel.append(events[start : start + _MOST_AT_ONCE])
            positions += appended.positions
        return positions

    def _drafted(self, tables: Tables, standing: RecordState) -> RowsDraft:
        pairs, made = tables.functions(), self._made
        self._made = {}
        now: dict[str, RecordableRows] = {}
        for name, table in tables.loaded().items():
            known = made.get(name)
            found = known[1] if known and known[0] is table else rows_to_record(table, pairs)
            self._made[name] = table, found
            if found is not None:
                now[name] = found
        return draft_change(now, standing)

    async def _read_after(self, position: int) -> RecordState:
        channel, folded, standing = (
            self._channels.channel(ROWS_CHANNEL),
            RowHistory(),
            RecordState(),
        )
        size, begins = 0, position
        while batch := await channel.read_after(position, limit=_PAGE):
            for stored in batch:
                size += len(stored.event.data)
                version = folded.take(stored)
                if version is not None:
                    standing = standing.after(version, size, begins)
                    size, begins = 0, stored.position
            position = batch[-1].position
        return standing
