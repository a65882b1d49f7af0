"""Clauses of a plan: of which kind they are, and how they are said. [PO-11]"""

from __future__ import annotations

from typing import NamedTuple

from rapport.policy.explaining.wording import Wording, duration
from rapport.policy.plan import Child, Clause, Plan, Positive, Sequence
from rapport.policy.runners.operators.shapes import NotFollowed, NotPreceded, Occurs, Ordered, Part


class ClauseWords:
    """Says the clauses of one plan."""

    def __init__(self, plan: Plan, wording: Wording) -> None:
        self._plan, self._wording = plan, wording

    def clause(self, clause: Clause) -> str:
        """A clause in words."""
        said = " OR ".join(self.child(child) for child in clause.children)
        return said if clause.window_ms is None else f"{said} within {duration(clause.window_ms)}"

    def child(self, child: Child) -> str:
        """A child of a clause as the policy would say it."""
        terms, wording = self._plan.terms, self._wording
        if isinstance(child, Sequence):
            first = wording.term(terms[child.first], negated=child.first_negated)
            second = wording.term(terms[child.second], negated=child.second_negated)
            said = f"{first} FOLLOWED-BY {second}"
            return said if child.window_ms is None else f"{said} within {duration(child.window_ms)}"
        return wording.term(terms[child.term], negated=not isinstance(child, Positive))

    def part(self, part: Part) -> str:
        """What a part asks for."""
        terms, wording = self._plan.terms, self._wording
        match part:
            case Occurs(term):
                return wording.term(terms[term])
            case Ordered(first, second):
                return f"{wording.term(terms[first])} FOLLOWED-BY {wording.term(terms[second])}"
            case NotFollowed(first, absent):
                nots = " OR ".join(wording.term(terms[one], negated=True) for one in absent)
                return f"{wording.term(terms[first])} FOLLOWED-BY {nots}"
            case NotPreceded(absent, second):
                nots = " OR ".join(wording.term(terms[one], negated=True) for one in absent)
                return f"{nots} FOLLOWED-BY {wording.term(terms[second])}"


class ClauseKinds(NamedTuple):
    """Of every clause of the plan, its kind and its place among those of the kind."""

    positive: dict[int, int]
    mixed: dict[int, int]
    absent: dict[int, int]


def kinds_of(clauses: tuple[Clause, ...]) -> ClauseKinds:
    """As `shape_of` sorts them."""
    kinds = ClauseKinds({}, {}, {})
    every = [(_has_absent(clause), _has_positive(clause)) for clause in clauses]
    opens = any(not absent for absent, _ in every)
    for number, (absent, positive) in enumerate(every):
        if not absent or (positive and not opens):
            kinds.positive[number] = len(kinds.positive)
        elif positive:
            kinds.mixed[number] = len(kinds.mixed)
        else:
            kinds.absent[number] = len(kinds.absent)
    return kinds


def terms_of_child(child: Child) -> tuple[int, ...]:
    """The terms a child speaks of."""
    return (child.first, child.second) if isinstance(child, Sequence) else (child.term,)


def _has_absent(clause: Clause) -> bool:
    return any(not _is_positive(child) for child in clause.children)


def _has_positive(clause: Clause) -> bool:
    return any(_is_positive(child) for child in clause.children)


def _is_positive(child: Child) -> bool:
    if isinstance(child, Sequence):
        return not (child.first_negated and child.second_negated)
    return isinstance(child, Positive)
