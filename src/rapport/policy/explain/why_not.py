"""Why a policy fired or did not fire for given identities around a time. [PO-11]

Pure: a plan, tables and readings in, an answer out. The result equals that of the runners over the
same readings (tests/policy/explain compare them).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rapport.core.detection import Detection
from rapport.core.errors import InvalidInput, UnknownName
from rapport.policy.explain.answer import (
    Candidate,
    ConditionNode,
    Explanation,
    NearestMiss,
    Suppression,
    WhyNotAnswer,
)
from rapport.policy.explain.candidates import CandidateBuilder, NodeBuilder
from rapport.policy.explain.evidence import Evidence, LateReading, Reading, TimeSpan
from rapport.policy.explain.matches import (
    Decision,
    Decisions,
    PartialMatch,
    bindings_of,
    partial_matches,
)
from rapport.policy.explain.nearest_miss import MissSearch
from rapport.policy.explain.wording import Wording, with_times
from rapport.policy.ontology import Ontology
from rapport.policy.operators.base import PullData
from rapport.policy.operators.plan_shape import longest_window_ms
from rapport.policy.plan import Plan

_MOST_CANDIDATES = 5
_MOST_FIRED = 20


class WhyNotQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Identities and a time; without identities, the nearest ones."""

    at: int
    given: dict[str, str] = {}
    within_ms: int | None = None
    """The distance around the time; None: the longest window of the policy."""

    def span(self, plan: Plan) -> TimeSpan:
        reach = longest_window_ms(plan) if self.within_ms is None else self.within_ms
        return TimeSpan(self.at - reach, self.at + reach)


def why_not(
    plan: Plan,
    ontology: Ontology,
    pull: PullData,
    readings: Iterable[Reading],
    question: WhyNotQuestion,
    *,
    reported: Sequence[Detection] | None = None,
    began: int | None = None,
    late: Iterable[LateReading] = (),
) -> WhyNotAnswer:
    """The conditions of the policy around a time; raises UnknownName for an unknown alias.

    `readings`: those of `needed_range`. `reported`: the emitted detections, for `at most once per`;
    None: those found here. `began`: the policy's start; None: the first reading. `late`: readings
    that arrived too late to count.
    """
    check_aliases(plan, question.given)
    evidence = Evidence(plan, ontology.sources, pull, readings, began=began, late=late)
    return _WhyNotSearch(evidence, ontology, question, reported).answer()


def why(
    plan: Plan,
    ontology: Ontology,
    pull: PullData,
    readings: Iterable[Reading],
    detection: Detection,
    *,
    began: int | None = None,
) -> Explanation:
    """The conditions behind a detection; `held` is None when these readings and tables do not lead
    to it. `began`: the policy's start; None: the first reading.
    """
    evidence = Evidence(plan, ontology.sources, pull, readings, began=began)
    decisions = Decisions(evidence)
    found = Explanation(policy=plan.policy, version=detection.version, once_per_ms=plan.once_per_ms)
    left_out = 0
    for decision in decisions.all(detection.bindings, reported=[detection]):
        if decision.detection.bindings != detection.bindings:
            continue
        later = decision.detection.time - detection.time
        if later == 0 and decision.detection.causes == detection.causes:
            nodes = NodeBuilder(evidence, Wording(ontology))
            held = CandidateBuilder(decisions, nodes, {}).of_decision(decision)
            found = msgspec.structs.replace(found, held=_with_times_in(held))
        elif decision.became == "left out" and 0 <= later < (plan.once_per_ms or 0):
            left_out += 1
    return msgspec.structs.replace(found, left_out=left_out)


def given_in(texts: Iterable[str]) -> dict[str, str]:
    """Parses identities such as `A=5`; raises InvalidInput.

    >>> given_in(["A=5", "R=room 7"])
    {'A': '5', 'R': 'room 7'}
    """
    given: dict[str, str] = {}
    for text in texts:
        alias, equals, identity = text.partition("=")
        if not equals or not alias.strip() or not identity:
            raise InvalidInput(
                f"{text!r} names no identity",
                code="explain.bad_identity",
                hint="write ALIAS=ID with an alias of the policy, such as A=5",
            )
        if given.setdefault(alias.strip(), identity) != identity:
            raise InvalidInput(
                f"{alias.strip()!r} stands for one at a time, not for two",
                code="explain.bad_identity",
                hint="ask once for each",
            )
    return given


def check_aliases(plan: Plan, given: Mapping[str, str]) -> None:
    """Raises UnknownName with the nearest alias."""
    aliases = {side.alias for side in plan.sides()}
    for alias in given:
        if alias not in aliases:
            raise UnknownName("alias", alias, sorted(aliases), code="explain.unknown_alias")


