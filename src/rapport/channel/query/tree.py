"""A condition as data: nodes, bounds of positions, canonical text. [CH-4]

The parser makes the tree; the compiler, the index planner and the SQL translation read it. Parsing
the canonical text gives the same tree again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Literal as OneOf

import msgspec

from rapport.core.times import format_time

Scalar = str | int | float | bool
Comparison = OneOf["=", "<>", "<", "<=", ">", ">="]
Sign = OneOf["+", "-", "*", "/"]
ValueKind = OneOf["text", "number", "boolean", "any"]
Step = str | int
"""A member's name or an element's index in a payload path."""

TEXT_FIELDS = ("id", "source", "type", "subject")
TIME_FIELDS = ("time", "received")
NUMBER_FIELDS = ("position",)
ROOTS = ("data", "headers")
"""Where a path begins: `data.temperature.value`, `headers.traceparent`."""
FIELDS = (*TEXT_FIELDS, *TIME_FIELDS, *NUMBER_FIELDS, *ROOTS)
KEYWORDS = frozenset(
    ("AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE")
)
_LARGEST = 2**62
"""No position is larger; bounds travel in tokens, as 64 bits."""
TURNED: dict[str, Comparison] = {
    "=": "=",
    "<>": "<>",
    "<": ">",
    "<=": ">=",
    ">": "<",
    ">=": "<=",
}
"""The comparison with its sides exchanged."""
_PLAIN_NAME = re.compile(r"[^\W\d][\w$]*\Z")
_OR, _AND, _NOT, _PREDICATE, _SUM, _PRODUCT, _SIGN, _ALONE = range(8)


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


def fields_of(node: object) -> Iterator[Field]:
    """All fields in a condition or value."""
    if isinstance(node, Field):
        yield node
    elif isinstance(node, tuple):
        for part in node:
            yield from fields_of(part)
    else:
        for name in getattr(node, "__struct_fields__", ()):
            yield from fields_of(getattr(node, name))


def uses_payload(node: object) -> bool:
    return any(field.path[0] == "data" for field in fields_of(node))


def is_condition(node: Node) -> bool:
    """Whether a node has a truth value: conditions, fields (of unknown kind), TRUE and FALSE."""
    if isinstance(node, Literal):
        return isinstance(node.value, bool)
    if isinstance(node, Field):
        return field_kind(node) == "any"
    return not isinstance(node, Negative | Arithmetic)


def is_value(node: Node) -> bool:
    """Whether a node can be an operand of a comparison."""
    return isinstance(node, Field | Literal | Negative | Arithmetic)


def field_kind(field: Field) -> OneOf["text", "time", "number", "any"]:
    """The kind of a field, as far as its name determines it."""
    name = field.path[0]
    if name in TEXT_FIELDS or name == "headers":
        return "text"
    if name in TIME_FIELDS:
        return "time"
    return "number" if name in NUMBER_FIELDS else "any"


def kind_of(value: Value) -> ValueKind:
    """The kind of a value as far as it is known without an event."""
    if isinstance(value, Field):
        kind = field_kind(value)
        return "number" if kind == "time" else kind
    if not isinstance(value, Literal):
        return "number"
    if isinstance(value.value, bool):
        return "boolean"
    return "text" if isinstance(value.value, str) else "number"


_POSITION = Field(("position",))


class Bounds(msgspec.Struct, frozen=True):
    """All matches are after position `after`, and not after `last` if it is given."""

    after: int = 0
    last: int | None = None


def position_bounds(condition: Condition) -> Bounds:
    """Bounds from the parts of a top-level AND that compare `position` with a number.

    >>> from rapport.channel.query.parser import parse_condition
    >>> position_bounds(parse_condition("position > 1000 AND type = 'a'"))
    Bounds(after=1000, last=None)
    """
    after, last = 0, None
    for part in condition.parts if isinstance(condition, And) else (condition,):
        low, high = _part_bounds(part)
        after = max(after, low)
        last = high if last is None else last if high is None else min(last, high)
    return Bounds(after, last)


def _part_bounds(part: Condition) -> tuple[int, int | None]:
    match part:
        case Between(operand, Literal(low), Literal(high)) if operand == _POSITION:
            return _compare_bounds(">=", low)[0], _compare_bounds("<=", high)[1]
        case Compare(operator, left, Literal(value)) if left == _POSITION:
            return _compare_bounds(operator, value)
        case Compare(operator, Literal(value), right) if right == _POSITION:
            return _compare_bounds(TURNED[operator], value)
        case _:
            return 0, None


def _compare_bounds(operator: str, value: object) -> tuple[int, int | None]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0, None
    value = min(max(value, -_LARGEST), _LARGEST)
    if operator == "=":
        return max(math.ceil(value) - 1, 0), math.floor(value)
    if operator in (">", ">="):
        return max(math.floor(value) if operator == ">" else math.ceil(value) - 1, 0), None
    if operator in ("<", "<="):
        return 0, math.ceil(value) - 1 if operator == "<" else math.floor(value)
    return 0, None


def print_condition(condition: Condition) -> str:
    """The text with capital keywords, single spaces and no needless parentheses.

    >>> from rapport.channel.query.parser import parse_condition
    >>> print_condition(parse_condition("not (type='a' or (data.x)>5)"))
    "NOT (type = 'a' OR data.x > 5)"
    """
    return _print(condition, _OR)


def _print(node: Node, within: int) -> str:
    """The node's text, in parentheses when it binds weaker than its context needs."""
    strength, text = _strength_and_text(node)
    return text if strength >= within else f"({text})"


