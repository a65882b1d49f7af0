"""Conditions put together and simplified, and what one says of values known beforehand. [CH-4]"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rapport.channel.query.tree import (
    And,
    Arithmetic,
    Between,
    Compare,
    Condition,
    Field,
    In,
    IsNull,
    Like,
    Literal,
    Negative,
    Node,
    Not,
    Or,
    Value,
)
from rapport.channel.query.values import calculate, compare, like_test, negative

Truth = bool | None
"""None: unknown."""
Lookup = Callable[[Field], Any]

TRUE, FALSE = Literal(True), Literal(False)
NULL = Arithmetic("/", Literal(1), Literal(0))
"""A value that is always null: the language has no word for it."""
UNKNOWN = Compare("=", NULL, Literal(0))
"""A condition that is neither true nor false."""


def said(truth: Truth) -> Condition:
    """The condition that always has this truth."""
    return UNKNOWN if truth is None else Literal(truth)


def all_of(parts: Iterable[Condition]) -> Condition:
    """AND without needless parts and nesting."""
    return _joined(parts, And, TRUE, FALSE)


def any_of(parts: Iterable[Condition]) -> Condition:
    """OR without needless parts and nesting."""
    return _joined(parts, Or, FALSE, TRUE)


def _joined(
    parts: Iterable[Condition], kind: type[And] | type[Or], idle: Literal, decides: Literal
) -> Condition:
    flat: list[Condition] = []
    for part in parts:
        flat += part.parts if isinstance(part, kind) else (part,)
    if decides in flat:
        return decides
    kept = [part for part in flat if part != idle]
    if not kept:
        return idle
    return kept[0] if len(kept) == 1 else kind(tuple(kept))


def opposite(condition: Condition) -> Condition:
    """NOT, without saying it twice."""
    match condition:
        case Not(operand):
            return operand
        case Literal(value):
            return Literal(not value)
        case _:
            return condition if condition == UNKNOWN else Not(condition)


def is_never_true(condition: Condition) -> bool:
    """False or unknown whatever comes, as far as it can be seen."""
    match condition:
        case And(parts):
            return any(is_never_true(part) for part in parts)
        case Or(parts):
            return all(is_never_true(part) for part in parts)
        case _:
            return condition in (FALSE, UNKNOWN)


def fields_of(node: Node) -> Iterator[Field]:
    """All fields in a condition or value."""
    match node:
        case Field():
            yield node
        case Literal():
            return
        case And(parts) | Or(parts):
            for part in parts:
                yield from fields_of(part)
        case Compare(_, left, right) | Arithmetic(_, left, right):
            yield from fields_of(left)
            yield from fields_of(right)
        case Between(operand, low, high):
            for value in (operand, low, high):
                yield from fields_of(value)
        case _:
            yield from fields_of(node.operand)


def value_of(node: Value, look_up: Lookup) -> Any:
    """A value whose fields are known; None when it is null."""
    match node:
        case Literal(value):
            return value
        case Field():
            return look_up(node)
        case Negative(operand):
            return negative(value_of(operand, look_up))
        case Arithmetic(sign, left, right):
            return calculate(sign, value_of(left, look_up), value_of(right, look_up))


def truth_of(node: Condition, look_up: Lookup) -> Truth:
    """What a condition without AND, OR and NOT says when its fields are known."""
    match node:
        case Compare(operator, left, right):
            return compare(operator, value_of(left, look_up), value_of(right, look_up))
        case Between(operand, low, high):
            value = value_of(operand, look_up)
            ends = (
                compare(">=", value, value_of(low, look_up)),
                compare("<=", value, value_of(high, look_up)),
            )
            return False if False in ends else None if None in ends else True
        case In(operand, choices):
            value = value_of(operand, look_up)
            if value is None:
                return None
            return any(compare("=", value, choice.value) for choice in choices)
        case Like(operand, pattern, escape):
            value = value_of(operand, look_up)
            if value is None:
                return None
            return isinstance(value, str) and like_test(pattern, escape)(value)
        case IsNull(operand):
            return value_of(operand, look_up) is None
        case Field() | Literal():
            value = value_of(node, look_up)
            return value if isinstance(value, bool) else None
        case _:
            raise AssertionError(f"{node!r} has conditions in it")
