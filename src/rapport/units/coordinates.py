"""Coordinates: polar and cartesian, sensor frames, geodetic positions on a local plan; latitudes
and longitudes as text (decimal, degrees-minutes-seconds, NMEA). [ME-4]

Conventions, everywhere: metres; x grows to the east and y to the north of the plan; a heading or
bearing of 0 looks along +y and grows clockwise, in degrees. In a sensor's own frame +y is its
viewing direction and +x is to its right.

Plans are Transverse Mercator on the WGS 84 ellipsoid, true to scale on the meridian of the plan's
origin. Series in the third flattening to the fourth power: better than 0.001 mm within 1,000 km.
Because the Earth is round, a distance on a plan is too long by d * (x / 9,020 km)^2 at x from the
meridian: 0.12 m per km at 100 km, 0.5 m at 200 km.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Literal

import msgspec

from rapport.core.errors import InvalidInput
from rapport.units.quantities import DecimalMark

_QUARTERS = {0.0: (0.0, 1.0), 90.0: (1.0, 0.0), 180.0: (0.0, -1.0), 270.0: (-1.0, 0.0)}


def direction(angle_degrees: float) -> tuple[float, float]:
    """The unit vector (x, y) that an angle looks along; the four quarters are exact.

    >>> direction(0.0), direction(90.0), direction(-90.0)
    ((0.0, 1.0), (1.0, 0.0), (-1.0, 0.0))
    """
    turned = angle_degrees % 360.0
    quarter = _QUARTERS.get(turned)
    if quarter is not None:
        return quarter
    angle = math.radians(turned)
    return math.sin(angle), math.cos(angle)


def polar_to_cartesian(bearing_degrees: float, distance: float) -> tuple[float, float]:
    """(x, y) of what lies at `distance` in direction `bearing_degrees`.

    >>> polar_to_cartesian(90.0, 2.0)
    (2.0, 0.0)
    """
    x, y = direction(bearing_degrees)
    return distance * x, distance * y


def cartesian_to_polar(x: float, y: float) -> tuple[float, float]:
    """(bearing in 0..360, distance) of a point; the bearing of the origin is 0.

    >>> cartesian_to_polar(-3.0, 0.0)
    (270.0, 3.0)
    """
    bearing = math.degrees(math.atan2(x, y)) % 360.0
    is_origin = x == 0.0 == y  # -0.0 would look back
    return (0.0 if bearing == 360.0 or is_origin else bearing), math.hypot(x, y)


def relative_to_absolute(
    x: float, y: float, origin_x: float, origin_y: float, heading_degrees: float = 0.0
) -> tuple[float, float]:
    """A point of a sensor's own frame in the frame its origin and heading are given in.

    >>> relative_to_absolute(0.0, 2.0, 10.0, 10.0, 90.0)
    (12.0, 10.0)
    """
    ahead_x, ahead_y = direction(heading_degrees)
    return origin_x + x * ahead_y + y * ahead_x, origin_y - x * ahead_x + y * ahead_y


def absolute_to_relative(
    x: float, y: float, origin_x: float, origin_y: float, heading_degrees: float = 0.0
) -> tuple[float, float]:
    """The inverse of `relative_to_absolute`, up to rounding."""
    ahead_x, ahead_y = direction(heading_degrees)
    from_x, from_y = x - origin_x, y - origin_y
    return from_x * ahead_y - from_y * ahead_x, from_x * ahead_x + from_y * ahead_y


LARGEST_RANGE_METRES = 1_000_000.0
HIGHEST_ORIGIN_DEGREES = 80.0
"""Closer to a pole, plans need another projection."""

_EQUATOR_METRES = 6_378_137.0
_FLATTENING = 1 / 298.257223563
_SPHERE_METRES = 6_371_000.0

_N = _FLATTENING / (2 - _FLATTENING)
_E = math.sqrt(_FLATTENING * (2 - _FLATTENING))
_RECTIFYING = _EQUATOR_METRES / (1 + _N) * (1 + _N**2 / 4 + _N**4 / 64)
_FORWARD = (
    _N / 2 - 2 * _N**2 / 3 + 5 * _N**3 / 16 + 41 * _N**4 / 180,
    13 * _N**2 / 48 - 3 * _N**3 / 5 + 557 * _N**4 / 1440,
    61 * _N**3 / 240 - 103 * _N**4 / 140,
    49561 * _N**4 / 161280,
)
_BACKWARD = (
    _N / 2 - 2 * _N**2 / 3 + 37 * _N**3 / 96 - _N**4 / 360,
    _N**2 / 48 + _N**3 / 15 - 437 * _N**4 / 1440,
    17 * _N**3 / 480 - 37 * _N**4 / 840,
    4397 * _N**4 / 161280,
)


class PlanOrigin(msgspec.Struct, frozen=True):
    """Where x and y are zero, and how far from there the plan is used."""

    latitude: float
    longitude: float
    range_metres: float = 200_000.0

    def check(self) -> None:
        """Raises InvalidInput `place.bad_origin` for an invalid origin."""
        if not abs(self.latitude) <= HIGHEST_ORIGIN_DEGREES or not abs(self.longitude) <= 180:
            raise InvalidInput(
                f"no plan begins at latitude {self.latitude}, longitude {self.longitude}",
                code="place.bad_origin",
                hint="latitudes to 80, longitudes to 180 degrees; are they interchanged?",
            )
        if not 0 < self.range_metres <= LARGEST_RANGE_METRES:
            raise InvalidInput(
                f"a plan cannot reach {self.range_metres} m",
                code="place.bad_origin",
                hint="up to 1,000,000 m",
            )


def to_plan(latitude: float, longitude: float, origin: PlanOrigin) -> tuple[float, float]:
    """(x, y) in metres; raises InvalidInput `place.out_of_range` for invalid or too distant
    positions.

    >>> x, y = to_plan(52.6, 13.5, PlanOrigin(52.5, 13.4))
    >>> round(x, 3), round(y, 3)
    (6775.604, 11132.475)
    """
    if not abs(latitude) <= 90 or not abs(longitude) <= 180:
        raise _no_place(latitude, longitude)
    if _sphere_distance(latitude, longitude, origin) > origin.range_metres * 1.02 + 1_000:
        raise _too_far(f"latitude {latitude}, longitude {longitude}", origin)
    x, y = _forward(latitude, longitude, origin)
    if math.hypot(x, y) > origin.range_metres:
        raise _too_far(f"latitude {latitude}, longitude {longitude}", origin)
    return x, y


def from_plan(x: float, y: float, origin: PlanOrigin) -> tuple[float, float]:
    """(latitude, longitude) in degrees; the inverse of `to_plan`, within 0.001 mm."""
    if not math.hypot(x, y) <= origin.range_metres:
        raise _too_far(f"x = {x}, y = {y}", origin)
    return _backward(x, y, origin)


def _forward(latitude: float, longitude: float, origin: PlanOrigin) -> tuple[float, float]:
    across = math.radians(_turned(longitude - origin.longitude))
    conformal = _conformal_tangent(math.tan(math.radians(latitude)))
    xi = math.atan2(conformal, math.cos(across))
    eta = math.asinh(math.sin(across) / math.hypot(conformal, math.cos(across)))
    north, east = xi, eta
    for number, factor in enumerate(_FORWARD, 1):
        north = north + factor * math.sin(2 * number * xi) * math.cosh(2 * number * eta)
        east = east + factor * math.cos(2 * number * xi) * math.sinh(2 * number * eta)
    return _RECTIFYING * east, _RECTIFYING * (north - _northing(origin.latitude))


def _northing(latitude: float) -> float:
    """Along the meridian from the equator, as an angle of the rectifying sphere."""
    xi = math.atan(_conformal_tangent(math.tan(math.radians(latitude))))
    return xi + sum(each * math.sin(2 * n * xi) for n, each in enumerate(_FORWARD, 1))


def _backward(x: float, y: float, origin: PlanOrigin) -> tuple[float, float]:
    xi, eta = y / _RECTIFYING + _northing(origin.latitude), x / _RECTIFYING
    north, east = xi, eta
    for number, factor in enumerate(_BACKWARD, 1):
        north = north - factor * math.sin(2 * number * xi) * math.cosh(2 * number * eta)
        east = east - factor * math.cos(2 * number * xi) * math.sinh(2 * number * eta)
    conformal = math.sin(north) / math.hypot(math.sinh(east), math.cos(north))
    tangent = conformal / (1 - _E**2)
    for _ in range(4):  # quadratic: one step gives 10 digits, two give all
        found = _conformal_tangent(tangent)
        slope = (1 - _E**2) * math.sqrt(1 + found**2) * math.sqrt(1 + tangent**2)
        tangent = tangent + (conformal - found) * (1 + (1 - _E**2) * tangent**2) / slope
    longitude = origin.longitude + math.degrees(math.atan2(math.sinh(east), math.cos(north)))
    return math.degrees(math.atan(tangent)), _turned(longitude)


def _conformal_tangent(tangent: float) -> float:
    secant = math.sqrt(1 + tangent**2)
    sigma = math.sinh(_E * math.atanh(_E * tangent / secant))
    return tangent * math.sqrt(1 + sigma**2) - sigma * secant


def _turned(degrees: float) -> float:
    """Normalizes to -180..180; values in this range stay unchanged."""
    return degrees - 360.0 * (degrees > 180.0) + 360.0 * (degrees < -180.0)


def _sphere_distance(latitude: float, longitude: float, origin: PlanOrigin) -> float:
    up, across = (
        math.radians(latitude - origin.latitude),
        math.radians(longitude - origin.longitude),
    )
    level = math.cos(math.radians(latitude)) * math.cos(math.radians(origin.latitude))
    half = math.sin(up / 2) ** 2 + level * math.sin(across / 2) ** 2
    return 2 * _SPHERE_METRES * math.atan2(math.sqrt(half), math.sqrt(abs(1 - half)))


def _no_place(latitude: float, longitude: float) -> InvalidInput:
    return InvalidInput(
        f"latitude {latitude}, longitude {longitude} is no place on Earth",
        code="place.out_of_range",
        hint="are latitude and longitude interchanged?" if abs(longitude) <= 90 else "",
    )


def _too_far(place: str, origin: PlanOrigin) -> InvalidInput:
    return InvalidInput(
        f"{place} is more than {origin.range_metres / 1000:g} km from the plan's origin",
        code="place.out_of_range",
        hint="are latitude and longitude interchanged? or give the plan a greater range",
    )


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
