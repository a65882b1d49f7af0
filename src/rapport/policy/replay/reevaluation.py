"""Re-evaluation of history after a release or an import of readings. [PO-7, PO-8, PO-11, ME-16]

A released or corrected reading is usually too late for the live runner. The plans of its stream are
run over history again: new detections are emitted as late, and those no longer found are reported
as unsupported. Imported readings are never seen by the live runner; they are evaluated with
everything the log holds of their time, the live state stays as it is, and detections are marked as
history.

So there are two views: a release is evaluated over the live readings, and the engine continues with
the result; an import is evaluated over live and imported readings.

At the end, while the live engine is stopped: append the new detections, let the engine adopt the
state and commit it, record the result in `releases`, commit the position. After a crash it runs
again; appended events have the same ids and are dropped as duplicates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from rapport.channel.channel import Channel, Channels, Subscription
from rapport.channel.event_lookup import oldest, position_before
from rapport.core.detection import DETECTED, UNDECIDED, Detection, Undecided
from rapport.core.event import CAUSE, Event, StoredEvent, cause_text, content_id, make_event
from rapport.core.release import (
    HISTORY,
    LATE,
    NOTIFY,
    REEVALUATED,
    REEVALUATION,
    RELEASE_DONE,
    RELEASES,
    ReevaluationResult,
    ReleaseDone,
)
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.policy.engine.engine import EngineProgress, PolicyEngine
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import END_OF_TIME
from rapport.policy.operators.plan_shape import longest_window_ms, uncertainty_ms
from rapport.policy.operators.uncertainty import watched_sources
from rapport.policy.plan import CorrelationTerm, Plan, PolicyPlan, longest_duration_ms
from rapport.policy.replay.history_runner import HistoryRunner, PlanSpan

UNSUPPORTED = "rapport.policy.unsupported"
SUPPORTED = "rapport.policy.supported"

_WINDOWS_AHEAD = 2
"""Windows by which a detection may precede a reading it depends on: by an `X FOLLOWED-BY NOT Y`
that is decided later.
"""
_WINDOWS_BACK = 8
"""Windows of history needed before a reading: a detection rests on at most five before it and lies
up to two before the reading; one is spare.
"""

DetectionKey = tuple[str, str, int, tuple[tuple[str, str], ...], tuple[str, ...]]
"""Identity of a detection: policy, version, time, bindings, and causes by their ids before
corrections.
"""
READER = "policy"
_PAGE = 5_000
_NEAR = 500
"""With at most this many events left, the live engine is stopped for the rest."""
_MOST_ROUNDS = 20
"""If the live engine is faster, it is stopped for more events after this many rounds."""
_LOOK_EVERY_MS = 20
_log = get_logger(__name__)


def streams_concerned(streams: Iterable[str], sources: Mapping[str, PushSource]) -> frozenset[str]:
    """The streams of released readings, and those whose silence they end: any stream of a source
    with a period ends its silence.
    """
    touched = frozenset(streams)
    own = [one.streams for one in sources.values() if one.period_ms > 0]
    return touched.union(*(given for given in own if not given.isdisjoint(touched)))


def span_of(
    plan: Plan,
    sources: Mapping[str, PushSource],
    *,
    first_ms: int,
    last_ms: int,
    began: int | None,
    known_from: int | None,
) -> PlanSpan | None:
    """The span a plan needs to judge readings between two times; None when it was deployed later.

    `began`: its deployment. `known_from`: since when the log is complete; None: always.
    """
    if began is not None and last_ms < began:
        return None
    window_ms = longest_window_ms(plan) + uncertainty_ms(plan, sources)
    reach_ms = _reach_ms(plan, sources)
    judged_from = first_ms - _WINDOWS_AHEAD * window_ms
    start = None if remembers_all(plan) else first_ms - reach_ms
    if began is not None and (start is None or start < began):
        # It sees no earlier reading, but an earlier silence of a source may matter.
        start = began - window_ms - _longest_period(plan, sources) - 1
        judged_from = max(judged_from, began)
    is_incomplete = known_from is not None and (start is None or start < known_from)
    if known_from is not None and is_incomplete:
        start, judged_from = known_from, max(judged_from, known_from + reach_ms)
    return PlanSpan(
        plan=plan,
        start=start,
        began=began,
        judged_from=judged_from,
        is_incomplete=is_incomplete,
    )


def history_spans(
    plan: Plan,
    sources: Mapping[str, PushSource],
    *,
    first_ms: int,
    last_ms: int,
    began: int | None,
    known_from: int | None,
) -> list[PlanSpan]:
    """The spans a plan needs to judge imported readings between two times: the time before its
    deployment, as if it had been deployed always, and the time since, as live.

    `known_from`: since when the log holds every live reading. Detections before that may rest on
    removed readings and are not refuted.
    """
    since = span_of(plan, sources, first_ms=first_ms, last_ms=last_ms, began=began, known_from=None)
    spans = [] if since is None else [since]
    if began is not None and first_ms < began:
        before = span_of(
            plan,
            sources,
            first_ms=first_ms,
            last_ms=min(last_ms, began),
            began=None,
            known_from=None,
        )
        assert before is not None
        changes = {"end": began, "judged_until": began, "before_deployment": True}
        spans.append(msgspec.structs.replace(before, **changes))
    reach_ms = _reach_ms(plan, sources)
    if not remembers_all(plan):
        spans = [_bounded(span, sources, last_ms) for span in spans]
    if known_from is None:
        return spans
    refutes_from = known_from + reach_ms
    return [
        msgspec.structs.replace(
            span,
            refutes_from=max(span.judged_from, refutes_from),
            is_incomplete=span.start is None or span.start < known_from,
        )
        for span in spans
    ]


def until_imported(span: PlanSpan, sources: Mapping[str, PushSource], last_ms: int) -> PlanSpan:
    """Limits a span before deployment to the findings that an imported reading, the newest of
    `last_ms`, can contribute to.
    """
    if not span.before_deployment or span.judged_until is None:
        return span
    assert isinstance(span.plan, Plan)  # a re-evaluation has no others
    longest_ms = max(span.plan.once_per_ms or 0, longest_duration_ms(span.plan))
    reach_ms = _reach_ms(span.plan, sources) + longest_ms
    until = min(span.judged_until, last_ms + reach_ms)
    return msgspec.structs.replace(span, judged_until=until)


def _bounded(span: PlanSpan, sources: Mapping[str, PushSource], last_ms: int) -> PlanSpan:
    """Limits the span of a plan with bounded memory to where readings of `last_ms` can matter:
    dependent detections lie at most six windows later and are decided within two more.
    """
    assert isinstance(span.plan, Plan)  # a re-evaluation has no others
    window_ms = longest_window_ms(span.plan) + uncertainty_ms(span.plan, sources)
    end = last_ms + _reach_ms(span.plan, sources)
    until = end - _WINDOWS_AHEAD * window_ms
    return msgspec.structs.replace(
        span,
        end=end if span.end is None else min(span.end, end),
        judged_until=until if span.judged_until is None else min(span.judged_until, until),
    )


def _reach_ms(plan: Plan, sources: Mapping[str, PushSource]) -> int:
    window_ms = longest_window_ms(plan) + uncertainty_ms(plan, sources)
    return _WINDOWS_BACK * window_ms + _longest_period(plan, sources) + 1


def remembers_all(plan: Plan) -> bool:
    """Whether the plan's state depends on all earlier readings: it consumes events, has states or
    silences, suppresses repeated detections, or has a guard, which knows last values.
    """
    if plan.guard is not None:
        return True
    if plan.once_per_ms is not None or longest_duration_ms(plan) > 0:
        return True
    return any(isinstance(plan.terms[term], CorrelationTerm) for term in plan.positive_terms())


def _longest_period(plan: Plan, sources: Mapping[str, PushSource]) -> int:
    names = watched_sources(plan, sources)
    return max((sources[name].period_ms for name in names), default=0)


class KnownDetections:
    """The emitted detections of some plans since a time, from `detections`."""

    def __init__(
        self,
        source: str,
        versions: Mapping[str, str],
        since_ms: int,
        *,
        with_imported: bool = False,
    ) -> None:
        """`source`: that of the detections; `versions`: the version of each policy;
        `with_imported`: include detections of imported readings.
        """
        self._source, self._versions, self._since_ms = source, versions, since_ms
        self._with_imported = with_imported
        self.detections: dict[str, Detection] = {}
        self.undecided: set[str] = set()
        self.unsupported: set[str] = set()

    def take(self, event: Event) -> None:
        """Adds an event of the channel, in order."""
        if event.source != self._source:
            return
        if event.type == DETECTED and event.time >= self._since_ms:
            if HISTORY in event.headers and not self._with_imported:
                return
            found = Detection.from_event(event)
            if self._versions.get(found.policy) == found.version:
                self.detections[event.id] = found
        elif event.type == UNDECIDED:
            self.undecided.add(event.id)
        elif event.type == UNSUPPORTED:
            self.unsupported.add(event.payload_as(_JudgedDetection).detection)
        elif event.type == SUPPORTED:
            self.unsupported.discard(event.payload_as(_JudgedDetection).detection)


class _JudgedDetection(msgspec.Struct):
    detection: str


class ReevaluationFindings(msgspec.Struct, frozen=True):
    """The result of a re-evaluation."""

    new: list[Detection]
    undecided: list[Undecided]
    unsupported: list[Detection]
    supported_again: list[Detection]


def compare_with_known(
    known: KnownDetections,
    found: Sequence[Detection],
    undecided: Sequence[Undecided],
    *,
    spans: Sequence[PlanSpan],
    until_ms: int,
    original_of: Mapping[str, str],
    waiting: Sequence[Detection] = (),
) -> ReevaluationFindings:
    """Compares findings with the emitted detections. Detections are unsupported only before
    `until_ms`, within one of the `spans`, and if they are not `waiting`.
    """
    emitted = {key_of(item, original_of) for item in known.detections.values()}
    held = {key_of(item, original_of) for item in (*found, *waiting)}
    spans_of: dict[str, list[PlanSpan]] = {}
    for span in spans:
        spans_of.setdefault(span.plan.policy, []).append(span)
    judged = [
        (id, item, key_of(item, original_of) in held)
        for id, item in known.detections.items()
        if item.time < until_ms
        and any(_may_refute(span, item.time) for span in spans_of.get(item.policy, ()))
    ]
    return ReevaluationFindings(
        new=[item for item in found if key_of(item, original_of) not in emitted],
        undecided=[item for item in undecided if item.id() not in known.undecided],
        unsupported=[i for id, i, holds in judged if not holds and id not in known.unsupported],
        supported_again=[i for id, i, holds in judged if holds and id in known.unsupported],
    )


def _may_refute(span: PlanSpan, time_ms: int) -> bool:
    since = span.judged_from if span.refutes_from is None else span.refutes_from
    return time_ms >= since and span.judges(time_ms)


def key_of(detection: Detection, original_of: Mapping[str, str]) -> DetectionKey:
    """The identity of a detection, independent of corrections."""
    causes = tuple(original_of.get(id, id) for _time, id in detection.causes)
    bindings = tuple(sorted(detection.bindings.items()))
    return detection.policy, detection.version, detection.time, bindings, causes


def marks_of(done: ReleaseDone) -> dict[str, str]:
    """The headers of its detections: history, or late."""
    marks = {REEVALUATION: done.release}
    if done.history:
        marks[HISTORY] = "true"
    if done.notify or not done.history:
        marks[LATE] = "true"
    if done.notify:
        marks[NOTIFY] = "true"
    return marks


def events_of(
    findings: ReevaluationFindings, *, source: str, release: str, marks: Mapping[str, str]
) -> list[Event]:
    """The events for `detections`; equal findings have equal ids."""
    found = [item.to_event(source=source) for item in findings.new]
    found += [item.to_event(source=source) for item in findings.undecided]
    events = [_with_headers(event, marks) for event in found]
    for kind, judged in (
        (UNSUPPORTED, findings.unsupported),
        (SUPPORTED, findings.supported_again),
    ):
        events += [_judgement(kind, item, source, release) for item in judged]
    return events


def _judgement(kind: str, detection: Detection, source: str, release: str) -> Event:
    """An event that says whether corrected history supports a detection; the detection stays."""
    id = detection.id()
    return make_event(
        source=source,
        id=content_id(kind, id, release),
        type=kind,
        subject=f"policy/{detection.policy}",
        time=detection.time,
        data={
            "detection": id,
            "policy": detection.policy,
            "time": detection.time,
            "bindings": dict(sorted(detection.bindings.items())),
            "release": release,
        },
        headers={CAUSE: cause_text(id), REEVALUATION: release},
    )


def _with_headers(event: Event, headers: Mapping[str, str]) -> Event:
    return msgspec.structs.replace(event, headers={**event.headers, **headers})


def policies_of(streams: Collection[str], plans: Iterable[PolicyPlan]) -> list[Plan]:
    """The plans with conditions that read one of the streams."""
    return [
        plan
        for plan in plans
        if isinstance(plan, Plan) and not set(plan.streams()).isdisjoint(streams)
    ]


class ReevaluationService:
    """Follows `releases` with a position of its own. Belongs to the engine's event loop."""

    def __init__(self, channels: Channels, engine: PolicyEngine, clock: Clock) -> None:
        self._channels, self._engine, self._clock = channels, engine, clock
        self._subscription: Subscription | None = None

    async def run(self) -> None:
        """Runs until cancelled. Started again after a failure it continues after the last
        re-evaluation.
        """
        self._subscription = None
        while True:
            await self.step()

    async def step(self, *, timeout_ms: int | None = None) -> int:
        """Processes events of `releases` and re-evaluates after each completed release; returns the
        number of re-evaluations. Waits until the live engine has processed the released readings.
        """
        if self._subscription is None:
            self._subscription = await self._channels.subscribe(RELEASES, READER)
        looked = 0
        for stored in await self._subscription.next_batch(timeout_ms=timeout_ms):
            if stored.event.type == RELEASE_DONE:
                await self.look(stored.event)
                looked += 1
            await self._subscription.commit(stored.position)
        return looked

    async def look(self, event: Event) -> ReevaluationResult:
        """Re-evaluates after one release, given by its last event."""
        done: ReleaseDone = event.payload_as(ReleaseDone)
        looked = ReevaluationResult(release=done.release)
        if done.first_ms is not None:
            await self._wait_until_processed(done.through)
            looked = await self._carry_out(done)
        await self._channels.channel(RELEASES).append([_result_event(self._engine.name, looked)])
        if looked.policies:
            _log.info("looked again", **msgspec.to_builtins(looked))
        return looked

    async def _carry_out(self, done: ReleaseDone) -> ReevaluationResult:
        """Uses the view of the readings; a release that touches imported readings is evaluated over
        both views.
        """
        if done.history:
            return await self._reevaluate(done)
        look = _Reevaluation(self._channels, self._engine, done, self._clock)
        looked = await look.carry_out()
        if not look.saw_imported:
            return looked
        whole = await self._reevaluate(msgspec.structs.replace(done, history=True, notify=False))
        counts = ("history_detections", "undecided", "unsupported", "supported_again")
        added = {name: getattr(looked, name) + getattr(whole, name) for name in counts}
        return msgspec.structs.replace(looked, **added)

    async def _reevaluate(self, done: ReleaseDone) -> ReevaluationResult:
        return await _Reevaluation(self._channels, self._engine, done, self._clock).carry_out()

    async def _wait_until_processed(self, position: int) -> None:
        while True:
            async with self._engine.turn:
                if (await self._engine.progress()).position >= position:
                    return
            await self._clock.sleep(_LOOK_EVERY_MS)


