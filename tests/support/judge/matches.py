"""Rules 5 and 6 read literally: every way to satisfy the positive clauses, and counterexamples.
[PO-6, PO-7, PO-15]
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from rapport.policy.language.tree import PolicyTree
from support.judge.children import (
    Assignment,
    Bindings,
    Windowed,
    bindings_of,
    child_end,
    latest_end,
    needed,
    window_of,
    with_same_first,
    with_same_second,
)
from support.judge.keys import Key
from support.judge.known_world import Occurrence
from support.judge.normal_form import Child, Literal, Pair
from support.judge.occurrences import Occurrences

Counts = Callable[[Occurrence], bool]
"""Whether an occurrence with an end lies where it refutes."""


class Matching:
    """The matches of one policy."""

    def __init__(
        self, tree: PolicyTree, found: Occurrences, positive: list[Windowed], window: int, far: int
    ) -> None:
        """`far`: no two ends of a match lie that far apart; it only saves time."""
        self._distinct, self._found, self._positive = tree.distinct, found, positive
        self._window, self._far = window, far
        self._concept = found.world.holding.concept

    def minimal(self) -> list[tuple[Assignment, int]]:
        """The matches without those of which a part is one, each with the time it is satisfied."""
        valid: dict[frozenset[tuple[Key, Occurrence]], int] = {}
        for assignment in self._assignments():
            when = self._satisfied_at(assignment)
            if when is not None:
                valid[frozenset(assignment.items())] = when
        return [
            (dict(items), when)
            for items, when in valid.items()
            if not any(frozenset(part) in valid for part in _proper_parts(items))
        ]

    def agree(self, occurrence: Occurrence, bindings: Bindings) -> bool:
        """Rule 3: equal aliases are equal identities; aliases declared distinct are not."""
        merged = {**bindings, **occurrence.bindings}
        if any(merged[alias] != identity for alias, identity in bindings.items()):
            return False
        return not any(
            first in merged
            and second in merged
            and (self._concept(first), merged[first]) == (self._concept(second), merged[second])
            for first, second in self._distinct
        )

    def child_at(
        self, child: Child, clause: Windowed, assignment: Assignment, bindings: Bindings
    ) -> int | None:
        """When a positive child is satisfied by the occurrences taken; None when it is not."""
        if isinstance(child, Literal):
            occurrence = assignment[child.term]
            return latest_end(assignment) if occurrence.is_fact else occurrence.end
        if child.second.negated:
            return self._not_followed(child, clause, assignment, bindings)
        if child.first.negated:
            return self._not_preceded(child, clause, assignment, bindings)
        first, second = assignment[child.first.term], assignment[child.second.term]
        in_order = first.end + first.uncertainty < second.end - second.uncertainty
        return second.end if in_order and second.end < first.end + window_of(child) else None

    def refuted(self, terms: Sequence[Key], bindings: Bindings, counts: Counts) -> bool:
        """Whether there is one occurrence per term, identities agreeing, that counts."""
        if not terms:
            return True
        for occurrence in self._found.all_occurrences(terms[0]):
            if not occurrence.is_fact and not counts(occurrence):
                continue
            if self.agree(occurrence, bindings):
                merged = {**bindings, **occurrence.bindings}
                if self.refuted(terms[1:], merged, counts):
                    return True
        return False

    def _not_followed(
        self, child: Pair, clause: Windowed, assignment: Assignment, bindings: Bindings
    ) -> int | None:
        first, window = assignment[child.first.term], window_of(child)

        def counts(other: Occurrence) -> bool:
            after = other.end + other.uncertainty > first.end - first.uncertainty
            return after and other.end - other.uncertainty < first.end + first.uncertainty + window

        if self.refuted(with_same_first(clause, child), bindings, counts):
            return None
        return first.end + window

    def _not_preceded(
        self, child: Pair, clause: Windowed, assignment: Assignment, bindings: Bindings
    ) -> int | None:
        second, window = assignment[child.second.term], window_of(child)

        def counts(other: Occurrence) -> bool:
            before = other.end - other.uncertainty < second.end + second.uncertainty
            since = second.end - second.uncertainty - window
            return before and other.end + other.uncertainty > since

        together = with_same_second(clause, child)
        return None if self.refuted(together, bindings, counts) else second.end

    def _assignments(self) -> Iterator[Assignment]:
        """Every way to take one child from each clause and one occurrence for each term of those
        children.
        """
        seen: set[frozenset[tuple[Key, Occurrence]]] = set()
        for children in itertools.product(*(clause.children for clause in self._positive)):
            terms = list(dict.fromkeys(term for child in children for term in needed(child)))
            for assignment in self._fill(terms, {}):
                key = frozenset(assignment.items())
                if key not in seen and any(not occurrence.is_fact for _, occurrence in key):
                    seen.add(key)
                    yield assignment

    def _fill(self, terms: Sequence[Key], taken: Assignment) -> Iterator[Assignment]:
        if not terms:
            yield taken
            return
        bindings = bindings_of(taken.values())
        for occurrence in self._found.occurrences(terms[0]):
            if self._may_join(occurrence, taken) and self.agree(occurrence, bindings):
                yield from self._fill(terms[1:], {**taken, terms[0]: occurrence})

    def _may_join(self, occurrence: Occurrence, taken: Assignment) -> bool:
        return occurrence.is_fact or all(
            abs(occurrence.end - other.end) < self._far
            for other in taken.values()
            if not other.is_fact
        )

    def _satisfied_at(self, assignment: Assignment) -> int | None:
        """When the last positive clause is satisfied; None when these occurrences are no match.

        A match takes one child from each clause; the ends of the children taken lie within the
        policy's window.
        """
        bindings = bindings_of(assignment.values())
        options = [self._options(clause, assignment, bindings) for clause in self._positive]
        times = [
            max(when for _, when in taken)
            for taken in itertools.product(*options)
            if {term for child, _ in taken for term in needed(child)} == set(assignment)
            and self._are_near([child for child, _ in taken], assignment)
        ]
        return min(times, default=None)

    def _options(
        self, clause: Windowed, assignment: Assignment, bindings: Bindings
    ) -> list[tuple[Child, int]]:
        """The children of a clause that the occurrences satisfy, with the time of each."""
        times = [
            (child, self.child_at(child, clause, assignment, bindings))
            for child in clause.children
            if all(term in assignment for term in needed(child))
        ]
        return [(child, time) for child, time in times if time is not None]

    def _are_near(self, children: list[Child], assignment: Assignment) -> bool:
        ends = [
            child_end(child, assignment, default=0)
            for child in children
            if any(not assignment[term].is_fact for term in needed(child))
        ]
        return not ends or max(ends) - min(ends) < self._window


def _proper_parts(
    items: frozenset[tuple[Key, Occurrence]],
) -> Iterator[tuple[tuple[Key, Occurrence], ...]]:
    for size in range(1, len(items)):
        yield from itertools.combinations(items, size)
