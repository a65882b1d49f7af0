"""What compiled conditions call at run time: payloads, kinds, arithmetic, patterns. [CH-4]

Null is None; a value that cannot be calculated is null, never an exception.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import msgspec

NUMBERS = frozenset((int, float))
_DECODE = msgspec.json.Decoder().decode

Test = Callable[[str], bool]


def decode_payload(data: bytes) -> Any:
    """The payload; null when it is not JSON."""
    try:
        return _DECODE(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def member(value: Any, name: str) -> Any:
    """A member of an object; null of everything else."""
    return value.get(name) if type(value) is dict else None


def element(value: Any, index: int) -> Any:
    """An element of a list; null of everything else."""
    return value[index] if type(value) is list and index < len(value) else None


def calculate(sign: str, left: Any, right: Any) -> int | float | None:
    """Two numbers calculated; null when one is none or there is no finite result."""
    if type(left) not in NUMBERS or type(right) not in NUMBERS:
        return None
    try:
        result = _OPERATIONS[sign](left, right)
    except (ZeroDivisionError, OverflowError):
        return None
    return result if type(result) is int or math.isfinite(result) else None


def negative(value: Any) -> int | float | None:
    """Minus a number; null when it is none."""
    return -value if type(value) in NUMBERS else None


_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left / right,
}
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda left, right: left == right,
    "<>": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}


def compare(operator: str, left: Any, right: Any) -> bool | None:
    """True, false or unknown (None): two values of which neither is known beforehand."""
    if left is None or right is None:
        return None
    same = type(left) is type(right) or (type(left) in NUMBERS and type(right) in NUMBERS)
    if not same or type(left) in (dict, list):
        return False
    if type(left) is bool and operator not in ("=", "<>"):
        return False
    return _COMPARISONS[operator](left, right)


def like_test(pattern: str, escape: str) -> Test:
    """A function that tells whether a text fits; its cost grows with text times pattern, no worse.

    The pattern is cut at its `%`: pieces are looked for one after the other, each as early as
    possible, so nothing is ever tried twice.
    """
    pieces = _cut(pattern, escape)
    expressions = [re.compile("".join(piece), re.DOTALL) for piece in pieces]
    lengths = [len(piece) for piece in pieces]

    def fits(text: str) -> bool:
        if len(pieces) == 1:
            return len(text) == lengths[0] and expressions[0].match(text) is not None
        if sum(lengths) > len(text) or not expressions[0].match(text):
            return False
        place, end = lengths[0], len(text) - lengths[-1]
        for expression in expressions[1:-1]:
            found = expression.search(text, place)
            if found is None:
                return False
            place = found.end()
        return place <= end and expressions[-1].match(text, end) is not None

    return fits


def _cut(pattern: str, escape: str) -> list[list[str]]:
    """The pieces between `%`, each a list of one expression per character."""
    pieces: list[list[str]] = [[]]
    escaped = False
    for sign in pattern:
        if not escaped and escape and sign == escape:
            escaped = True
            continue
        if not escaped and sign == "%":
            pieces.append([])
        elif not escaped and sign == "_":
            pieces[-1].append(".")
        else:
            pieces[-1].append(re.escape(sign))
        escaped = False
    return pieces
