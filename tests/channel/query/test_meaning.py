"""An independent, slow evaluator of conditions judges the compiled ones. [CH-4]

It works on the tree with three truth values, one case after the other, and shares no code with the
compiler.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.channel.query.bounds import position_bounds
from rapport.channel.query.compiler import compile_condition
from rapport.channel.query.parser import parse_condition
from rapport.channel.query.printer import print_condition
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
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return type(value).__name__


def compare(operator: str, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    if kind(left) != kind(right) or kind(left) in ("dict", "list"):
        return False
    if kind(left) == "boolean" and operator not in ("=", "<>"):
        return False
    order = (left > right) - (left < right)
    return {
        "=": order == 0,
        "<>": order != 0,
        "<": order < 0,
        "<=": order <= 0,
        ">": order > 0,
        ">=": order >= 0,
    }[operator]


def all_of(parts: list[bool | None]) -> bool | None:
    if False in parts:
        return False
    return None if None in parts else True


def opposite(truth: bool | None) -> bool | None:
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
    data = json.dumps(draw(PAYLOADS | VALUES)).encode()
    headers = draw(st.sampled_from([{}, {"h": "a"}]))
    event = Event("s", "i", draw(st.sampled_from(["a", "ab", "b"])), "", 5, data, headers)
    return StoredEvent(draw(st.integers(1, 4)), 7, event)


@settings(max_examples=400)
@given(CONDITIONS, st.lists(stored_events(), min_size=1, max_size=6))
def test_compiled_conditions_mean_what_the_slow_evaluator_says(
    condition: Any, events: list[StoredEvent]
) -> None:
    matches = compile_condition(condition)
    negated = compile_condition(Not(condition))
    for stored in events:
        expected = truth(condition, row_of(stored))
        assert matches(stored) == (expected is True)
        assert negated(stored) == (expected is False)


@settings(max_examples=300)
@given(CONDITIONS)
def test_printing_and_parsing_give_the_same_tree(condition: Any) -> None:
    text = print_condition(condition)
    again = parse_condition(text)
    assert again == condition
    assert print_condition(again) == text


@given(CONDITIONS, st.lists(stored_events(), min_size=1, max_size=6))
def test_position_bounds_leave_no_match_out(condition: Any, events: list[StoredEvent]) -> None:
    bounds = position_bounds(condition)
    matches = compile_condition(condition)
    for stored in events:
        if matches(stored):
            assert stored.position > bounds.after
            assert bounds.last is None or stored.position <= bounds.last


@pytest.mark.parametrize("pattern", ["%a" * 40, "_%" * 40, "%" * 100 + "b", "%_a_%" * 20])
def test_no_pattern_takes_long(pattern: str) -> None:
    condition = parse_condition(f"data LIKE '{pattern}'")
    event = Event("s", "i", "t", "", 0, json.dumps("a" * 20_000).encode())
    compile_condition(condition)(StoredEvent(1, 1, event))


def test_a_payload_that_is_no_json_is_null() -> None:
    stored = StoredEvent(1, 1, Event("s", "i", "t", "", 0, b"\xff<xml/>"))
    assert compile_condition(parse_condition("data IS NULL"))(stored)
    assert not compile_condition(parse_condition("data.x = 1"))(stored)


def test_nothing_a_person_wrote_becomes_code() -> None:
    text = """data."x'] or __import__('os')" = '"; import os' AND headers."a\\n" LIKE '\\%'"""
    event = Event("s", "i", "t", "", 0, b"{}")
    assert not compile_condition(parse_condition(text))(StoredEvent(1, 1, event))
    assert re.search("__import__", text)
