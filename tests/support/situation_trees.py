"""Random trees of policies with a situation, and trees without their places."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from rapport.policy.language.situation_tree import (
    Aggregate,
    AggregateFunction,
    AndOf,
    Between,
    Calculation,
    CalendarDay,
    Condition,
    DayTable,
    InUnit,
    Lasting,
    Not,
    OneOf,
    OrOf,
    Quantified,
    Quantifier,
    RelationshipAtom,
    Silence,
    SituationTree,
    TimeOfDay,
    Value,
    ValueComparison,
    Weekdays,
)
from rapport.policy.language.tree import (
    Action,
    AttributeOf,
    Call,
    ConceptDef,
    Delivery,
    Operator,
    Property,
    Quantity,
    SourceSpan,
)

NOWHERE = SourceSpan(0, 0, 0)
ALIASES = ("A", "B", "S")
ATTRIBUTES = ("temperature", "humidity", "pm10", "count", "time", "no", "mean")
OPERATORS: tuple[Operator, ...] = ("=", "!=", "<", ">", "<=", ">=")
MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
durations = st.integers(min_value=1, max_value=366 * 86_400_000)
texts = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=5)


def without_places(tree: Any) -> Any:
    """The tree with every place replaced by one, so that trees compare by meaning."""
    match tree:
        case SourceSpan():
            return NOWHERE
        case tuple():
            return tuple(map(without_places, tree))
        case msgspec.Struct():
            fields = {name: getattr(tree, name) for name in tree.__struct_fields__}
            changed = {name: without_places(value) for name, value in fields.items()}
            return msgspec.structs.replace(tree, **changed)
        case _:
            return tree


def _aliases(scope: tuple[str, ...]) -> st.SearchStrategy[str]:
    return st.sampled_from(scope)


@st.composite
def attributes(draw: st.DrawFn, scope: tuple[str, ...]) -> AttributeOf:
    name = draw(st.sampled_from(ATTRIBUTES))
    return AttributeOf(name, draw(_aliases(scope)), NOWHERE, NOWHERE)


def numbers() -> st.SearchStrategy[Quantity]:
    values = st.floats(allow_nan=False, allow_infinity=False).map(lambda value: value + 0.0)
    units = st.sampled_from(["", "degC", "K", "%", "ug/m3", "K/min", "%/h", "cm/h", "m"])
    return st.builds(Quantity, values, units, st.just(NOWHERE))


def constants() -> st.SearchStrategy[Quantity]:
    return numbers() | st.builds(Quantity, texts, st.just(""), st.just(NOWHERE))


@st.composite
def aggregates(draw: st.DrawFn, scope: tuple[str, ...], depth: int) -> Aggregate:
    function: AggregateFunction = draw(
        st.sampled_from(
            ["mean", "min", "max", "sum", "median", "count", "change", "rate", "percentile"]
        )
    )
    of: AttributeOf | Condition = draw(attributes(scope))
    if function == "count" and depth > 0 and draw(st.booleans()):
        of = draw(conditions(scope, depth - 1))
    at_least = None if function == "count" else draw(st.none() | st.integers(1, 999))
    rank = draw(st.floats(0.001, 100)) if function == "percentile" else None
    return Aggregate(function, of, draw(durations), NOWHERE, at_least, rank)


@st.composite
def measured(draw: st.DrawFn, scope: tuple[str, ...], depth: int) -> Value:
    """A value with at least one reading in it."""
    kind = draw(st.integers(0, 4 if depth > 0 else 2))
    if kind == 0:
        return draw(attributes(scope))
    if kind == 1:
        names = tuple(draw(st.lists(_aliases(scope), min_size=1, max_size=2)))
        return Call("distance", names, NOWHERE, (NOWHERE,) * len(names))
    if kind == 2:
        return draw(aggregates(scope, depth))
    inner = draw(measured(scope, depth - 1))
    if kind == 3:
        return InUnit(inner, draw(st.sampled_from(["degC", "%", "m/s", "K"])), NOWHERE)
    other: Value = draw(measured(scope, depth - 1) | numbers())
    left, right = draw(st.permutations([inner, other]))
    return Calculation(left, draw(st.sampled_from(["+", "-", "*", "/"])), right, NOWHERE)


@st.composite
def times(draw: st.DrawFn) -> TimeOfDay:
    weekdays = st.builds(Weekdays, st.integers(0, 6), st.integers(0, 6))
    dates = st.integers(1, 12).flatmap(
        lambda month: st.integers(1, MONTH_DAYS[month - 1]).map(lambda day: CalendarDay(day, month))
    )
    tables = st.builds(DayTable, st.sampled_from(["holidays", "school-days"]), st.just(NOWHERE))
    days = tuple(draw(st.lists(weekdays | dates | tables, max_size=3)))
    first = end = None
    if not days or draw(st.booleans()):
        first = draw(st.integers(0, 1439))
        end = draw(st.integers(0, 1440).filter(lambda minute: minute != first))
    zone = draw(st.sampled_from(["", "Europe/Berlin", "Asia/Kathmandu"]))
    return TimeOfDay(days, NOWHERE, first, end, zone)


@st.composite
def atoms(draw: st.DrawFn, scope: tuple[str, ...], depth: int) -> Condition:
    kind = draw(st.integers(0, 5))
    if kind == 0:
        function, parameter = draw(
            st.sampled_from([("inside", ""), ("within", "5 m"), ("within", "0.5 km"), ("near", "")])
        )
        first, second = draw(_aliases(scope)), draw(_aliases(scope))
        return RelationshipAtom(
            first, function, second, parameter, NOWHERE, NOWHERE, NOWHERE, NOWHERE
        )
    if kind == 1:
        name = draw(st.sampled_from(["", *ATTRIBUTES]))
        return Silence(name, draw(_aliases(scope)), draw(durations), NOWHERE, NOWHERE)
    if kind == 2:
        return draw(times())
    value = draw(measured(scope, depth))
    other = measured(scope, depth) | constants()
    if kind == 3:
        return Between(value, draw(other), draw(other), NOWHERE)
    if kind == 4:
        choices = tuple(draw(st.lists(constants(), min_size=1, max_size=3)))
        return OneOf(value, choices, NOWHERE)
    left, right = draw(st.permutations([value, draw(other)]))
    return ValueComparison(left, draw(st.sampled_from(OPERATORS)), right, NOWHERE)


@st.composite
def properties(draw: st.DrawFn) -> Property:
    value = draw(constants())
    operator: Operator = draw(st.sampled_from(OPERATORS))
    return Property("status", operator, value.value, NOWHERE, value.unit, NOWHERE)


@st.composite
def conditions(draw: st.DrawFn, scope: tuple[str, ...] = ALIASES, depth: int = 3) -> Condition:
    """A condition over the aliases in scope; quantifiers bind new ones."""
    kind = draw(st.integers(0, 5)) if depth > 0 else 0
    if kind <= 1:
        return draw(atoms(scope, max(depth - 1, 0)))
    if kind == 2:
        return Not(draw(conditions(scope, depth - 1)))
    if kind == 3:
        return Lasting(draw(conditions(scope, depth - 1)), draw(durations), NOWHERE)
    if kind == 4:
        parts = draw(st.lists(conditions(scope, depth - 1), min_size=2, max_size=3))
        return AndOf(tuple(parts)) if draw(st.booleans()) else OrOf(tuple(parts))
    alias = f"Q{len(scope)}"
    quantifier: Quantifier = draw(st.sampled_from(["some", "no", "at least", "at most"]))
    number = {"some": 1, "no": 0}.get(quantifier, draw(st.integers(1, 99)))
    return Quantified(
        quantifier,
        number,
        "person",
        alias,
        tuple(draw(st.lists(properties(), max_size=2))),
        draw(conditions((*scope, alias), depth - 1)),
        NOWHERE,
        NOWHERE,
    )


def _actions(least: int) -> st.SearchStrategy[tuple[Action, ...]]:
    phrases = st.sampled_from(["tell the guards", "raise alarm", 'say "{A} is # 1"'])
    lines = st.lists(st.just(Delivery("to guards", NOWHERE)), max_size=2).map(tuple)
    action = st.builds(Action, phrases, st.just(NOWHERE), lines)
    return st.lists(action, min_size=least, max_size=2).map(tuple)


@st.composite
def situation_trees(draw: st.DrawFn) -> SituationTree:
    """A whole policy; every alias is named."""
    named = [
        RelationshipAtom(ALIASES[0], "near", alias, "", NOWHERE, NOWHERE, NOWHERE, NOWHERE)
        for alias in ALIASES[1:]
    ]
    situation = AndOf((*named, draw(conditions())))
    concepts = tuple(
        ConceptDef(
            "person", alias, tuple(draw(st.lists(properties(), max_size=2))), NOWHERE, NOWHERE
        )
        for alias in ALIASES
    )
    return SituationTree(
        name="random",
        concepts=concepts,
        situation=situation,
        cleared_by=draw(st.none() | conditions()),
        actions=draw(_actions(1)),
        cleared_actions=draw(_actions(0)),
        may_be_same=draw(st.sampled_from([(), (("A", "B"),), (("A", "B"), ("S", "B"))])),
        once_per_ms=draw(st.none() | durations),
    )
