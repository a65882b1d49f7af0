"""A tiny extended conjunctive normal form for the direct evaluator, independent of the compiler's.
[PO-4]
"""

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
    clauses = list(dict.fromkeys(tuple(dict.fromkeys(clause)) for clause in _clauses(expression)))
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
            return _any_of([_clauses(part) for part in parts])
        case FollowedBy():
            return _any_of([_links(way) for way in _ways(expression)])


def _any_of(options: list[list[Clause]]) -> list[Clause]:
    """AND over OR: one clause of each option, joined, in every combination."""
    choices = itertools.product(*options)
    return [tuple(itertools.chain.from_iterable(choice)) for choice in choices]


def _ways(expression: Expression) -> list[list[list[Literal]]]:
    """Table 5.1: the ways an operand of FOLLOWED-BY can come true, each a list of chains that all
    happen.

    A choice of an OR is made once for the whole operand, as in the paper's example.
    """
    match expression:
        case Term():
            return [[[_literal(expression)]]]
        case Or(parts):
            return [way for part in parts for way in _ways(part)]
        case And(parts):
            together = itertools.product(*(_ways(part) for part in parts))
            return [list(itertools.chain.from_iterable(ways)) for ways in together]
        case FollowedBy(first, second):
            return [
                [before + after for before in one for after in other]
                for one in _ways(first)
                for other in _ways(second)
            ]


def _links(way: list[list[Literal]]) -> list[Clause]:
    """A chain a, b, c is the two followed-bys a, b and b, c."""
    return [(Pair(before, after),) for chain in way for before, after in itertools.pairwise(chain)]


def _literal(term: Term) -> Literal:
    key = TermKey(term.first, term.function.lower(), term.second, term.parameter.replace(" ", ""))
    return Literal(key, term.negated)
