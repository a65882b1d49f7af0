"""Policies over the site's own log, found by time; beside a running node too. [PO-8, UX-3]

The log holds what was given its meaning already. Of a corrected reading only the newest form
counts, and what was released or came late counts at its own time, as after a second look.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence

from rapport.channel.channel import Channels
from rapport.channel.finding.by_time import BACKWARDS_MS, oldest, position_before
from rapport.core.detection import Cause, detection_order, each_once
from rapport.core.errors import InvalidInput
from rapport.core.event import StoredEvent
from rapport.core.release import DONE, RELEASES, ReleaseDone
from rapport.policy.context_on_record import check_context_on_record
from rapport.policy.explaining.attempts import TimeSpan as Asked
from rapport.policy.explaining.reach import NeededRange, needed_range
from rapport.policy.explaining.world import Reading
from rapport.policy.ontology import Ontology
from rapport.policy.plan import Plan
from rapport.policy.pull_by_time import PullByTime, TableHistory
from rapport.policy.readings import split_events
from rapport.policy.replaying.causes import CauseCollector
from rapport.policy.replaying.history_run import HistoryRunner, PlanSpan
from rapport.policy.replaying.replay import ReplayResult
from rapport.policy.rows_on_record import versions_on_record
from rapport.policy.runners.base import PullData
from rapport.tables.tables import Tables

EVENTS_CHANNEL = "events"
_PAGE = 5_000
_SLACK_MS = 600_000
"""How long after its time a reading is still looked for where there is an end."""
_LONG_AGO = -(2**61)


class LogReplay:
    """Plans over a stretch of the channel `events`: detections with a time in [since, until).

    Readings before the stretch are used as far back as windows and durations reach. The stretch is
    read twice: to learn what lies behind its time, then to run.
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
        """`is_open`: `until` is now, so everything there is belongs to it. `tables`: those of which
        the rows of then are used where the log has them on record; None: at all times `pull`.
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
        self.then: TableHistory | None = None
        """The rows on record that a run used."""
        self._events = channels.channel(EVENTS_CHANNEL)
        self._lateness_ms, self._skew_ms = lateness_ms, skew_ms
        self._since, self._until, self._is_open = since, until, is_open
        self._range = (0, 0)

    async def run(
        self, plans: Sequence[Plan], progress: Callable[[int], None] | None = None
    ) -> ReplayResult:
        """Everything found, in the order of the fixed output; nothing is late here. Raises
        Unsupported for plans that read context of which nothing is on record.
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
        async for page in self._pages():
            await asyncio.to_thread(history.survey, page)
        first = await oldest(self._events)
        history.begin(is_whole=self._range[0] == 0 and (first is None or first.position == 1))
        counted = _ReadingCount(self._ontology.streams(), self._since, self._until, self._skew_ms)
        async for page in self._pages():
            await asyncio.to_thread(history.feed, page)
            counted.take(page)
            if progress is not None:
                progress(counted.events)
        await asyncio.to_thread(history.advance, reach.end + 1)
        return self._result(history, counted)

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
        self.then = TableHistory(self._tables, versions)
        return await asyncio.to_thread(self.then.pull, plans)

    async def behind(self, causes: Collection[Cause]) -> dict[Cause, list[Reading]]:
        """The readings that detections name as their causes; reads the stretch once more."""
        behind = CauseCollector(causes, self._ontology)
        async for page in self._pages():
            wanted = [one.event for one in page if one.event.id in behind.ids]
            if wanted:
                behind.take(split_events(wanted, self._ontology)[0])
        return behind.found

    def _result(self, history: HistoryRunner, counted: _ReadingCount) -> ReplayResult:
        found = [one for run in history.runs for one in run.found if one.time < self._until]
        undecided = [one for run in history.runs for one in run.undecided if one.time < self._until]
        suppressed: dict[str, int] = {}
        if self._since is None:  # else it would count what was left out before, too
            suppressed = {
                name: count
                for run in history.runs
                for name, count in run.runner.suppressed().items()
            }
        return ReplayResult(
            detections=sorted(found, key=detection_order),
            late=[],
            problems=[each for run in history.runs for each in run.runner.failed().values()],
            events=counted.events,
            undecided=each_once(undecided),
            suppressed=suppressed,
            first=counted.first,
            last=counted.last,
        )

    def _reach(self, plan: Plan) -> NeededRange:
        start = _LONG_AGO if self._since is None else self._since
        reach = needed_range(plan, self._ontology.sources, Asked(start, self._until))
        return NeededRange(reach.start - (plan.once_per_ms or 0), reach.end)

    async def _find_range(self, reach: NeededRange) -> tuple[int, int]:
        """The positions after the first and up to the second hold all that matters."""
        first, last = 0, self._events.last_position()
        if self._since is not None:
            first = await position_before(self._events, reach.start - self._skew_ms)
        if self._is_open:
            return first, last
        # The place is found for a minute before a time, lest a clock set back hides something.
        end = await position_before(self._events, reach.end + _SLACK_MS + BACKWARDS_MS)
        end = max(end, await self._released_until(reach))
        # Nothing came as it happened: the log was filled later, so all of it is looked at.
        return (first, end) if end > first else (first, last)

    async def _released_until(self, reach: NeededRange) -> int:
        """How far the log must be read for what releases brought into the stretch afterwards."""
        through = position = 0
        if RELEASES not in self._channels.names():
            return 0
        while page := await self._channels.channel(RELEASES).read_after(position, limit=_PAGE):
            position = page[-1].position
            for stored in page:
                if stored.event.type == DONE:
                    through = max(through, _released_through(stored, reach))
        return through

    async def _pages(self) -> AsyncIterator[list[StoredEvent]]:
        position, end = self._range
        while position < end and (page := await self._events.read_after(position, limit=_PAGE)):
            position = page[-1].position
            yield [stored for stored in page if stored.position <= end]


class _ReadingCount:
    """How many readings there are in the stretch, and from when to when; those ahead of the clock
    that received them do not count, as live.
    """

    def __init__(
        self, streams: Collection[str], since: int | None, until: int, skew_ms: int
    ) -> None:
        self._streams, self._since, self._until = streams, since, until
        self._skew_ms = skew_ms
        self.events = 0
        self.first: int | None = None
        self.last: int | None = None

    def take(self, page: Sequence[StoredEvent]) -> None:
        """Counts the readings of a page."""
        since = _LONG_AGO if self._since is None else self._since
        times = [
            one.event.time
            for one in page
            if one.event.type in self._streams
            and since <= one.event.time < self._until
            and one.event.time <= one.received + self._skew_ms
        ]
        if times:
            self.events += len(times)
            self.first = min(times) if self.first is None else min(self.first, *times)
            self.last = max(times) if self.last is None else max(self.last, *times)


def _released_through(stored: StoredEvent, reach: NeededRange) -> int:
    done: ReleaseDone = stored.event.payload_as(ReleaseDone)
    if done.first_ms is None or done.last_ms is None:
        return 0
    return done.through if done.first_ms <= reach.end and done.last_ms >= reach.start else 0
