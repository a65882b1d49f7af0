"""The plan of a policy with a situation: what its text compiles to. Data only; runners execute it,
people print and diff it. [SI-1 to SI-9, SI-11]

All names are resolved, all constants are in canonical units, `between` and `is one of` are written
out as comparisons. Aliases are those of `aliases`, and within a quantifier also its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec

from rapport.core.event import content_id
from rapport.policy.language.tree import Operator
from rapport.policy.ontology import Constraint

AggregateFunction = Literal[
    "mean", "min", "max", "sum", "median", "count", "change", "rate", "percentile"
]


class FixedValue(msgspec.Struct, frozen=True, tag="fixed", omit_defaults=True):
    """A number in the canonical unit of what it is compared with, or a text."""

    value: str | float


class PresentValue(msgspec.Struct, frozen=True, tag="present", omit_defaults=True):
    """An attribute of the instance bound to an alias; `id` is the identity.

    `stream` is `concept.attribute` when sources give the attribute, None when tables do.
    """

    alias: str
    concept: str
    attribute: str
    stream: str | None = None


class Arithmetic(msgspec.Struct, frozen=True, tag="arithmetic", omit_defaults=True):
    """Not finite, or a division by zero: unknown."""

    left: Value
    operator: Literal["+", "-", "*", "/"]
    right: Value


class ConvertedValue(msgspec.Struct, frozen=True, tag="converted", omit_defaults=True):
    """`value * factor + offset`: the number of `temperature of S in degF`."""

    value: Value
    factor: float
    offset: float = 0.0


class FunctionValue(msgspec.Struct, frozen=True, tag="function", omit_defaults=True):
    """A function of the site: a measuring function (`policy/measures.py`), or looked up in its
    table (`looked_up`).
    """

    function: str
    of: tuple[PresentValue, ...]
    looked_up: bool = False


class AggregateValue(msgspec.Struct, frozen=True, tag="aggregate", omit_defaults=True):
    """Over the readings of a stream and identity with `t - window_ms < time <= t`.

    `rate` is per millisecond. Fewer readings than `at_least`: unknown; `count` has 0 there.
    """

    function: AggregateFunction
    of: PresentValue
    window_ms: int
    at_least: int = 1
    percentile: float | None = None


class CountedTerm(msgspec.Struct, frozen=True, tag="counted", omit_defaults=True):
    """`count of (TERM) in the last D`: the readings of the streams that the term reads of `alias`,
    at which the term was true.
    """

    alias: str
    """The one alias whose readings are counted."""
    term: Condition
    window_ms: int


Value = (
    FixedValue
    | PresentValue
    | Arithmetic
    | ConvertedValue
    | FunctionValue
    | AggregateValue
    | CountedTerm
)


class ComparedValues(msgspec.Struct, frozen=True, tag="compared", omit_defaults=True):
    """A calculation with counts is compared by the rule of lower bounds."""

    left: Value
    operator: Operator
    right: Value


class RelatedInstances(msgspec.Struct, frozen=True, tag="related", omit_defaults=True):
    """`A is inside R`: the function over the present values of both sides."""

    function: str
    first: PresentValue
    second: PresentValue
    parameter: float | None = None
    """In base units (metres)."""


class SilentStream(msgspec.Struct, frozen=True, tag="silent", omit_defaults=True):
    """`no temperature of S for 30 min`; several streams for `no event of S`."""

    alias: str
    streams: tuple[str, ...]
    duration_ms: int


class DayRange(msgspec.Struct, frozen=True, tag="weekdays", omit_defaults=True):
    """0 is Monday; may pass the end of the week."""

    first: int
    last: int


class YearDay(msgspec.Struct, frozen=True, tag="year-day", omit_defaults=True):
    """`24 Dec`, of every year."""

    month: int
    day: int


class TableDays(msgspec.Struct, frozen=True, tag="table-days", omit_defaults=True):
    """The days that are keys of a table of the site, as ISO dates."""

    table: str


class TimeWindow(msgspec.Struct, frozen=True, tag="time"):
    """The clock of a zone shows a time in [first, end) of a stretch that began on one of the days.

    Without minutes: the whole day. `end_minute` is at most 1440; below `first_minute` the stretch
    ends on the next day.
    """

    zone: str
    first_minute: int = 0
    end_minute: int = 1440
    days: tuple[DayRange | YearDay | TableDays, ...] = ()
    """Empty: every day."""


class BoundAlias(msgspec.Struct, frozen=True, omit_defaults=True):
    """An alias ranges over the known instances of a concept that satisfy its constraints."""

    alias: str
    concept: str
    constraints: tuple[Constraint, ...] = ()
    streams: tuple[str, ...] = ()
    """Every stream that sources give of the concept, sorted: an instance that no table has is known
    from its first reading in any of them."""


class CountedInstances(msgspec.Struct, frozen=True, tag="quantified", omit_defaults=True):
    """`at least N`/`at most N` known instances other than those bound to aliases of the same
    concept satisfy the condition. `some` is at least 1, `no` is at most 0.
    """

    bound: BoundAlias
    quantifier: Literal["at least", "at most"]
    number: int
    condition: Condition


class AllOf(msgspec.Struct, frozen=True, tag="all", omit_defaults=True):
    parts: tuple[Condition, ...]
    is_atom: bool = False
    """`x between a and b`: one atom, so unknown if any value of its parts is, and its causes are
    those of all parts."""


class AnyPart(msgspec.Struct, frozen=True, tag="any", omit_defaults=True):
    parts: tuple[Condition, ...]
    is_atom: bool = False
    """`x is one of (...)`: one atom."""


class Negation(msgspec.Struct, frozen=True, tag="not", omit_defaults=True):
    part: Condition


class Sustained(msgspec.Struct, frozen=True, tag="for", omit_defaults=True):
    """`X for D`."""

    part: Condition
    duration_ms: int


Condition = (
    ComparedValues
    | RelatedInstances
    | SilentStream
    | TimeWindow
    | CountedInstances
    | AllOf
    | AnyPart
    | Negation
    | Sustained
)


class SituationPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A situation for every binding of its aliases, with what ends it and its actions."""

    policy: str
    aliases: tuple[BoundAlias, ...]
    situation: Condition
    cleared_by: Condition | None = None
    distinct: tuple[tuple[str, str], ...] = ()
    """Pairs of aliases of one concept that are bound to different instances."""
    once_per_ms: int | None = None
    actions: tuple[str, ...]
    deliveries: tuple[tuple[str, ...], ...] = ()
    """The delivery lines of each action; empty when none has any."""
    cleared_actions: tuple[str, ...] = ()
    cleared_deliveries: tuple[tuple[str, ...], ...] = ()

    def version(self) -> str:
        """Content hash of the plan: changes when anything in it does."""
        return content_id(msgspec.json.encode(self).decode())[:12]

    def streams(self) -> tuple[str, ...]:
        """The `concept.attribute` streams this plan reads, sorted: those of its values, and those
        by which instances become known."""
        found = {stream for bound in self.aliases for stream in bound.streams}
        return tuple(sorted(found | streams_of_conditions(self.conditions())))

    def concepts(self) -> tuple[str, ...]:
        """The concepts whose instances the plan looks up, sorted."""
        return tuple(sorted({bound.concept for bound in self.bound_aliases()}))

    def table_attributes(self) -> set[tuple[str, str]]:
        """The (concept, attribute) pairs that tables give: values, and properties of aliases."""
        found = {
            (bound.concept, one.attribute) for bound in self.aliases for one in bound.constraints
        }
        return found | table_attributes_of(self.conditions())

    def bound_aliases(self) -> list[BoundAlias]:
        """The aliases of the plan and those of its quantifiers."""
        return [*self.aliases, *counted_aliases(self.conditions())]

    def conditions(self) -> tuple[Condition, ...]:
        """The situation, and what it is cleared by."""
        return (self.situation, *([] if self.cleared_by is None else [self.cleared_by]))


