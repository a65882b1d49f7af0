"""What a policy says, as a tree: the parser makes it, the printer and the compiler read it. [PO-3]

The condition is kept as written (not normalised); the direct evaluator in the tests judges by this
tree.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Consumption = Literal["chronicle", "recent"]
WhenUnsure = Literal["hold", "fire"]
Operator = Literal["=", "!=", "<", ">", "<=", ">="]


class Place(msgspec.Struct, frozen=True):
    """Where something stands in the text, counted from 1; `length` in characters."""

    line: int
    column: int
    length: int = 1


class Property(msgspec.Struct, frozen=True):
    """`status='guest'`: an attribute of an alias compared with a constant (number when it was
    unquoted).
    """

    attribute: str
    operator: Operator
    value: str | float
    place: Place


class ConceptDef(msgspec.Struct, frozen=True):
    """`person A (status='guest')`."""

    concept: str
    alias: str
    properties: tuple[Property, ...]
    place: Place
    alias_place: Place


class Term(msgspec.Struct, frozen=True, tag="term"):
    """`A is not within 5m of B`: a relationship between two aliases, perhaps negated."""

    first: str
    function: str
    second: str
    negated: bool
    parameter: str
    """As written, `5m`; empty when there is none."""
    place: Place
    function_place: Place
    first_place: Place
    second_place: Place


class And(msgspec.Struct, frozen=True, tag="and"):
    """All parts hold."""

    parts: tuple[Expression, ...]


class Or(msgspec.Struct, frozen=True, tag="or"):
    """At least one part holds."""

    parts: tuple[Expression, ...]


class FollowedBy(msgspec.Struct, frozen=True, tag="followed-by"):
    """`first`, then `second`."""

    first: Expression
    second: Expression
    place: Place


Expression = Term | And | Or | FollowedBy


class Action(msgspec.Struct, frozen=True):
    """A phrase such as `raise alarm`; the site says what is done about it."""

    phrase: str
    place: Place


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
    """What becomes of absence that a silent source might have refuted."""
