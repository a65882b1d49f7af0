"""What a plan asks for, worked out once: kinds of clauses, and which sets of terms can make a
match. [PO-5, PO-6]

Everything here is pure and small; docs/semantics.md has the rules in words.
"""

from __future__ import annotations

import itertools

import msgspec

from rapport.core.errors import InvalidInput, Unsupported
from rapport.policy.plan import Absent, Child, Clause, ConstraintTerm, Plan, Positive, Sequence

_MOST_CHOICES = 2_000


class Occurs(msgspec.Struct, frozen=True, tag=True):
    """The term occurs."""

    term: int

    def needs(self) -> tuple[int, ...]:
        """The terms whose occurrences make it up."""
        return (self.term,)


class Ordered(msgspec.Struct, frozen=True, tag=True):
    """`first`, then `second` within the window."""

    first: int
    second: int

    def needs(self) -> tuple[int, ...]:
        """The terms whose occurrences make it up."""
        return tuple(dict.fromkeys((self.first, self.second)))


class NotFollowed(msgspec.Struct, frozen=True, tag=True):
    """`first`, and within the window after it no joint occurrence of all of `absent`."""

    first: int
    absent: tuple[int, ...]

    def needs(self) -> tuple[int, ...]:
        """The terms whose occurrences make it up."""
        return (self.first,)


class NotPreceded(msgspec.Struct, frozen=True, tag=True):
    """`second`, and within the window before it no joint occurrence of all of `absent`."""

    absent: tuple[int, ...]
    second: int

    def needs(self) -> tuple[int, ...]:
        """The terms whose occurrences make it up."""
        return (self.second,)


Part = Occurs | Ordered | NotFollowed | NotPreceded


class Alternatives(msgspec.Struct, frozen=True):
    """A clause: positive parts, any of which satisfies it, and the joint counterexamples of its NOT
    children.
    """

    parts: tuple[Part, ...]
    counterexamples: tuple[tuple[int, ...], ...]
    """Each a tuple of terms that, occurring together, refute the clause's absence."""


class Combination(msgspec.Struct, frozen=True):
    """A set of terms whose occurrences can be a match, with the ways (one part per clause) to be
    one.
    """

    terms: tuple[int, ...]
    choices: tuple[tuple[Part, ...], ...]
    smaller: tuple[int, ...]
    """Numbers of the combinations whose terms are among these: a match of theirs makes ours not
    minimal.
    """

    def parts(self) -> tuple[Part, ...]:
        """The distinct parts of all choices."""
        return tuple(dict.fromkeys(part for choice in self.choices for part in choice))

    def has_sequences(self) -> bool:
        """Whether some part relates ends of two terms, so that they may lie two windows apart."""
        return any(isinstance(part, Ordered) for part in self.parts())


class Shape(msgspec.Struct, frozen=True):
    """A plan taken apart."""

    positive: tuple[Alternatives, ...]
    mixed: tuple[Alternatives, ...]
    absent: tuple[Alternatives, ...]
    combinations: tuple[Combination, ...]

    def waits_after_first(self, number: int) -> tuple[int, ...]:
        """Terms of `X FOLLOWED-BY NOT Y` parts that must be waited for before this combination is
        decided.
        """
        chosen = self.combinations[number]
        around = (chosen, *(self.combinations[other] for other in chosen.smaller))
        return tuple(
            dict.fromkeys(
                part.first
                for combination in around
                for part in combination.parts()
                if isinstance(part, NotFollowed)
            )
        )


def shape_of(plan: Plan) -> Shape:
    """Takes a plan apart; raises InvalidInput when nothing can open its absence, Unsupported when
    it is too wide.
    """
    clauses = [_alternatives(clause) for clause in _openable(plan)]
    positive = tuple(clause for clause in clauses if not clause.counterexamples)
    mixed = tuple(clause for clause in clauses if clause.counterexamples and clause.parts)
    absent = tuple(clause for clause in clauses if not clause.parts)
    if not positive:
        if absent or not mixed:
            raise InvalidInput(
                f"policy {plan.policy!r}: nothing can open the absence it asks for",
                code="policy.nothing_opens",
                hint="add a condition that events can satisfy",
            )
        # NOT children that nothing can open count as if they were not there.
        positive = tuple(Alternatives(clause.parts, ()) for clause in mixed)
        mixed = ()
    return Shape(positive, mixed, absent, _combinations(plan, positive))


