"""Random trees of policies, and trees without their places."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import strategies as st

from rapport.policy.language.tree import (
    Action,
    And,
    ConceptDef,
    Expression,
    FollowedBy,
    Or,
    Place,
    PolicyTree,
    Property,
    Term,
)

NOWHERE = Place(0, 0, 0)
ALIASES = ("A", "B", "R")


def terms() -> st.SearchStrategy[Expression]:
    return st.builds(
        lambda first, function, second, negated, parameter: Term(
            first, function, second, negated, parameter, NOWHERE, NOWHERE, NOWHERE, NOWHERE
        ),
        st.sampled_from(ALIASES),
        st.sampled_from(("inside", "within", "belongs to", "FACING", "in-front_of")),
        st.sampled_from(ALIASES),
        st.booleans(),
        st.sampled_from(("", "5m", "2.5ft", "3", "-1e-3km")),
    )


def expressions() -> st.SearchStrategy[Expression]:
    def larger(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
        several = st.lists(inner, min_size=2, max_size=3).map(tuple)
        followed = st.builds(FollowedBy, inner, inner, st.just(NOWHERE))
        return st.builds(And, several) | st.builds(Or, several) | followed

    return st.recursive(terms(), larger, max_leaves=10)


def values() -> st.SearchStrategy[str | float]:
    text = st.text(st.characters(blacklist_categories=("Cc", "Cs", "Zl", "Zp")), max_size=8)
    return text | st.floats(allow_nan=False, allow_infinity=False).map(lambda n: n + 0.0)


def policies() -> st.SearchStrategy[PolicyTree]:
    operators = st.sampled_from(("=", "!=", "<", ">", "<=", ">="))
    attributes = st.sampled_from(("status", "floor", "x-y"))
    item = st.builds(Property, attributes, operators, values(), st.just(NOWHERE))
    properties = st.lists(item, max_size=3).map(tuple)
    concepts = st.tuples(
        *(
            st.builds(
                ConceptDef,
                st.sampled_from(("person", "room", "Gerät")),
                st.just(alias),
                properties,
                st.just(NOWHERE),
                st.just(NOWHERE),
            )
            for alias in ALIASES
        )
    )
    phrases = st.sampled_from(("raise alarm", "call http://example.org/#x", "tell 'Ana', now!"))
    actions = st.lists(st.builds(Action, phrases, st.just(NOWHERE)), min_size=1, max_size=2)
    return st.builds(
        PolicyTree,
        name=st.just("random"),
        concepts=concepts,
        condition=expressions(),
        actions=actions.map(tuple),
        window_ms=st.none() | st.integers(1, 10**9),
        consumption=st.sampled_from(("chronicle", "recent")),
        distinct=st.sampled_from(((), (("A", "B"),), (("A", "B"), ("A", "R")))),
    )


@pytest.fixture
def random_policies() -> st.SearchStrategy[PolicyTree]:
    return policies()


@pytest.fixture
def without_places() -> Callable[[PolicyTree], PolicyTree]:
    """A tree all of whose places are nowhere, to compare what two texts say."""

    def strip(value: object) -> object:
        if isinstance(value, dict):
            if value.keys() == {"line", "column", "length"}:
                return {"line": 0, "column": 0, "length": 0}
            return {key: strip(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [strip(inner) for inner in value]
        return value

    def stripped(tree: PolicyTree) -> PolicyTree:
        plain = msgspec.to_builtins(tree, builtin_types=())
        return msgspec.convert(strip(_listed(plain)), PolicyTree)

    return stripped


def _listed(value: object) -> object:
    if isinstance(value, dict):
        return {key: _listed(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_listed(inner) for inner in value]
    return value
