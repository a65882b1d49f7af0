"""A condition as data: what parsers make, what the compiler and the printer read. [CH-4]"""

from __future__ import annotations

from typing import Literal as OneOf

import msgspec

Scalar = str | int | float | bool
Comparison = OneOf["=", "<>", "<", "<=", ">", ">="]
Sign = OneOf["+", "-", "*", "/"]
Step = str | int
"""A member's name or an element's index on the way into a payload."""

TEXT_FIELDS = ("id", "source", "type", "subject")
TIME_FIELDS = ("time", "received")
NUMBER_FIELDS = ("position",)
ROOTS = ("data", "headers")
"""Where a path begins: `data.temperature.value`, `headers.traceparent`."""
FIELDS = (*TEXT_FIELDS, *TIME_FIELDS, *NUMBER_FIELDS, *ROOTS)


class Field(msgspec.Struct, frozen=True, tag=True):
    """An envelope field (`("type",)`) or a path (`("data", "value", 0)`)."""

    path: tuple[Step, ...]


class Literal(msgspec.Struct, frozen=True, tag=True):
    """A text, number or truth value. `is_time` marks milliseconds that were written as ISO text."""

    value: Scalar
    is_time: bool = False


class Negative(msgspec.Struct, frozen=True, tag=True):
    """Minus an operand."""

    operand: Value


class Arithmetic(msgspec.Struct, frozen=True, tag=True):
    """Two numbers and a sign; null when an operand is no number or there is no finite result."""

    sign: Sign
    left: Value
    right: Value


class Compare(msgspec.Struct, frozen=True, tag=True):
    """Unknown when a side is null, false when the sides are of different kinds."""

    operator: Comparison
    left: Value
    right: Value


class Between(msgspec.Struct, frozen=True, tag=True):
    """`operand >= low AND operand <= high`."""

    operand: Value
    low: Value
    high: Value


class In(msgspec.Struct, frozen=True, tag=True):
    """Equal to one of the literals."""

    operand: Value
    choices: tuple[Literal, ...]


class Like(msgspec.Struct, frozen=True, tag=True):
    """A text that fits a pattern: `%` any characters, `_` one, `escape` before a plain one."""

    operand: Value
    pattern: str
    escape: str = ""


class IsNull(msgspec.Struct, frozen=True, tag=True):
    """Whether a value is absent; never unknown."""

    operand: Value


class Not(msgspec.Struct, frozen=True, tag=True):
    """Turns true and false around; unknown stays."""

    operand: Condition


class And(msgspec.Struct, frozen=True, tag=True):
    """True when all parts are, false when one is false."""

    parts: tuple[Condition, ...]


class Or(msgspec.Struct, frozen=True, tag=True):
    """True when one part is, false when all are false."""

    parts: tuple[Condition, ...]


Value = Field | Literal | Negative | Arithmetic
Condition = Compare | Between | In | Like | IsNull | Not | And | Or | Field | Literal
Node = Value | Condition

EVERYTHING = And(())
"""The condition that every event fulfils."""


def is_condition(node: Node) -> bool:
    """Whether a node has a truth value: conditions, fields (of unknown kind), TRUE and FALSE."""
    if isinstance(node, Literal):
        return isinstance(node.value, bool)
    if isinstance(node, Field):
        return field_kind(node) == "any"
    return not isinstance(node, Negative | Arithmetic)


def is_value(node: Node) -> bool:
    """Whether a node can stand beside a comparison."""
    return isinstance(node, Field | Literal | Negative | Arithmetic)


def field_kind(field: Field) -> OneOf["text", "time", "number", "any"]:
    """What a field holds, as far as its name tells."""
    name = field.path[0]
    if name in TEXT_FIELDS or name == "headers":
        return "text"
    if name in TIME_FIELDS:
        return "time"
    return "number" if name in NUMBER_FIELDS else "any"
