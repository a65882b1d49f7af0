"""Units by name, exact conversion between units of a dimension, and numbers as text.
[ME-10, ME-11]
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from math import lcm
from typing import Literal

from rapport.core.errors import InvalidInput, did_you_mean
from rapport.core.terms import Affine as Affine
from rapport.units.catalogue import BY_NAME, UNITS, Unit

_EXACT = 2**53
"""Integers up to here are exact as floats."""
_NEEDS = {
    frozenset(("ratio", "mass concentration")): "the gas's molar mass, temperature and pressure",
    frozenset(("power", "apparent power")): "the power factor",
    frozenset(("power", "reactive power")): "the power factor",
    frozenset(("level", "A-weighted level")): "the spectrum",
    frozenset(("sound pressure level", "A-weighted level")): "the spectrum",
    frozenset(("illuminance", "irradiance")): "the spectrum",
    frozenset(("mass", "volume")): "the density",
    frozenset(("mass flow", "flow")): "the density",
}
"""Conversions that need more than a factor, and what they need."""


def unit_named(name: str) -> Unit:
    """The unit of a symbol or code; raises InvalidInput `unit.unknown` with the nearest name.

    >>> unit_named("Cel").symbol, unit_named("KMH").symbol
    ('degC', 'km/h')
    """
    unit = BY_NAME.get(name)
    if unit is not None:
        return unit
    raise InvalidInput(
        f"there is no unit named {name[:40]!r}",
        code="unit.unknown",
        hint=did_you_mean(name, BY_NAME, "known: degC, m, ft, km/h, %, deg, 1"),
    )


@lru_cache(maxsize=1024)
def shown_unit(name: str) -> str:
    """The unit as people write it, also one per time: nothing for a bare number, and an unknown one
    as it is.

    >>> shown_unit("degC"), shown_unit("ug/m3"), shown_unit("K/h"), shown_unit("1")
    ('°C', 'µg/m³', 'K/h', '')
    """
    unit = BY_NAME.get(name)
    if unit is not None and unit.symbol == "1":
        return ""
    if unit is not None:
        return next((one for one in unit.names if not one.isascii()), unit.symbol)
    before, slash, after = name.rpartition("/")
    return f"{shown_unit(before)}/{after}" if slash and before else name


@lru_cache(maxsize=1024)
def converter(from_unit: str, to_unit: str) -> Affine:
    """The conversion from one unit to another; InvalidInput `unit.unknown`, `unit.mismatch`.

    >>> converter("degF", "degC").apply(77.0), converter("km/h", "m/s").apply(30.0)
    (25.0, 8.333333333333334)
    """
    source, target = unit_named(from_unit), unit_named(to_unit)
    if source.dimension != target.dimension:
        raise InvalidInput(
            f"{from_unit} is a {source.dimension}, {to_unit} is a {target.dimension}",
            code="unit.mismatch",
            hint=_why_not(source.dimension, target.dimension),
        )
    return _affine(source.scale / target.scale, (source.offset - target.offset) / target.scale)


def _why_not(source: str, target: str) -> str:
    """A hint: what the conversion needs, or the units of the target's dimension."""
    needs = _NEEDS.get(frozenset((source, target)))
    if needs is not None:
        return f"that needs {needs}: convert by a function of the site"
    same = ", ".join(unit.symbol for unit in UNITS if unit.dimension == target)
    return f"units of {target}: {same}"


def _affine(scale: Fraction, offset: Fraction) -> Affine:
    if offset == 0 and scale.numerator != 1 and _is_decimal(scale):
        return Affine(float(scale), 0.0, 1.0)  # feet: * 0.3048, as anybody would check it
    divide = lcm(scale.denominator, offset.denominator)
    multiply, add = scale * divide, offset * divide
    largest: Fraction = max(abs(multiply), abs(add), Fraction(divide))
    if largest < _EXACT:
        return Affine(float(multiply), float(add), float(divide))
    return Affine(float(scale), float(offset), 1.0)


def _is_decimal(number: Fraction) -> bool:
    """The number has few decimal digits."""
    return (number * 10**9).denominator == 1


DecimalMark = Literal["point", "comma"]

_POINT = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)
_COMMA = re.compile(r"[+-]?(?:\d+,?\d*|,\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)
_LONGEST = 400
"""A float needs no more digits than this; longer text is not read as a number."""


def parse_number(text: str, decimal: DecimalMark = "point") -> float:
    """Parses a number; raises InvalidInput `value.not_a_number`.

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
    """The decimal mark with which `text` is a number; None if with neither."""
    stripped = text.strip()
    if len(stripped) > _LONGEST:
        return None
    if _POINT.fullmatch(stripped):
        return "point"
    return "comma" if _COMMA.fullmatch(stripped) else None


def _other_mark(text: str, decimal: DecimalMark) -> str:
    mark = looks_like_number(text)
    return f'it looks like decimal = "{mark}"' if mark and mark != decimal else ""
