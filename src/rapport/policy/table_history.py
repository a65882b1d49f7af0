"""The rows that tables had, read back from the channel `tables.rows` of a node, a log or a lake.
[PO-2, PO-11]

Pull data that change as time goes on, and a runner that goes over to them where live did. [PO-2,
PO-8]

Rows that came into force at a place of the stream are used for readings with a time from the
watermark on that had been reached there. So everything before it is decided by the rows of before,
then the steps are made anew with the new rows and given what they knew: what `PolicyEngine` does.

Policies that read context over history: by the rows that a node had put on record, or not at
all. [PO-2, PO-8, CX-8]

Nobody can be asked later what a broker would have answered. Evaluated with empty tables such a
policy would find nothing, and not say why.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np
import pyarrow as pa

from rapport.channel.channel import Channel, Channels
from rapport.channel.finding.by_time import oldest
from rapport.core.detection import Detection, Undecided
from rapport.core.errors import SiteError, Unsupported
from rapport.core.times import format_time
from rapport.policy.compiler.reads import table_attributes
from rapport.policy.ontology import PushSource
from rapport.policy.plan import Plan
from rapport.policy.runners.base import END_OF_TIME, PullData
from rapport.policy.runners.local import LocalRunner
from rapport.tables.loaded import LoadedTable
from rapport.tables.recorded_rows import (
    FROM_THE_BEGINNING,
    ROWS_CHANNEL,
    RowsFolded,
    RowsPiece,
    RowsVersion,
    TableRows,
    piece_of,
)
from rapport.tables.row_file import LooseRows
from rapport.tables.rows_recorder import recorded_columns, rows_to_record
from rapport.tables.tables import Tables

_PAGE = 500


async def versions_on_record(
    channels: Channels, *, since: int | None = None, most_events: int | None = None
) -> list[RowsVersion]:
    """What tables held from a time of readings on (None: as far back as is kept), oldest first: the
    first is the version that was in force then. Empty when nothing is on record.

    Costs what was recorded since the base before that time; `most_events` ends it earlier.
    """
    if ROWS_CHANNEL not in channels.names():
        return []
    channel = channels.channel(ROWS_CHANNEL)
    after = 0 if since is None else await _base_before(channel, since)
    found = await _folded(channel, after, most_events)
    if after and (not found or (since is not None and found[0].place.since > since)):
        found = await _folded(channel, 0, most_events)  # what began there was never finished
    if since is None:
        return found
    begun = [number for number, one in enumerate(found) if one.place.since <= since]
    return found[begun[-1] :] if begun else found


def version_at(versions: Sequence[RowsVersion], time: int) -> RowsVersion | None:
    """What readings of a time met; before the first version that one. None when there is none."""
    met = [one for one in versions if one.place.since <= time]
    return met[-1] if met else versions[0] if versions else None


async def _folded(channel: Channel, after: int, most_events: int | None) -> list[RowsVersion]:
    folded, found, left = RowsFolded(), list[RowsVersion](), most_events
    while batch := await channel.read_after(after, limit=_PAGE):
        after = batch[-1].position
        found += [version for stored in batch if (version := folded.take(stored)) is not None]
        if left is not None and (left := left - len(batch)) <= 0:
            break
    return found


async def _base_before(channel: Channel, since: int) -> int:
    """The position after which the last base stands that was in force at a time; 0 when nobody can
    tell. Looks at about as many events as the logarithm of what is kept.
    """
    first = await oldest(channel)
    if first is None:
        return 0
    low, high = first.position, channel.last_position() + 1
    found: tuple[int, RowsPiece] | None = None
    while low < high:  # what stands before `low` is not later than `since`
        middle = (low + high) // 2
        read = await channel.read_after(middle - 1, limit=1)
        piece = piece_of(read[0]) if read else None
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
    """The tables of a site with the rows of any version; of tables whose rows are not on record, or
    no longer fit what the site says about them, with those of today.

    Typing the rows of a table takes about a second for 100,000 of them, once for each time they
    changed in what is asked for.
    """

    def __init__(self, tables: Tables) -> None:
        self._today = tables.seen()
        self._digests: dict[str, str] = {}
        self._last: tuple[dict[str, str], Tables] = ({}, self._today)
        self.unusable: dict[str, TableRows | None] = {}
        """Tables of which the rows of today were used; None: nothing was on record."""

    def at(self, version: RowsVersion) -> Tables:
        """The tables as they were. Blocks for the time it takes to type rows."""
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
            self._last = digests, tables.seen(read) if read else tables
        except SiteError:  # together they do not fit what the site says now
            self.unusable |= dict.fromkeys(digests)
            self._last = {}, self._today
        return self._last[1]

    def recorded(self) -> list[str]:
        """The tables whose rows are put on record."""
        today = self._today
        pairs = today.functions()
        return [name for name, one in today.declarations().items() if recorded_columns(one, pairs)]

    def is_of_today(self, version: RowsVersion) -> bool:
        """Whether tables hold the same now, as far as is known."""
        return all(
            name in version.tables and version.tables[name].digest == self._digest_of_today(name)
            for name in self.recorded()
        )

    def _usable(self, name: str, version: RowsVersion) -> TableRows | None:
        """The rows of a table, unless those of today have to do, or are the same."""
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
            return self._today.given(name, file)
        except SiteError:
            self.unusable[name] = rows
            return None

    def _digest_of_today(self, name: str) -> str:
        if name not in self._digests:
            found = rows_to_record(self._today.loaded()[name], self._today.functions())
            self._digests[name] = "" if found is None else found.rows.digest
        return self._digests[name]


def unusable_text(table: str, rows: TableRows | None) -> str:
    """Why the rows of today stand in for those of then."""
    why = "nothing is on record of them"
    if rows is not None and rows.is_known:
        why = "they do not fit what the site says now"
    elif rows is not None:
        why = f"only their number is on record, {rows.count:,}"
    return f"the table {table!r} is used with the rows of today, not those of then: {why}"


class TableSwitch(msgspec.Struct, frozen=True):
    """Readings with a time from `since` on meet what `pull` gives; it is asked when it comes to
    that.
    """

    since: int
    pull: Callable[[], PullData]


class PullByTime(msgspec.Struct, frozen=True, kw_only=True):
    """What readings of each time meet: first `pull`, then in rising order the switches."""

    pull: PullData
    switches: tuple[TableSwitch, ...] = ()


def as_pull_by_time(pull: PullData | PullByTime) -> PullByTime:
    """The same at all times, unless it says otherwise."""
    return pull if isinstance(pull, PullByTime) else PullByTime(pull=pull)


class TableHistory:
    """What the record of tables gives a replay."""

    def __init__(self, tables: Tables, versions: Sequence[RowsVersion]) -> None:
        """`versions`: oldest first, at least one."""
        self.versions = versions
        self.record = RecordedTableRows(tables)
        self._tables = tables

    @property
    def known_since(self) -> int | None:
        """Readings before this time meet the first rows there are; None: all are known."""
        since = self.versions[0].place.since
        return since if since > FROM_THE_BEGINNING else None

    def pull(self, plans: Sequence[Plan]) -> PullByTime:
        """For these plans: changes of tables that none of them reads are passed over."""
        read = self._read_by(plans)
        switches: list[TableSwitch] = []
        for version in self.versions[1:]:
            if version.changed & read:
                if switches and switches[-1].since == version.place.since:
                    switches.pop()
                at = partial(self.record.at, version)
                switches.append(TableSwitch(version.place.since, at))
        return PullByTime(pull=self.record.at(self.versions[0]), switches=tuple(switches))

    def at(self, time: int) -> PullData:
        """What readings of a time met."""
        version = version_at(self.versions, time)
        assert version is not None
        return self.record.at(version)

    def said(self, first: int | None) -> list[str]:
        """What people should know about the rows that were used, the first reading being of that
        time; nothing when tables were always as they are.
        """
        said: list[str] = []
        if len(self.versions) > 1 or not self.record.is_of_today(self.versions[-1]):
            count = len(self.versions)
            of = "1 version" if count == 1 else f"{count:,} versions"
            said.append(f"the tables of then are used, {of} on record; --tables now: those of now")
            since = self.known_since
            if since is not None and first is not None and first < since:
                said.append(
                    f"nothing is on record of the tables before {format_time(since)}: "
                    "the first rows that are known are used"
                )
        told = self.record.unusable.items()
        return said + [unusable_text(name, rows) for name, rows in told]

    def _read_by(self, plans: Sequence[Plan]) -> set[str]:
        """Functions, and columns that follow from others, may look into any table."""
        declared = self._tables.declarations()
        concepts = {concept for plan in plans for concept in plan.concepts()}
        deriving = self._tables.deriving
        if deriving is not None and deriving.version():
            return set(declared)
        looked_up = {pair.table for pair in self._tables.functions()}
        own = {name for name, one in declared.items() if one.concept in concepts}
        return own | looked_up


class SwitchingRunner:
    """A local runner that goes over to other tables at their times; see LocalRunner for the rest.

    A switch costs a snapshot, as live, and typing the rows that changed.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
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
        """Takes readings as they arrived; returns what became certain."""
        found: list[Detection] = []
        while self._left and len(readings):
            times = readings.column("time").to_numpy()
            latest = np.maximum(np.maximum.accumulate(times), self.runner.latest)
            # Up to the reading with which time gets there: what it releases meets the new rows.
            cut = int(np.searchsorted(latest, self._left[0].since + self._lateness))
            if cut == len(readings):
                break
            found += self.runner.feed(readings.slice(0, cut))
            readings = readings.slice(cut)
            found += self._go_over(int(latest[cut]))
        return found + self.runner.feed(readings)

    def advance(self, time_ms: int) -> list[Detection]:
        """Moves time on without a reading."""
        return self._go_over(time_ms) + self.runner.advance(time_ms)

    def finish(self) -> list[Detection]:
        """Lets time run on until everything pending is decided."""
        return self._go_over(END_OF_TIME) + self.runner.finish()

    def take_undecided(self) -> list[Undecided]:
        """See LocalRunner."""
        taken, self._undecided = self._undecided, []
        return taken + self.runner.take_undecided()

    def _go_over(self, time_ms: int) -> list[Detection]:
        """Through all switches up to where time gets."""
        found: list[Detection] = []
        is_untouched = self.runner.latest <= -END_OF_TIME
        while self._left and self._left[0].since + self._lateness <= time_ms:
            switch = self._left.popleft()
            if not is_untouched:  # else time would have moved before the first reading
                found += self.runner.advance(switch.since + self._lateness)
            elif self._left and self._left[0].since + self._lateness <= time_ms:
                continue
            self._switch(switch.pull())
        return found

    def _switch(self, pull: PullData) -> None:
        before = self.runner
        self._undecided += before.take_undecided()
        self.runner = self._made([*before.plans(), *before.failed_plans()], pull)
        self.runner.restore_known(before.snapshot())
        self.runner.count_on(before)
        self.runner.late_readings = before.take_late()

    def _made(self, plans: Sequence[Plan], pull: PullData) -> LocalRunner:
        return LocalRunner(
            plans,
            pull,
            lateness_ms=self._lateness,
            sources=self._sources,
            began=self._began,
        )


def check_context_on_record(
    tables: Tables, plans: Iterable[Plan], versions: Sequence[RowsVersion], what: str
) -> None:
    """Raises Unsupported for a plan that reads a table of context of which no version has rows on
    record; the error names policy, attribute and table.
    """
    elsewhere = tables.elsewhere()
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


def read_from_tables(plan: Plan) -> set[tuple[str, str]]:
    """Concept and attribute of everything that a plan takes from tables."""
    sides = [side for term in plan.terms for side in (term.first, term.second)]
    found = {(side.concept, one.attribute) for side in sides for one in side.constraints}
    return found | {
        (side.concept, attribute)
        for term in plan.terms
        for side, attribute in table_attributes(term)
    }


def unrecorded_table(
    tables: Tables, versions: Sequence[RowsVersion], concept: str, attribute: str
) -> str:
    """A table of context that gives the attribute and has no rows on record; empty: all have."""
    named = [
        name
        for name, one in tables.declarations().items()
        if one.context and one.concept == concept and attribute in one.columns
    ]
    known = {name for one in versions for name, rows in one.tables.items() if rows.is_known}
    return next((name for name in named if name not in known), "")
