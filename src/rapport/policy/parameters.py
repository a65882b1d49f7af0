"""Parameters of relationships: `5m` in `within 5m of`, exact in base units. [PO-1]"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Literal

from rapport.core.errors import InvalidInput, UnknownName

ParameterKind = Literal["none", "length", "number"]

LENGTHS_METRES = {
    "m": Decimal(1),
    "metre": Decimal(1),
    "metres": Decimal(1),
    "meter": Decimal(1),
    "meters": Decimal(1),
    "cm": Decimal("0.01"),
    "mm": Decimal("0.001"),
    "km": Decimal(1000),
    "ft": Decimal("0.3048"),
    "in": Decimal("0.0254"),
    "yd": Decimal("0.9144"),
    "mi": Decimal("1609.344"),
}
"""Exact, so that `3 ft` and `0.9144 m` are one number."""
_LARGEST = Decimal("1e12")
_PARAMETER = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([^\W\d]\w*)?\Z")


def parse_parameter(text: str, kind: ParameterKind) -> float:
    """The parameter in base units; raises InvalidInput with what was expected.

    >>> parse_parameter("5m", "length"), parse_parameter("2 ft", "length")
    (5.0, 0.6096)
    >>> parse_parameter("3", "number")
    3.0
    """
    found = _PARAMETER.match(text.strip())
    number = _finite(found[1]) if found else None
    if found is None or number is None:
        raise _bad_parameter(
            text, f"write a number{' and a length unit, such as 5m' * (kind == 'length')}"
        )
    unit = found[2]
    if kind == "number":
        if unit is not None:
            raise _bad_parameter(text, f"write {found[1]} without a unit")
        return float(number)
    if unit is None:
        raise _bad_parameter(text, f"add a length unit, such as {found[1]}m")
    if unit not in LENGTHS_METRES:
        error = UnknownName(
            "length unit", unit, list(LENGTHS_METRES), code="relations.unknown_unit"
        )
        error.hint = error.hint or f"known: {', '.join(LENGTHS_METRES)}"
        raise error
    if number < 0:
        raise _bad_parameter(text, "a length is not negative")
    return float(number * LENGTHS_METRES[unit])


def _finite(text: str) -> Decimal | None:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if abs(number) <= _LARGEST else None


def _bad_parameter(text: str, hint: str) -> InvalidInput:
    return InvalidInput(
        f"{text!r} is not a fitting parameter", code="relations.bad_parameter", hint=hint
    )
