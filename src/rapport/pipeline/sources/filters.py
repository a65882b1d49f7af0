"""Conditions on columns that the source decides itself, so that Spark never sees the other rows.
Pure. [PI-2]

A condition on `position` narrows what is read, one on `channel` leaves channels out, one on
`received` skips blocks without decoding them; the rest is decided on Arrow columns before the
others are made.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from rapport.pipeline.sources.planning import Piece

NUMBERS = ("position", "received", "time")
TEXTS = ("channel", "source", "id", "type", "subject")

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "<": pc.less,
    "<=": pc.less_equal,
}
_LIKE = {"starts": pc.starts_with, "ends": pc.ends_with, "contains": pc.match_substring}
# Texts are ordered by code points here and by their bytes in Arrow and Spark, which is the same.
_HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "starts": str.startswith,
    "ends": str.endswith,
    "contains": operator.contains,
}


class Condition(msgspec.Struct, frozen=True):
    """`column operation value`; `in` has a tuple of values. No column is ever null."""

    column: str
    operation: str
    value: Any
    negated: bool = False

    def mask(self, column: pa.Array) -> pa.Array:
        """Which rows fulfil it."""
        if self.operation == "in":
            found = pc.is_in(column, value_set=pa.array(self.value, column.type))
        elif self.operation in _LIKE:
            found = _LIKE[self.operation](column, pattern=self.value)
        else:
            found = _COMPARE[self.operation](column, pa.scalar(self.value, column.type))
        return pc.invert(found) if self.negated else found

    def holds(self, value: object) -> bool:
        """Whether one value fulfils it."""
        if self.operation == "in":
            return (value in self.value) is not self.negated
        return _HOLDS[self.operation](value, self.value) is not self.negated


def condition(
    column: str, operation: str, value: object, *, negated: bool = False
) -> Condition | None:
    """The condition when the source can decide it exactly as Spark would, else None."""
    if column in NUMBERS:
        is_right = _is_number
    elif column in TEXTS:
        is_right = _is_text
    else:
        return None
    if operation == "in":
        if not isinstance(value, Sequence) or isinstance(value, str):
            return None
        # `x NOT IN (1, NULL)` is never true.
        if None in value and negated:
            return None
        value = tuple(one for one in value if one is not None)
        return Condition(column, "in", value, negated) if all(map(is_right, value)) else None
    if operation in _LIKE and column not in TEXTS:
        return None
    return Condition(column, operation, value, negated) if is_right(value) else None


def narrowed(pieces: Iterable[Piece], conditions: Sequence[Condition]) -> list[Piece]:
    """What is left to read of the pieces by conditions on channel and position."""
    low, high = _bounds([one for one in conditions if one.column == "position"])
    names = [one for one in conditions if one.column == "channel"]
    left = []
    for piece in pieces:
        after, through = max(piece.after, low - 1), min(piece.through, high)
        if after < through and all(one.holds(piece.channel) for one in names):
            left.append(Piece(piece.channel, after, through))
    return left


def may_hold(conditions: Sequence[Condition], received: int) -> bool:
    """Whether events that were received then can fulfil the conditions."""
    return all(one.holds(received) for one in conditions if one.column == "received")


def _bounds(conditions: Sequence[Condition]) -> tuple[int, int]:
    low, high = 1, 2**63 - 1
    for one in conditions:
        if one.negated:
            continue
        value = one.value
        if one.operation == "in" and value:
            low, high = max(low, min(value)), min(high, max(value))
        elif one.operation == "=":
            low, high = max(low, value), min(high, value)
        elif one.operation in (">", ">="):
            low = max(low, value + (one.operation == ">"))
        elif one.operation in ("<", "<="):
            high = min(high, value - (one.operation == "<"))
    return low, high


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _is_text(value: object) -> bool:
    return isinstance(value, str)
