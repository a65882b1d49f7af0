"""The judge: a slow, literal evaluator of a policy's condition as written. [PO-4, PO-7]

It follows docs/semantics.md rule by rule over a list of readings that is known whole, shares no
code with the compiler and the operators, and makes no attempt to be fast: tests compare every
runner with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from rapport.core.detection import (
    Detection,
    Undecided,
    detection_order,
    each_once,
    identity_order,
)
from rapport.core.errors import InvalidInput
from rapport.policy.language.tree import PolicyTree
from rapport.policy.ontology import Ontology
from rapport.policy.runners.base import PullData
from rapport.testing.normal_form import Child, Clause, Literal, Pair, TermKey, normal_form
from rapport.testing.occurrences import KnownWorld, Occurrence, Reading
from rapport.testing.silent import silent_sources

Bindings = dict[str, str]
Assignment = Mapping[TermKey, Occurrence]


class Verdict(msgspec.Struct, frozen=True):
    """What is detected, and what cannot be told because a source was silent."""

    detections: list[Detection]
    undecided: list[Undecided]


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
) -> Verdict:
    """The same with what is undecided; periods are those of the ontology's sources unless given."""
    if periods is None:
        periods = {name: one.period_ms for name, one in ontology.sources.items() if one.period_ms}
    known = list(readings)
    evaluation = _Evaluation(tree, ontology, pull, known, window_ms)
    detections: list[Detection] = []
    undecided: list[Undecided] = []
    for detection, absent in evaluation.found():
        start, end = detection.time - evaluation.window, detection.time
        silent = silent_sources(ontology, periods, known, absent, start, end)
        if silent and tree.when_unsure == "hold":
            undecided.append(Undecided.of(detection, silent))
        else:
            detections.append(detection)
    unique = {detection.id(): detection for detection in detections}
    return Verdict(sorted(unique.values(), key=detection_order), each_once(undecided))


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
        self.window = tree.window_ms if tree.window_ms is not None else window_ms
        self.world = KnownWorld(tree, ontology, pull, readings, self.window)
        clauses = self._openable(normal_form(tree.condition))
        self.positive, self.mixed, self.absent = _sorted_by_kind(clauses)
        if not self.positive:
            self.positive, self.mixed = [_without_absence(each) for each in self.mixed], []
        if not self.positive:
            raise InvalidInput("nothing can open the absence", code="policy.nothing_opens")

    def _openable(self, clauses: list[Clause]) -> list[Clause]:
        """Rule 4: absence of events that nothing can open counts as if it were not there."""
        if any(all(self._occurs(child) for child in clause) for clause in clauses):
            return clauses
        kept = [
            tuple(child for child in clause if self._occurs(child) or self._is_fact(child))
            for clause in clauses
        ]
        if not all(kept):
            raise InvalidInput("nothing can open the absence", code="policy.nothing_opens")
        return kept

    def _is_fact(self, child: Child) -> bool:
        return isinstance(child, Literal) and not self.world.has_events(child.term)

    def _occurs(self, child: Child) -> bool:
        return not _is_absent(child) and not self._is_fact(child)

    def found(self) -> list[tuple[Detection, set[str]]]:
        """What survives, each with the streams whose silence would make it doubtful."""
        found = [self._decide(match, when) for match, when in self._minimal_matches()]
        return [item for item in found if item is not None]

    # Rule 3: matches.

    def _minimal_matches(self) -> list[tuple[Assignment, int]]:
        valid: dict[frozenset[tuple[TermKey, Occurrence]], int] = {}
        for assignment in self._assignments():
            when = self._satisfied_at(assignment)
            if when is not None:
                valid[frozenset(assignment.items())] = when
        return [
            (dict(items), when)
            for items, when in valid.items()
            if not any(frozenset(part) in valid for part in _proper_parts(items))
        ]

    def _assignments(self) -> Iterator[Assignment]:
        """Every way to take one child from each clause and one occurrence for each term of those
        children.
        """
        seen: set[frozenset[tuple[TermKey, Occurrence]]] = set()
        for children in itertools.product(*self.positive):
            terms = list(dict.fromkeys(term for child in children for term in _needed(child)))
            for assignment in self._fill(terms, {}):
                key = frozenset(assignment.items())
                if key not in seen and any(occurrence.events for _, occurrence in key):
                    seen.add(key)
                    yield assignment

    def _fill(self, terms: Sequence[TermKey], taken: Assignment) -> Iterator[Assignment]:
        if not terms:
            yield taken
            return
        bindings = _bindings(taken.values())
        for occurrence in self.world.occurrences(terms[0]):
            if self._may_join(occurrence, taken) and self._agree(occurrence, bindings):
                yield from self._fill(terms[1:], {**taken, terms[0]: occurrence})

    def _may_join(self, occurrence: Occurrence, taken: Assignment) -> bool:
        """Only saves time: ends of children lie within the window, and those of a followed-by's
        first part less than another window before, so no two ends of a match are two windows apart.
        """
        return not occurrence.events or all(
            abs(occurrence.end - other.end) < 2 * self.window
            for other in taken.values()
            if other.events
        )

    def _agree(self, occurrence: Occurrence, bindings: Bindings) -> bool:
        """Rule 2: equal aliases are equal identities; aliases declared distinct are not."""
        merged = {**bindings, **occurrence.bindings}
        concepts = {concept.alias: concept.concept for concept in self.tree.concepts}
        if any(merged[alias] != identity for alias, identity in bindings.items()):
            return False
        return not any(
            first in merged
            and second in merged
            and (concepts[first], merged[first]) == (concepts[second], merged[second])
            for first, second in self.tree.distinct
        )

    def _satisfied_at(self, assignment: Assignment) -> int | None:
        """When the last positive clause is satisfied; None when these occurrences are no match.

        A match takes one child from each clause; the ends of the children taken lie within the
        window.
        """
        bindings = _bindings(assignment.values())
        options = [self._options(clause, assignment, bindings) for clause in self.positive]
        times = [
            max(when for _, when in taken)
            for taken in itertools.product(*options)
            if {term for child, _ in taken for term in _needed(child)} == set(assignment)
            and self._are_near([child for child, _ in taken], assignment)
        ]
        return min(times, default=None)

    def _options(
        self, clause: Clause, assignment: Assignment, bindings: Bindings
    ) -> list[tuple[Child, int]]:
        """The children of a clause that the occurrences satisfy, with the time of each."""
        times = [
            (child, self._child_at(child, clause, assignment, bindings))
            for child in clause
            if all(term in assignment for term in _needed(child))
        ]
        return [(child, time) for child, time in times if time is not None]

    def _are_near(self, children: list[Child], assignment: Assignment) -> bool:
        ends = [
            _child_end(child, assignment)
            for child in children
            if any(assignment[term].events for term in _needed(child))
        ]
        return not ends or max(ends) - min(ends) < self.window

    def _child_at(
        self, child: Child, clause: Clause, assignment: Assignment, bindings: Bindings
    ) -> int | None:
        """Rules 3 and 5: when a positive child is satisfied by the occurrences taken."""
        if isinstance(child, Literal):
            occurrence = assignment[child.term]
            return occurrence.end if occurrence.events else _t0(assignment)
        if not child.first.negated and not child.second.negated:
            first, second = assignment[child.first.term].end, assignment[child.second.term].end
            return second if first < second < first + self.window else None
        if child.second.negated:
            end = assignment[child.first.term].end
            together = [other.second.term for other in _with_same_first(clause, child)]
            refuted = self._counterexample(together, bindings, end + 1, end + self.window)
            return None if refuted else end + self.window
        end = assignment[child.second.term].end
        together = [other.first.term for other in _with_same_second(clause, child)]
        refuted = self._counterexample(together, bindings, end - self.window + 1, end)
        return None if refuted else end

    # Rule 4: absence.

    def _counterexample(
        self,
        terms: Sequence[TermKey],
        bindings: Bindings,
        low: int,
        high: int,
        first_event: int | None = None,
    ) -> bool:
        """Whether there is one occurrence per term, identities agreeing, each end in [low,
        high).
        """
        if not terms:
            return True
        for occurrence in self.world.all_occurrences(terms[0]):
            if occurrence.events:
                if not low <= occurrence.end < high:
                    continue
                if first_event is not None and occurrence.start < first_event:
                    continue
            if self._agree(occurrence, bindings):
                merged = {**bindings, **occurrence.bindings}
                if self._counterexample(terms[1:], merged, low, high, first_event):
                    return True
        return False

    def _absence_at(self, clause: Clause, bindings: Bindings, t0: int) -> int | None:
        """When a clause's NOT children are satisfied; None when a joint counterexample exists."""
        absent = [child for child in clause if _is_absent(child)]
        for terms in itertools.product(*(_refuting(child) for child in absent)):
            if self._counterexample(terms, bindings, t0, t0 + self.window, first_event=t0):
                return None
        waits = any(self.world.has_events(term) for child in absent for term in _refuting(child))
        return t0 + self.window if waits else t0

    # Rules 4 and 7: deciding a match.

    def _decide(self, match: Assignment, when: int) -> tuple[Detection, set[str]] | None:
        t0 = _t0(match)
        absent = [
            part.term
            for clause in (*self.positive, *self.mixed, *self.absent)
            for child in clause
            if isinstance(child, Pair) and not _is_absent(child)
            for part in (child.first, child.second)
            if part.negated
        ]
        absent += [term for clause in self.absent for term in _absent_terms(clause)]
        bindings = _bindings(match.values())
        time = max(when, t0)
        for clause in self.absent:
            satisfied = self._absence_at(clause, bindings, t0)
            if satisfied is None:
                return None
            time = max(time, satisfied)
        taken = dict(match)
        for clause in self.mixed:
            chosen = self._earliest(clause, taken, t0)
            satisfied = (
                chosen[1] if chosen else self._absence_at(clause, _bindings(taken.values()), t0)
            )
            if satisfied is None:
                return None
            time = max(time, satisfied)
            taken.update(chosen[0] if chosen else {})
            absent += [] if chosen else _absent_terms(clause)
        causes = sorted({event.cause for item in taken.values() for event in item.events})
        detection = Detection(
            policy=self.tree.name,
            time=time,
            bindings=_bindings(taken.values()),
            causes=tuple(causes),
        )
        return detection, {stream for term in absent for stream in self.world.streams(term)}

    def _earliest(
        self, clause: Clause, taken: Assignment, t0: int
    ) -> tuple[Assignment, int] | None:
        """The occurrences of the earliest positive child near `t0`, and when it satisfies the
        clause.
        """
        best: tuple[tuple[object, ...], Assignment, int] | None = None
        for place, child in enumerate(clause):
            if _is_absent(child):
                continue
            for assignment in self._choices(child, taken):
                when = self._child_at(child, clause, assignment, _bindings(assignment.values()))
                end = _child_end(child, assignment, default=t0)
                if when is None or not abs(end - t0) < self.window:
                    continue
                events = [assignment[term].events for term in _needed(child)]
                causes = sorted({event.cause for item in events for event in item})
                # The rule ends here; ties go to the child written first, then by the order of the
                # output.
                rank = (end, causes, place, _in_order(_bindings(assignment.values())))
                if best is None or rank < best[0]:
                    best = (rank, {term: assignment[term] for term in _needed(child)}, when)
        return None if best is None else (best[1], max(best[2], t0))

    def _choices(self, child: Child, taken: Assignment) -> Iterator[Assignment]:
        """The ways to add the child's terms to what is taken; their ends need not be near each
        other.
        """
        options = [
            [taken[term]] if term in taken else self.world.occurrences(term)
            for term in _needed(child)
        ]
        for occurrences in itertools.product(*options):
            bindings = _bindings(taken.values())
            fits = True
            for occurrence in occurrences:
                fits = fits and self._agree(occurrence, bindings)
                bindings = {**bindings, **occurrence.bindings}
            if fits:
                yield {**taken, **dict(zip(_needed(child), occurrences, strict=True))}


