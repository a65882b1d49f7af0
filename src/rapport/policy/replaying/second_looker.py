"""Looks again after every release and import: a thin shell around `second_look`, with a position of
its own in `releases`. [PO-7, PO-8, ME-16]

There are two views of the past. The live one has the readings that the live engine sees; a release
is evaluated over it, and the engine goes on with the result. The whole one has the readings that
were imported as history, too; imports are evaluated over it, and the engine is left alone.

Order at the end, while the live engine waits for its turn: append what is new, let the engine go on
with what history says and commit that, note it in `releases`, commit the place. A crash anywhere
makes it look again; what was appended has the same ids and is dropped.
"""

from __future__ import annotations

import asyncio

import msgspec

from rapport.channel.channel import Channel, Channels, Subscription
from rapport.channel.finding.by_time import oldest, position_before
from rapport.core.detection import Detection, Undecided
from rapport.core.event import CAUSE, Event, StoredEvent, cause_text, make_event
from rapport.core.ids import content_id
from rapport.core.release import DONE, HISTORY, LOOKED, RELEASES, Looked, ReleaseDone
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.policy.engine.engine import EngineProgress, PolicyEngine
from rapport.policy.replaying.history_run import HistoryRunner, PlanSpan
from rapport.policy.replaying.second_look import (
    KnownDetections,
    ReevaluationFindings,
    compare_with_known,
    events_of,
    history_spans,
    marks_of,
    policies_of,
    span_of,
    streams_concerned,
    until_imported,
)
from rapport.policy.runners.base import END_OF_TIME

READER = "policy"
_PAGE = 5_000
_NEAR = 500
"""So many events behind, the rest is read while the live engine waits."""
_MOST_ROUNDS = 20
"""Where live is faster than looking, it has to wait for more than that in the end."""
_LOOK_EVERY_MS = 20

_log = get_logger(__name__)


class ReevaluationService:
    """Follows `releases`; holds its place there. Belongs to the event loop of the engine."""

    def __init__(self, channels: Channels, engine: PolicyEngine, clock: Clock) -> None:
        self._channels, self._engine, self._clock = channels, engine, clock
        self._subscription: Subscription | None = None

    async def run(self) -> None:
        """Works until cancelled; started again after a failure it goes on after the last look."""
        self._subscription = None
        while True:
            await self.step()

    async def step(self, *, timeout_ms: int | None = None) -> int:
        """Takes what was noted in `releases`, and looks again where a release ended; returns how
        many times it did. Waits until the live engine has taken the readings released.
        """
        if self._subscription is None:
            self._subscription = await self._channels.subscribe(RELEASES, READER)
        looked = 0
        for stored in await self._subscription.next_batch(timeout_ms=timeout_ms):
            if stored.event.type == DONE:
                await self.look(stored.event)
                looked += 1
            await self._subscription.commit(stored.position)
        return looked

    async def look(self, event: Event) -> Looked:
        """The second look after one release, given by its last event."""
        done: ReleaseDone = event.payload_as(ReleaseDone)
        looked = Looked(release=done.release)
        if done.first_ms is not None:
            await self._until_taken(done.through)
            looked = await self._carry_out(done)
        await self._channels.channel(RELEASES).append([_looked_event(self._engine.name, looked)])
        if looked.policies:
            _log.info("looked again", **msgspec.to_builtins(looked))
        return looked

    async def _carry_out(self, done: ReleaseDone) -> Looked:
        """Over the view that the readings belong to; where readings were imported for the time of
        a release, over both.
        """
        if done.history:
            return await self._look_at(done)
        look = _Reevaluation(self._channels, self._engine, done, self._clock)
        looked = await look.carry_out()
        if not look.saw_imported:
            return looked
        whole = await self._look_at(msgspec.structs.replace(done, history=True, notify=False))
        counts = ("history_detections", "undecided", "unsupported", "supported_again")
        added = {name: getattr(looked, name) + getattr(whole, name) for name in counts}
        return msgspec.structs.replace(looked, **added)

    async def _look_at(self, done: ReleaseDone) -> Looked:
        return await _Reevaluation(self._channels, self._engine, done, self._clock).carry_out()

    async def _until_taken(self, position: int) -> None:
        while True:
            async with self._engine.turn:
                if (await self._engine.standing()).position >= position:
                    return
            await self._clock.sleep(_LOOK_EVERY_MS)


