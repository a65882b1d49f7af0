"""The syntax tree of a policy: made by the parser, read by the printer and the compiler. [PO-3]

The condition is kept as written, not normalized; the judge of the tests evaluates this tree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

if TYPE_CHECKING:
    from rapport.policy.language.situation_tree import Condition

Consumption = Literal["chronicle", "recent"]
WhenUnsure = Literal["hold", "fire"]
Operator = Literal["=", "!=", "<", ">", "<=", ">="]
NEGATED_OPERATORS: dict[Operator, Operator] = {
    "=": "!=",
    "!=": "=",
    "<": ">=",
    ">": "<=",
    "<=": ">",
    ">=": "<",
}


MIRRORED_OPERATORS: dict[Operator, Operator] = {
    "=": "=",
    "!=": "!=",
    "<": ">",
    ">": "<",
    "<=": ">=",
    ">=": "<=",
}
"""The operator after its operands are swapped."""


class SourceSpan(msgspec.Struct, frozen=True):
    """A place in the text, counted from 1; `length` in characters."""

    line: int
    column: int
    length: int = 1


class Property(msgspec.Struct, frozen=True):
    """`status='guest'`, `length > 12 m`: an attribute of an alias compared with a constant, a
    number if unquoted."""

    attribute: str
    operator: Operator
    value: str | float
    place: SourceSpan
    unit: str = ""
    """As written; empty without one."""
    value_place: SourceSpan | None = None

    @property
    def constant(self) -> Quantity:
        return Quantity(self.value, self.unit, self.value_place or self.place)


class ConceptDef(msgspec.Struct, frozen=True):
    """`person A (status='guest')`."""

    concept: str
    alias: str
    properties: tuple[Property, ...]
    place: SourceSpan
    alias_place: SourceSpan


class Term(msgspec.Struct, frozen=True, tag="term"):
    """`A is not within 5m of B`: a relationship between two aliases, perhaps negated."""

    first: str
    function: str
    second: str
    negated: bool
    parameter: str
    """As written, `5m`; empty without one."""
    place: SourceSpan
    function_place: SourceSpan
    first_place: SourceSpan
    second_place: SourceSpan


class Quantity(msgspec.Struct, frozen=True, tag="quantity"):
    """`30 degC`, `15 %`, `'open'`: a constant; the unit as written, empty without one."""

    value: str | float
    unit: str
    place: SourceSpan


class AttributeOf(msgspec.Struct, frozen=True, tag="attribute-of"):
    """`temperature of S`."""

    attribute: str
    alias: str
    place: SourceSpan
    alias_place: SourceSpan


class Call(msgspec.Struct, frozen=True, tag="call"):
    """`distance(A, B)`: a site function over one or two aliases."""

    function: str
    aliases: tuple[str, ...]
    place: SourceSpan
    alias_places: tuple[SourceSpan, ...]


Measured = Quantity | AttributeOf | Call


class Comparison(msgspec.Struct, frozen=True, tag="comparison"):
    """`temperature of S above 30 degC`, `distance(A, B) < minimumDistance(A, B)`."""

    left: Measured
    operator: Operator
    right: Measured
    negated: bool
    place: SourceSpan


class And(msgspec.Struct, frozen=True, tag="and"):
    """All parts hold."""

    parts: tuple[Expression, ...]


class Or(msgspec.Struct, frozen=True, tag="or"):
    """At least one part holds."""

    parts: tuple[Expression, ...]


class FollowedBy(msgspec.Struct, frozen=True, tag="followed-by"):
    """`first`, then `second`, optionally with a window of its own (`within 10 min`)."""

    first: Expression
    second: Expression
    place: SourceSpan
    window_ms: int | None = None


class Within(msgspec.Struct, frozen=True, tag="within"):
    """A whole line with its own window: `(A is inside R OR B is inside R) within 10 s`.

    Occurs only as the condition or as a part of its outermost And.
    """

    inner: Expression
    window_ms: int
    place: SourceSpan


class DurationCondition(msgspec.Struct, frozen=True, tag="for"):
    """`A is inside R for 10 min`, `(C AND D) for 2 hours`: a state held that long.

    `inner` contains only terms and comparisons, possibly negated, joined by And and Or.
    """

    inner: Expression
    duration_ms: int
    place: SourceSpan


class SilenceCondition(msgspec.Struct, frozen=True, tag="silent"):
    """`no temperature of S for 3 hours`; the attribute is empty for `no event of S`."""

    attribute: str
    alias: str
    duration_ms: int
    place: SourceSpan
    alias_place: SourceSpan


Expression = (
    Term | Comparison | DurationCondition | SilenceCondition | And | Or | FollowedBy | Within
)
Atomic = Term | Comparison | DurationCondition | SilenceCondition
"""Conditions that normalization never splits."""


class Delivery(msgspec.Struct, frozen=True):
    """One indented line below an action: `to guards`, `urgent`, `answer within 60 s`."""

    text: str
    place: SourceSpan


class Action(msgspec.Struct, frozen=True):
    """A phrase such as `raise alarm`, carried out as the site or the lines below it specify."""

    phrase: str
    place: SourceSpan
    delivery: tuple[Delivery, ...] = ()


class PolicyTree(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed policy."""

    name: str
    concepts: tuple[ConceptDef, ...]
    condition: Expression
    actions: tuple[Action, ...]
    window_ms: int | None = None
    """None: the site's window."""
    consumption: Consumption = "chronicle"
    distinct: tuple[tuple[str, str], ...] = ()
    when_unsure: WhenUnsure = "hold"
    """The handling of absence that a silent source might have refuted."""
    once_per_ms: int | None = None
    """`at most once per 10 min`, for equal bindings; None: no limit."""
    guard: Condition | None = None
    """`while`: what must be true at the time of a detection."""


def negate(expression: Expression) -> Expression | None:
    """The negation, with NOT only before terms and comparisons; None if a part has none (`for`,
    `no`).

    `NOT (X FOLLOWED-BY Y)` becomes `(X FOLLOWED-BY NOT Y) OR NOT X`; AND and OR are exchanged.
    """
    match expression:
        case Term() | Comparison():
            return replace(expression, negated=not expression.negated)
        case And(parts):
            contraries = _all(parts)
            return Or(contraries) if contraries is not None else None
        case Or(parts):
            contraries = _all(parts)
            return And(contraries) if contraries is not None else None
        case FollowedBy(first, second):
            contraries = _all((first, second))
            if contraries is None:
                return None
            followed = replace(expression, second=contraries[1])
            return Or((followed, contraries[0]))
        case DurationCondition() | SilenceCondition() | Within():
            return None


def _all(parts: tuple[Expression, ...]) -> tuple[Expression, ...] | None:
    """The negations of all parts, None if one has none."""
    contraries = tuple(contrary for part in parts if (contrary := negate(part)) is not None)
    return contraries if len(contraries) == len(parts) else None


def children(expression: Expression) -> tuple[Expression, ...]:
    """The direct parts of an expression, in the order written."""
    match expression:
        case And(parts) | Or(parts):
            return parts
        case FollowedBy(first, second):
            return first, second
        case Within(inner) | DurationCondition(inner):
            return (inner,)
        case _:
            return ()


def map_children(expression: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """The expression with its direct parts changed."""
    match expression:
        case And() | Or():
            return replace(expression, parts=tuple(map(change, expression.parts)))
        case FollowedBy(first, second):
            return replace(expression, first=change(first), second=change(second))
        case Within(inner) | DurationCondition(inner):
            return replace(expression, inner=change(inner))
        case _:
            return expression
