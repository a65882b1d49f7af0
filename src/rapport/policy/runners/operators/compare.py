"""Comparing columns of values, where nothing missing ever holds. [PO-3]"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rapport.policy.language.tree import Operator
from rapport.policy.runners.operators.table import Array, Mask

OPERATIONS: dict[Operator, Callable[[Any, Any], Any]] = {
    "=": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    ">": lambda left, right: left > right,
    "<=": lambda left, right: left <= right,
    ">=": lambda left, right: left >= right,
}


def compare(left: Any, operator: Operator, right: Any) -> Mask:
    """For each row whether the comparison holds; a side may be one value for all rows.

    Numbers are compared as columns, texts and booleans one by one where they may be missing.
    """
    rows = len(left) if isinstance(left, np.ndarray) else len(right)
    left, right = _alike(left, right), _alike(right, left)
    known = present(left, rows) & present(right, rows)
    found = np.zeros(rows, np.bool_)
    chosen = slice(None) if known.all() else known
    found[chosen] = OPERATIONS[operator](_rows(left, chosen), _rows(right, chosen))
    return found


def present(values: Any, rows: int) -> Mask:
    """Which of the values are there: neither None nor NaN."""
    if not isinstance(values, np.ndarray):
        return np.full(rows, values is not None and values == values)  # NaN is not itself
    return complete_rows(values.reshape(-1, 1))


def complete_rows(values: Array) -> Mask:
    """Which rows of (n, parts) miss nothing."""
    if values.dtype == object:
        there = [value is not None and value == value for value in values.ravel().tolist()]
        return np.asarray(np.array(there, np.bool_).reshape(values.shape).all(axis=1))
    if values.dtype.kind == "f":
        return np.asarray(~np.isnan(values).any(axis=1))
    return np.ones(len(values), np.bool_)


def _alike(value: Any, other: Any) -> Any:
    """A constant is written as text; beside booleans it is one."""
    if not isinstance(value, str) or not isinstance(other, np.ndarray):
        return value
    if other.dtype.kind == "b":
        return value.lower() == "true"
    some = next((item for item in other.tolist() if item is not None), None)
    return value.lower() == "true" if isinstance(some, bool) else value


def _rows(values: Any, chosen: Any) -> Any:
    return values[chosen] if isinstance(values, np.ndarray) else values
