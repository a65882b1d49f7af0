"""Latitudes and longitudes as text: decimal, degrees-minutes-seconds, NMEA. [ME-4]"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Literal

from rapport.core.errors import InvalidInput
from rapport.units.quantities import DecimalMark

Axis = Literal["latitude", "longitude"]
AngleForm = Literal["decimal", "dms", "nmea"]

_LARGEST: dict[Axis, float] = {"latitude": 90.0, "longitude": 180.0}
_SIGNS: dict[Axis, dict[str, float]] = {
    "latitude": {"N": 1.0, "S": -1.0},
    "longitude": {"E": 1.0, "W": -1.0},
}
"""O is east in German and west in French, Spanish and Portuguese, so it is rejected."""
_NUMBER = r"\d{1,3}(?:\.\d{0,12})?"
_PATTERNS: dict[AngleForm, re.Pattern[str]] = {
    "decimal": re.compile(rf"([+-]?)({_NUMBER})\s*°?", re.ASCII),
    "dms": re.compile(
        rf"([+-]?)({_NUMBER})\s*(?:°|º|d|:|\s)\s*"
        rf"(?:({_NUMBER})\s*(?:'|′|’|m|:|\s|$)\s*(?:({_NUMBER})\s*(?:\"|″|”|''|s|$)\s*)?)?",
        re.ASCII,
    ),
    "nmea": re.compile(r"([+-]?)(\d{1,3})(\d\d(?:\.\d{0,12})?)", re.ASCII),
}
_EXAMPLES: dict[AngleForm, str] = {
    "decimal": "52.5201 or 52.5201 N",
    "dms": "52°31'12.4\"N or 52 31 12.4 N",
    "nmea": "5231.2067,N",
}
_LONGEST = 60


def parse_angle(
    text: str, axis: Axis, form: AngleForm = "dms", decimal: DecimalMark = "point"
) -> float:
    """Degrees, north and east positive; raises InvalidInput `place.bad_angle`.

    >>> parse_angle("52°31'12.0\\"N", "latitude"), parse_angle("W 46 38.4", "longitude")
    (52.52, -46.64)
    >>> parse_angle("5231.2,N", "latitude", "nmea")
    52.52
    """
    written = text.strip()
    if len(written) > _LONGEST:
        raise _bad(text, form)
    sign, body = _sign_of(written, axis, text, form)
    if decimal == "comma":
        body = body.replace(",", ".")
    elif form == "nmea":
        body = body.rstrip(", ")
    match = _PATTERNS[form].fullmatch(body.strip())
    if match is None:
        raise _bad(text, form)
    signed, *parts = (part or "" for part in match.groups())
    if signed and sign:
        raise _bad(text, form)
    return _whole(parts, axis, text, form) * (-1.0 if signed == "-" else sign or 1.0)


def write_angle(degrees: float, axis: Axis, form: AngleForm = "dms", digits: int = 2) -> str:
    """The text of an angle, with the letter of its hemisphere; `digits` of its last part.

    >>> write_angle(52.52, "latitude"), write_angle(-46.64, "longitude", "nmea", 4)
    ('52°31\\'12.00"N', '04638.4000,W')
    """
    if not abs(degrees) <= _LARGEST[axis]:
        raise _out_of_range(f"{degrees}", axis)
    letter = ("N" if degrees >= 0 else "S") if axis == "latitude" else "E" if degrees >= 0 else "W"
    value = abs(degrees)
    if form == "decimal":
        return f"{value:.{digits}f} {letter}"
    unit = 3600 if form == "dms" else 60
    whole = round(value * unit, digits)  # rounded once, so that no part ever shows 60
    if form == "nmea":
        width = 3 if axis == "longitude" else 2
        wide = digits + 3 if digits else 2
        return f"{int(whole // 60):0{width}d}{whole % 60:0{wide}.{digits}f},{letter}"
    minutes, seconds = divmod(whole, 60)
    wide = digits + 3 if digits else 2
    return f"{int(minutes // 60)}°{int(minutes % 60):02d}'{seconds:0{wide}.{digits}f}\"{letter}"


def _sign_of(written: str, axis: Axis, text: str, form: AngleForm) -> tuple[float, str]:
    """The sign of a hemisphere letter at either end (0: none), and the remaining text."""
    for letter, rest in ((written[:1], written[1:]), (written[-1:], written[:-1])):
        if not letter.isalpha() or (form == "dms" and letter in "dms"):
            continue
        sign = _SIGNS[axis].get(letter.upper())
        if sign is None:
            raise _bad(text, form, f"the letters of a {axis} are {_letters(axis)}")
        return sign, rest.strip()
    return 0.0, written


def _letters(axis: Axis) -> str:
    return "N and S" if axis == "latitude" else "E and W"


def _whole(parts: list[str], axis: Axis, text: str, form: AngleForm) -> float:
    """Degrees of degrees, minutes and seconds; only the last that is written has a fraction."""
    given = [part for part in parts if part]
    if any("." in part for part in given[:-1]) or any(float(part) >= 60 for part in given[1:]):
        raise _bad(text, form)
    exact = sum(Fraction(part) / 60**number for number, part in enumerate(given))
    degrees = float(exact)
    if degrees > _LARGEST[axis]:
        raise _out_of_range(text[:40], axis)
    return degrees


def _bad(text: str, form: AngleForm, hint: str = "") -> InvalidInput:
    return InvalidInput(
        f"{text[:40]!r} is not an angle",
        code="place.bad_angle",
        hint=hint or f"declared as {form}, such as {_EXAMPLES[form]}",
    )


def _out_of_range(shown: str, axis: Axis) -> InvalidInput:
    return InvalidInput(
        f"{shown} is no {axis}",
        code="place.out_of_range",
        hint=f"a {axis} is between -{_LARGEST[axis]:g} and {_LARGEST[axis]:g} degrees",
    )