class NamedAtTurns(NamedTuple):
    """What texts name of a situation that only its operator knows when it begins or ends."""

    terms: Mapping[str, CountedTerm] = {}
    """Counts, by the name of their value."""
    aliases: frozenset[str] = frozenset()
    """Of quantifiers: the first instance that counts. Aliases of the plan do not matter."""


def longest_look_back_ms(plan: SituationPlan) -> int:
    """All windows, silences and `for` together: how far back readings may matter."""
    found = 0
    for node in plan_nodes(plan):
        match node:
            case AggregateValue() | CountedTerm():
                found += node.window_ms
            case SilentStream() | Sustained():
                found += node.duration_ms
    return found


def plan_nodes(plan: SituationPlan) -> list[Condition | Value]:
    """Every condition and value of a plan, outer ones first."""
    return condition_nodes(plan.conditions())


def counted_aliases(conditions: Iterable[Condition]) -> list[BoundAlias]:
    """The aliases of quantifiers."""
    nodes = condition_nodes(conditions)
    return [node.bound for node in nodes if isinstance(node, CountedInstances)]


def streams_of_conditions(conditions: Iterable[Condition]) -> frozenset[str]:
    """The streams that conditions read, and those by which instances in them become known."""
    found: set[str] = set()
    for node in condition_nodes(conditions):
        match node:
            case PresentValue(stream=str(stream)):
                found.add(stream)
            case SilentStream():
                found.update(node.streams)
            case CountedInstances():
                found.update(node.bound.streams)
    return frozenset(found)


def value_streams(plan: SituationPlan) -> set[str]:
    """The streams whose values or silences the plan reads, without those that only make instances
    known."""
    found: set[str] = set()
    for node in plan_nodes(plan):
        if isinstance(node, PresentValue) and node.stream is not None:
            found.add(node.stream)
        elif isinstance(node, SilentStream):
            found.update(node.streams)
    return found


def table_attributes_of(conditions: Iterable[Condition]) -> set[tuple[str, str]]:
    """The (concept, attribute) pairs that tables give to conditions."""
    found: set[tuple[str, str]] = set()
    for node in condition_nodes(conditions):
        if isinstance(node, PresentValue) and node.stream is None and node.attribute != "id":
            found.add((node.concept, node.attribute))
        elif isinstance(node, CountedInstances):
            found |= {(node.bound.concept, one.attribute) for one in node.bound.constraints}
    return found


def condition_nodes(conditions: Iterable[Condition]) -> list[Condition | Value]:
    """Every condition and value, outer ones first."""
    found: list[Condition | Value] = []
    waiting: list[Condition | Value] = [*conditions]
    while waiting:
        node = waiting.pop()
        found.append(node)
        waiting += reversed(inner_nodes(node))
    return found


def inner_nodes(node: Condition | Value) -> list[Condition | Value]:
    """The conditions and values directly inside one."""
    match node:
        case AllOf() | AnyPart():
            return list(node.parts)
        case Negation() | Sustained():
            return [node.part]
        case CountedInstances():
            return [node.condition]
        case ComparedValues() | Arithmetic():
            return [node.left, node.right]
        case RelatedInstances():
            return [node.first, node.second]
        case ConvertedValue():
            return [node.value]
        case FunctionValue():
            return list(node.of)
        case AggregateValue():
            return [node.of]
        case CountedTerm():
            return [node.term]
        case _:
            return []
