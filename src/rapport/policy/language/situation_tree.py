"""The syntax tree of a policy with a `situation`: made by the parser, read by the printer, the
compiler and the judge of the tests. [SI-1 to SI-8]

Everything is kept as written: units, names and the order of parts. NOT may stand before any
expression.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from rapport.policy.language.tree import (
    Action,
    AttributeOf,
    Call,
    ConceptDef,
    Operator,
    PolicyTree,
    Property,
    Quantity,
    SourceSpan,
)

AggregateFunction = Literal[
    "mean", "min", "max", "sum", "median", "count", "change", "rate", "percentile"
]
Arithmetic = Literal["+", "-", "*", "/"]
Quantifier = Literal["some", "no", "at least", "at most"]


class Calculation(msgspec.Struct, frozen=True, tag="calculation"):
    """`temperature of A - temperature of B`."""

    left: Value
    operator: Arithmetic
    right: Value
    place: SourceSpan


class InUnit(msgspec.Struct, frozen=True, tag="in-unit"):
    """`temperature of S in degC`: a bare number."""

    value: Value
    unit: str
    place: SourceSpan


class Aggregate(msgspec.Struct, frozen=True, tag="aggregate"):
    """`mean of pm10 of S in the last 24 h (at least 18 readings)`, `count of (TERM) in the last D`.

    `of` is an expression only for `count`.
    """

    function: AggregateFunction
    of: AttributeOf | Condition
    window_ms: int
    place: SourceSpan
    at_least: int | None = None
    """The number of readings asked for; None where none is written."""
    percentile: float | None = None


Value = Quantity | AttributeOf | Call | Calculation | InUnit | Aggregate


class RelationshipAtom(msgspec.Struct, frozen=True, tag="relationship"):
    """`A is inside R`, `A is within 5 m of B`. `A is not inside R` is a Not of it."""

    first: str
    function: str
    second: str
    parameter: str
    """As written, `5 m`; empty without one."""
    place: SourceSpan
    function_place: SourceSpan
    first_place: SourceSpan
    second_place: SourceSpan


class ValueComparison(msgspec.Struct, frozen=True, tag="compares"):
    """`temperature of S above 30 degC`. `is not below` is a Not of it."""

    left: Value
    operator: Operator
    right: Value
    place: SourceSpan


class Between(msgspec.Struct, frozen=True, tag="between"):
    """`x between a and b`, both ends included. `is not between` is a Not of it."""

    value: Value
    low: Value
    high: Value
    place: SourceSpan


class OneOf(msgspec.Struct, frozen=True, tag="one-of"):
    """`region of S is one of ('north', 'west')`. `is not one of` is a Not of it."""

    value: Value
    choices: tuple[Quantity, ...]
    place: SourceSpan


class Silence(msgspec.Struct, frozen=True, tag="silence"):
    """`no temperature of S for 30 min`; the attribute is empty for `no event of S`."""

    attribute: str
    alias: str
    duration_ms: int
    place: SourceSpan
    alias_place: SourceSpan


class CalendarDay(msgspec.Struct, frozen=True, tag="calendar-day"):
    """`24 Dec`, of every year."""

    day: int
    month: int


class Weekdays(msgspec.Struct, frozen=True, tag="weekdays"):
    """`Mon-Fri`, `Sat`: 0 is Monday; a range may pass the end of the week (`Fri-Mon`)."""

    first: int
    last: int


class DayTable(msgspec.Struct, frozen=True, tag="day-table"):
    """`holidays`: a table of the site whose keys are ISO dates."""

    table: str
    place: SourceSpan


Day = CalendarDay | Weekdays | DayTable


class TimeOfDay(msgspec.Struct, frozen=True, tag="time"):
    """`time is between 22:00 and 06:00 on Mon-Fri in 'Europe/Berlin'`, `time is on Sat, Sun`.

    `time is not ...` is a Not of it.
    """

    days: tuple[Day, ...]
    """Empty: every day."""
    place: SourceSpan
    first_minute: int | None = None
    """Of the day; None without `between`."""
    end_minute: int | None = None
    """Not included; 1440 is 24:00."""
    zone: str = ""
    """Empty: the zone of the site."""


class Quantified(msgspec.Struct, frozen=True, tag="quantified"):
    """`no person B (status='employee') with (B is within 5 m of A)`."""

    quantifier: Quantifier
    number: int
    """1 for `some`, 0 for `no`."""
    concept: str
    alias: str
    properties: tuple[Property, ...]
    condition: Condition
    place: SourceSpan
    alias_place: SourceSpan


class AndOf(msgspec.Struct, frozen=True, tag="all"):
    """Joined by AND."""

    parts: tuple[Condition, ...]


class OrOf(msgspec.Struct, frozen=True, tag="any"):
    """Joined by OR."""

    parts: tuple[Condition, ...]


class Not(msgspec.Struct, frozen=True, tag="not"):
    part: Condition


class Lasting(msgspec.Struct, frozen=True, tag="lasting"):
    """`X for D`."""

    part: Condition
    duration_ms: int
    place: SourceSpan


Condition = (
    RelationshipAtom
    | ValueComparison
    | Between
    | OneOf
    | Silence
    | TimeOfDay
    | Quantified
    | AndOf
    | OrOf
    | Not
    | Lasting
)


class SituationTree(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed policy with a situation."""

    name: str
    concepts: tuple[ConceptDef, ...]
    situation: Condition
    cleared_by: Condition | None
    actions: tuple[Action, ...]
    cleared_actions: tuple[Action, ...] = ()
    may_be_same: tuple[tuple[str, str], ...] = ()
    """`A and B may be the same`."""
    once_per_ms: int | None = None
    """`at most once per 10 min`, for equal bindings."""


