"""Random conditions and events, and an independent, slow evaluator that judges what is made of
conditions. [CH-4]

The evaluator works on the tree with three truth values, one case after the other, and shares no
code with the compiler, the index or the SQL.
"""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import strategies as st

from rapport.channel.query.tree import (
    And,
    Arithmetic,
    Between,
    Compare,
    Field,
    In,
    IsNull,
    Like,
    Literal,
    Negative,
    Not,
    Or,
)
from rapport.core.event import Event, StoredEvent

# --- the evaluator ------------------------------------------------------------------------------


def value_of(node: Any, row: dict[str, Any]) -> Any:
    """A value, None when null."""
    if isinstance(node, Literal):
        return node.value
    if isinstance(node, Field):
        value: Any = row
        for step in node.path:
            if isinstance(step, int):
                value = value[step] if isinstance(value, list) and step < len(value) else None
            else:
                value = value.get(step) if isinstance(value, dict) else None
        return value
    numbers = (
        [value_of(node.operand, row)]
        if isinstance(node, Negative)
        else [value_of(node.left, row), value_of(node.right, row)]
    )
    if any(isinstance(number, bool) or not isinstance(number, int | float) for number in numbers):
        return None
    if isinstance(node, Negative):
        return -numbers[0]
    left, right = numbers
    if node.sign == "/":
        result = None if right == 0 else left / right
    else:
        result = {"+": left + right, "-": left - right, "*": left * right}[node.sign]
    if result is None or (isinstance(result, float) and not math.isfinite(result)):
        return None
    return result


