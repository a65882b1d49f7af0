"""Where a reading may begin and must end, told by the condition itself. [CH-4]"""

from __future__ import annotations

import math

import msgspec

from rapport.channel.query.tree import And, Between, Compare, Condition, Field, Literal

_POSITION = Field(("position",))
_LARGEST = 2**62
"""No position is larger; bounds travel in tokens, as 64 bits."""
_TURNED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


class Bounds(msgspec.Struct, frozen=True):
    """All matches stand after position `after`, and at `last` at the latest when it is given."""

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
            return _compare_bounds(_TURNED.get(operator, operator), value)
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
