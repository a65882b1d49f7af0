"""What compiled conditions call at run time: payloads, kinds, arithmetic, patterns. [CH-4]

Null is None; a value that cannot be calculated is null, never an exception.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
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


class _Piece:
    """What stands between two `%` of a pattern: characters, and None for each `_`."""

    def __init__(self, characters: Sequence[str | None]) -> None:
        self.length = len(characters)
        self._before = next((at for at, one in enumerate(characters) if one), self.length)
        core = characters[self._before :]
        while core and core[-1] is None:
            core = core[:-1]
        self._after = self.length - self._before - len(core)
        self._text = "".join(one or "" for one in core)
        self.is_mixed = len(self._text) < len(core)
        self.core = len(core)
        written = "".join("." if one is None else re.escape(one) for one in core)
        self._expression = re.compile(written, re.DOTALL) if self.is_mixed else None

    def stands_at(self, text: str, place: int) -> bool:
        """Whether the text reads like this from a place on; it is long enough."""
        place += self._before
        if self._expression is None:
            return text.startswith(self._text, place)
        return self._expression.match(text, place) is not None

    def end_in(self, text: str, place: int, end: int) -> int:
        """Where the first occurrence ends that lies between two places; -1 for none.

        Without `_` between letters the cost is that of `str.find`, linear in the text.
        """
        place, end = place + self._before, end - self._after
        if place > end:
            return -1
        if self._expression is None:
            found = text.find(self._text, place, end)
        else:
            match = self._expression.search(text, place, end)
            found = match.start() if match else -1
        return -1 if found < 0 else found + self.core + self._after


def like_test(pattern: str, escape: str) -> Test:
    """A function that tells whether a text fits.

    The pattern is cut at its `%`: pieces are looked for one after the other, each as early as
    possible, so nothing is tried twice. The cost is linear in the text; only for pieces with `_`
    between letters it is also multiplied by their length, which `mixed_characters` counts.
    """
    pieces = _pieces(pattern, escape)
    first, middle, last = pieces[0], pieces[1:-1], pieces[-1]
    length = sum(piece.length for piece in pieces)

    def fits(text: str) -> bool:
        if len(pieces) == 1:
            return len(text) == length and first.stands_at(text, 0)
        if len(text) < length or not first.stands_at(text, 0):
            return False
        place, end = first.length, len(text) - last.length
        if not last.stands_at(text, end):
            return False
        for piece in middle:
            place = piece.end_in(text, place, end)
            if place < 0:
                return False
        return True

    return fits


def mixed_characters(pattern: str, escape: str) -> int:
    """Characters of those pieces of a LIKE pattern that are searched for with `_` between letters.

    >>> mixed_characters("%a_b%", ""), mixed_characters("%__ab__%", ""), mixed_characters("a_b", "")
    (3, 0, 0)
    """
    return sum(piece.core for piece in _pieces(pattern, escape)[1:-1] if piece.is_mixed)


def _pieces(pattern: str, escape: str) -> list[_Piece]:
    pieces: list[list[str | None]] = [[]]
    escaped = False
    for sign in pattern:
        if not escaped and escape and sign == escape:
            escaped = True
            continue
        if not escaped and sign == "%":
            pieces.append([])
        else:
            pieces[-1].append(None if sign == "_" and not escaped else sign)
        escaped = False
    return [_Piece(piece) for piece in pieces]
