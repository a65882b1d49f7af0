"""Values as a field index keeps them, and what is looked up in it. Pure. [CH-4]

A key may be coarser than its value (texts are cut, large numbers rounded), but never out of order:
`a <= b` means `key(a) <= key(b)`. So a closed range of keys holds every value of the range, and
perhaps a few more: an index gives candidates, the condition itself decides.
"""

from __future__ import annotations

import struct

import msgspec

Key = int | str
TEXT_LENGTH = 64
"""Characters of a text that an index keeps."""
_DOUBLE, _INTEGER = struct.Struct("<d"), struct.Struct("<q")
_TURN = 0x7FFF_FFFF_FFFF_FFFF


def number_key(number: float) -> int:
    """Whole numbers in the order of doubles; exact in SQLite's JSON, which doubles are not.

    >>> number_key(-1.5) < number_key(0) < number_key(0.1) < number_key(2) < number_key(10**400)
    True
    """
    try:
        double = float(number) + 0.0  # minus zero is zero
    except OverflowError:
        double = float("inf") if number > 0 else float("-inf")
    (bits,) = _INTEGER.unpack(_DOUBLE.pack(double))
    return bits if bits >= 0 else bits ^ _TURN  # type: ignore[no-any-return]


def text_key(text: str) -> str:
    """The beginning of a text, up to a NUL, at which SQLite's JSON ends a text."""
    return text[:TEXT_LENGTH].partition("\0")[0]


def key_of(value: object) -> Key | None:
    """The key of a value; None for what is not indexed: null, objects, lists."""
    if type(value) is str:
        return text_key(value)
    if type(value) is int or type(value) is float:
        return number_key(value)
    return int(value) if type(value) is bool else None


_FIRST_ROUNDED = number_key(2.0**53)
"""Behind it whole numbers share keys."""


class Range(msgspec.Struct, frozen=True):
    """Keys from `low` to `high`, both within; None for no end among the keys of its kind."""

    low: Key | None
    high: Key | None

    @property
    def is_point(self) -> bool:
        """Whether it is a single key: then positions come in order."""
        return self.low is not None and self.low == self.high

    @property
    def is_exact(self) -> bool:
        """Whether every value with such a key, unless it is a text with a NUL, lies between the
        values the ends were made of, both within.
        """
        ends = [end for end in (self.low, self.high) if end is not None]
        if any(isinstance(end, str) for end in ends):
            return all(len(end) < TEXT_LENGTH for end in ends if isinstance(end, str))
        numbers = [end for end in ends if isinstance(end, int)]
        return self._keeps_out_truth() and all(
            -_FIRST_ROUNDED < end < _FIRST_ROUNDED for end in numbers
        )

    def _keeps_out_truth(self) -> bool:
        """FALSE and TRUE have keys of their own that are also those of 0 and of the number next to
        it.
        """
        is_behind = isinstance(self.low, int) and self.low > 1
        return is_behind or (isinstance(self.high, int) and self.high < 0)


def points(*keys: Key) -> tuple[Range, ...]:
    """Each key alone."""
    return tuple(Range(key, key) for key in keys)


class RangeLookup(msgspec.Struct, frozen=True):
    """Positions at which a field's key is in one of the ranges."""

    path: str
    ranges: tuple[Range, ...]
    text: bool
    """Whether ranges without an end are of texts; otherwise of numbers."""


class AllOf(msgspec.Struct, frozen=True):
    """Positions that all parts have; a part may be left out when others say more."""

    parts: tuple[Lookup, ...]


class AnyOf(msgspec.Struct, frozen=True):
    """Positions that any part has."""

    parts: tuple[Lookup, ...]


Lookup = RangeLookup | AllOf | AnyOf