def kind(value: Any) -> str:
    """Its kind; other than `bool` is a number for Python only."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return type(value).__name__


def compare(operator: str, left: Any, right: Any) -> bool | None:
    """True, false or unknown."""
    if left is None or right is None:
        return None
    if kind(left) != kind(right) or kind(left) in ("dict", "list"):
        return False
    if kind(left) == "boolean" and operator not in ("=", "<>"):
        return False
    order: int = (left > right) - (left < right)
    return {
        "=": order == 0,
        "<>": order != 0,
        "<": order < 0,
        "<=": order <= 0,
        ">": order > 0,
        ">=": order >= 0,
    }[operator]


def all_of(parts: list[bool | None]) -> bool | None:
    """Three-valued AND."""
    if False in parts:
        return False
    return None if None in parts else True


def opposite(truth: bool | None) -> bool | None:
    """Three-valued NOT."""
    return None if truth is None else not truth


def fits(text: str, pattern: str, escape: str) -> bool:
    """Plain recursion over pattern and text."""
    if not pattern:
        return not text
    if escape and pattern[0] == escape:
        return text[:1] == pattern[1] and fits(text[1:], pattern[2:], escape)
    if pattern[0] == "%":
        return any(fits(text[start:], pattern[1:], escape) for start in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and fits(text[1:], pattern[1:], escape)


def truth(node: Any, row: dict[str, Any]) -> bool | None:
    """True, false or unknown."""
    match node:
        case And(parts):
            return all_of([truth(part, row) for part in parts])
        case Or(parts):
            return opposite(all_of([opposite(truth(part, row)) for part in parts]))
        case Not(operand):
            return opposite(truth(operand, row))
        case Compare(operator, left, right):
            return compare(operator, value_of(left, row), value_of(right, row))
        case Between(operand, low, high):
            value = value_of(operand, row)
            return all_of(
                [
                    compare(">=", value, value_of(low, row)),
                    compare("<=", value, value_of(high, row)),
                ]
            )
        case In(operand, choices):
            value = value_of(operand, row)
            if value is None:
                return None
            return any(compare("=", value, choice.value) for choice in choices)
        case Like(operand, pattern, escape):
            value = value_of(operand, row)
            if value is None:
                return None
            return isinstance(value, str) and fits(value, pattern, escape)
        case IsNull(operand):
            return value_of(operand, row) is None
        case _:
            value = value_of(node, row)
            return value if isinstance(value, bool) else None


def row_of(stored: StoredEvent) -> dict[str, Any]:
    """The event as nested values."""
    event = stored.event
    return {
        "id": event.id,
        "source": event.source,
        "type": event.type,
        "subject": event.subject,
        "time": event.time,
        "received": stored.received,
        "position": stored.position,
        "headers": event.headers,
        "data": json.loads(event.data),
    }


# --- random conditions and events -----------------------------------------------------------------

WORDS = st.text("ab%_!", max_size=3)
NUMBERS = st.integers(-3, 3) | st.sampled_from([0.5, -1.5, 1e308, 2.0])
SCALARS = WORDS | NUMBERS | st.booleans()
PATHS = st.sampled_from(
    [("data", "x"), ("data", "y"), ("data", "deep", "z"), ("data", "list", 0), ("data", "and")]
)
FIELDS = PATHS.map(Field) | st.sampled_from([Field(("data",)), Field(("headers", "h"))])
NUMERIC = st.recursive(
    PATHS.map(Field) | NUMBERS.map(Literal) | st.just(Field(("position",))),
    lambda inner: (
        st.builds(Arithmetic, st.sampled_from("+-*/"), inner, inner)
        | st.builds(Negative, PATHS.map(Field))
    ),
    max_leaves=3,
)
OPERATORS = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
EQUALITY = st.sampled_from(["=", "<>"])
LITERALS = SCALARS.map(Literal)
ANY_FIELD = PATHS.map(Field)
LEAVES = st.one_of(
    st.builds(Compare, OPERATORS, NUMERIC, NUMERIC),
    st.builds(Compare, OPERATORS, ANY_FIELD, WORDS.map(Literal)),
    st.builds(Compare, OPERATORS, WORDS.map(Literal), ANY_FIELD | st.just(Field(("type",)))),
    st.builds(Compare, EQUALITY, ANY_FIELD, LITERALS),
    st.builds(Compare, OPERATORS, ANY_FIELD, ANY_FIELD),
    st.builds(Compare, OPERATORS, st.just(Field(("position",))), NUMBERS.map(Literal)),
    st.builds(Between, NUMERIC, NUMERIC, NUMERIC),
    st.builds(Between, ANY_FIELD, WORDS.map(Literal), WORDS.map(Literal)),
    st.builds(In, ANY_FIELD, st.lists(LITERALS, min_size=1, max_size=3).map(tuple)),
    st.builds(Like, ANY_FIELD | st.just(Field(("type",))), st.text("ab%_", max_size=5)),
    st.builds(Like, ANY_FIELD, st.sampled_from(["!%", "a!_%", "!!_", "%!%%"]), st.just("!")),
    st.builds(IsNull, FIELDS),
    ANY_FIELD,
    st.booleans().map(Literal),
)
CONDITIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: And(flat(parts, And))),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: Or(flat(parts, Or))),
    ),
    max_leaves=6,
)
VALUES = st.none() | SCALARS | st.just([1]) | st.just({"z": 1})
PAYLOADS = st.fixed_dictionaries(
    {},
    optional={
        "x": VALUES,
        "y": VALUES,
        "deep": VALUES | st.fixed_dictionaries({"z": VALUES}),
        "list": VALUES | st.lists(VALUES, max_size=2),
        "and": VALUES,
    },
)


def flat(parts: list[Any], kind: Any) -> tuple[Any, ...]:
    """As the parser does it: an AND directly within an AND is one."""
    return tuple(
        inner for part in parts for inner in (part.parts if isinstance(part, kind) else (part,))
    )


@st.composite
def stored_events(draw: st.DrawFn) -> StoredEvent:
    """One event with a position."""
    data = json.dumps(draw(PAYLOADS | VALUES)).encode()
    headers = draw(st.sampled_from([{}, {"h": "a"}]))
    event = Event("s", "i", draw(st.sampled_from(["a", "ab", "b"])), "", 5, data, headers)
    return StoredEvent(draw(st.integers(1, 4)), 7, event)
