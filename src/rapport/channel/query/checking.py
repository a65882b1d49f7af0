"""What may stand where in a condition, as far as the kinds of fields tell. [CH-4]"""

from __future__ import annotations

from typing import Literal as OneOf
from typing import cast

from rapport.channel.query.cursor import Cursor
from rapport.channel.query.tree import (
    Condition,
    Field,
    Literal,
    Node,
    Value,
    field_kind,
    is_condition,
    is_value,
)
from rapport.core.errors import InvalidInput
from rapport.core.times import parse_time

Kind = OneOf["text", "number", "boolean", "any"]


def need_condition(cursor: Cursor, node: Node, start: int) -> Condition:
    """The node as a condition; raises QueryError when it has no truth value."""
    if not is_condition(node):
        raise cursor.fault_at(
            start,
            "query.not_a_condition",
            "this is a value, not a condition",
            "compare it with something: =, <>, <, BETWEEN, IN, LIKE, IS NULL",
        )
    return cast(Condition, node)


def need_value(cursor: Cursor, node: Node, start: int, *, number: bool = False) -> Value:
    """The node as a value (a number when asked so); raises QueryError when it cannot be one."""
    if not is_value(node):
        raise cursor.fault_at(
            start, "query.not_a_value", "this is a condition; a value is expected here"
        )
    value = cast(Value, node)
    if number and kind_of(value) not in ("number", "any"):
        raise cursor.fault_at(start, "query.not_a_number", "only numbers can be calculated with")
    return value


def literal_for(cursor: Cursor, value: Value, other: Value, start: int) -> Value:
    """Beside a field that holds a time, ISO text becomes milliseconds; other values stay."""
    beside_time = isinstance(other, Field) and field_kind(other) == "time"
    if not beside_time or not isinstance(value, Literal) or not isinstance(value.value, str):
        return value
    try:
        return Literal(parse_time(value.value), is_time=True)
    except InvalidInput as error:
        raise cursor.fault_at(start, "query.bad_time", error.message, error.hint) from None


def comparable(
    cursor: Cursor,
    left: Value,
    right: Value,
    operator: str,
    start: int,
    *,
    timeless: bool = False,
) -> None:
    """Raises QueryError for a comparison that could never be true; `timeless` asks for a text."""
    kinds = (kind_of(left), kind_of(right))
    if "any" not in kinds and kinds[0] != kinds[1]:
        raise cursor.fault_at(
            start,
            "query.wrong_kind",
            f"a {kinds[0]} is never equal to a {kinds[1]}"
            if not timeless
            else f"LIKE is for texts, this is a {kinds[0]}",
        )
    if "boolean" in kinds and operator not in ("=", "<>"):
        raise cursor.fault_at(
            start, "query.wrong_kind", f"TRUE and FALSE cannot be compared by {operator}"
        )


def kind_of(value: Value) -> Kind:
    """The kind of a value as far as it can be told without an event."""
    if isinstance(value, Field):
        kind = field_kind(value)
        return "number" if kind == "time" else kind
    if not isinstance(value, Literal):
        return "number"
    if isinstance(value.value, bool):
        return "boolean"
    return "text" if isinstance(value.value, str) else "number"
