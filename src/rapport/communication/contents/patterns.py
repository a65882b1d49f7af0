"""Regular expressions of JSON Schema (ECMA 262) in Python's words. Pure. [CO-14]"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Protocol

from rapport.communication.contents.all_ways import EveryWay
from rapport.communication.contents.expressions import (
    NotUnderstood,
    has_many_ways,
    parts_of,
)

LONGEST_MATCHED = 4_096
"""Characters of a text that a pattern is tried on; a longer one does not fit."""

_OUTSIDE = {
    "d": "[0-9]",
    "D": "[^0-9]",
    "w": "[A-Za-z0-9_]",
    "W": "[^A-Za-z0-9_]",
    "Z": "Z",
    "A": "A",
}
_WITHIN = {"d": "0-9", "w": "A-Za-z0-9_", "Z": "Z", "A": "A"}
_LETTER = r"[^\W\d_]"
_CATEGORIES = {
    "L": _LETTER,
    "Letter": _LETTER,
    "Nd": r"\d",  # codespell:ignore nd
    "Decimal_Number": r"\d",
}
_CATEGORY = re.compile(r"\\p\{(\w+)\}")


class Searched(Protocol):
    """An expression that is searched for; a compiled one of Python is such."""

    def search(self, text: str, /) -> object:
        """Something true when it is found in the text."""


@lru_cache(maxsize=1_024)
def python_pattern(pattern: str) -> Searched | None:
    """The pattern, ready to search; None for one that Python cannot express, or not in bounded
    time: whoever writes a text must not be able to keep everybody waiting.

    `$` is the very end, `\\d` and `\\w` are those of ASCII, `\\p{L}` is known, and decimal digits,
    outside of brackets.

    >>> bool(python_pattern("^[a-z]+$").search("abc\\n"))
    False
    """
    translated = _translated(pattern)
    if translated is None:
        return None
    try:
        compiled = re.compile(translated)
        parts = parts_of(translated)
        return EveryWay(parts) if has_many_ways(parts) else compiled
    except (re.error, RecursionError, OverflowError, NotUnderstood):
        return None


def _translated(pattern: str) -> str | None:
    parts, at, is_within = list[str](), 0, False
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\":
            part, at = _escaped(pattern, at, is_within)
            if part is None:
                return None
            parts.append(part)
            continue
        if letter == "[" and is_within:
            parts.append("\\")  # Python warns of what might become a set within a set
        is_within = letter == "[" or (is_within and letter != "]")
        parts.append(r"\Z" if letter == "$" and not is_within else letter)
        at += 1
    return "".join(parts)


def _escaped(pattern: str, at: int, is_within: bool) -> tuple[str | None, int]:
    """What stands for the escape at this place, and where it ends."""
    category = _CATEGORY.match(pattern, at)
    if category is not None:
        known = None if is_within else _CATEGORIES.get(category[1])
        return known, category.end()
    letter = pattern[at + 1 : at + 2]
    if letter in ("p", "P"):
        return None, at
    simple = (_WITHIN if is_within else _OUTSIDE).get(letter)
    return simple if simple is not None else pattern[at : at + 2], at + 2
