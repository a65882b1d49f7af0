"""Replays policies over the log of a node, beside a running node too. Nothing is written. [PO-7,
PO-8, UX-3]

`LogReplay` evaluates given plans over a range of time: a corrected reading counts in its newest
form, and released or late readings count at their own time, as after a re-evaluation.

`LiveReplay` repeats the live decisions: clock moves, resets, policy and table changes are recorded
with their positions in `events`, and times of arrival are in the log, so the engine's own stream
reader gives the same results.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from functools import partial

from rapport.channel.channel import Channels, pages_of
from rapport.channel.event_lookup import BACKWARDS_MS, oldest, position_before
from rapport.core.detection import (
    DETECTED,
    Cause,
    Detection,
    Undecided,
    detection_order,
    unique_undecided,
)
from rapport.core.errors import InvalidInput, Problem
from rapport.core.event import Event, StoredEvent
from rapport.core.release import (
    LATE,
    REEVALUATED,
    RELEASE_DONE,
    RELEASES,
    ReevaluationResult,
    ReleaseDone,
)
from rapport.kernel.clock import ManualClock
from rapport.policy.engine.active_plans import ActivePlans
from rapport.policy.engine.shadow_episodes import ShadowResult
from rapport.policy.engine.stream_reader import (
    EmittedResults,
    EngineOutput,
    EngineSchedule,
    StreamReader,
)
from rapport.policy.engine.stream_steps import (
    LATE_TYPE,
    StreamPosition,
    TablesChange,
    TimeMoved,
    TimeReset,
)
from rapport.policy.explain.evidence import NeededRange, Reading, TimeSpan, needed_range
from rapport.policy.lifecycle.record import Compile, CompiledTexts, PolicyRecord
from rapport.policy.lifecycle.registry import CHANNEL, PolicyChange, RecordedChange, change_id
from rapport.policy.ontology import Ontology
from rapport.policy.operators.base import END_OF_TIME, PullData
from rapport.policy.plan import Plan
from rapport.policy.readings import split_events
from rapport.policy.replay.history_runner import HistoryRunner, PlanSpan, used_times
from rapport.policy.replay.replay import CauseCollector, ReplayResult, TimeExtent
from rapport.policy.table_history import (
    PullByTime,
    TableHistory,
    check_context_on_record,
    versions_on_record,
)
from rapport.tables.row_history import RowsPosition
from rapport.tables.tables import Tables

EVENTS_CHANNEL = "events"
_PAGE = 5_000
_SLACK_MS = 600_000
"""How long after its time a reading is still searched for where the range has an end."""
_LONG_AGO = -(2**61)
DETECTIONS = "detections"


class LogReplay:
    """Plans over a range of `events`: detections with a time in [since, until).

    Readings before the range are used as far back as windows and durations reach. The range is read
    twice: survey, then run.
    """

    def __init__(
        self,
        channels: Channels,
        ontology: Ontology,
        pull: PullData,
        *,
        tables: Tables | None = None,
        lateness_ms: int,
        skew_ms: int,
        since: int | None,
        until: int,
        is_open: bool,
    ) -> None:
        """`is_open`: `until` is now, so the range includes everything. `tables`: tables whose
        recorded rows are used; None: always `pull`.
        """
        if EVENTS_CHANNEL not in channels.names():
            raise InvalidInput(
                "the site's log has no readings yet",
                code="replay.no_events",
                hint="rapport import fills it, or a node that runs",
            )
        if since is not None and since >= until:
            raise InvalidInput("--since lies after --until", code="replay.bad_span")
        self._channels, self._ontology, self._pull = channels, ontology, pull
        self._tables = tables
        self.tables_used: TableHistory | None = None
        """The recorded rows that a run used."""
        self._events = channels.channel(EVENTS_CHANNEL)
        self._lateness_ms, self._skew_ms = lateness_ms, skew_ms
        self._since, self._until, self._is_open = since, until, is_open
        self._range = (0, 0)

    async def run(
        self, plans: Sequence[Plan], progress: Callable[[int], None] | None = None
    ) -> ReplayResult:
        """All detections in output order; nothing is late here. Raises Unsupported for plans that
        read context without recorded rows.
        """
        reaches = [self._reach(plan) for plan in plans]
        reach = NeededRange(min(one.start for one in reaches), max(one.end for one in reaches))
        self._range = await self._find_range(reach)
        spans = [
            PlanSpan(
                plan=plan,
                start=None if self._since is None else own.start,
                began=None,
                judged_from=_LONG_AGO if self._since is None else self._since,
            )
            for plan, own in zip(plans, reaches, strict=True)
        ]
        history = HistoryRunner(
            spans,
            await self._pull_by_time(plans, reach),
            self._ontology,
            lateness_ms=self._lateness_ms,
            skew_ms=self._skew_ms,
            with_imported=True,
        )
        try:
            return await self._run(history, reach, progress)
        finally:
            history.close()

    async def _run(
        self, history: HistoryRunner, reach: NeededRange, progress: Callable[[int], None] | None
    ) -> ReplayResult:
        first = await oldest(self._events)
        extent = TimeExtent()
        since = _LONG_AGO if self._since is None else self._since

        def take(page: list[StoredEvent]) -> None:
            times = used_times(page, self._ontology, self._skew_ms)
            extent.note([time for time in times if since <= time < self._until])
            if progress is not None:
                progress(extent.count)

        await history.run(
            self._pages,
            is_whole=self._range[0] == 0 and (first is None or first.position == 1),
            until_ms=reach.end + 1,
            take=take,
        )
        return self._result(history, extent)

    async def _pull_by_time(
        self, plans: Sequence[Plan], reach: NeededRange
    ) -> PullData | PullByTime:
        if self._tables is None:
            return self._pull
        since = None if self._since is None else reach.start
        versions = await versions_on_record(self._channels, since=since)
        check_context_on_record(self._tables, plans, versions, "a replay of this log")
        if not versions:
            return self._pull
        self.tables_used = TableHistory(self._tables, versions)
        return await asyncio.to_thread(self.tables_used.pull, plans)

    async def cause_readings(self, causes: Collection[Cause]) -> dict[Cause, list[Reading]]:
        """The readings named as causes; reads the range once more."""
        return await _collect_causes(self._pages(), causes, self._ontology)

    def _result(self, history: HistoryRunner, extent: TimeExtent) -> ReplayResult:
        found = [one for run in history.runs for one in run.found if one.time < self._until]
        undecided = [one for run in history.runs for one in run.undecided if one.time < self._until]
        suppressed: dict[str, int] = {}
        if self._since is None:  # else the count would include earlier suppressions
            suppressed = {
                name: count
                for run in history.runs
                for name, count in run.runner.suppressed().items()
            }
        return ReplayResult(
            detections=sorted(found, key=detection_order),
            late=[],
            problems=history.problems(),
            events=extent.count,
            undecided=unique_undecided(undecided),
            suppressed=suppressed,
            first=extent.first,
            last=extent.last,
        )

    def _reach(self, plan: Plan) -> NeededRange:
        start = _LONG_AGO if self._since is None else self._since
        reach = needed_range(plan, self._ontology.sources, TimeSpan(start, self._until))
        return NeededRange(reach.start - (plan.once_per_ms or 0), reach.end)

    async def _find_range(self, reach: NeededRange) -> tuple[int, int]:
        """The positions (after, through) of the relevant events."""
        first, last = 0, self._events.last_position()
        if self._since is not None:
            first = await position_before(self._events, reach.start - self._skew_ms)
        if self._is_open:
            return first, last
        # `position_before` looks a minute back, for clocks that were set back.
        end = await position_before(self._events, reach.end + _SLACK_MS + BACKWARDS_MS)
        end = max(end, await self._released_until(reach))
        # No reading arrived in time: the log was filled later, so all of it is read.
        return (first, end) if end > first else (first, last)

    async def _released_until(self, reach: NeededRange) -> int:
        """The last position of readings that releases added to the range later."""
        through = position = 0
        if RELEASES not in self._channels.names():
            return 0
        while page := await self._channels.channel(RELEASES).read_after(position, limit=_PAGE):
            position = page[-1].position
            for stored in page:
                if stored.event.type == RELEASE_DONE:
                    through = max(through, _released_through(stored, reach))
        return through

    def _pages(self) -> AsyncIterator[list[StoredEvent]]:
        first, last = self._range
        return pages_of(self._events, first, limit=last - first, last=last)


async def _collect_causes(
    pages: AsyncIterator[list[StoredEvent]], causes: Collection[Cause], ontology: Ontology
) -> dict[Cause, list[Reading]]:
    collector = CauseCollector(causes, ontology)
    async for page in pages:
        wanted = [one.event for one in page if one.event.id in collector.ids]
        if wanted:
            collector.take(split_events(wanted, ontology)[0])
    return collector.found


def _released_through(stored: StoredEvent, reach: NeededRange) -> int:
    done: ReleaseDone = stored.event.payload_as(ReleaseDone)
    if done.first_ms is None or done.last_ms is None:
        return 0
    return done.through if done.first_ms <= reach.end and done.last_ms >= reach.start else 0


class LiveReplay:
    """The policies of a node over its whole log, as they ran."""

    def __init__(
        self,
        channels: Channels,
        ontology: Ontology,
        tables: Tables,
        compile: Compile,
        *,
        name: str,
        lateness_ms: int,
        skew_ms: int,
        elsewhere: Collection[str] = (),
    ) -> None:
        """`name`: the source of the node's detections; `elsewhere`: policies that run on Spark."""
        if CHANNEL not in channels.names():
            raise InvalidInput(
                "no node has run policies over this log",
                code="replay.no_live",
                hint="leave out --as-live, or run the site first: rapport up",
            )
        self._channels, self._ontology, self._tables = channels, ontology, tables
        self._name, self._skew_ms, self._lateness_ms = name, skew_ms, lateness_ms
        self._elsewhere = elsewhere
        self._texts = CompiledTexts(compile)
        self.tables_used: TableHistory | None = None
        """The recorded rows that the run used."""
        self.notes: list[str] = []
        """Reasons for differences from the live results; set by `run`."""

    async def run(self, progress: Callable[[int], None] | None = None) -> ReplayResult:
        """All detections in output order; matches that are pending at the end stay pending,
        as live.
        """
        versions = await versions_on_record(self._channels)
        if versions:
            self.tables_used = TableHistory(self._tables, versions)
        output = _CapturedOutput(self._channels, self._name, self._tables_changes)
        running = ActivePlans(
            (),
            self._tables if self.tables_used is None else self.tables_used.record.at(versions[0]),
            self._ontology,
            lateness_ms=self._lateness_ms,
            steady_ns=_no_clock,
            elsewhere=self._elsewhere,
        )
        record = _ReadOnlyRecord(self._channels, ManualClock(), self._name, self._texts)
        schedule = EngineSchedule(0, quiet_ms=0, commit_every_ms=0, commit_every_events=0)
        reading = StreamReader(
            record, running, output, schedule, _no_clock, now_ms=_no_clock, act_within_ms=0
        )
        await reading.restore(0, None, 0, 0)
        await reading.apply_due()
        span = TimeExtent()
        async for page in self._pages():
            await reading.take(page, self._ontology, self._skew_ms)
            span.note(used_times(page, self._ontology, self._skew_ms))
            if progress is not None:
                progress(span.count)
        await self._note_differences(output)
        return ReplayResult(
            detections=sorted(output.detections, key=detection_order),
            late=output.late,
            problems=list(running.runner.failed().values()),
            events=span.count,
            undecided=unique_undecided(output.undecided),
            suppressed=running.runner.suppressed(),
            first=span.first,
            last=span.last,
        )

    async def cause_readings(self, causes: Collection[Cause]) -> dict[Cause, list[Reading]]:
        """The readings named as causes; reads the log once more."""
        return await _collect_causes(self._pages(), causes, self._ontology)

    async def _pages(self) -> AsyncIterator[list[StoredEvent]]:
        if EVENTS_CHANNEL not in self._channels.names():
            return
        channel, position = self._channels.channel(EVENTS_CHANNEL), 0
        while page := await channel.read_after(position, limit=_PAGE):
            position = page[-1].position
            yield page

    def _tables_changes(self, resets: Sequence[TimeReset]) -> list[TablesChange]:
        if self.tables_used is None:
            return []
        return [
            TablesChange(
                self._place_of(version.place, resets),
                partial(self.tables_used.record.at, version),
                self._ontology,
            )
            for version in self.tables_used.versions[1:]
        ]

    def _place_of(self, rows: RowsPosition, resets: Sequence[TimeReset]) -> StreamPosition:
        """Rows are recorded with the watermark of their position, without the number of resets."""
        before = [
            one
            for one in resets
            if one.after < rows.after
            or (one.after == rows.after and rows.since < one.before - self._lateness_ms)
        ]
        time = rows.since + self._lateness_ms if rows.since > -END_OF_TIME else -END_OF_TIME
        return StreamPosition(rows.after, time, len(before))

    async def _note_differences(self, output: _CapturedOutput) -> None:
        if await self._is_cut():
            self.notes.append(
                "the log no longer has the first events: what policies knew from them is missing"
            )
        if self._elsewhere:
            self.notes.append(f"on Spark, and not run here: {', '.join(sorted(self._elsewhere))}")
        if await self._were_looked_at_again():
            self.notes.append(
                "readings were released and policies looked again; that is not repeated here"
            )
        here = {one.id() for one in output.detections}
        missing = output.recorded.keys() - here
        if missing:
            self.notes.append(
                f"detections on record that are not found here: {len(missing):,}; ontology, "
                "tables or lateness are others by now, or an older version of Rapport found them"
            )
        if more := len(here - output.recorded.keys()):
            self.notes.append(f"detections found here that are not on record: {more:,}")
        if output.recorded_late != set(output.late):
            other = len(output.recorded_late ^ set(output.late))
            self.notes.append(f"late readings on record: {other:,} differ from those found here")

    async def _is_cut(self) -> bool:
        if EVENTS_CHANNEL not in self._channels.names():
            return False
        first = await oldest(self._channels.channel(EVENTS_CHANNEL))
        return first is not None and first.position > 1

    async def _were_looked_at_again(self) -> bool:
        if RELEASES not in self._channels.names():
            return False
        position = 0
        while page := await self._channels.channel(RELEASES).read_after(position, limit=_PAGE):
            position = page[-1].position
            for stored in page:
                if (
                    stored.event.type == REEVALUATED
                    and stored.event.payload_as(ReevaluationResult).policies
                ):
                    return True
        return False