ParsedPolicy = PolicyTree | SituationTree


def quantified_concept(quantified: Quantified) -> ConceptDef:
    """The definition of a quantifier's alias."""
    return ConceptDef(
        quantified.concept,
        quantified.alias,
        quantified.properties,
        quantified.place,
        quantified.alias_place,
    )


def named_instances(condition: Condition | None) -> dict[str, Quantified]:
    """The quantifiers of which a text can name an instance, by alias: of `some` and `at least N`,
    neither within another one nor after NOT, the first instance that counts.
    """
    found: dict[str, Quantified] = {}
    waiting = [] if condition is None else [condition]
    while waiting:
        match waiting.pop(0):
            case AndOf(parts) | OrOf(parts):
                waiting = [*parts, *waiting]
            case Lasting(part):
                waiting.insert(0, part)
            case Quantified() as one if one.quantifier in ("some", "at least"):
                found.setdefault(one.alias, one)
            case _:
                pass
    return found


def actions_of(tree: ParsedPolicy) -> tuple[Action, ...]:
    """The actions, those at the end of a situation last."""
    return (*tree.actions, *(tree.cleared_actions if isinstance(tree, SituationTree) else ()))


def read_attributes(
    concepts: Iterable[ConceptDef], nodes: Iterable[Condition | Value]
) -> Iterator[tuple[str, SourceSpan]]:
    """The attributes that values and properties name, with their places."""
    for concept in concepts:
        yield from ((item.attribute, item.place) for item in concept.properties)
    for node in nodes:
        match node:
            case AttributeOf():
                yield node.attribute, node.place
            case Quantified():
                yield from ((item.attribute, item.place) for item in node.properties)


def tree_nodes(tree: SituationTree) -> Iterator[Condition | Value]:
    """Every condition and value of a policy in the order of its text, outer ones first."""
    yield from nodes_of(tree.situation)
    if tree.cleared_by is not None:
        yield from nodes_of(tree.cleared_by)


def nodes_of(node: Condition | Value) -> Iterator[Condition | Value]:
    """A condition or value and everything in it, outer ones first."""
    yield node
    for inner in inner_parts(node):
        yield from nodes_of(inner)


def inner_parts(node: Condition | Value) -> tuple[Condition | Value, ...]:
    """The conditions and values directly inside one."""
    match node:
        case AndOf() | OrOf():
            return node.parts
        case Not() | Lasting():
            return (node.part,)
        case Quantified():
            return (node.condition,)
        case ValueComparison() | Calculation():
            return (node.left, node.right)
        case Between():
            return (node.value, node.low, node.high)
        case OneOf():
            return (node.value, *node.choices)
        case InUnit():
            return (node.value,)
        case Aggregate():
            return (node.of,)
        case _:
            return ()


def named_aliases(condition: Condition | Value) -> Iterator[tuple[str, SourceSpan]]:
    """The aliases that a condition names, with their places; not those of its own quantifiers."""
    match condition:
        case RelationshipAtom():
            yield condition.first, condition.first_place
            yield condition.second, condition.second_place
        case Silence() | AttributeOf():
            yield condition.alias, condition.alias_place
        case Call():
            yield from zip(condition.aliases, condition.alias_places, strict=True)
        case Quantified():
            inner = named_aliases(condition.condition)
            yield from ((alias, place) for alias, place in inner if alias != condition.alias)
        case _:
            for part in inner_parts(condition):
                yield from named_aliases(part)
