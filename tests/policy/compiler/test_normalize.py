"""The normal form keeps the meaning: judged by rewriting step by step with table 5.1."""

import doctest
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.kernel.clock import SystemClock
from rapport.policy.compiler import normalize as module
from rapport.policy.compiler.normalize import (
    MAX_CLAUSES,
    Atom,
    Literal,
    Pair,
    literal_of,
    normalize,
    terms_of,
)
from rapport.policy.language.tree import And, Expression, FollowedBy, Or, Place, Term

pytestmark = pytest.mark.slow

NOWHERE = Place(0, 0)


def term(name: str, negated: bool = False) -> Term:
    return Term(name, "x", "r", negated, "", NOWHERE, NOWHERE, NOWHERE, NOWHERE)


def followed(first: Expression, second: Expression) -> FollowedBy:
    return FollowedBy(first, second, NOWHERE)


terms = st.builds(term, st.sampled_from("abcde"), st.booleans())
booleans_only = st.recursive(
    terms,
    lambda inner: (
        st.builds(And, st.lists(inner, min_size=2, max_size=3).map(tuple))
        | st.builds(Or, st.lists(inner, min_size=2, max_size=3).map(tuple))
    ),
    max_leaves=8,
)
expressions = st.recursive(
    terms,
    lambda inner: (
        st.builds(And, st.lists(inner, min_size=2, max_size=2).map(tuple))
        | st.builds(Or, st.lists(inner, min_size=2, max_size=2).map(tuple))
        | st.builds(followed, inner, inner)
    ),
    max_leaves=6,
)


class Assignment:
    """Which terms and which ordered pairs of terms are true."""

    def __init__(self, true_terms: set[str], true_pairs: set[tuple[Literal, Literal]]) -> None:
        self.true_terms, self.true_pairs = true_terms, true_pairs

    def holds(self, atom: Atom) -> bool:
        if isinstance(atom, Pair):
            return (atom.first, atom.second) in self.true_pairs
        return (atom.first in self.true_terms) != atom.negated


def assignments(expression: Expression) -> st.SearchStrategy[Assignment]:
    literals = list({literal_of(found) for found in terms_of(expression)})
    pairs = [(one, other) for one in literals for other in literals]
    return st.builds(
        Assignment,
        st.sets(st.sampled_from("abcde")),
        st.sets(st.sampled_from(pairs)) if pairs else st.just(set()),
    )


def judge(expression: Expression, world: Assignment) -> bool:
    """The meaning of the tree as written: every choice that an OR leaves is tried."""
    return any(
        all(
            world.holds(Pair(one, other)) if other is not None else world.holds(one)
            for one, other in links
        )
        for links, _firsts, _lasts in ways(expression)
    )


Link = tuple[Literal, Literal | None]


def ways(expression: Expression) -> Iterator[tuple[set[Link], set[Literal], set[Literal]]]:
    """Ways to come true: what must hold, what it begins with, what it ends with."""
    match expression:
        case Term():
            literal = literal_of(expression)
            yield {(literal, None)}, {literal}, {literal}
        case Or(parts):
            for part in parts:
                yield from ways(part)
        case And(parts):
            yield from _all_ways(list(parts))
        case FollowedBy(first, second):
            for links, firsts, lasts in ways(first):
                for more, next_firsts, next_lasts in ways(second):
                    joined = {(a, b) for a in lasts for b in next_firsts}
                    chained = {link for link in links | more if link[1] is not None}
                    yield chained | joined, firsts, next_lasts


def _all_ways(
    parts: list[Expression],
) -> Iterator[tuple[set[Link], set[Literal], set[Literal]]]:
    if len(parts) == 1:
        yield from ways(parts[0])
        return
    for links, firsts, lasts in ways(parts[0]):
        for more, more_firsts, more_lasts in _all_ways(parts[1:]):
            yield links | more, firsts | more_firsts, lasts | more_lasts


@settings(max_examples=200)
@given(st.data())
def test_the_normal_form_keeps_the_meaning(data: st.DataObject) -> None:
    expression = data.draw(expressions)
    clauses = normalize(expression)
    for _ in range(5):
        world = data.draw(assignments(expression))
        held = all(any(world.holds(atom) for atom in clause) for clause in clauses)
        assert held == judge(expression, world)


@settings(max_examples=150)
@given(booleans_only, st.sets(st.sampled_from("abcde")))
def test_without_followed_by_it_is_the_ordinary_normal_form(
    expression: Expression, true_terms: set[str]
) -> None:
    def evaluate(part: Expression) -> bool:
        match part:
            case And(parts):
                return all(evaluate(inner) for inner in parts)
            case Or(parts):
                return any(evaluate(inner) for inner in parts)
            case Term():
                return (part.first in true_terms) != part.negated
        raise AssertionError(part)

    world = Assignment(true_terms, set())
    clauses = normalize(expression)
    assert all(any(world.holds(atom) for atom in clause) for clause in clauses) == evaluate(
        expression
    )


@settings(max_examples=150)
@given(expressions)
def test_no_clause_contains_another(expression: Expression) -> None:
    sets = [frozenset(clause) for clause in normalize(expression)]
    assert not any(one <= other for one in sets for other in sets if one is not other)


@given(expressions)
def test_normalising_again_changes_nothing(expression: Expression) -> None:
    def as_expression(atom: Atom) -> Expression:
        if isinstance(atom, Pair):
            return followed(as_expression(atom.first), as_expression(atom.second))
        return term(atom.first, atom.negated)

    clauses = normalize(expression)
    rebuilt = And(tuple(Or(tuple(as_expression(atom) for atom in clause)) for clause in clauses))
    assert {frozenset(clause) for clause in normalize(rebuilt)} == {
        frozenset(clause) for clause in clauses
    }


def test_above_a_thousand_clauses_it_is_refused() -> None:
    pairs = [And((term(f"a{i}"), term(f"b{i}"))) for i in range(10)]
    with pytest.raises(InvalidInput) as caught:
        normalize(Or(tuple(pairs)))
    assert caught.value.code == "policy.too_many_clauses"
    assert len(normalize(Or(tuple(pairs[:9])))) == 512
    with pytest.raises(InvalidInput):
        normalize(And(tuple(term(f"a{i}") for i in range(MAX_CLAUSES + 1))))


@pytest.mark.parametrize(
    "expression",
    [
        Or(tuple(And((term(f"a{i}"), term(f"b{i}"), term(f"c{i}"))) for i in range(400))),
        Or((And(tuple(term(f"a{i}") for i in range(900))), *(term(f"b{i}") for i in range(900)))),
        Or(
            tuple(
                And(tuple(term(f"a{(i * 7 + k * 5) % 12}") for k in range(4))) for i in range(400)
            )
        ),
        followed(
            And(tuple(Or((term(f"a{i}"), term(f"b{i}"))) for i in range(40))),
            And(tuple(Or((term(f"c{i}"), term(f"d{i}"))) for i in range(40))),
        ),
        followed(
            And(tuple(term(f"a{i}") for i in range(300))),
            And(tuple(term(f"b{i}") for i in range(300))),
        ),
    ],
    ids=["wide or", "one long and", "absorbing", "choices", "many pairs"],
)
def test_no_condition_takes_long(expression: Expression) -> None:
    clock = SystemClock()
    started = clock.steady_ns()
    try:
        normalize(expression)
    except InvalidInput as error:
        assert error.code == "policy.too_many_clauses"
    assert clock.steady_ns() - started < 10_000_000_000


def test_the_examples_of_table_5_1_hold() -> None:
    assert doctest.testmod(module).failed == 0
