"""Random trees of policies, and trees without their places."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import strategies as st

from rapport.policy.language.tree import (
    Action,
    And,
    AttributeOf,
    Call,
    Comparison,
    ConceptDef,
    Delivery,
    DurationCondition,
    Expression,
    FollowedBy,
    Measured,
    Or,
    PolicyTree,
    Property,
    Quantity,
    SilenceCondition,
    SourceSpan,
    Term,
    Within,
)
from tests.support.situation_trees import without_places as places_removed

NOWHERE = SourceSpan(0, 0, 0)
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


UNITS = (
    "",
    "degC",
    "%",
    "m/s",
    "km/h",
    "°C",
    "dB(A)",
    "µg/m³",
    "A",
    "[ppm]",
    "V.A",
    "/min",
    "[in_i'Hg]",
)
WINDOWS = st.sampled_from((1, 90, 5_000, 10_000, 90_000, 7_200_000, 366 * 86_400_000))


def operands() -> st.SearchStrategy[Measured]:
    numbers = st.floats(allow_nan=False, allow_infinity=False).map(lambda number: number + 0.0)
    texts = st.sampled_from(("open", "true", "it's", "", "30 degC", "# no comment"))
    attributes = st.sampled_from(("temperature", "x-y", "A", "true", "for"))
    functions = st.sampled_from(("distance", "minimumDistance"))
    aliases = st.lists(st.sampled_from(ALIASES), min_size=1, max_size=3)
    return (
        st.builds(Quantity, numbers, st.sampled_from(UNITS), st.just(NOWHERE))
        | st.builds(Quantity, texts, st.just(""), st.just(NOWHERE))
        | st.builds(
            AttributeOf, attributes, st.sampled_from(ALIASES), st.just(NOWHERE), st.just(NOWHERE)
        )
        | st.builds(
            lambda function, names: Call(function, tuple(names), NOWHERE, (NOWHERE,) * len(names)),
            functions,
            aliases,
        )
    )


def comparisons() -> st.SearchStrategy[Expression]:
    operators = st.sampled_from(("=", "!=", "<", ">", "<=", ">="))
    found = st.builds(
        Comparison, operands(), operators, operands(), st.booleans(), st.just(NOWHERE)
    )
    return found.filter(
        lambda one: not (isinstance(one.left, Quantity) and isinstance(one.right, Quantity))
    )


def joined(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    several = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return st.builds(And, several) | st.builds(Or, several)


def atoms() -> st.SearchStrategy[Expression]:
    single = terms() | comparisons()
    states = st.recursive(single, joined, max_leaves=4)
    attributes = st.sampled_from(("", "temperature", "x-y"))
    aliases = st.sampled_from(ALIASES)
    place = st.just(NOWHERE)
    silent = st.builds(SilenceCondition, attributes, aliases, WINDOWS, place, place)
    return single | st.builds(DurationCondition, states, WINDOWS, place) | silent


def expressions() -> st.SearchStrategy[Expression]:
    def larger(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
        windows = st.none() | WINDOWS
        return joined(inner) | st.builds(FollowedBy, inner, inner, st.just(NOWHERE), windows)

    return st.recursive(atoms(), larger, max_leaves=10)


def conditions() -> st.SearchStrategy[Expression]:
    """Expressions, perhaps with windows of whole lines."""
    inner = expressions().filter(lambda one: not isinstance(one, FollowedBy))
    lines = expressions() | st.builds(Within, inner, WINDOWS, st.just(NOWHERE))
    return lines | st.builds(And, st.lists(lines, min_size=2, max_size=4).map(tuple))


def values() -> st.SearchStrategy[str | float]:
    text = st.text(st.characters(blacklist_categories=("Cc", "Cs", "Zl", "Zp")), max_size=8)
    return text | st.floats(allow_nan=False, allow_infinity=False).map(lambda n: n + 0.0)


def policies() -> st.SearchStrategy[PolicyTree]:
    operators = st.sampled_from(("=", "!=", "<", ">", "<=", ">="))
    attributes = st.sampled_from(("status", "floor", "x-y"))
    nowhere = st.just(NOWHERE)
    numbers = values().filter(lambda value: not isinstance(value, str))
    units = st.sampled_from(UNITS)
    item = st.builds(
        Property, attributes, operators, values(), nowhere, value_place=nowhere
    ) | st.builds(Property, attributes, operators, numbers, nowhere, units, nowhere)
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
    delivery = st.sampled_from(("to guards", "urgent", "answer within 60 s", "say 'Hello, {A}!'"))
    deliveries = st.lists(st.builds(Delivery, delivery, st.just(NOWHERE)), max_size=2).map(tuple)
    action = st.builds(Action, phrases, st.just(NOWHERE), deliveries)
    actions = st.lists(action, min_size=1, max_size=2)
    parts = st.fixed_dictionaries(
        {
            "name": st.just("random"),
            "concepts": concepts,
            "condition": conditions(),
            "actions": actions.map(tuple),
            "window_ms": st.none() | st.integers(1, 10**9),
            "consumption": st.sampled_from(("chronicle", "recent")),
            "distinct": st.sampled_from(((), (("A", "B"),), (("A", "B"), ("A", "R")))),
            "when_unsure": st.sampled_from(("hold", "fire")),
            "once_per_ms": st.none() | WINDOWS,
        }
    )
    return parts.map(lambda found: PolicyTree(**found))


@pytest.fixture
def random_policies() -> st.SearchStrategy[PolicyTree]:
    return policies()


@pytest.fixture
def without_places() -> Callable[[PolicyTree], PolicyTree]:
    """A tree all of whose places are nowhere, to compare what two texts say."""

    return places_removed
