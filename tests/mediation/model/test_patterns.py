"""Patterns: written, read, valid or not, with the reason. [ME-2]"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import Problem
from rapport.mediation.patterns import BoundPattern, Pattern, bind, parse_pattern
from rapport.mediation.types import Attribute, ComplexType, Types

TYPES = Types(
    (
        ComplexType("Position", (Attribute("x", "number"), Attribute("y", "number"))),
        ComplexType("PositionWithHeight", (Attribute("z", "number"),), ("Position",)),
        ComplexType("Money", (Attribute("amount", "number"),)),
        ComplexType("Line", (Attribute("price", "Money"), Attribute("unit price", "number"))),
        ComplexType(
            "Order",
            (
                Attribute("position", "Position"),
                Attribute("lines", "[Line]"),
                Attribute("Money", "text"),
            ),
        ),
    )
)


def bound(text: str) -> BoundPattern:
    parsed = parse_pattern(text)
    assert isinstance(parsed, Pattern), parsed
    found = bind(parsed, TYPES)
    assert isinstance(found, BoundPattern), found
    return found


def reason(text: str) -> str:
    parsed = parse_pattern(text)
    assert isinstance(parsed, Pattern), parsed
    found = bind(parsed, TYPES)
    assert isinstance(found, Problem), found
    assert found.code == "pattern.invalid"
    return found.message


@pytest.mark.parametrize(
    ("written", "means"),
    [
        ("Position", "Position"),
        ("Order.Position", "Order.*Position"),
        ("Order.position", "Order.position(Position)"),
        ("Order.position(PositionWithHeight)", "Order.position(PositionWithHeight)"),
        ("Order.position(PositionWithHeight).z", "Order.position(PositionWithHeight).z(number)"),
        (" Order . lines . price ", "Order.lines([Line]).price(Money)"),
        ("Order.[Line]", "Order.*[Line]"),
        ("Order.lines(Line)", "Order.lines(Line)"),
        ('Line."unit price"', 'Line."unit price"(number)'),
        ("Order.Money", "Order.Money(text)"),
        ("Order.*Money", "Order.*Money"),
    ],
)
def test_a_written_pattern_means(written: str, means: str) -> None:
    found = bound(written)
    assert str(found) == means
    assert bound(means) == found, "what is printed is read as the same"


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("Psition", "there is no type 'Psition'"),
        ("Order.Position.z", "Position has no attribute 'z', and there is no such type"),
        ("Order.Number", "Order has no attribute 'Number'"),
        ("Position.Money", "Position contains no Money at any depth"),
        ("Order.Money.number", "text contains no number at any depth"),
        ("Order.*Money.Position", "Order contains no Money"),
        ("Order.position(Money)", "'position' of Order is Position, never Money"),
        ("Order.place(Position)", "Order has no attribute 'place'"),
    ],
)
def test_an_invalid_pattern_has_a_reason(written: str, why: str) -> None:
    assert why in reason(written)


def test_an_invalid_pattern_suggests_the_nearest_name() -> None:
    parsed = parse_pattern("Order.position2")
    assert isinstance(parsed, Pattern)
    found = bind(parsed, TYPES)
    assert isinstance(found, Problem)
    assert found.hint == "did you mean 'position'?"


@pytest.mark.parametrize(
    "text", ["", ".", "A.", ".A", "A..B", "A(B)", "A.b(", "A.[B", 'A."\\q"', 'A.""', 'A."b', "A b"]
)
def test_a_syntax_error_is_reported_with_its_position(text: str) -> None:
    found = parse_pattern(text)
    assert isinstance(found, Problem)
    assert found.code == "pattern.syntax"
    assert found.column >= 1


@given(st.text(alphabet='AB.ab()[]*" \\', max_size=12))
def test_any_text_is_a_pattern_or_a_problem_and_prints_as_itself(text: str) -> None:
    found = parse_pattern(text)
    if isinstance(found, Pattern):
        assert parse_pattern(str(found)) == found