def _strength_and_text(node: Node) -> tuple[int, str]:
    match node:
        case Or(parts):
            return _OR, " OR ".join(_print(part, _AND) for part in parts)
        case And(parts):
            return _AND, " AND ".join(_print(part, _NOT) for part in parts)
        case Not(operand):
            return _not(operand)
        case Arithmetic(sign, left, right):
            strength = _SUM if sign in "+-" else _PRODUCT
            return strength, f"{_print(left, strength)} {sign} {_print(right, strength + 1)}"
        case Negative(operand):
            return _SIGN, f"-{_print(operand, _ALONE)}"
        case Literal():
            # A negative number is written like a sign before a number.
            negative = not isinstance(node.value, str) and not node.is_time and _is_negative(node)
            return _SIGN if negative else _ALONE, _literal(node)
        case Field():
            return _ALONE, print_field(node)
        case _:
            return _PREDICATE, _predicate(node, "")


def _not(operand: Condition) -> tuple[int, str]:
    if isinstance(operand, IsNull | Between | In | Like):
        return _PREDICATE, _predicate(operand, "NOT ")
    return _NOT, f"NOT {_print(operand, _NOT)}"


def _predicate(node: Node, negation: str) -> str:
    match node:
        case Compare(operator, left, right):
            return f"{_print(left, _SUM)} {operator} {_print(right, _SUM)}"
        case Between(operand, low, high):
            ends = f"{_print(low, _SUM)} AND {_print(high, _SUM)}"
            return f"{_print(operand, _SUM)} {negation}BETWEEN {ends}"
        case In(operand, choices):
            listed = ", ".join(_literal(choice) for choice in choices)
            return f"{_print(operand, _SUM)} {negation}IN ({listed})"
        case Like(operand, pattern, escape):
            ending = f" ESCAPE {_quoted(escape)}" if escape else ""
            return f"{_print(operand, _SUM)} {negation}LIKE {_quoted(pattern)}{ending}"
        case IsNull(operand):
            return f"{_print(operand, _SUM)} IS {negation}NULL"
        case _:
            raise AssertionError(f"{node!r} is no predicate")


def _is_negative(literal: Literal) -> bool:
    return _literal(literal).startswith("-")


def _literal(literal: Literal) -> str:
    value = literal.value
    if literal.is_time:
        return _quoted(format_time(int(value)))
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    return _quoted(value) if isinstance(value, str) else repr(value)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def print_field(field: Field) -> str:
    """The canonical text of a field."""
    text = str(field.path[0])
    for step in field.path[1:]:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN_NAME.match(step.removeprefix("@")) and step.upper() not in KEYWORDS:
            text += f".{step}"
        else:
            quoted = step.replace('"', '""')
            text += f'."{quoted}"'
    return text