def _openable(plan: Plan) -> list[Clause]:
    """The clauses; without absence of events when no clause of events alone can open it."""
    if any(all(_occurs(plan, child) for child in clause.children) for clause in plan.clauses):
        return list(plan.clauses)
    kept = [
        Clause(tuple(c for c in clause.children if _occurs(plan, c) or _is_fact(plan, c)))
        for clause in plan.clauses
    ]
    return [
        left if left.children else clause for left, clause in zip(kept, plan.clauses, strict=True)
    ]


def _is_fact(plan: Plan, child: Child) -> bool:
    if isinstance(child, Sequence):
        return False
    return isinstance(plan.terms[child.term], ConstraintTerm)


def _occurs(plan: Plan, child: Child) -> bool:
    if isinstance(child, Sequence):
        return not (child.first_negated and child.second_negated)
    return isinstance(child, Positive) and not _is_fact(plan, child)


def _alternatives(clause: Clause) -> Alternatives:
    parts: list[Part] = []
    refuting: list[tuple[int, ...]] = []
    for child in clause.children:
        if isinstance(child, Absent):
            refuting.append((child.term,))
        elif isinstance(child, Positive):
            parts.append(Occurs(child.term))
        elif child.first_negated and child.second_negated:
            refuting.append((child.first, child.second))
        elif child.second_negated:
            parts.append(NotFollowed(child.first, _seconds(clause, child.first)))
        elif child.first_negated:
            parts.append(NotPreceded(_firsts(clause, child.second), child.second))
        else:
            parts.append(Ordered(child.first, child.second))
    joint = tuple(itertools.product(*refuting)) if refuting else ()
    return Alternatives(tuple(dict.fromkeys(parts)), joint)


def _seconds(clause: Clause, first: int) -> tuple[int, ...]:
    """All Y of `first FOLLOWED-BY NOT Y` in the clause: they are decided together."""
    return tuple(
        child.second
        for child in clause.children
        if isinstance(child, Sequence)
        and (child.first_negated, child.second_negated) == (False, True)
        and child.first == first
    )


def _firsts(clause: Clause, second: int) -> tuple[int, ...]:
    return tuple(
        child.first
        for child in clause.children
        if isinstance(child, Sequence)
        and (child.first_negated, child.second_negated) == (True, False)
        and child.second == second
    )


def _combinations(plan: Plan, clauses: tuple[Alternatives, ...]) -> tuple[Combination, ...]:
    by_terms: dict[frozenset[int], list[frozenset[Part]]] = {}
    for choice in _choices(clauses):
        terms = frozenset(term for part in choice for term in part.needs())
        if any(not isinstance(plan.terms[term], ConstraintTerm) for term in terms):
            by_terms.setdefault(terms, []).append(choice)
    ordered = sorted(by_terms, key=lambda terms: (len(terms), sorted(terms)))
    return tuple(
        Combination(
            tuple(sorted(terms)),
            tuple(tuple(sorted(choice, key=repr)) for choice in by_terms[terms]),
            tuple(number for number, other in enumerate(ordered) if other < terms),
        )
        for terms in ordered
    )


def _choices(clauses: tuple[Alternatives, ...]) -> list[frozenset[Part]]:
    """Every way to take one part from each clause, as a set of parts.

    A way that contains another is left out: it needs the same and more, so it is never minimal.
    Only where absence is looked for with the identities of the whole match can more terms succeed
    where fewer fail.
    """
    every = any(
        isinstance(part, NotFollowed | NotPreceded) for clause in clauses for part in clause.parts
    )
    ways: set[frozenset[Part]] = {frozenset()}
    for clause in clauses:
        grown: set[frozenset[Part]] = set()
        for way in ways:
            if not every and any(part in way for part in clause.parts):
                grown.add(way)
            else:
                grown.update(way | {part} for part in clause.parts)
        ways = grown
        if len(ways) > _MOST_CHOICES:
            raise Unsupported(
                f"a condition with more than {_MOST_CHOICES} ways to be true",
                hint="split the policy into several",
            )
    chosen = ways if every else {way for way in ways if not any(other < way for other in ways)}
    return sorted(chosen, key=lambda way: sorted(map(repr, way)))
