"""What requirements on one value leave of it. [PO-12]"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.policy.lint.satisfiability import Requirement, can_coincide, compatible, negation_of
from rapport.policy.operators.columns import OPERATIONS
from rapport.policy.plan import Constraint


def constraint(text: str) -> Constraint:
    attribute, operator, value = text.split(" ")
    return Constraint(attribute, operator, float(value) if value[-1].isdigit() else value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("status = guest", "status = employee", False),
        ("status = guest", "status = guest", True),
        ("status = guest", "status != guest", False),
        ("status != guest", "status != employee", True),
        ("status = guest", "floor = 3", True),
        ("floor = 3", "floor > 3", False),
        ("floor = 3", "floor >= 3", True),
        ("floor < 3", "floor > 3", False),
        ("floor <= 3", "floor >= 3", True),
        ("floor < 3", "floor >= 3", False),
        ("floor < 5", "floor > 3", True),
        ("floor > 5", "floor < 3", False),
    ],
)
def test_constraints_that_exclude_each_other_are_seen(
    first: str, second: str, expected: bool
) -> None:
    one, other = (constraint(first),), (constraint(second),)
    assert can_coincide(one, other) is expected
    assert can_coincide(other, one) is expected


def test_without_constraints_anything_can_coincide() -> None:
    assert can_coincide((), (constraint("status = guest"),))


@pytest.mark.parametrize(
    ("requirements", "expected"),
    [
        ((), True),
        ((("<", 3.0), (">", 3.0)), False),
        (((">=", 3.0), ("<=", 3.0)), True),
        (((">=", 3.0), ("<=", 3.0), ("!=", 3.0)), False),
        (((">=", 3.0), ("<=", 3.0), ("!=", 4.0)), True),
        ((("=", 3.0), ("=", 4.0)), False),
        ((("=", 3.0), ("!=", 4.0), ("<", 5.0)), True),
        (((">", 3.0), ("!=", 4.0)), True),
        ((("=", "open"), ("=", "shut")), False),
        ((("!=", "open"), ("!=", "shut")), True),
        ((("=", "true"), ("=", "True")), True),
        ((("=", "true"), ("!=", "TRUE")), False),
    ],
)
def test_what_several_requirements_leave(
    requirements: tuple[tuple[Any, Any], ...], expected: bool
) -> None:
    assert compatible(Requirement(*one) for one in requirements) is expected


@given(
    st.lists(
        st.tuples(st.sampled_from(list(OPERATIONS)), st.integers(-2, 2).map(float)), max_size=5
    ),
    st.integers(-5, 5).map(lambda number: number / 2),
)
def test_what_a_value_satisfies_is_never_called_incompatible(
    requirements: list[tuple[Any, float]], value: float
) -> None:
    if all(OPERATIONS[operator](value, limit) for operator, limit in requirements):
        assert compatible(Requirement(*one) for one in requirements)


@given(st.sampled_from(list(OPERATIONS)), st.floats(-3, 3), st.floats(-3, 3))
def test_the_contrary_holds_exactly_when_the_requirement_does_not(
    operator: Any, value: float, limit: float
) -> None:
    contrary = negation_of(Requirement(operator, limit))
    held = OPERATIONS[operator](value, limit)
    assert OPERATIONS[contrary.operator](value, contrary.value) is not held
