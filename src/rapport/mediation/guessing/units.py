"""Which unit a column is in: said by the data, said by its name, or only likely. Pure. [ME-11]"""

from __future__ import annotations

import re

import msgspec

from rapport.mediation.guessing.columns import Column
from rapport.mediation.plausibility import plausible_column
from rapport.units.catalogue import BY_NAME

_BRACKETS = re.compile(r"[(\[]\s*([^()\[\]]{1,20}?)\s*[)\]]")
_LAST_WORD = re.compile(r"(?:[_\s.-]|(?<=[a-z])(?=[A-Z]))([A-Za-z%°]{1,10})$")
_LIKELY = re.compile(r"unit = [\"'](.+)[\"']$")
"""The unit in a sentence about what a column looks like."""
_TWO_MEANINGS = frozenset(
    ("min", "in", "d", "h", "a", "A", "l", "L", "s", "m", "g", "V", "W", "J", "C", "day", "hour")
)
"""Last words of names that are often no unit: `temperature_min`, `checked_in`, `part_a`."""
_SURE_LETTERS = frozenset(("m", "s", "h", "g", "V", "W", "J"))
"""Those that are a unit after an underscore in a name of a quantity: `x_m`, `power_W`."""


class UnitGuess(msgspec.Struct, frozen=True):
    """`unit` is empty when nobody said it; then `because` says what it looks like."""

    unit: str
    because: str
    sure: bool
    likely: str = ""
    """The unit that it looks like, to be confirmed."""


def guess_unit(column: Column) -> UnitGuess:
    """What the data or the name say; otherwise no unit, and the likely one as a hint."""
    if len(column.units) > 1:
        return UnitGuess("", f"the data say several units: {', '.join(column.units)}", False)
    if column.unit in BY_NAME:
        return UnitGuess(column.unit, f"the data say {column.unit}", True)
    if column.unit:
        return UnitGuess("", f"the data say {column.unit!r}, which is no known unit", False)
    name = column.path[-1]
    bracketed = _BRACKETS.findall(name)
    known = [text for text in bracketed if text in BY_NAME]
    if known:
        return UnitGuess(known[-1], f"the name says ({known[-1]})", True)
    if suffix := _suffix(name):
        return UnitGuess(suffix, f"the name ends with {suffix}", True)
    if bracketed:
        because = f"the name says ({bracketed[-1]}), which is no known unit"
        return UnitGuess("", because, False)
    likely = plausible_column(name, column.low, column.high)
    unit = _LIKELY.search(likely)
    return UnitGuess("", likely or "nobody says the unit", False, unit[1] if unit else "")


def _suffix(name: str) -> str:
    found = _LAST_WORD.search(name)
    if found is None or found[1] not in BY_NAME:
        return ""
    word = found[1]
    if word in _TWO_MEANINGS and not (word in _SURE_LETTERS and name.endswith(f"_{word}")):
        return ""
    return word
