"""Likely units of numbers without a unit: hints for people, never used for conversion. [ME-11]"""

from __future__ import annotations

import re
from typing import Any

from rapport.units.catalogue import BY_NAME
from rapport.units.quantities import unit_named

_WORDS = re.compile(r"[^A-Za-z0-9%°/]+|(?<=[a-z])(?=[A-Z])")
_RATIOS = ("humidity", "fraction", "ratio", "percent", "level", "battery", "moisture", "umidade")
_TEMPERATURES = ("temp", "temperature", "temperatura")

_RANGES = (
    (-40.0, 50.0, "celsius", "degC"),
    (200.0, 340.0, "kelvin", "K"),
    (-40.0, 130.0, "fahrenheit", "degF"),
)
"""Temperatures of weather and rooms; the first range that contains all values wins."""


def plausible_unit(field: str, value: Any = None) -> str:
    """A sentence about the unit that a field's name and a value suggest; or empty.

    >>> plausible_unit("dist_ft")
    "the name 'dist_ft' looks like unit = 'ft'"
    >>> plausible_unit("relativeHumidity", 0.15)
    'a ratio within 0..1 looks like a fraction: unit = "1"'
    """
    words = [word for word in _WORDS.split(field) if word]
    last = words[-1] if len(words) > 1 else ""
    if last in BY_NAME:
        return f"the name {field!r} looks like unit = {unit_named(last).symbol!r}"
    if value.__class__ not in (int, float):
        return ""
    lower = [word.lower() for word in words]
    if any(word in _RATIOS for word in lower):
        return _ratio(float(value)) if abs(value) <= 1e6 else ""
    if any(word in _TEMPERATURES for word in lower):
        return _temperature(float(value)) if abs(value) <= 1e6 else ""
    return ""


def plausible_column(field: str, low: float, high: float) -> str:
    """The same for all values of a column, between `low` and `high`.

    >>> plausible_column("relativeHumidity", 0.15, 0.98)
    'relativeHumidity, always within 0..1, looks like a fraction: unit = "1"'
    >>> plausible_column("temp", 284.0, 310.5)
    'temp from 284 to 310.5 looks like kelvin: unit = "K"'
    """
    by_name = plausible_unit(field)
    if by_name:
        return by_name
    words = [word.lower() for word in _WORDS.split(field) if word]
    if any(word in _RATIOS for word in words):
        for most, what, unit in ((1.0, "a fraction", "1"), (100.0, "percent", "%")):
            if 0.0 <= low <= high <= most:
                return f'{field}, always within 0..{most:g}, looks like {what}: unit = "{unit}"'
    if any(word in _TEMPERATURES for word in words):
        for least, most, what, unit in _RANGES:
            if least <= low <= high <= most:
                return f'{field} from {low:g} to {high:g} looks like {what}: unit = "{unit}"'
    return ""


def _ratio(value: float) -> str:
    if 0.0 <= value <= 1.0:
        return 'a ratio within 0..1 looks like a fraction: unit = "1"'
    return 'a ratio within 0..100 looks like percent: unit = "%"' if 1.0 < value <= 100.0 else ""


def _temperature(value: float) -> str:
    if 200.0 <= value <= 340.0:
        return f'{value:g} as a temperature looks like kelvin: unit = "K"'
    if 60.0 < value < 130.0:
        return f'{value:g} as a temperature looks like fahrenheit: unit = "degF"'
    return (
        f'{value:g} as a temperature looks like celsius: unit = "degC"' if -40 < value < 50 else ""
    )
