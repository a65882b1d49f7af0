"""Which floats a threshold on calculated numbers means: exact to the last bit. [ME-9]

Every rounding of floats keeps their order, so a calculation by sums and products with constants is
monotone as computed, and the numbers for which its result passes a threshold are one span. Its ends
are found by bisection over floats: 64 calculations, no tolerance.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable

import msgspec

from rapport.core.terms import Linear

_DOUBLE, _WHOLE = struct.Struct("<d"), struct.Struct("<q")
_SIGN = 1 << 63


class Span(msgspec.Struct, frozen=True):
    """All finite floats from `low` to `high`, both included; None: no end on that side."""

    low: float | None
    high: float | None


def span_of(term: Linear, operator: str, wanted: float) -> Span | None:
    """The floats of root whose number in the consumer's terms is `=`, `<`, `<=`, `>` or `>=` the
    wanted one; None when there is none.

    >>> from rapport.core.terms import Arithmetic
    >>> fahrenheit = Linear((), (Arithmetic(9.0, 160.0, 5.0),))
    >>> span_of(fahrenheit, ">", 86)
    Span(low=30.000000000000004, high=None)
    >>> span_of(fahrenheit, "=", 86)
    Span(low=30.0, high=30.0)
    """
    if operator == "=":
        low, high = span_of(term, ">=", wanted), span_of(term, "<=", wanted)
        if term.turns:
            low, high = high, low
        if low is None or high is None:
            return None
        return _crossed(low.low, high.high)
    passes = _PASSES[operator]
    rises = (operator in (">", ">=")) is not term.turns

    def holds(number: float) -> bool:
        return passes(term.apply(number), wanted)

    if rises:
        first = first_float(holds)
        return None if first is None else Span(_open(first, -_LARGEST), None)
    last = first_float(lambda number: not holds(number))
    if last is None:
        return Span(None, None)
    return None if last == -_LARGEST else Span(None, _float_at(_place_of(last) - 1))


def _crossed(low: float | None, high: float | None) -> Span | None:
    is_empty = low is not None and high is not None and low > high
    return None if is_empty else Span(low, high)


def _open(number: float, end: float) -> float | None:
    return None if number == end else number


def first_float(holds: Callable[[float], bool]) -> float | None:
    """The smallest finite float for which something holds that holds for all larger ones."""
    low, high = -_LAST, _LAST
    if not holds(_float_at(high)):
        return None
    while low < high:
        middle = (low + high) // 2
        if holds(_float_at(middle)):
            high = middle
        else:
            low = middle + 1
    return _float_at(low)


def _place_of(number: float) -> int:
    """Where a float stands among all floats; both zeros are 0."""
    bits: int = _WHOLE.unpack(_DOUBLE.pack(number))[0]
    return bits if bits >= 0 else -(bits + _SIGN)


def _float_at(place: int) -> float:
    number: float = _DOUBLE.unpack(_WHOLE.pack(abs(place)))[0]
    return number if place >= 0 else -number


_LARGEST = sys.float_info.max
_LAST = _place_of(_LARGEST)
_PASSES: dict[str, Callable[[float, float], bool]] = {
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}
