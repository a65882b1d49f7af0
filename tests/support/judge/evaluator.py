"""The judge: a slow, literal evaluator of a policy's condition as written. [PO-4, PO-7]

It follows docs/semantics.md rule by rule over a list of readings that is known whole, shares no
code with the compiler and the operators, and makes no attempt to be fast: tests compare every
runner with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from rapport.core.detection import Detection, Undecided, detection_order, unique_undecided
from rapport.core.errors import InvalidInput
from rapport.policy.language.tree import PolicyTree
from rapport.policy.ontology import Ontology
from rapport.policy.operators.base import PullData
from support.judge.children import (
    Assignment,
    Bindings,
    Windowed,
    absent_terms,
    bindings_of,
    child_end,
    in_order,
    is_absent,
    largest_window,
    latest_end,
    needed,
    negated_sides,
    refuting,
    with_windows,
)
from support.judge.keys import Keys
from support.judge.known_world import KnownWorld, Occurrence
from support.judge.matches import Matching
from support.judge.normal_form import Child, Clause, Literal, normal_form
from support.judge.occurrences import Occurrences, Reading
from support.judge.silent import silent_sources
from support.judge.situation_reads import concept_named
from support.judge.situation_truth import Truths
from support.judge.situation_values import BoundInstance
from support.judge.situation_world import KnownRecord, TableVersion


class Verdict(msgspec.Struct, frozen=True):
    """What is detected, and what cannot be told because a source was silent."""

    detections: list[Detection]
    undecided: list[Undecided]
    suppressed: int = 0
    """Detections left out because of `at most once per`."""


def evaluate(
    tree: PolicyTree,
    ontology: Ontology,
    pull: PullData,
    readings: Iterable[Reading],
    *,
    window_ms: int,
) -> list[Detection]:
    """Every detection of the policy over the readings, in the order of the fixed output.

    The cost is exponential in the number of terms; raises InvalidInput for absence that nothing can
    open.
    """
    return judge(tree, ontology, pull, readings, window_ms=window_ms, periods={}).detections


def judge(
    tree: PolicyTree,
    ontology: Ontology,
    pull: PullData,
    readings: Iterable[Reading],
    *,
    window_ms: int,
    periods: Mapping[str, int] | None = None,
    tables: Sequence[TableVersion] = (),
) -> Verdict:
    """The same with what is undecided and how many were left out; periods are those of the
    ontology's sources unless given. `tables`: what the guard looks up, else `pull`.
    """
    readings = list(readings)
    if periods is None:
        periods = {name: one.period_ms for name, one in ontology.sources.items() if one.period_ms}
    evaluation = _Evaluation(tree, ontology, pull, readings, window_ms)
    known = evaluation.world.readings
    found = evaluation.found()
    until = max((detection.time for detection, _ in found), default=0)
    record = KnownRecord(ontology, tables or [TableVersion(pull=pull)], readings, until=until)
    detections: list[Detection] = []
    undecided: list[Undecided] = []
    for detection, absent in found:
        if not _is_guarded(tree, record, detection):
            continue
        start, end = detection.time - evaluation.doubt, detection.time
        silent = silent_sources(ontology, periods, known, absent, start, end)
        if silent and tree.when_unsure == "hold":
            undecided.append(Undecided.of(detection, silent))
        else:
            detections.append(detection)
    unique = {detection.id(): detection for detection in detections}
    ordered = sorted(unique.values(), key=detection_order)
    reported = _throttled(ordered, tree.once_per_ms)
    return Verdict(reported, unique_undecided(undecided), len(ordered) - len(reported))


def _throttled(detections: list[Detection], once_per: int | None) -> list[Detection]:
    """Rule 9: those whose bindings were not reported less than `once_per` before."""
    if once_per is None:
        return detections
    reported: list[Detection] = []
    last: dict[tuple[tuple[str, str], ...], int] = {}
    for detection in detections:
        bindings = tuple(sorted(detection.bindings.items()))
        if bindings in last and detection.time - last[bindings] < once_per:
            continue
        last[bindings] = detection.time
        reported.append(detection)
    return reported


def _is_guarded(tree: PolicyTree, record: KnownRecord, detection: Detection) -> bool:
    """Whether `while` is true for the identities of a match at its time. [SI-9]"""
    if tree.guard is None:
        return True
    concepts = {one.alias: concept_named(one.concept, record.ontology) for one in tree.concepts}
    binding = {
        alias: BoundInstance(concepts[alias], identity)
        for alias, identity in detection.bindings.items()
    }
    return Truths(record).truth(tree.guard, binding, detection.time) is True


class _Evaluation:
    """One policy over one list of readings."""

    def __init__(
        self,
        tree: PolicyTree,
        ontology: Ontology,
        pull: PullData,
        readings: Iterable[Reading],
        window_ms: int,
    ) -> None:
        self.tree = tree
        window = tree.window_ms if tree.window_ms is not None else window_ms
        self.world = KnownWorld(tree, ontology, pull, readings)
        self._found = Occurrences(self.world, tree.consumption)
        written = self._openable(normal_form(tree.condition, Keys(tree, ontology)))
        clauses = [with_windows(clause, self.world, window) for clause in written]
        self.doubt = largest_window(clauses, window)
        self._positive, self._mixed, self._absent = _by_kind(clauses)
        if not self._positive:
            self._positive = [_without_absence(each) for each in self._mixed]
            self._mixed = []
        if not self._positive:
            raise InvalidInput("nothing can open the absence", code="policy.nothing_opens")
        far = 2 * self.doubt
        self._matching = Matching(tree, self._found, self._positive, window, far)

    def _openable(self, clauses: list[Clause]) -> list[Clause]:
        """Rule 7: absence of events that nothing can open counts as if it were not there."""
        if any(all(self._occurs(child) for child in clause.children) for clause in clauses):
            return clauses
        kept = [
            msgspec.structs.replace(clause, children=tuple(self._decidable(clause.children)))
            for clause in clauses
        ]
        if not all(clause.children for clause in kept):
            raise InvalidInput("nothing can open the absence", code="policy.nothing_opens")
        return kept

    def _decidable(self, children: Iterable[Child]) -> Iterator[Child]:
        return (child for child in children if self._occurs(child) or self._is_fact(child))

    def _is_fact(self, child: Child) -> bool:
        return isinstance(child, Literal) and not self.world.has_events(child.term)

    def _occurs(self, child: Child) -> bool:
        return not is_absent(child) and not self._is_fact(child)

    def found(self) -> list[tuple[Detection, set[str]]]:
        """What survives, each with the streams whose silence would make it doubtful."""
        found = [self._decide(match, when) for match, when in self._matching.minimal()]
        return [item for item in found if item is not None]

    # Rules 6 to 8: deciding a match.

    def _decide(self, match: Assignment, when: int) -> tuple[Detection, set[str]] | None:
        t0 = latest_end(match)
        absent = negated_sides([*self._positive, *self._mixed, *self._absent])
        absent += [term for clause in self._absent for term in absent_terms(clause)]
        times = [when, t0]
        for clause in self._absent:
            satisfied = self._absence_at(clause, bindings_of(match.values()), t0)
            if satisfied is None:
                return None
            times.append(satisfied)
        taken = dict(match)
        for clause in self._mixed:
            chosen = self._earliest(clause, taken, t0)
            if chosen is None:
                satisfied = self._absence_at(clause, bindings_of(taken.values()), t0)
                absent += absent_terms(clause)
            else:
                satisfied = chosen[1]
                taken.update(chosen[0])
            if satisfied is None:
                return None
            times.append(satisfied)
        streams = {stream for term in absent for stream in self.world.streams(term)}
        return self._detection(taken, max(times)), streams

    def _detection(self, taken: Assignment, time: int) -> Detection:
        causes = sorted({event.cause for item in taken.values() for event in item.events})
        return Detection(
            policy=self.tree.name,
            time=time,
            bindings=bindings_of(taken.values()),
            causes=tuple(causes),
        )

    def _absence_at(self, clause: Windowed, bindings: Bindings, t0: int) -> int | None:
        """When a clause's NOT children are satisfied; None when a joint counterexample exists."""
        absent = [child for child in clause.children if is_absent(child)]

        def counts(occurrence: Occurrence) -> bool:
            return t0 <= occurrence.start and occurrence.end < t0 + clause.window

        for terms in itertools.product(*(refuting(child) for child in absent)):
            if self._matching.refuted(terms, bindings, counts):
                return None
        waits = any(self.world.has_events(term) for child in absent for term in refuting(child))
        return t0 + clause.window if waits else t0

    def _earliest(
        self, clause: Windowed, taken: Assignment, t0: int
    ) -> tuple[Assignment, int] | None:
        """The occurrences of the earliest positive child near `t0`, and when it satisfies the
        clause.
        """
        best: tuple[tuple[object, ...], Assignment, int] | None = None
        for place, child in enumerate(clause.children):
            if is_absent(child):
                continue
            for assignment in self._choices(child, taken):
                bindings = bindings_of(assignment.values())
                when = self._matching.child_at(child, clause, assignment, bindings)
                end = child_end(child, assignment, default=t0)
                if when is None or not abs(end - t0) < clause.window:
                    continue
                events = [assignment[term].events for term in needed(child)]
                causes = sorted({event.cause for item in events for event in item})
                # The rule ends here; ties go to the child written first, then by the order of the
                # output.
                rank = (end, causes, place, in_order(bindings))
                if best is None or rank < best[0]:
                    best = (rank, {term: assignment[term] for term in needed(child)}, when)
        return None if best is None else (best[1], max(best[2], t0))

    def _choices(self, child: Child, taken: Assignment) -> Iterator[Assignment]:
        """The ways to add the child's terms to what is taken; their ends need not be near each
        other.
        """
        options = [
            [taken[term]] if term in taken else self._found.occurrences(term)
            for term in needed(child)
        ]
        for occurrences in itertools.product(*options):
            bindings = bindings_of(taken.values())
            fits = True
            for occurrence in occurrences:
                fits = fits and self._matching.agree(occurrence, bindings)
                bindings = {**bindings, **occurrence.bindings}
            if fits:
                yield {**taken, **dict(zip(needed(child), occurrences, strict=True))}


def _by_kind(
    clauses: list[Windowed],
) -> tuple[list[Windowed], list[Windowed], list[Windowed]]:
    """Positive, mixed and NOT clauses."""
    kinds: tuple[list[Windowed], list[Windowed], list[Windowed]] = ([], [], [])
    for clause in clauses:
        absent = sum(is_absent(child) for child in clause.children)
        kinds[0 if absent == 0 else 2 if absent == len(clause.children) else 1].append(clause)
    return kinds


def _without_absence(clause: Windowed) -> Windowed:
    positive = tuple(child for child in clause.children if not is_absent(child))
    return msgspec.structs.replace(clause, children=positive)
