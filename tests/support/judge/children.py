"""The children of clauses: which are absent, what they need, and which windows hold for them.
[PO-4, PO-7]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from rapport.core.detection import identity_order
from support.judge.keys import Key
from support.judge.known_world import KnownWorld, Occurrence
from support.judge.normal_form import Child, Clause, Literal, Pair
from support.judge.occurrences import windowed

Bindings = dict[str, str]
Assignment = Mapping[Key, Occurrence]


class Windowed(msgspec.Struct, frozen=True):
    """A clause whose windows are all said: its own, those of its pairs and of its correlations."""

    children: tuple[Child, ...]
    window: int


def with_windows(clause: Clause, world: KnownWorld, window: int) -> Windowed:
    """The innermost of followed-by, clause and policy counts."""
    own = window if clause.window is None else clause.window

    def literal(one: Literal, within: int) -> Literal:
        if not world.is_correlation(one.term):
            return one
        return Literal(windowed(one.term, within), one.negated)

    def child(one: Child) -> Child:
        if isinstance(one, Literal):
            return literal(one, own)
        within = own if one.window is None else one.window
        return Pair(literal(one.first, within), literal(one.second, within), within)

    return Windowed(tuple(child(one) for one in clause.children), own)


def largest_window(clauses: Iterable[Windowed], window: int) -> int:
    """Of the policy, its clauses and its followed-bys."""
    own = [clause.window for clause in clauses]
    pairs = [one for clause in clauses for one in clause.children if isinstance(one, Pair)]
    return max([window, *own, *(window_of(pair) for pair in pairs)])


def window_of(pair: Pair) -> int:
    """A pair of a clause whose windows are said has one."""
    assert pair.window is not None
    return pair.window


def is_absent(child: Child) -> bool:
    """NOT a term, or a followed-by of two NOTs."""
    if isinstance(child, Literal):
        return child.negated
    return child.first.negated and child.second.negated


def needed(child: Child) -> list[Key]:
    """The terms whose occurrences a positive child consists of."""
    parts = [child] if isinstance(child, Literal) else [child.first, child.second]
    return list(dict.fromkeys(part.term for part in parts if not part.negated))


def refuting(child: Child) -> list[Key]:
    """The terms any of which, occurring, refutes an absent child."""
    return [child.term] if isinstance(child, Literal) else [child.first.term, child.second.term]


def absent_terms(clause: Windowed) -> list[Key]:
    """What must not occur, of the absent children."""
    return [term for child in clause.children if is_absent(child) for term in refuting(child)]


def negated_sides(clauses: Iterable[Windowed]) -> list[Key]:
    """What must not follow or precede, of all positive followed-bys."""
    return [
        part.term
        for clause in clauses
        for child in clause.children
        if isinstance(child, Pair) and not is_absent(child)
        for part in (child.first, child.second)
        if part.negated
    ]


def with_same_first(clause: Windowed, child: Pair) -> list[Key]:
    """What must not follow the same thing within the same window: decided together."""
    return [
        other.second.term
        for other in clause.children
        if isinstance(other, Pair)
        and (other.first, other.window) == (child.first, child.window)
        and other.second.negated
    ]


def with_same_second(clause: Windowed, child: Pair) -> list[Key]:
    """What must not precede the same thing within the same window: decided together."""
    return [
        other.first.term
        for other in clause.children
        if isinstance(other, Pair)
        and (other.second, other.window) == (child.second, child.window)
        and other.first.negated
    ]


def bindings_of(occurrences: Iterable[Occurrence]) -> Bindings:
    """All identities; equal aliases are known to be equal."""
    return {alias: item for each in occurrences for alias, item in each.bindings.items()}


def in_order(bindings: Bindings) -> list[tuple[str, object]]:
    """Sorts as the output does."""
    return [(alias, identity_order(item)) for alias, item in sorted(bindings.items())]


def latest_end(assignment: Assignment) -> int:
    """`t0` of a match."""
    return max(occurrence.end for occurrence in assignment.values() if not occurrence.is_fact)


def child_end(child: Child, assignment: Assignment, default: int) -> int:
    """The end a positive child counts with: that of its last occurrence (`X FOLLOWED-BY NOT Y`:
    X's).
    """
    ends = [assignment[term].end for term in needed(child) if not assignment[term].is_fact]
    return max(ends, default=default)
