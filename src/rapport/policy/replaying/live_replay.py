"""What the node's policies decided live, decided again from its log: the same events in the same
order, and everything else that happened among them. [PO-7, PO-8, UX-3]

Moves of time by the clock, resets of time, changes of policies and of tables stand on record with
their places in `events`. Waiting and lateness follow from the times of arrival, which are in the
log too. So the engine's own reading of the stream comes to the same once more. Nothing is written.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from functools import partial

from rapport.channel.channel import Channels
from rapport.channel.finding.by_time import oldest
from rapport.core.detection import (
    DETECTED,
    Cause,
    Detection,
    Undecided,
    detection_order,
    each_once,
)
from rapport.core.errors import InvalidInput, Problem
from rapport.core.event import Event, StoredEvent
from rapport.core.release import LATE, LOOKED, RELEASES, Looked
from rapport.kernel.clock import ManualClock
from rapport.policy.engine.events import LATE_TYPE, TimeMoved, TimeReset
from rapport.policy.engine.output import EngineOutput
from rapport.policy.engine.pace import EngineSchedule
from rapport.policy.engine.places import StreamPosition, TablesChange
from rapport.policy.engine.reading import StreamReader
from rapport.policy.engine.running import ActivePlans
from rapport.policy.engine.told import EmittedResults
from rapport.policy.explaining.world import Reading as ShownReading
from rapport.policy.life.changes import CHANNEL, PolicyChange, RecordedChange, change_id
from rapport.policy.life.compiled import Compile, CompiledTexts
from rapport.policy.life.record import PolicyRecord
from rapport.policy.life.shadow import ShadowDifference
from rapport.policy.ontology import Ontology
from rapport.policy.pull_by_time import TableHistory
from rapport.policy.readings import split_events
from rapport.policy.replaying.causes import CauseCollector
from rapport.policy.replaying.replay import ReplayResult, TimeExtent
from rapport.policy.rows_on_record import versions_on_record
from rapport.policy.runners.base import END_OF_TIME
from rapport.tables.recorded_rows import RowsPlace
from rapport.tables.tables import Tables

EVENTS_CHANNEL, DETECTIONS = "events", "detections"
_PAGE = 5_000


class LiveReplay:
    """The policies of a node over its whole log, as they ran; all channels are only read."""

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
        self.then: TableHistory | None = None
        """The rows on record that the run used."""
        self.notes: list[str] = []
        """Why something may differ from what live found; filled by `run`."""

    async def run(self, progress: Callable[[int], None] | None = None) -> ReplayResult:
        """Everything found, in the order of the fixed output; what is pending at the end of the
        log stays pending, as live.
        """
        versions = await versions_on_record(self._channels)
        if versions:
            self.then = TableHistory(self._tables, versions)
        output = _CapturedOutput(self._channels, self._name, self._tables_changes)
        running = ActivePlans(
            (),
            self._tables if self.then is None else self.then.record.at(versions[0]),
            self._ontology,
            lateness_ms=self._lateness_ms,
            steady_ns=_no_clock,
            elsewhere=self._elsewhere,
        )
        record = _ReadOnlyRecord(self._channels, ManualClock(), self._name, self._texts)
        pace = EngineSchedule(0, quiet_ms=0, commit_every_ms=0, commit_every_events=0)
        reading = StreamReader(
            record, running, output, pace, _no_clock, now_ms=_no_clock, act_within_ms=0
        )
        await reading.go_to(0, None, 0, 0)
        await reading.meet_due()
        span, events = TimeExtent(), 0
        async for page in self._pages():
            await reading.take(page, self._ontology, self._skew_ms)
            events += span.note(self._times(page))
            if progress is not None:
                progress(events)
        await self._note_differences(output)
        return ReplayResult(
            detections=sorted(output.detections, key=detection_order),
            late=output.late,
            problems=list(running.runner.failed().values()),
            events=events,
            undecided=each_once(output.undecided),
            suppressed=running.runner.suppressed(),
            first=span.first,
            last=span.last,
        )

    async def behind(self, causes: Collection[Cause]) -> dict[Cause, list[ShownReading]]:
        """The readings that detections name as their causes; reads the log once more."""
        behind = CauseCollector(causes, self._ontology)
        async for page in self._pages():
            wanted = [one.event for one in page if one.event.id in behind.ids]
            if wanted:
                behind.take(split_events(wanted, self._ontology)[0])
        return behind.found

    async def _pages(self) -> AsyncIterator[list[StoredEvent]]:
        if EVENTS_CHANNEL not in self._channels.names():
            return
        channel, position = self._channels.channel(EVENTS_CHANNEL), 0
        while page := await channel.read_after(position, limit=_PAGE):
            position = page[-1].position
            yield page

    def _times(self, page: Sequence[StoredEvent]) -> list[int]:
        """Of the readings that were used; those too far ahead of their arrival were not."""
        streams = self._ontology.streams()
        return [
            one.event.time
            for one in page
            if one.event.type in streams and one.event.time <= one.received + self._skew_ms
        ]

    def _tables_changes(self, resets: Sequence[TimeReset]) -> list[TablesChange]:
        if self.then is None:
            return []
        return [
            TablesChange(
                self._place_of(version.place, resets),
                partial(self.then.record.at, version),
                self._ontology,
            )
            for version in self.then.versions[1:]
        ]

    def _place_of(self, rows: RowsPlace, resets: Sequence[TimeReset]) -> StreamPosition:
        """Rows are recorded with the watermark of their place, not with the resets before it."""
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
                if stored.event.type == LOOKED and stored.event.payload_as(Looked).policies:
                    return True
        return False


class _CapturedOutput(EngineOutput):
    """Keeps what the engine would append, and reads what it did append."""

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
        """Ids of the detections on record, without those of second looks."""
        self.recorded_late: set[Cause] = set()

    async def tell(
        self,
        told: EmittedResults,
        differences: Sequence[ShadowDifference],
        late: Sequence[Cause],
        moved: TimeMoved | TimeReset | None,
    ) -> None:
        """Keeps what was found."""
        self.detections += told.detections
        self.undecided += told.undecided
        self.late += late

    async def set_aside(self, aside: Sequence[tuple[Event, Problem]]) -> None:
        """Quarantined already."""

    async def steps_after(self, position: int) -> list[TimeMoved | TimeReset | TablesChange]:
        """Also where tables changed: live, a commit stands in each of these places."""
        found: list[TimeMoved | TimeReset | TablesChange] = []
        if DETECTIONS in self._channels.names():
            found = await super().steps_after(position)
        resets = [one for one in found if isinstance(one, TimeReset)]
        return [*found, *self._tables_changes(resets)]

    def see(self, event: Event) -> None:
        """Notes what is on record."""
        if event.type == DETECTED and LATE not in event.headers:
            self.recorded[event.id] = None
        elif event.type == LATE_TYPE:
            data = event.payload()
            self.recorded_late.add((data["time"], data["id"]))


class _ReadOnlyRecord(PolicyRecord):
    """The record of changes; what a detection does to a policy and is not on record is kept in
    memory.
    """

    async def append(self, changes: Sequence[PolicyChange]) -> list[RecordedChange]:
        """Takes changes in behind those on record."""
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