class _CapturedOutput(EngineOutput):
    """Collects what the engine would append, and reads what it did append."""

    def __init__(
        self,
        channels: Channels,
        name: str,
        tables_changes: Callable[[Sequence[TimeReset]], list[TablesChange]],
    ) -> None:
        super().__init__(channels, name)
        self._tables_changes = tables_changes
        self.detections: list[Detection] = []
        self.undecided: list[Undecided] = []
        self.late: list[Cause] = []
        self.recorded: dict[str, None] = {}
        """Ids of the recorded detections, without those of re-evaluations."""
        self.recorded_late: set[Cause] = set()

    async def append_results(
        self,
        results: EmittedResults,
        differences: Sequence[ShadowResult],
        late: Sequence[Cause],
        moved: TimeMoved | TimeReset | None,
    ) -> None:
        self.detections += results.detections
        self.undecided += results.undecided
        self.late += late

    async def quarantine(self, aside: Sequence[tuple[Event, Problem]]) -> None:
        """Does nothing: the events are quarantined already."""

    async def steps_after(self, position: int) -> list[TimeMoved | TimeReset | TablesChange]:
        """Adds the table changes; live, a commit stands at each of these positions."""
        found: list[TimeMoved | TimeReset | TablesChange] = []
        if DETECTIONS in self._channels.names():
            found = await super().steps_after(position)
        resets = [one for one in found if isinstance(one, TimeReset)]
        return [*found, *self._tables_changes(resets)]

    def see(self, event: Event) -> None:
        if event.type == DETECTED and LATE not in event.headers:
            self.recorded[event.id] = None
        elif event.type == LATE_TYPE:
            data = event.payload()
            self.recorded_late.add((data["time"], data["id"]))


class _ReadOnlyRecord(PolicyRecord):
    """The record of changes; unrecorded commands of detections are kept in memory."""

    async def append(self, changes: Sequence[PolicyChange]) -> list[RecordedChange]:
        """Adds changes after the recorded ones, in memory only."""
        last = max((one.position for one in self.registry.changes), default=0)
        kept = [
            RecordedChange(change_id(changed), 0, last + number, changed)
            for number, changed in enumerate(changes, 1)
        ]
        for one in kept:
            self.add(one)
        return kept


def _no_clock() -> int:
    return 0
