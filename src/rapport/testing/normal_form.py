"""A tiny extended conjunctive normal form for the direct evaluator, independent of the compiler's. [PO-4]"""

from __future__ import annotations

import itertools

import msgspec

from rapport.policy.language.tree import And, Expression, FollowedBy, Or, Term


class TermKey(msgspec.Struct, frozen=True):
    """A relationship between two aliases, whether negated or not."""

    first: str
    function: str
    second: str
    parameter: str


class Literal(msgspec.Struct, frozen=True):
    """A term or its negation."""

    term: TermKey
    negated: bool


class Pair(msgspec.Struct, frozen=True):
    """`first FOLLOWED-BY second`."""

    first: Literal
    second: Literal


Child = Literal | Pair
Clause = tuple[Child, ...]


def normal_form(expression: Expression) -> list[Clause]:
    """The clauses of an expression, in the order written, without duplicates and absorbed ones."""
    clauses = list(
        dict.fromkeys(tuple(dict.fromkeys(clause)) for clause in _clauses(expression))
    )
    return [
        clause
        for position, clause in enumerate(clauses)
        if not any(
            set(other) < set(clause) or (set(other) == set(clause) and earlier < position)
            for earlier, other in enumerate(clauses)
        )
    ]


def _clauses(expression: Expression) -> list[Clause]:
    match expression:
        case Term():
            return [(_literal(expression),)]
        case And(parts):
            return [clause for part in parts for clause in _clauses(part)]
        case Or(parts):
            choices = itertools.product(*(_clauses(part) for part in parts))
            return [tuple(itertools.chain.from_iterable(choice)) for choice in choices]
        case FollowedBy():
            return _followed_by(expression.first, expression.second, expression)


def _followed_by(first: Expression, second: Expression, whole: FollowedBy) -> list[Clause]:
    """Table 5.1: a chain is broken apart, AND and OR are distributed over, the left side first."""
    link = whole.place
    if isinstance(first, FollowedBy):
        return _clauses(And((first, FollowedBy(first.second, second, link))))
    if isinstance(second, FollowedBy):
        return _clauses(And((FollowedBy(first, second.first, link), second)))
    if isinstance(first, And | Or):
        return _clauses(
            type(first)(tuple(FollowedBy(part, second, link) for part in first.parts))
        )
    if isinstance(second, And | Or):
        return _clauses(
            type(second)(tuple(FollowedBy(first, part, link) for part in second.parts))
        )
    return [(Pair(_literal(first), _literal(second)),)]


def _literal(term: Term) -> Literal:
    key = TermKey(term.first, term.function.lower(), term.second, term.parameter.replace(" ", ""))
    return Literal(key, term.negated)
