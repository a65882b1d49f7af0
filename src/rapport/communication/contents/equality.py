"""When two JSON values are the same, and of which kind each is: 1 is 1.0, true is not 1. [CO-14]"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

KINDS: dict[type, str] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


def is_kind(value: Any, name: str) -> bool:
    """Whether a value is of a type of JSON Schema; 1.0 is an integer."""
    kind = KINDS[type(value)]
    if name == "number":
        return kind in ("integer", "number")
    if name == "integer" and kind == "number":
        return bool(value.is_integer())
    return kind == name


def is_number(value: Any) -> bool:
    """Whether it is a number; true and false are none."""
    return type(value) in (int, float)


def frozen(value: Any) -> object:
    """Something to compare and to hash that is the same for the same JSON values only."""
    kind = type(value)
    if kind is bool:
        return ("boolean", value)
    if kind is list:
        return ("array", tuple(map(frozen, value)))
    if kind is dict:
        return ("object", frozenset((name, frozen(each)) for name, each in value.items()))
    return value


def is_multiple(value: int | float, step: int | float) -> bool:
    """Whether a number is a whole multiple of another, as they are written: 0.3 is one of 0.1."""
    return (_exact(value) / _exact(step)).denominator == 1


def _exact(value: int | float) -> Fraction:
    return Fraction(value) if isinstance(value, int) else Fraction(repr(value))
