"""Tables of a running node: refreshed when their lifetime is over, recorded, and passed to
mediation and policies. [PO-2, PO-11]

Mediation uses new rows from its next batch on. Policies receive them between two batches, after a
commit, when they are on record (channel `tables.rows`) with their position in the stream. A
restarted node therefore reads again with the same rows what it had read before, and only then
continues with the current rows. The node's reader of the channel stands at the last base, so
retention removes only rows that are not needed to know the current ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rapport.channel.channel import Channels, Subscription
from rapport.core.errors import Problem
from rapport.core.event import Event
from rapport.kernel.clock import Chance, Clock
from rapport.kernel.tasks import first_of, run_in_thread
from rapport.kernel.telemetry import get_logger
from rapport.policy.engine.engine import PolicyEngine
from rapport.policy.ontology import Ontology
from rapport.policy.table_history import RecordedTableRows
from rapport.site.parts import kept_rows_directory
from rapport.site.site import Site
from rapport.tables.loaded_table import LoadedTable
from rapport.tables.refresh import TableRefresher, TableStatus
from rapport.tables.row_cache import RowCache, is_cached
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
from rapport.tables.tables import Tables, TablesChange

READER = "tables"
_PAGE = 500
_MOST_AT_ONCE = 16
"""Pieces in one append: some megabytes."""


class TableRecorder:
    """Writes the record. All calls belong to one event loop.

    Holds the rows that are on record and where the last base stands.
    """

    def __init__(self, channels: Channels, *, source: str) -> None:
        """`source` of the events."""
        self._channels, self._source = channels, source
        self._standing: RecordState | None = None
        self._reader: Subscription | None = None
        self._made: dict[str, tuple[LoadedTable, RecordableRows | None]] = {}

    async def read(self, *, keep: bool = True) -> RowsVersion | None:
        """The last rows on record; None without any. With `keep` retention waits."""
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


_log = get_logger(__name__)

_LOOK_EVERY_MS = 20
"""While policies read again what they had read."""


class TableUpdates:
    """What keeps a node's tables fresh. All calls belong to its event loop."""

    def __init__(
        self,
        site: Site,
        policy: PolicyEngine,
        clock: Clock,
        chance: Chance,
        channels: Channels,
    ) -> None:
        self._site, self._tables, self._clock = site, site.tables, clock
        self._policy = policy
        self.refreshing = TableRefresher(site.tables, clock, chance)
        self._news_for_policies = asyncio.Event()
        self._kept = RowCache(kept_rows_directory(site.data_directory))
        self._to_keep = asyncio.Event()
        self._to_keep.set()
        self._saved: dict[str, LoadedTable] = {}
        self._record = TableRecorder(channels, source=site.name)
        self._given: int | None = None
        """The revision of the tables that policies look at; None: another one's rows."""
        site.tables.changed.append(self._hand_on)

    async def begin(self, *, record: bool = True) -> None:
        """Gives policies the rows that are on record last, where those of now are others: by these
        they judged what they may read again. Before policies begin; `settle` after it.

        Without `record` the record is only looked at.
        """
        version = await self._record.read(keep=record)
        seen = self._tables.snapshot()
        self._given = self._tables.revision
        if version is not None:
            before = await run_in_thread(lambda: self._as_recorded(version), name="tables-then")
            if before is not None:
                seen, self._given = before, None
        self._policy.renew(seen, self._policy.ontology)
        self._news_for_policies.set()

    def _as_recorded(self, version: RowsVersion) -> Tables | None:
        """None when the rows are those of now, or do not fit the site as it is now."""
        then = RecordedTableRows(self._tables)
        if then.is_of_today(version):
            return None
        tables = then.at(version)
        if then.unusable:
            _log.info("tables go on with rows of now", tables=sorted(then.unusable))
            return None
        return tables

    async def settle(self) -> None:
        """Puts the rows of now on record and gives them to policies, unless these have yet to read
        again what they had read: then `run` does. After policies have begun.
        """
        draft, seen, revision = await self._drafted()
        async with self._policy.turn:
            await self._policy.next_position()
            if self._given is not None or not self._policy.is_catching_up:
                await self._hand_over(draft, seen, revision)

    async def run(self) -> None:
        """Works until cancelled; restarted after a failure it resumes."""
        await first_of(self.refreshing.run(), self._serve_policies(), self._keep_rows())

    def status(self) -> list[TableStatus]:
        """How fresh each table is, and why one is not."""
        return self.refreshing.status()

    def waits(self) -> bool:
        """Whether something changed that policies were not given yet."""
        return self._news_for_policies.is_set()

    def losses(self, reloaded: Site) -> list[Problem]:
        """Attributes that tables give now and those of the reloaded site do not: policies that run
        may read them.
        """
        new = reloaded.tables
        return [
            Problem(
                code="reload.attribute_gone",
                message=f"no table gives {concept}.{attribute} any more",
                file=reloaded.file.name,
                hint="bring the column back, or start the node again",
            )
            for concept in self._tables.versions
            for attribute in self._tables.instances(concept).columns
            if not new.gives(concept, attribute)
        ]

    async def keep_context(self, reloaded: Site) -> None:
        """Gives the reloaded site, before it is in force, the known context."""
        await run_in_thread(
            lambda: reloaded.tables.keep_context(self._tables), name="tables-prepare"
        )

    def take_over(self, reloaded: Site) -> None:
        """Goes on with the tables of the reloaded site; what is new is found in it, what went is
        gone.
        """
        self._tables.take_over(reloaded.tables, self._clock.now_ms())

    def _hand_on(self, changed: TablesChange) -> None:
        self._to_keep.set()
        if changed.concepts or changed.functions:
            self._news_for_policies.set()

    async def hand_over(self, ontology: Ontology) -> None:
        """Puts the rows of now on record and gives them to policies with another ontology. Call it
        while holding the engine's turn, after a commit.
        """
        is_given = False
        while not is_given:
            draft, seen, revision = await self._drafted()
            is_given = await self._put(draft, seen, revision, ontology)

    async def _serve_policies(self) -> None:
        while True:
            await self._news_for_policies.wait()
            draft, seen, revision = await self._drafted()
            async with self._policy.turn:
                await self._policy.next_position()
                is_given = not self._policy.is_catching_up and await self._hand_over(
                    draft, seen, revision
                )
            if not is_given:  # what was read before a crash is judged by the rows of then
                await self._clock.sleep(_LOOK_EVERY_MS)
            elif self._tables.revision == revision:  # otherwise once more
                self._news_for_policies.clear()

    async def _drafted(self) -> tuple[RowsDraft, Tables, int]:
        seen, revision = self._tables.snapshot(), self._tables.revision
        return await self._record.draft(seen), seen, revision

    async def _hand_over(self, draft: RowsDraft, seen: Tables, revision: int) -> bool:
        """The same after a commit. Nothing is done for rows that policies have and that are on
        record. False when something else was put on record meanwhile.
        """
        if not draft.pieces and self._given == revision:
            return True
        await self._policy.commit()
        return await self._put(draft, seen, revision, self._policy.ontology)

    async def _put(self, draft: RowsDraft, seen: Tables, revision: int, ontology: Ontology) -> bool:
        standing = await self._policy.progress()
        place = RowsPosition(
            time=self._clock.now_ms(), after=standing.position, since=standing.watermark
        )
        if not await self._record.put(draft, place):
            return False
        self._policy.renew(seen, ontology)
        self._given = revision
        return True

    async def _keep_rows(self) -> None:
        """Keeps on disk what sources elsewhere gave, for a start at which one does not answer."""
        while True:
            await self._to_keep.wait()
            self._to_keep.clear()
            for name, table in self._tables.loaded().items():
                if self._saved.get(name) is not table and is_cached(table.declared):
                    if name not in self._tables.stale:
                        await self._save(table)
                    self._saved[name] = table

    async def _save(self, table: LoadedTable) -> None:
        now_ms = self._clock.now_ms()
        try:
            await run_in_thread(lambda: self._kept.save(table, now_ms), name="tables-keep")
        except OSError as error:
            # Only a start without the source would miss it: no reason to disturb the node.
            _log.warning("rows not kept", table=table.declared.name, error=str(error))