def _is_absent(child: Child) -> bool:
    if isinstance(child, Literal):
        return child.negated
    return child.first.negated and child.second.negated


def _needed(child: Child) -> list[TermKey]:
    """The terms whose occurrences a positive child consists of."""
    parts = [child] if isinstance(child, Literal) else [child.first, child.second]
    return list(dict.fromkeys(part.term for part in parts if not part.negated))


def _refuting(child: Child) -> list[TermKey]:
    """The terms any of which, occurring, refutes an absent child."""
    return [child.term] if isinstance(child, Literal) else [child.first.term, child.second.term]


def _absent_terms(clause: Clause) -> list[TermKey]:
    return [term for child in clause if _is_absent(child) for term in _refuting(child)]


def _with_same_first(clause: Clause, child: Pair) -> list[Pair]:
    return [
        other
        for other in clause
        if isinstance(other, Pair) and other.first == child.first and other.second.negated
    ]


def _with_same_second(clause: Clause, child: Pair) -> list[Pair]:
    return [
        other
        for other in clause
        if isinstance(other, Pair) and other.second == child.second and other.first.negated
    ]


def _sorted_by_kind(clauses: list[Clause]) -> tuple[list[Clause], list[Clause], list[Clause]]:
    kinds: tuple[list[Clause], list[Clause], list[Clause]] = ([], [], [])
    for clause in clauses:
        absent = sum(_is_absent(child) for child in clause)
        kinds[0 if absent == 0 else 2 if absent == len(clause) else 1].append(clause)
    return kinds


def _without_absence(clause: Clause) -> Clause:
    return tuple(child for child in clause if not _is_absent(child))


def _proper_parts(
    items: frozenset[tuple[TermKey, Occurrence]],
) -> Iterator[tuple[tuple[TermKey, Occurrence], ...]]:
    for size in range(1, len(items)):
        yield from itertools.combinations(items, size)


def _bindings(occurrences: Iterable[Occurrence]) -> Bindings:
    return {alias: item for each in occurrences for alias, item in each.bindings.items()}


def _in_order(bindings: Bindings) -> list[tuple[str, object]]:
    return [(alias, identity_order(item)) for alias, item in sorted(bindings.items())]


def _t0(assignment: Assignment) -> int:
    return max(occurrence.end for occurrence in assignment.values() if occurrence.events)


def _child_end(child: Child, assignment: Assignment, default: int = 0) -> int:
    """The end a positive child counts with: that of its last occurrence (`X FOLLOWED-BY NOT Y`:
    X's).
    """
    ends = [assignment[term].end for term in _needed(child) if assignment[term].events]
    return max(ends, default=default)
