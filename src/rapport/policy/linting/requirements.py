"""What several requirements on one value leave of it, and whether that is anything. [PO-12]"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

from rapport.policy.language.tree import Operator
from rapport.policy.plan import Constraint

_BOOLEANS = ("true", "false")
_CONTRARY: dict[Operator, Operator] = {
    "=": "!=",
    "!=": "=",
    "<": ">=",
    ">=": "<",
    ">": "<=",
    "<=": ">",
}


class Requirement(NamedTuple):
    """A value must compare so with a constant."""

    operator: Operator
    value: str | float


def negation_of(required: Requirement) -> Requirement:
    """What holds of a value that is there when the requirement does not."""
    return Requirement(_CONTRARY[required.operator], required.value)


def compatible(requirements: Iterable[Requirement]) -> bool:
    """False when no value satisfies all of them; True when one might.

    Numbers are taken as real ones, so nothing that could be a value is ruled out.
    """
    found = list(requirements)
    numbers = [one for one in found if not isinstance(one.value, str)]
    texts = [one for one in found if isinstance(one.value, str)]
    return _some_number(numbers) and _some_text(texts)


def can_coincide(first: Sequence[Constraint], second: Sequence[Constraint]) -> bool:
    """False when no instance can satisfy both lists; True when one might."""
    together = (*first, *second)
    return all(
        compatible(Requirement(each.operator, each.value) for each in (one, other))
        for one, other in combinations(together, 2)
        if one.attribute == other.attribute
    )


def _some_number(requirements: list[Requirement]) -> bool:
    values = [(one.operator, float(one.value)) for one in requirements]
    exact = [value for operator, value in values if operator == "="]
    if exact:
        return all(_holds(exact[0], operator, value) for operator, value in values)
    least = max((value for operator, value in values if operator in (">", ">=")), default=-math.inf)
    most = min((value for operator, value in values if operator in ("<", "<=")), default=math.inf)
    if least != most:
        return least < most
    return all(_holds(least, operator, value) for operator, value in values)


def _holds(value: float, operator: Operator, limit: float) -> bool:
    return {
        "=": value == limit,
        "!=": value != limit,
        "<": value < limit,
        ">": value > limit,
        "<=": value <= limit,
        ">=": value >= limit,
    }[operator]


def _some_text(requirements: list[Requirement]) -> bool:
    wanted = {_plain(one.value) for one in requirements if one.operator == "="}
    unwanted = {_plain(one.value) for one in requirements if one.operator == "!="}
    return len(wanted) <= 1 and not wanted & unwanted


def _plain(value: str | float) -> str:
    """Booleans are written as texts in any letters."""
    text = str(value)
    return text.lower() if text.lower() in _BOOLEANS else text
