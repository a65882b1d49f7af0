"""Which column says whom a row is about. Pure. [ME-13]"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import msgspec

from rapport.mediation.guessing.columns import Column, Path

_STRONG = re.compile(
    r"(^|[^a-z])(id|key|tag|imei|mac|device|dev|station|stationcode|codigo|code|sensor|serial|"
    r"entity|node|meter|vehicle|badge|camera|reader)([^a-z]|$)|(?-i:[a-z](?:Id|Code))$",
    re.IGNORECASE,
)
_WEAK = re.compile(
    r"name|nom|estacao|site|location|place|ref|door|city|address",
    re.IGNORECASE,
)
_NO_KEY = re.compile(r"region|regiao|^uf$|country|state|type|version|postal|zip", re.IGNORECASE)
_LONGEST = 100


class KeyGuess(msgspec.Struct, frozen=True):
    """The field that names somebody or something."""

    field: Path
    because: str
    doubts: tuple[str, ...] = ()


def guess_key(columns: Sequence[Column], taken: Collection[Path]) -> KeyGuess | None:
    """The best guess; None when no column looks like a name of something."""
    ranked = [
        (_rank(column), -index, column)
        for index, column in enumerate(columns)
        if column.path not in taken and _can_be_key(column)
    ]
    ranked = [each for each in ranked if each[0] > 0]
    if not ranked:
        return None
    _score, _index, column = max(ranked, key=lambda each: each[:2])
    values = "1 value" if column.distinct == 1 else f"{column.distinct} values"
    doubts = []
    if column.distinct == column.filled and column.filled > 1:
        doubts.append("no value comes twice: it may name the row and not the thing")
    if not _STRONG.search(column.path[-1]):
        doubts.append("its name does not say that it identifies anything")
    if column.filled < column.rows:
        doubts.append(f"{column.rows - column.filled} of {column.rows} rows have none")
    return KeyGuess(column.path, f"{values} in {column.rows} rows", tuple(doubts))


def _can_be_key(column: Column) -> bool:
    if column.kind not in ("text", "number") or not column.filled:
        return False
    if column.kind == "number" and not (column.whole and _STRONG.search(column.path[-1])):
        return False
    return all(len(example) < _LONGEST for example in column.examples)


def _rank(column: Column) -> int:
    name = column.path[-1]
    if _NO_KEY.search(name):
        return 0
    base = 4 if _STRONG.search(name) else 2 if _WEAK.search(name) else 0
    if not base:
        return 0
    repeats = column.distinct < column.filled or column.rows == 1
    return base + repeats + (column.filled == column.rows)
