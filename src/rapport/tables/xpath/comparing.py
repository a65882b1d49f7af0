"""The operators of XPath 1.0 on two values. [PO-2]"""

from __future__ import annotations

import math

from rapport.tables.xpath.functions import Value, to_boolean, to_number
from rapport.tables.xpath.nodes import string_of


def compare(operator: str, left: Value, right: Value) -> bool:
    """Comparison as the standard says: of node sets it holds when it holds for some of them."""
    if isinstance(left, list) and isinstance(right, bool):
        left = to_boolean(left)
    if isinstance(right, list) and isinstance(left, bool):
        right = to_boolean(right)
    lefts: list[str | float | bool] = (
        [string_of(node) for node in left] if isinstance(left, list) else [left]
    )
    rights: list[str | float | bool] = (
        [string_of(node) for node in right] if isinstance(right, list) else [right]
    )
    return any(_compare_two(operator, one, other) for one in lefts for other in rights)


def _compare_two(operator: str, left: str | float | bool, right: str | float | bool) -> bool:
    if operator in ("=", "!="):
        if isinstance(left, bool) or isinstance(right, bool):
            equal = to_boolean(left) == to_boolean(right)
        elif isinstance(left, float) or isinstance(right, float):
            equal = to_number(left) == to_number(right)
        else:
            equal = left == right
        return equal is (operator == "=")
    one, other = to_number(left), to_number(right)
    if operator.startswith("<"):
        return one < other or (operator == "<=" and one == other)
    return one > other or (operator == ">=" and one == other)


def calculate(operator: str, left: float, right: float) -> float:
    """`+`, `-`, `*`, `div` or `mod` of two numbers, as IEEE 754 says."""
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    if operator == "div":
        return left / right if right else _divided_by_zero(left, right)
    if not right or math.isinf(left) or math.isnan(left):
        return math.nan
    return math.fmod(left, right)


def _divided_by_zero(left: float, right: float) -> float:
    if not left or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)