class _Reevaluation:
    """One second look under way."""

    def __init__(
        self, channels: Channels, engine: PolicyEngine, done: ReleaseDone, clock: Clock
    ) -> None:
        self._channels, self._engine, self._done = channels, engine, done
        self._clock = clock
        self.saw_imported = False
        """Whether readings were left out because they were imported as history."""
        self._events = channels.channel("events")
        self._detections = channels.channel("detections")
        self._streams = streams_concerned(done.streams, engine.ontology.sources)

    async def carry_out(self) -> Looked:
        async with self._engine.turn:
            standing = await self._engine.standing()
        spans = await self._spans(standing)
        if not spans:
            return Looked(release=self._done.release)
        self._history = HistoryRunner(
            spans,
            self._engine.pull,
            self._engine.ontology,
            lateness_ms=self._engine.lateness_ms,
            skew_ms=self._engine.skew_ms,
            with_imported=self._done.history,
        )
        try:
            return await self._evaluate(spans, standing)
        finally:
            self._history.close()

    async def _evaluate(self, spans: list[PlanSpan], standing: EngineProgress) -> Looked:
        since_ms = min(span.judged_from for span in spans)
        versions = {span.plan.policy: span.plan.version() for span in spans}
        self._known = KnownDetections(
            self._engine.name, versions, since_ms, with_imported=self._done.history
        )
        self._said_at = await position_before(self._detections, since_ms - self._engine.skew_ms)
        await self._run_until_near(spans, standing.position)
        async with self._engine.turn:
            return await self._finish()

    async def _spans(self, standing: EngineProgress) -> list[PlanSpan]:
        assert self._done.first_ms is not None
        assert self._done.last_ms is not None
        known_from = await self._known_from()
        spans: list[PlanSpan | None] = []
        for plan in policies_of(self._streams, standing.plans):
            began, sources = standing.began.get(plan.policy), self._engine.ontology.sources
            times = {"first_ms": self._done.first_ms, "last_ms": self._done.last_ms}
            if self._done.history:
                spans += history_spans(plan, sources, **times, began=began, known_from=known_from)
            else:
                spans.append(span_of(plan, sources, **times, began=began, known_from=known_from))
        return [span for span in spans if span is not None]

    async def _known_from(self) -> int | None:
        """Since when the log holds every reading; None: since the first."""
        first = await oldest(self._events)
        if first is None or first.position == 1:
            return None
        return first.received + self._engine.skew_ms

    async def _run_until_near(self, spans: list[PlanSpan], until: int) -> None:
        """Surveys all, then runs until little is left; the live engine goes on meanwhile."""
        position = 0
        starts = [span.start for span in spans if span.start is not None]
        if len(starts) == len(spans):
            position = await position_before(self._events, min(starts) - self._engine.skew_ms)
        place = position
        while place < until and (batch := await self._page(self._events, place, until)):
            await asyncio.to_thread(self._history.survey, batch)
            place = batch[-1].position
        first = await oldest(self._events)
        newest = self._history.last_imported_ms
        self.saw_imported = newest is not None and not self._done.history
        if self._done.history and newest is not None:
            sources = self._engine.ontology.sources
            spans = [until_imported(span, sources, newest) for span in spans]
        self._history.begin(
            spans, is_whole=position == 0 and (first is None or first.position == 1)
        )
        self._position = position
        await self._read_detections()
        for _round in range(_MOST_ROUNDS):
            if until - self._position <= _NEAR:
                return
            while self._position < until and await self._feed_page(until):
                pass
            async with self._engine.turn:
                until = (await self._engine.standing()).position

    async def _finish(self) -> Looked:
        """What is left, with the engine standing still; then everything that follows."""
        standing = await self._engine.standing()
        while self._position < standing.position and await self._feed_page(standing.position):
            pass
        until_ms = self._until_ms(standing)
        await asyncio.to_thread(self._history.advance, until_ms)
        await self._read_detections()
        runs = [run for run in self._history.runs if _still_runs(run.span, standing)]
        # One that failed on the way has found too little to judge by, or to go on with; one that
        # went through times of a clock that was ahead stands elsewhere than the engine. A look at
        # imported readings goes up to now, wherever the engine stands.
        whole = [
            run
            for run in runs
            if not run.runner.failed()
            and (self._done.history or run.runner.watermark <= standing.watermark)
        ]
        findings = compare_with_known(
            self._known,
            [item for run in runs for item in run.found],
            [item for run in runs for item in run.undecided],
            spans=[run.span for run in whole],
            until_ms=until_ms,
            original_of=self._history.original_of,
            waiting=[item for run in whole for item in run.waiting(until_ms)],
        )
        if self._done.history:
            findings = await self._without_live(findings, standing.watermark)
        events = events_of(
            findings,
            source=self._engine.name,
            release=self._done.release,
            marks=marks_of(self._done),
        )
        for first in range(0, len(events), _PAGE):
            await self._detections.append(events[first : first + _PAGE])
        if not self._done.history:
            await self._engine.adopt(
                [run.runner for run in whole], self._streams, self._history.superseded()
            )
        spans = [
            msgspec.structs.replace(
                run.span, is_incomplete=run.span.is_incomplete or run not in whole
            )
            for run in runs
        ]
        return self._looked(spans, findings, until_ms)

    def _until_ms(self, standing: EngineProgress) -> int:
        """How far time goes: to where live stands, for imported readings to the clock, since no
        live reading may have come for long.
        """
        if not self._done.history:
            return standing.watermark
        return max(standing.watermark, self._clock.now_ms() - self._engine.lateness_ms)

    async def _without_live(
        self, findings: ReevaluationFindings, live_ms: int
    ) -> ReevaluationFindings:
        """Without what live readings alone lead to and live policies have yet to decide: they find
        it themselves.
        """
        if live_ms <= -END_OF_TIME:  # no live reading was ever seen
            return findings
        return msgspec.structs.replace(
            findings,
            new=[one for one in findings.new if await self._is_of_the_past(one, live_ms)],
            undecided=[
                one for one in findings.undecided if await self._is_of_the_past(one, live_ms)
            ],
        )

    async def _is_of_the_past(self, found: Detection | Undecided, live_ms: int) -> bool:
        if found.time < live_ms:
            return True
        for time, id in found.causes:
            for channel, stored in await self._channels.find_event(id):
                is_cause = channel == "events" and stored.event.time == time
                if is_cause and HISTORY in stored.event.headers:
                    return True
        return False

    async def _feed_page(self, until: int) -> bool:
        batch = await self._page(self._events, self._position, until)
        if not batch:  # what is left cannot be read
            self._position = until
            return False
        await asyncio.to_thread(self._history.feed, batch)
        self._position = batch[-1].position
        return True

    async def _page(self, channel: Channel, after: int, until: int) -> list[StoredEvent]:
        batch = await channel.read_after(after, limit=_PAGE)
        return [stored for stored in batch if stored.position <= until]

    async def _read_detections(self) -> None:
        while batch := await self._detections.read_after(self._said_at, limit=_PAGE):
            for stored in batch:
                self._known.take(stored.event)
            self._said_at = batch[-1].position

    def _looked(
        self, spans: list[PlanSpan], findings: ReevaluationFindings, until_ms: int
    ) -> Looked:
        return Looked(
            release=self._done.release,
            policies=sorted({span.plan.policy for span in spans}),
            first_ms=min((span.judged_from for span in spans), default=None),
            until_ms=until_ms,
            late_detections=0 if self._done.history else len(findings.new),
            history_detections=len(findings.new) if self._done.history else 0,
            undecided=len(findings.undecided),
            unsupported=len(findings.unsupported),
            supported_again=len(findings.supported_again),
            incomplete=sorted({span.plan.policy for span in spans if span.is_incomplete}),
        )


def _still_runs(span: PlanSpan, standing: EngineProgress) -> bool:
    """Whether the plan is the one that was looked at: not replaced meanwhile, nor begun anew."""
    policy = span.plan.policy
    versions = {plan.policy: plan.version() for plan in standing.plans}
    is_same = versions.get(policy) == span.plan.version()
    began = standing.began.get(policy)
    if span.before_deployment:
        return is_same and began is not None and span.end is not None and span.end <= began
    return is_same and began == span.began


def _looked_event(source: str, looked: Looked) -> Event:
    return make_event(
        source=source,
        id=content_id("second look", looked.release),
        type=LOOKED,
        subject=f"release/{looked.release}",
        time=looked.until_ms or 0,
        data=looked,
        headers={CAUSE: cause_text(looked.release)},
    )
