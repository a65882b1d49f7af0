"""What lint points out, and what it leaves alone."""

import pytest

from rapport.policy.lint import can_coincide
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
