"""Numbers as text, with a decimal point or a decimal comma. [ME-11]"""

from __future__ import annotations

import re
from typing import Literal

from rapport.core.errors import InvalidInput

DecimalMark = Literal["point", "comma"]

_POINT = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)
_COMMA = re.compile(r"[+-]?(?:\d+,?\d*|,\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)
_LONGEST = 400
"""A float needs no more digits than this; longer text is not read as a number."""


def parse_number(text: str, decimal: DecimalMark = "point") -> float:
    """The number that `text` writes; raises InvalidInput `value.not_a_number`.

    Thousands separators are refused: `1.234` would mean two things.

    >>> parse_number("-30,05", "comma"), parse_number("1e3")
    (-30.05, 1000.0)
    """
    stripped = text.strip()
    pattern = _POINT if decimal == "point" else _COMMA
    if len(stripped) > _LONGEST or not pattern.fullmatch(stripped):
        raise InvalidInput(
            f"{text[:40]!r} is not a number with a decimal {decimal}",
            code="value.not_a_number",
            hint=_other_mark(stripped, decimal),
        )
    return float(stripped.replace(",", "."))


def looks_like_number(text: str) -> DecimalMark | None:
    """The decimal mark with which `text` would be a number, None when with neither."""
    stripped = text.strip()
    if len(stripped) > _LONGEST:
        return None
    if _POINT.fullmatch(stripped):
        return "point"
    return "comma" if _COMMA.fullmatch(stripped) else None


def _other_mark(text: str, decimal: DecimalMark) -> str:
    mark = looks_like_number(text)
    return f'it looks like decimal = "{mark}"' if mark and mark != decimal else ""
