"""Rules 7 to 9: the matches of given identities, and how each was decided. [PO-6, PO-7, PO-11]"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from rapport.core.detection import identity_order
from rapport.policy.explaining.occurring import TermOccurrences
from rapport.policy.explaining.stretch import Occurrence
from rapport.policy.plan import ConstraintTerm, Plan
from rapport.policy.runners.operators.reaches import longest_window_ms
from rapport.policy.runners.operators.shapes import (
    Alternatives,
    NotFollowed,
    NotPreceded,
    Occurs,
    Ordered,
    Part,
    Shape,
)

Assignment = Mapping[int, Occurrence]
Counts = Callable[[Occurrence], bool]
"""Whether an occurrence with an end lies where it refutes."""


class Match(NamedTuple):
    """One occurrence for each term that is needed, and when the last positive clause is
    satisfied.
    """

    assignment: dict[int, Occurrence]
    when: int


class ClauseOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a clause that asks for absence, or of a mixed one."""

    satisfied_at: int | None
    """None: it failed."""
    refuters: tuple[tuple[int, Occurrence], ...] = ()
    """The counterexample, by term."""
    chosen: Part | None = None
    """Of a mixed clause, the positive part that satisfied it."""


class PlanMatches:
    """The matches of one plan, for identities that may be given."""

    def __init__(self, occurring: TermOccurrences, shape: Shape) -> None:
        self.occurring, self.shape = occurring, shape
        self.plan: Plan = occurring.world.plan
        self._far = 2 * longest_window_ms(self.plan)
        self._concepts = {
            side.alias: side.concept
            for term in self.plan.terms
            for side in (term.first, term.second)
        }

    def minimal(self, given: Mapping[str, str]) -> list[Match]:
        """The matches with these identities, without those of which a part is one."""
        valid: dict[frozenset[tuple[int, Occurrence]], int] = {}
        for assignment in self._assignments(given):
            when = self._satisfied_at(assignment)
            if when is not None:
                valid[frozenset(assignment.items())] = when
        return [
            Match(dict(sorted(items)), when)
            for items, when in valid.items()
            if not any(frozenset(part) in valid for part in _proper_parts(items))
        ]

    def agree(self, occurrence: Occurrence, bindings: Mapping[str, str]) -> bool:
        """Equal aliases are equal identities; aliases declared distinct are not."""
        merged = {**bindings, **occurrence.bindings}
        if any(merged[alias] != identity for alias, identity in bindings.items()):
            return False
        return not any(
            first in merged
            and second in merged
            and (self._concepts[first], merged[first]) == (self._concepts[second], merged[second])
            for first, second in self.plan.distinct
        )

    # Parts.

    def part_at(
        self, part: Part, assignment: Assignment, bindings: Mapping[str, str]
    ) -> int | None:
        """When a part is satisfied by the occurrences taken; None when it is not."""
        match part:
            case Occurs(term):
                found = assignment[term]
                return latest_end(assignment) if found.is_fact else found.end
            case Ordered():
                return self._ordered(part, assignment)
            case NotFollowed() | NotPreceded():
                if self.part_refuters(part, assignment, bindings) is not None:
                    return None
                end = part_end(part, assignment)
                return end + part.window_ms if isinstance(part, NotFollowed) else end

    def _ordered(self, part: Ordered, assignment: Assignment) -> int | None:
        first, second = assignment[part.first], assignment[part.second]
        surely = first.end + first.uncertainty < second.end - second.uncertainty
        return second.end if surely and second.end < first.end + part.window_ms else None

    def part_refuters(
        self, part: NotFollowed | NotPreceded, assignment: Assignment, bindings: Mapping[str, str]
    ) -> tuple[tuple[int, Occurrence], ...] | None:
        """What followed or preceded although it must not; None when nothing did."""
        (term,) = part.needs()
        own, window = assignment[term], part.window_ms

        def follows(other: Occurrence) -> bool:
            after = other.end + other.uncertainty > own.end - own.uncertainty
            return after and other.end - other.uncertainty < own.end + own.uncertainty + window

        def precedes(other: Occurrence) -> bool:
            before = other.end - other.uncertainty < own.end + own.uncertainty
            return before and other.end + other.uncertainty > own.end - own.uncertainty - window

        counts = follows if isinstance(part, NotFollowed) else precedes
        return self.refuters(part.absent, bindings, counts)

    def refuters(
        self, terms: tuple[int, ...], bindings: Mapping[str, str], counts: Counts
    ) -> tuple[tuple[int, Occurrence], ...] | None:
        """One occurrence of every term, identities equal; None when there is no such set."""
        if not terms:
            return ()
        for found in self.occurring.of(terms[0], bindings, negated=True):
            if (found.is_fact or counts(found)) and self.agree(found, bindings):
                rest = self.refuters(terms[1:], {**bindings, **found.bindings}, counts)
                if rest is not None:
                    return ((terms[0], found), *rest)
        return None

    # Matches.

    def _assignments(self, given: Mapping[str, str]) -> Iterator[dict[int, Occurrence]]:
        seen: set[frozenset[tuple[int, Occurrence]]] = set()
        for parts in itertools.product(*(clause.parts for clause in self.shape.positive)):
            terms = tuple(dict.fromkeys(term for part in parts for term in part.needs()))
            for assignment in self.fill(self._events_first(terms), {}, given):
                key = frozenset(assignment.items())
                if key not in seen and any(not one.is_fact for _, one in key):
                    seen.add(key)
                    yield assignment

    def _events_first(self, terms: Iterable[int]) -> list[int]:
        """Facts last: events bind who they are asked about."""
        return sorted(terms, key=lambda term: isinstance(self.plan.terms[term], ConstraintTerm))

    def fill(
        self, terms: list[int], taken: dict[int, Occurrence], given: Mapping[str, str]
    ) -> Iterator[dict[int, Occurrence]]:
        """Every way to take an occurrence for each of the terms."""
        if not terms:
            yield taken
            return
        bindings = {**given, **bindings_of(taken.values())}
        for found in self.occurring.of(terms[0], bindings):
            if self._may_join(found, taken) and self.agree(found, bindings):
                yield from self.fill(terms[1:], {**taken, terms[0]: found}, given)

    def _may_join(self, found: Occurrence, taken: Assignment) -> bool:
        return found.is_fact or all(
            abs(found.end - other.end) < self._far for other in taken.values() if not other.is_fact
        )

    def _satisfied_at(self, assignment: Assignment) -> int | None:
        bindings = bindings_of(assignment.values())
        options = [self._options(clause, assignment, bindings) for clause in self.shape.positive]
        times = [
            max(when for _, when in taken)
            for taken in itertools.product(*options)
            if {term for part, _ in taken for term in part.needs()} == set(assignment)
            and self.spread([part for part, _ in taken], assignment) < self.plan.window_ms
        ]
        return min(times, default=None)

    def _options(
        self, clause: Alternatives, assignment: Assignment, bindings: Mapping[str, str]
    ) -> list[tuple[Part, int]]:
        times = [
            (part, self.part_at(part, assignment, bindings))
            for part in clause.parts
            if all(term in assignment for term in part.needs())
        ]
        return [(part, time) for part, time in times if time is not None]

    def spread(self, parts: Iterable[Part], assignment: Assignment) -> int:
        """How far the ends of these parts lie apart."""
        ends = [
            part_end(part, assignment)
            for part in parts
            if any(not assignment[term].is_fact for term in part.needs())
        ]
        return max(ends) - min(ends) if ends else 0

    # Absence and mixed clauses.

    def absence(self, clause: Alternatives, bindings: Mapping[str, str], t0: int) -> ClauseOutcome:
        """Whether the NOT children of a clause hold."""

        def counts(other: Occurrence) -> bool:
            return t0 <= other.start and other.end < t0 + clause.window_ms

        for terms in clause.counterexamples:
            found = self.refuters(terms, bindings, counts)
            if found is not None:
                return ClauseOutcome(satisfied_at=None, refuters=found)
        terms_of = {term for terms in clause.counterexamples for term in terms}
        waits = any(not isinstance(self.plan.terms[one], ConstraintTerm) for one in terms_of)
        return ClauseOutcome(satisfied_at=t0 + clause.window_ms if waits else t0)

    def earliest(
        self, clause: Alternatives, taken: dict[int, Occurrence], t0: int
    ) -> tuple[ClauseOutcome, dict[int, Occurrence]] | None:
        """The earliest positive part of a mixed clause near `t0`, and what it takes."""
        best: tuple[tuple[object, ...], ClauseOutcome, dict[int, Occurrence]] | None = None
        for place, part in enumerate(clause.parts):
            for assignment in self._choices(part, taken):
                bindings = bindings_of(assignment.values())
                when = self.part_at(part, assignment, bindings)
                end = part_end(part, assignment, default=t0)
                if when is None or not abs(end - t0) < clause.window_ms:
                    continue
                own = {term: assignment[term] for term in part.needs()}
                causes = sorted({event.cause for one in own.values() for event in one.events})
                rank = (end, causes, place, in_order(bindings))
                if best is None or rank < best[0]:
                    best = (rank, ClauseOutcome(satisfied_at=max(when, t0), chosen=part), own)
        return None if best is None else (best[1], best[2])

    def _choices(self, part: Part, taken: dict[int, Occurrence]) -> Iterator[dict[int, Occurrence]]:
        options: list[dict[int, Occurrence]] = [dict(taken)]
        for term in part.needs():
            if term in taken:
                continue
            options = [
                {**one, term: found}
                for one in options
                for found in self.occurring.of(term, bindings_of(one.values()))
                if self.agree(found, bindings_of(one.values()))
            ]
        yield from options


def bindings_of(occurrences: Iterable[Occurrence]) -> dict[str, str]:
    """All identities; equal aliases are known to be equal."""
    return {alias: one for each in occurrences for alias, one in each.pairs}


def in_order(bindings: Mapping[str, str]) -> list[tuple[str, object]]:
    """Sorts as the output does."""
    return [(alias, identity_order(item)) for alias, item in sorted(bindings.items())]


def latest_end(assignment: Assignment) -> int:
    """`t0` of a match."""
    return max(one.end for one in assignment.values() if not one.is_fact)


def part_end(part: Part, assignment: Assignment, default: int = 0) -> int:
    """The end a part counts with."""
    ends = [assignment[term].end for term in part.needs() if not assignment[term].is_fact]
    return max(ends, default=default)


def _proper_parts(
    items: frozenset[tuple[int, Occurrence]],
) -> Iterator[tuple[tuple[int, Occurrence], ...]]:
    for size in range(1, len(items)):
        yield from itertools.combinations(items, size)
