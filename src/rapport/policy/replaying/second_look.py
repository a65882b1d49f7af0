"""The second look at history after a release or an import: which plans, over what, and what is new.
Pure. [PO-7, PO-11, ME-16]

A released or corrected reading is usually too late for the live runner. The plans that listen to
its stream are run over history again; what they find and nobody was told becomes a late detection,
and what they no longer find is reported as unsupported.

Readings that were imported as history are never seen by the live runner. They are evaluated by a
second look over everything the log holds of their time, which leaves the live state as it is; what
it finds is marked as of the past.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from rapport.core.detection import DETECTED, UNDECIDED, Detection, Undecided
from rapport.core.event import CAUSE, Event, cause_text, make_event
from rapport.core.ids import content_id
from rapport.core.release import HISTORY, LATE, NOTIFY, SECOND_LOOK, ReleaseDone
from rapport.policy.ontology import PushSource
from rapport.policy.plan import CorrelationTerm, LastingTerm, Plan, SilentTerm
from rapport.policy.replaying.history_run import PlanSpan
from rapport.policy.runners.operators.reaches import longest_window_ms, uncertainty_ms
from rapport.policy.runners.silence import watched_sources

UNSUPPORTED = "rapport.policy.unsupported"
SUPPORTED = "rapport.policy.supported"

_WINDOWS_AHEAD = 2
"""So many windows before a reading a detection may lie that depends on it: by an `X FOLLOWED-BY NOT
Y` that is decided later."""
_WINDOWS_BACK = 8
"""So many windows before a reading history must be known: a detection rests on at most five before
it, and lies up to two before the reading; the rest is to spare."""

DetectionKey = tuple[str, str, int, tuple[tuple[str, str], ...], tuple[str, ...]]
"""What makes two detections the same alarm: policy, version, time, bindings, and causes by the ids
they had before corrections."""


def streams_concerned(streams: Iterable[str], sources: Mapping[str, PushSource]) -> frozenset[str]:
    """The streams of released readings, and those whose silence they end: a source with a period
    is heard by any of its streams.
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
    """What of history a plan needs to judge readings between two times; None when it saw none of
    them: it was deployed later.

    `began`: when it was deployed. `known_from`: since when the log is whole, None for ever.
    """
    if began is not None and last_ms < began:
        return None
    window_ms = longest_window_ms(plan) + uncertainty_ms(plan, sources)
    reach_ms = _reach_ms(plan, sources)
    judged_from = first_ms - _WINDOWS_AHEAD * window_ms
    start = None if remembers_all(plan) else first_ms - reach_ms
    if began is not None and (start is None or start < began):
        # It sees nothing before; but whether a source was silent then may matter.
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
    """What of history a plan needs to judge imported readings between two times: the time before
    it was deployed, as if it had always been there, and the time since then, as live saw it.

    `known_from`: since when the log holds every live reading. What is not found before that may
    have rested on readings that are gone, so it is not refuted.
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
    """The span without findings of the time before the policy was deployed that no imported reading
    can have part in, the newest being of `last_ms`.
    """
    if not span.before_deployment or span.judged_until is None:
        return span
    durations = [
        term.duration_ms for term in span.plan.terms if isinstance(term, LastingTerm | SilentTerm)
    ]
    reach_ms = _reach_ms(span.plan, sources) + max([span.plan.once_per_ms or 0, *durations])
    until = min(span.judged_until, last_ms + reach_ms)
    return msgspec.structs.replace(span, judged_until=until)


def _bounded(span: PlanSpan, sources: Mapping[str, PushSource], last_ms: int) -> PlanSpan:
    """The span of a plan that forgets, up to where readings of `last_ms` can matter: what depends
    on a reading lies at most six windows after it, and is decided within two more.
    """
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
    """Whether what the plan knows depends on all that came before: it uses events up, watches how
    long something is so or is not heard, or keeps count of what it said.
    """
    if plan.once_per_ms is not None:
        return True
    if any(isinstance(term, LastingTerm | SilentTerm) for term in plan.terms):
        return True
    return any(isinstance(plan.terms[term], CorrelationTerm) for term in plan.positive_terms())


def _longest_period(plan: Plan, sources: Mapping[str, PushSource]) -> int:
    names = watched_sources(plan, sources)
    return max((sources[name].period_ms for name in names), default=0)


class KnownDetections:
    """What the channel `detections` says of some plans since a time."""

    def __init__(
        self,
        source: str,
        versions: Mapping[str, str],
        since_ms: int,
        *,
        with_imported: bool = False,
    ) -> None:
        """`source`: whose detections; `versions`: of each policy the version that counts;
        `with_imported`: those that imported readings led to count as well.
        """
        self._source, self._versions, self._since_ms = source, versions, since_ms
        self._with_imported = with_imported
        self.detections: dict[str, Detection] = {}
        self.undecided: set[str] = set()
        self.unsupported: set[str] = set()

    def take(self, event: Event) -> None:
        """Takes in an event of the channel, in order."""
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
    """What a second look changes."""

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
    """Sets what history holds against what was said. Only what lies before `until_ms`, and one of
    the `spans` judges, can turn out to be unsupported; not what is still `waiting` for its turn.
    """
    said = {key_of(item, original_of) for item in known.detections.values()}
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
        new=[item for item in found if key_of(item, original_of) not in said],
        undecided=[item for item in undecided if item.id() not in known.undecided],
        unsupported=[i for id, i, holds in judged if not holds and id not in known.unsupported],
        supported_again=[i for id, i, holds in judged if holds and id in known.unsupported],
    )


def _may_refute(span: PlanSpan, time_ms: int) -> bool:
    since = span.judged_from if span.refutes_from is None else span.refutes_from
    return time_ms >= since and span.judges(time_ms)


def key_of(detection: Detection, original_of: Mapping[str, str]) -> DetectionKey:
    """What it is the alarm of, whatever its readings were corrected to."""
    causes = tuple(original_of.get(id, id) for _time, id in detection.causes)
    bindings = tuple(sorted(detection.bindings.items()))
    return detection.policy, detection.version, detection.time, bindings, causes


def marks_of(done: ReleaseDone) -> dict[str, str]:
    """The headers of what is found after a release or an import: as of the past, or late."""
    marks = {SECOND_LOOK: done.release}
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
    """What is appended to `detections`; the same findings have the same ids."""
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
    """An event that says of a detection whether history as corrected supports it; it stays."""
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
        headers={CAUSE: cause_text(id), SECOND_LOOK: release},
    )


def _with_headers(event: Event, headers: Mapping[str, str]) -> Event:
    return msgspec.structs.replace(event, headers={**event.headers, **headers})


def policies_of(streams: Collection[str], plans: Iterable[Plan]) -> list[Plan]:
    """The plans that listen to one of the streams."""
    return [plan for plan in plans if not set(plan.streams()).isdisjoint(streams)]
