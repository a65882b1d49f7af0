"""Keys of a field index, and lookups of ranges of keys. Pure. [CH-4]

A key may be coarser than its value (texts are cut, large numbers rounded), but never out of order:
`a <= b` means `key(a) <= key(b)`. So a closed range of keys holds every value of the range, and
perhaps a few more: an index gives candidates, evaluating the condition decides.
"""

from __future__ import annotations

import struct

import msgspec

Key = int | str
TEXT_LENGTH = 64
"""Characters of a text in its key."""
PARTITION_BITS = 17
"""Indexes are divided into partitions of 131,072 positions, so that the first matches of a range
come out in order without a scan of all of them.
"""
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


def number_of_key(key: int) -> float:
    """The inverse of `number_key`.

    >>> number_of_key(0), number_of_key(1)
    (0.0, 5e-324)
    """
    (double,) = _DOUBLE.unpack(_INTEGER.pack(key if key >= 0 else key ^ _TURN))
    return float(double)


def key_of(value: object) -> Key | None:
    """The key of a value; None for null, objects and lists, which are not indexed."""
    if type(value) is str:
        return text_key(value)
    if type(value) is int or type(value) is float:
        return number_key(value)
    return int(value) if type(value) is bool else None


_FIRST_ROUNDED = number_key(2.0**53)
"""From here on whole numbers share keys."""


class Range(msgspec.Struct, frozen=True):
    """Keys from `low` to `high`, inclusive; None: unbounded among texts, or among numbers."""

    low: Key | None
    high: Key | None

    @property
    def is_point(self) -> bool:
        """Whether it is a single key, whose positions are ordered."""
        return self.low is not None and self.low == self.high

    @property
    def is_exact(self) -> bool:
        """Whether every value with a key in the range, NULs aside, lies between its ends."""
        ends = [end for end in (self.low, self.high) if end is not None]
        if any(isinstance(end, str) for end in ends):
            return all(len(end) < TEXT_LENGTH for end in ends if isinstance(end, str))
        numbers = [end for end in ends if isinstance(end, int)]
        return self._excludes_booleans() and all(
            -_FIRST_ROUNDED < end < _FIRST_ROUNDED for end in numbers
        )

    def _excludes_booleans(self) -> bool:
        """FALSE and TRUE have the keys of 0 and of the smallest double."""
        is_behind = isinstance(self.low, int) and self.low > 1
        return is_behind or (isinstance(self.high, int) and self.high < 0)


def points(*keys: Key) -> tuple[Range, ...]:
    return tuple(Range(key, key) for key in keys)


class RangeLookup(msgspec.Struct, frozen=True):
    """Positions at which a field's key is in one of the ranges."""

    path: str
    ranges: tuple[Range, ...]
    text: bool
    """Whether unbounded ranges are of texts; otherwise of numbers."""


class AllOf(msgspec.Struct, frozen=True):
    """Positions in all parts; a search may ignore a part that excludes little."""

    parts: tuple[Lookup, ...]


class AnyOf(msgspec.Struct, frozen=True):
    """Positions in any part."""

    parts: tuple[Lookup, ...]


Lookup = RangeLookup | AllOf | AnyOf