class _WhyNotSearch:
    """One question."""

    def __init__(
        self,
        evidence: Evidence,
        ontology: Ontology,
        question: WhyNotQuestion,
        reported: Sequence[Detection] | None,
    ) -> None:
        self._evidence, self._question, self._reported = evidence, question, reported
        self._span = question.span(evidence.plan)
        self._wording = Wording(ontology)
        self._decisions = Decisions(evidence)
        nodes = NodeBuilder(evidence, self._wording)
        self._candidates = CandidateBuilder(self._decisions, nodes, question.given)

    def answer(self) -> WhyNotAnswer:
        plan, given = self._evidence.plan, self._question.given
        near = [
            one
            for one in self._decisions.all(given, reported=self._reported, near=self._span)
            if one.is_near(*self._span)
        ]
        fired = [one for one in near if one.became == "detected"]
        fired.sort(key=lambda one: self._span.distance(one.t0))
        answer = WhyNotAnswer(
            policy=plan.policy,
            version=plan.version(),
            at=self._question.at,
            within_ms=self._span.end - self._question.at,
            given=given,
            fired=tuple(self._of(one) for one in fired[:_MOST_FIRED]),
            window_ms=plan.window_ms,
            once_per_ms=plan.once_per_ms,
        )
        return answer if fired else self._with_candidates(answer, near)

    def _of(self, decision: Decision) -> Candidate:
        candidate = _with_times_in(self._candidates.of_decision(decision))
        by, once_per = decision.suppressed_by, self._evidence.plan.once_per_ms
        if by is None or once_per is None:
            return candidate
        suppressed = Suppression(detection=by.id(), time=by.time, until=by.time + once_per)
        return msgspec.structs.replace(candidate, suppressed_by=suppressed)

    def _with_candidates(self, answer: WhyNotAnswer, near: list[Decision]) -> WhyNotAnswer:
        """Adds the nearest candidates: refuted matches first, then partial ones."""
        ranked: list[tuple[Candidate, Decision | PartialMatch]] = []
        near.sort(key=lambda one: (one.became == "refuted", self._span.distance(one.t0)))
        for decision in near:
            bindings = decision.detection.bindings
            if len(ranked) < _MOST_FIRED and all(bindings != one.bindings for one, _ in ranked):
                ranked.append((self._of(decision), decision))
        for partial in partial_matches(self._decisions, self._question.given, self._span):
            known = {**self._question.given, **bindings_of(partial.assignment.values())}
            # Best first: the same identities, or some of them, add nothing.
            if any(known.items() <= one.bindings.items() for one, _ in ranked):
                continue
            for bindings in self._candidates.nearest_to(partial, self._span):
                candidate = self._candidates.of_partial(partial, bindings, self._span)
                ranked.append((_with_times_in(candidate), partial))
            if len(ranked) >= _MOST_FIRED + _MOST_CANDIDATES:
                break
        # If all conditions are true, a smaller match takes precedence: nothing was missed.
        ranked = [one for one in ranked if one[0].first_failed is not None] or ranked
        ranked.sort(key=lambda one: self._rank(one[0]))
        return msgspec.structs.replace(
            answer,
            candidates=tuple(candidate for candidate, _ in ranked[:_MOST_CANDIDATES]),
            nearest=self._change(*ranked[0]),
        )

    def _rank(self, candidate: Candidate) -> tuple[object, ...]:
        """Sort key: most true conditions, then nearest in time."""
        complete = candidate.became != "incomplete"
        return (not complete, -candidate.holding, self._span.distance(candidate.time))

    def _change(self, best: Candidate, behind: Decision | PartialMatch) -> NearestMiss | None:
        search = MissSearch(self._decisions, self._wording, best.bindings, self._span)
        if isinstance(behind, Decision):
            change = search.of_decision(behind) if behind.became == "refuted" else None
        else:
            change = search.of_partial(behind)
        if change is None:
            return None
        return NearestMiss(
            reading=self._wording.reading(change.reading),
            text=change.text,
            relative=change.relative,
            value=None if change.is_in_time else change.changed.value,
            time=change.changed.time if change.is_in_time else None,
        )


def _with_times_in(candidate: Candidate) -> Candidate:
    """Replaces the time marks in a candidate's sentences."""

    def node(one: ConditionNode) -> ConditionNode:
        return msgspec.structs.replace(
            one,
            because=with_times(one.because, candidate.time),
            children=tuple(node(child) for child in one.children),
        )

    clauses = tuple(node(one) for one in candidate.clauses)
    return msgspec.structs.replace(candidate, clauses=clauses)
