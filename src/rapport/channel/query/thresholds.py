"""A comparison of a calculated number or of a listed value, turned round to what root has. [ME-9,
CH-4]"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import msgspec

from rapport.channel.query.folding import FALSE, UNKNOWN, Truth, all_of, any_of, opposite
from rapport.channel.query.parser import MAX_CHOICES
from rapport.channel.query.tree import (
    Arithmetic,
    Between,
    Compare,
    Comparison,
    Condition,
    Field,
    In,
    IsNull,
    Literal,
    Value,
)
from rapport.core.terms import FloatRange, Linear, Lookup, Scalar, float_range

_EXACT = 2**53
"""Whole numbers up to here are floats."""


def never(path: Field) -> Condition:
    """False for everything that is there, unknown for null."""
    return Between(path, Literal(1), Literal(0))


def threshold(operator: str, term: Linear, wanted: Scalar) -> Condition:
    """`operator wanted` of a calculated number, said of the number of root it is made from."""
    root = Field(term.path)
    if isinstance(wanted, bool) or not isinstance(wanted, int | float):
        return never(root)  # another kind is neither equal nor unequal
    if not term.steps:
        return Compare(cast(Comparison, operator), root, Literal(wanted))
    if operator == "<>":
        return opposite(threshold("=", term, wanted))
    span = float_range(term, operator, wanted)
    return never(root) if span is None else _within(root, span)


def _within(root: Field, span: FloatRange) -> Condition:
    low, high = span.low, span.high
    number = _as_float(root, low, high)
    if low is not None and high is not None:
        is_one = low == high
        between = Between(number, Literal(low), Literal(high))
        return Compare("=", number, Literal(low)) if is_one else between
    if low is not None:
        return Compare(">=", number, Literal(low))
    if high is not None:
        return Compare("<=", number, Literal(high))
    return opposite(never(root))


def _as_float(root: Field, low: float | None, high: float | None) -> Value:
    """Root's number as the transformer sees it: large whole numbers are rounded to floats."""
    is_exact = all(end is None or abs(end) < _EXACT for end in (low, high))
    return root if is_exact else Arithmetic("*", root, Literal(1.0))


def listed(term: Lookup, decide: Callable[[Scalar], Truth]) -> Condition:
    """A condition on what stands in a list, said of the keys that lead to it.

    `decide` tells the truth for each value of the list, and for null.
    """
    root = Field(term.path)
    keys: dict[Truth, list[Literal]] = {True: [], False: [], None: []}
    for key, value in term.entries:
        if key is not None:  # a null is never looked up
            keys[decide(value)].append(Literal(key))
    true, false = _one_of(root, keys[True]), _one_of(root, keys[False])
    unknown = all_of([_one_of(root, keys[None]), UNKNOWN]) if keys[None] else FALSE
    others = False if term.otherwise is msgspec.UNSET else decide(term.otherwise)
    if others is True:
        found = opposite(any_of([false, unknown]))
    elif others is False:
        found = any_of([true, unknown])
    else:
        decided = _one_of(root, [*keys[True], *keys[False]])
        found = any_of([true, all_of([opposite(decided), UNKNOWN])])
    return _with_null(root, found, decide(None))


def _with_null(root: Field, condition: Condition, truth: Truth) -> Condition:
    """The condition, which is unknown for null, with another truth there."""
    if truth is True:
        return any_of([IsNull(root), condition])
    if truth is False:
        return all_of([opposite(IsNull(root)), condition])
    return condition


def _one_of(root: Field, keys: list[Literal]) -> Condition:
    if not keys:
        return never(root)
    if len(keys) == 1:
        return Compare("=", root, keys[0])
    chunks = range(0, len(keys), MAX_CHOICES)
    return any_of([In(root, tuple(keys[start : start + MAX_CHOICES])) for start in chunks])
