"""Which sign parts the columns of a text. [ME-13]"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence

DELIMITERS = (";", "\t", "|", ",")
"""In the order in which they win where nothing else tells: commas stand in numbers too."""
_LINES = 100


def sniff_delimiter(lines: Sequence[str]) -> str:
    """The delimiter that stands in most of the first lines, and parts most of them alike.

    >>> sniff_delimiter(["UF:;RS", "Data;T (C), max", "2026-01-01;21,5"])
    ';'
    """
    seen = [line for line in lines[:_LINES] if line.strip()]
    return max(DELIMITERS, key=lambda sign: (*_evenness(seen, sign), -DELIMITERS.index(sign)))


def split_row(line: str, delimiter: str) -> list[str]:
    """The cells of one line; a line that is no CSV is one cell."""
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return [line]


def _evenness(lines: Sequence[str], delimiter: str) -> tuple[float, float]:
    widths = [len(split_row(line, delimiter)) for line in lines]
    parted = Counter(width for width in widths if width > 1)
    if not parted:
        return 0.0, 0.0
    return parted.total() / len(widths), parted.most_common(1)[0][1] / len(widths)
