"""Recorded rows of tables, and runners that use the rows of each time. [PO-2, PO-8, PO-11, CX-8]

Rows recorded at a stream position apply to readings from the watermark of that position on. A
runner decides everything before with the old rows, then makes its steps anew with the new rows and
restores their state, as `PolicyEngine` does.

A policy that reads context can run over history only with recorded rows: a broker cannot answer for
the past, and with empty tables the policy would silently find nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np
import pyarrow as pa

from rapport.channel.channel import Channel, Channels
from rapport.channel.event_lookup import oldest
from rapport.core.detection import Detection, Undecided
from rapport.core.errors import SiteError, Unsupported
from rapport.core.times import format_time
from rapport.policy.compiler.scope import table_attributes
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import END_OF_TIME, PullData
from rapport.policy.plan import PolicyPlan
from rapport.policy.runner.local import LocalRunner
from rapport.policy.situation_plan import SituationPlan, table_attributes_of
from rapport.tables.loaded_table import LoadedTable
from rapport.tables.row_history import (
    FROM_THE_BEGINNING,
    ROWS_CHANNEL,
    RowHistory,
    RowsPiece,
    RowsVersion,
    TableRows,
    decode_piece,
    recorded_columns,
    rows_to_record,
)
from rapport.tables.rows import LooseRows
from rapport.tables.tables import Tables

_PAGE = 500


async def versions_on_record(
    channels: Channels, *, since: int | None = None, most_events: int | None = None
) -> list[RowsVersion]:
    """The recorded versions from a time of readings on (None: all), oldest first; the first one was
    in force at that time. Empty when nothing is recorded.

    Costs the records since the base before that time, at most `most_events`.
    """
    if ROWS_CHANNEL not in channels.names():
        return []
    channel = channels.channel(ROWS_CHANNEL)
    after = 0 if since is None else await _base_before(channel, since)
    found = await _folded(channel, after, most_events)
    if after and (not found or (since is not None and found[0].place.since > since)):
        found = await _folded(channel, 0, most_events)  # the record there is incomplete
    if since is None:
        return found
    begun = [number for number, one in enumerate(found) if one.place.since <= since]
    return found[begun[-1] :] if begun else found


def version_at(versions: Sequence[RowsVersion], time: int) -> RowsVersion | None:
    """The version for readings of a time; before the first version, the first. None without
    versions.
    """
    met = [one for one in versions if one.place.since <= time]
    return met[-1] if met else versions[0] if versions else None


async def _folded(channel: Channel, after: int, most_events: int | None) -> list[RowsVersion]:
    folded, found, left = RowHistory(), list[RowsVersion](), most_events
    while batch := await channel.read_after(after, limit=_PAGE):
        after = batch[-1].position
        found += [version for stored in batch if (version := folded.take(stored)) is not None]
        if left is not None and (left := left - len(batch)) <= 0:
            break
    return found


async def _base_before(channel: Channel, since: int) -> int:
    """The position before the last base in force at a time; 0 when unknown. Binary search."""
    first = await oldest(channel)
    if first is None:
        return 0
    low, high = first.position, channel.last_position() + 1
    found: tuple[int, RowsPiece] | None = None
    while low < high:  # what stands before `low` is not later than `since`
        middle = (low + high) // 2
        read = await channel.read_after(middle - 1, limit=1)
        piece = decode_piece(read[0]) if read else None
        if piece is None:
            return 0
        if piece.place.since <= since:
            found = read[0].position, piece
            low = max(read[0].position, middle) + 1
        else:
            high = middle
    if found is None:
        return 0
    position, piece = found
    return max(position - piece.part - 1, 0) if piece.is_base else piece.base


class RecordedTableRows:
    """The tables of a site with the rows of any version; current rows for tables whose rows are not
    recorded or no longer fit their declaration.

    Parsing the rows of a table takes about a second per 100,000, once for each change.
    """

    def __init__(self, tables: Tables) -> None:
        self._today = tables.snapshot()
        self._digests: dict[str, str] = {}
        self._last: tuple[dict[str, str], Tables] = ({}, self._today)
        self.unusable: dict[str, TableRows | None] = {}
        """Tables for which current rows were used; None: nothing was recorded."""

    def at(self, version: RowsVersion) -> Tables:
        """The tables of a version. Blocks while it parses rows."""
        wanted = {name: self._usable(name, version) for name in self.recorded()}
        digests = {name: rows.digest for name, rows in wanted.items() if rows is not None}
        before, tables = self._last
        read: list[LoadedTable] = []
        for name in [name for name in digests if before.get(name) != digests[name]]:
            rows = wanted[name]
            assert rows is not None
            if (loaded := self._loaded(name, rows)) is None:
                del digests[name]
            else:
                read.append(loaded)
        today = self._today.loaded()
        read += [today[name] for name in before.keys() - digests.keys()]
        try:
            self._last = digests, tables.snapshot(read) if read else tables
        except SiteError:  # together they do not fit the declaration
            self.unusable |= dict.fromkeys(digests)
            self._last = {}, self._today
        return self._last[1]

    def recorded(self) -> list[str]:
        """The tables whose rows are recorded."""
        today = self._today
        pairs = today.functions()
        return [name for name, one in today.declarations().items() if recorded_columns(one, pairs)]

    def is_of_today(self, version: RowsVersion) -> bool:
        """Whether the tables hold the same now, as far as known."""
        return all(
            name in version.tables and version.tables[name].digest == self._digest_of_today(name)
            for name in self.recorded()
        )

    def _usable(self, name: str, version: RowsVersion) -> TableRows | None:
        """The recorded rows of a table, unless current rows must be used or are the same."""
        rows = version.tables.get(name)
        if rows is not None and rows.digest == self._digest_of_today(name):
            return None
        if rows is None or not rows.is_known:
            self.unusable[name] = rows
            return None
        return rows

    def _loaded(self, name: str, rows: TableRows) -> LoadedTable | None:
        today = self._today.loaded()[name]
        fields = [list(row) for row in rows.rows]
        file = LooseRows(today.declared.shown, list(rows.header), fields, rows.digest)
        try:
            return self._today.load_rows(name, file)
        except SiteError:
            self.unusable[name] = rows
            return None

    def _digest_of_today(self, name: str) -> str:
        if name not in self._digests:
            found = rows_to_record(self._today.loaded()[name], self._today.functions())
            self._digests[name] = "" if found is None else found.rows.digest
        return self._digests[name]


def unusable_text(table: str, rows: TableRows | None) -> str:
    """Why current rows are used instead of recorded ones."""
    why = "nothing is on record of them"
    if rows is not None and rows.is_known:
        why = "they do not fit what the site says now"
    elif rows is not None:
        why = f"only their number is on record, {rows.count:,}"
    return f"the table {table!r} is used with the rows of today, not those of then: {why}"


class TableSwitch(msgspec.Struct, frozen=True):
    """Readings with a time from `since` on use `pull`, which is called when needed."""

    since: int
    pull: Callable[[], PullData]


class PullByTime(msgspec.Struct, frozen=True, kw_only=True):
    """Tables by time of readings: first `pull`, then the switches in ascending order."""

    pull: PullData
    switches: tuple[TableSwitch, ...] = ()


def as_pull_by_time(pull: PullData | PullByTime) -> PullByTime:
    return pull if isinstance(pull, PullByTime) else PullByTime(pull=pull)


class TableHistory:
    """The recorded tables for a replay."""

    def __init__(self, tables: Tables, versions: Sequence[RowsVersion]) -> None:
        """`versions`: oldest first, at least one."""
        self.versions = versions
        self.record = RecordedTableRows(tables)
        self._tables = tables

    @property
    def known_since(self) -> int | None:
        """Readings before this time use the first known rows; None: all are known."""
        since = self.versions[0].place.since
        return since if since > FROM_THE_BEGINNING else None

    def pull(self, plans: Sequence[PolicyPlan]) -> PullByTime:
        """The tables by time for these plans; changes of tables that no plan reads are skipped."""
        read = self._read_by(plans)
        switches: list[TableSwitch] = []
        for version in self.versions[1:]:
            if version.changed & read:
                # Also rows that others replaced at once: live they ended what was lasting.
                at = partial(self.record.at, version)
                switches.append(TableSwitch(version.place.since, at))
        return PullByTime(pull=self.record.at(self.versions[0]), switches=tuple(switches))

    def at(self, time: int) -> PullData:
        """The tables for readings of a time."""
        version = version_at(self.versions, time)
        assert version is not None
        return self.record.at(version)

    def notes(self, first: int | None) -> list[str]:
        """Notes about the used rows, given the time of the first reading; empty when tables never
        changed.
        """
        notes: list[str] = []
        if len(self.versions) > 1 or not self.record.is_of_today(self.versions[-1]):
            count = len(self.versions)
            of = "1 version" if count == 1 else f"{count:,} versions"
            notes.append(f"the tables of then are used, {of} on record; --tables now: those of now")
            since = self.known_since
            if since is not None and first is not None and first < since:
                notes.append(
                    f"nothing is on record of the tables before {format_time(since)}: "
                    "the first rows that are known are used"
                )
        unusable = self.record.unusable.items()
        return notes + [unusable_text(name, rows) for name, rows in unusable]

    def _read_by(self, plans: Sequence[PolicyPlan]) -> set[str]:
        """Functions and derived columns may read any table."""
        declared = self._tables.declarations()
        concepts = {concept for plan in plans for concept in plan.concepts()}
        deriving = self._tables.deriving
        if deriving is not None and deriving.version():
            return set(declared)
        looked_up = {pair.table for pair in self._tables.functions()}
        own = {name for name, one in declared.items() if one.concept in concepts}
        return own | looked_up


class SwitchingRunner:
    """A local runner that switches tables at their times; see LocalRunner.

    A switch costs a snapshot, as live, and parsing the changed rows.
    """

    def __init__(
        self,
        plans: Sequence[PolicyPlan],
        pull: PullData | PullByTime,
        *,
        lateness_ms: int,
        sources: Mapping[str, PushSource],
        began: int | None = None,
    ) -> None:
        by_time = as_pull_by_time(pull)
        self._lateness, self._sources, self._began = lateness_ms, sources, began
        self._left = deque(by_time.switches)
        self._undecided: list[Undecided] = []
        self.runner = self._made(plans, by_time.pull)

    def feed(self, readings: pa.RecordBatch) -> list[Detection]:
        found: list[Detection] = []
        while self._left and len(readings):
            times = readings.column("time").to_numpy()
            latest = np.maximum(np.maximum.accumulate(times), self.runner.latest)
            # Up to the reading that reaches the switch: readings it releases use the new rows.
            cut = int(np.searchsorted(latest, self._left[0].since + self._lateness))
            if cut == len(readings):
                break
            found += self.runner.feed(readings.slice(0, cut))
            readings = readings.slice(cut)
            found += self._apply_switches(int(latest[cut]))
        return found + self.runner.feed(readings)

    def advance(self, time_ms: int) -> list[Detection]:
        return self._apply_switches(time_ms) + self.runner.advance(time_ms)

    def finish(self, until_ms: int | None = None) -> list[Detection]:
        """See LocalRunner. Situations do not see tables from after the end of the record."""
        end = END_OF_TIME
        if self.runner.has_situations:
            end = max(self.runner.newest, self.runner.newest if until_ms is None else until_ms)
            end += self._lateness
        return self._apply_switches(end) + self.runner.finish(until_ms)

    def take_undecided(self) -> list[Undecided]:
        taken, self._undecided = self._undecided, []
        return taken + self.runner.take_undecided()

    def _apply_switches(self, time_ms: int) -> list[Detection]:
        """Applies all switches up to a time."""
        found: list[Detection] = []
        is_untouched = self.runner.latest <= -END_OF_TIME
        while self._left and self._left[0].since + self._lateness <= time_ms:
            switch = self._left.popleft()
            if not is_untouched or self._is_running_at(switch.since):
                found += self.runner.advance(switch.since + self._lateness)
            elif self._left and self._left[0].since + self._lateness <= time_ms:
                continue
            self._switch(switch.pull())
        return found

    def _is_running_at(self, time_ms: int) -> bool:
        """Whether situations run before any reading came; others begin with the first reading."""
        return self.runner.has_situations and self._began is not None and self._began < time_ms

    def _switch(self, pull: PullData) -> None:
        before = self.runner
        self._undecided += before.take_undecided()
        self.runner = self._made([*before.plans(), *before.failed_plans()], pull)
        self.runner.restore_known(before.snapshot())
        self.runner.count_on(before)
        self.runner.late_readings = before.take_late()

    def _made(self, plans: Sequence[PolicyPlan], pull: PullData) -> LocalRunner:
        return LocalRunner(
            plans,
            pull,
            lateness_ms=self._lateness,
            sources=self._sources,
            began=self._began,
        )


def check_context_on_record(
    tables: Tables, plans: Iterable[PolicyPlan], versions: Sequence[RowsVersion], what: str
) -> None:
    """Raises Unsupported for a plan that reads a context table without recorded rows; the error
    names policy, attribute and table.
    """
    elsewhere = tables.context_attributes()
    for plan in plans if elsewhere else ():
        for concept, attribute in sorted(read_from_tables(plan) & elsewhere):
            table = unrecorded_table(tables, versions, concept, attribute)
            if table:
                raise Unsupported(
                    f"{plan.policy!r}, which reads {concept}.{attribute} from context,",
                    what,
                    hint=f"nothing is on record of the table {table!r}: a node records its rows, "
                    "from its start on; a replay of its log or a back-test of its lake uses them",
                )


def read_from_tables(plan: PolicyPlan) -> set[tuple[str, str]]:
    """The (concept, attribute) pairs that a plan reads from tables."""
    if isinstance(plan, SituationPlan):
        return plan.table_attributes()
    found = {(side.concept, one.attribute) for side in plan.sides() for one in side.constraints}
    if plan.guard is not None:
        found |= table_attributes_of([plan.guard])
    return found | {
        (side.concept, attribute)
        for term in plan.terms
        for side, attribute in table_attributes(term)
    }


def unrecorded_table(
    tables: Tables, versions: Sequence[RowsVersion], concept: str, attribute: str
) -> str:
    """A context table that gives the attribute and has no recorded rows; empty when all have."""
    named = [
        name
        for name, one in tables.declarations().items()
        if one.context and one.concept == concept and attribute in one.columns
    ]
    known = {name for one in versions for name, rows in one.tables.items() if rows.is_known}
    return next((name for name in named if name not in known), "")