class _Reevaluation:
    """One re-evaluation."""

    def __init__(
        self, channels: Channels, engine: PolicyEngine, done: ReleaseDone, clock: Clock
    ) -> None:
        self._channels, self._engine, self._done = channels, engine, done
        self._clock = clock
        self.saw_imported = False
        """Whether readings were skipped because they were imported as history."""
        self._events = channels.channel("events")
        self._detections = channels.channel("detections")
        self._streams = streams_concerned(done.streams, engine.ontology.sources)

    async def carry_out(self) -> ReevaluationResult:
        async with self._engine.turn:
            standing = await self._engine.progress()
        spans = await self._spans(standing)
        if not spans:
            return ReevaluationResult(release=self._done.release)
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

    async def _evaluate(
        self, spans: list[PlanSpan], standing: EngineProgress
    ) -> ReevaluationResult:
        since_ms = min(span.judged_from for span in spans)
        versions = {span.plan.policy: span.plan.version() for span in spans}
        self._known = KnownDetections(
            self._engine.name, versions, since_ms, with_imported=self._done.history
        )
        self._detections_position = await position_before(
            self._detections, since_ms - self._engine.skew_ms
        )
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
        """Surveys the range, then runs until little is left, while the live engine continues."""
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
                until = (await self._engine.progress()).position

    async def _finish(self) -> ReevaluationResult:
        """Processes the rest while the engine is stopped, then emits and commits."""
        standing = await self._engine.progress()
        while self._position < standing.position and await self._feed_page(standing.position):
            pass
        until_ms = self._until_ms(standing)
        await asyncio.to_thread(self._history.advance, until_ms)
        await self._read_detections()
        runs = [run for run in self._history.runs if _still_runs(run.span, standing)]
        # A failed run has too few findings to judge by or to continue with. A run through times
        # of a clock that was ahead ends elsewhere than the engine. With imported readings a run
        # ends at the current time, independent of the engine.
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
        """How far time advances: to the live watermark, for imported readings to the clock, because
        there may be no recent live reading.
        """
        if not self._done.history:
            return standing.watermark
        return max(standing.watermark, self._clock.now_ms() - self._engine.lateness_ms)

    async def _without_live(
        self, findings: ReevaluationFindings, live_ms: int
    ) -> ReevaluationFindings:
        """Drops findings of live readings alone that the live policies have yet to decide."""
        if live_ms <= -END_OF_TIME:  # there was no live reading
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
        if not batch:  # the rest cannot be read
            self._position = until
            return False
        await asyncio.to_thread(self._history.feed, batch)
        self._position = batch[-1].position
        return True

    async def _page(self, channel: Channel, after: int, until: int) -> list[StoredEvent]:
        batch = await channel.read_after(after, limit=_PAGE)
        return [stored for stored in batch if stored.position <= until]

    async def _read_detections(self) -> None:
        while batch := await self._detections.read_after(self._detections_position, limit=_PAGE):
            for stored in batch:
                self._known.take(stored.event)
            self._detections_position = batch[-1].position

    def _looked(
        self, spans: list[PlanSpan], findings: ReevaluationFindings, until_ms: int
    ) -> ReevaluationResult:
        return ReevaluationResult(
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
    """Whether the evaluated plan still runs: neither replaced nor restarted meanwhile."""
    policy = span.plan.policy
    versions = {plan.policy: plan.version() for plan in standing.plans}
    is_same = versions.get(policy) == span.plan.version()
    began = standing.began.get(policy)
    if span.before_deployment:
        return is_same and began is not None and span.end is not None and span.end <= began
    return is_same and began == span.began


def _result_event(source: str, looked: ReevaluationResult) -> Event:
    return make_event(
        source=source,
        id=content_id("second look", looked.release),
        type=REEVALUATED,
        subject=f"release/{looked.release}",
        time=looked.until_ms or 0,
        data=looked,
        headers={CAUSE: cause_text(looked.release)},
    )
