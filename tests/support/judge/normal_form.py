"""A tiny extended conjunctive normal form for the direct evaluator, independent of the compiler's.
[PO-4]
"""

from __future__ import annotations

import itertools

import msgspec

from rapport.core.errors import InvalidInput
from rapport.policy.language.tree import (
    And,
    Comparison,
    DurationCondition,
    Expression,
    FollowedBy,
    Or,
    SilenceCondition,
    Term,
    Within,
)
from support.judge.keys import Key, Keys


class Literal(msgspec.Struct, frozen=True):
    """A term, comparison, `for` or `no`, or its negation."""

    term: Key
    negated: bool = False


class Pair(msgspec.Struct, frozen=True):
    """`first FOLLOWED-BY second`, perhaps with a window of its own."""

    first: Literal
    second: Literal
    window: int | None = None


Child = Literal | Pair


class Clause(msgspec.Struct, frozen=True):
    """An OR of children, perhaps with a window of its own."""

    children: tuple[Child, ...]
    window: int | None = None


_Step = tuple[Literal, int | None]
"""A literal of a chain, and the window of the followed-by that leads to it."""
_Chain = list[_Step]


def normal_form(expression: Expression, keys: Keys) -> list[Clause]:
    """The clauses of an expression, in the order written, without duplicates and absorbed ones;
    their children in the order in which the expression first says them.

    Only clauses with the same window (or both without one) absorb each other.
    """
    reading = _Reading(keys)
    written = reading.clauses(expression)
    clauses = list(dict.fromkeys(reading.in_order(clause) for clause in written))
    return [
        clause
        for position, clause in enumerate(clauses)
        if not any(
            other.window == clause.window and _absorbs(other, clause, earlier < position)
            for earlier, other in enumerate(clauses)
        )
    ]


def _absorbs(other: Clause, clause: Clause, stands_first: bool) -> bool:
    own, its = set(clause.children), set(other.children)
    return its < own or (its == own and stands_first)


class _Reading:
    """Multiplies one condition out."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._said: dict[Child, int] = {}

    def in_order(self, clause: Clause) -> Clause:
        """Its children as the expression first said them."""
        children = tuple(sorted(clause.children, key=lambda child: self._said[child]))
        return Clause(children, clause.window)

    def clauses(self, expression: Expression) -> list[Clause]:
        match expression:
            case And(parts):
                return [clause for part in parts for clause in self.clauses(part)]
            case Or(parts):
                return _any_of([self.clauses(part) for part in parts])
            case FollowedBy():
                return _any_of([self._links(way) for way in self._ways(expression)])
            case Within(inner, window):
                return [Clause(clause.children, window) for clause in self.clauses(inner)]
            case _:
                return [self._single(self._literal(expression))]

    def _ways(self, expression: Expression) -> list[list[_Chain]]:
        """Table 5.1: the ways an operand of FOLLOWED-BY can come true, each a list of chains that
        all happen.

        A choice of an OR is made once for the whole operand, as in the paper's example.
        """
        match expression:
            case Or(parts):
                return [way for part in parts for way in self._ways(part)]
            case And(parts):
                together = itertools.product(*(self._ways(part) for part in parts))
                return [list(itertools.chain.from_iterable(ways)) for ways in together]
            case FollowedBy(first, second):
                return [
                    [
                        _joined(before, after, expression.window_ms)
                        for before in one
                        for after in two
                    ]
                    for one in self._ways(first)
                    for two in self._ways(second)
                ]
            case _:
                return [[[(self._literal(expression), None)]]]

    def _links(self, way: list[_Chain]) -> list[Clause]:
        """A chain a, b, c is the two followed-bys a, b and b, c."""
        return [
            self._single(Pair(before, after, window))
            for chain in way
            for (before, _), (after, window) in itertools.pairwise(chain)
        ]

    def _single(self, child: Child) -> Clause:
        self._said.setdefault(child, len(self._said))
        return Clause((child,))

    def _literal(self, part: Expression) -> Literal:
        match part:
            case Term() | Comparison():
                return Literal(self._keys.of(part), part.negated)
            case DurationCondition() | SilenceCondition():
                return Literal(self._keys.of(part))
            case _:
                raise InvalidInput("a window stands within a line", code="policy.bad_window")


def _any_of(options: list[list[Clause]]) -> list[Clause]:
    """AND over OR: one clause of each option, joined, in every combination."""
    return [
        Clause(tuple(dict.fromkeys(child for clause in choice for child in clause.children)))
        for choice in itertools.product(*options)
    ]


def _joined(before: _Chain, after: _Chain, window: int | None) -> _Chain:
    return [*before, (after[0][0], window), *after[1:]]
