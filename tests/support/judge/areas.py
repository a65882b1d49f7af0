"""Whether a point lies in an area, and how far two points on a sphere are apart: by fractions and
fifty decimals, with no code of the product. Other functions are those of the product. [SI-10]

An area is judged by its canonical text. The winding number of an outline counts how often it goes
around a point; edges in longitude and latitude are straight in degrees.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache
from typing import Any

from rapport.policy import measures, relations

Value = Sequence[Any]
Point = tuple[Fraction, Fraction]

_RADIUS = Decimal("6371008.8")
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582")
_DIGITS = 50


def holds(function: str, first: Value, second: Value, parameter: float | None) -> bool:
    """Whether a relationship function holds of two values that are there."""
    match function:
        case "inside_area" | "inside_geo_area":
            return lies_in(first, second[0], geographic=function == "inside_geo_area")
        case "within_geo":
            return sphere_distance(first, second) <= Decimal(parameter or 0.0)
    return bool(relations.get(function).holds(first, second, parameter))


def measured(measure: str, values: Sequence[Value]) -> float:
    """The number of a measuring function; NaN where there is none."""
    if measure == "distance_geo":
        return float(sphere_distance(*values))
    return float(measures.get(measure).one(*values))


def lies_in(point: Value, text: str, *, geographic: bool) -> bool:
    """Whether the point lies in the area or on its outline."""
    name, _, body = text.partition(" ")
    if name == "CIRCLE":
        x, y, radius = (float(one) for one in body.strip("()").split())
        if geographic:
            return sphere_distance(point, (x, y)) <= Decimal(radius)
        dx, dy = Fraction(point[0]) - Fraction(x), Fraction(point[1]) - Fraction(y)
        return dx * dx + dy * dy <= Fraction(radius) ** 2
    own = Fraction(point[0]), Fraction(point[1])
    return any(_lies_in_polygon(own, rings) for rings in _polygons(text))


def related_by_area(
    function: str, first: Value, second: Value, metres: float | None
) -> bool | None:
    """Whether two values are in a relationship of areas or on the sphere; None for functions of
    other kinds.
    """
    match function:
        case "inside_area" | "inside_geo_area":
            return lies_in(first, second[0], geographic=function == "inside_geo_area")
        case "within_geo":
            return sphere_distance(first, second) <= Decimal(metres or 0.0)
        case _:
            return None


def _lies_in_polygon(point: Point, rings: Sequence[Sequence[Point]]) -> bool:
    outline, *holes = rings
    around = _winding(point, outline)
    if around == 0:
        return False
    return all(_winding(point, hole) in (0, None) for hole in holes)


def _winding(point: Point, ring: Sequence[Point]) -> int | None:
    """How often the ring goes around the point; None if the point is on it."""
    x, y = point
    turns = 0
    for (ax, ay), (bx, by) in zip(ring, [*ring[1:], ring[0]], strict=True):
        side = (bx - ax) * (y - ay) - (by - ay) * (x - ax)
        if side == 0 and (x - ax) * (x - bx) <= 0 and (y - ay) * (y - by) <= 0:
            return None
        if ay <= y < by and side > 0:
            turns += 1
        if by <= y < ay and side < 0:
            turns -= 1
    return turns


@cache
def _polygons(text: str) -> list[list[list[Point]]]:
    """Every ring stands in its own innermost parentheses; `((` begins a polygon."""
    found = []
    for part in re.split(r"\)\)\s*,\s*\(\(", text):
        rings = []
        for ring in re.findall(r"[-+.0-9e][-+.0-9e, ]*", part):
            corners = [tuple(corner.split()) for corner in ring.strip(" ,").split(",")]
            rings.append([(Fraction(float(x)), Fraction(float(y))) for x, y in corners])
        found.append(rings)
    return found if all(found) else []


def sphere_distance(first: Value, second: Value) -> Decimal:
    """Metres by the haversine formula, to some fifty digits."""
    with localcontext() as context:
        context.prec = _DIGITS
        lon1, lat1, lon2, lat2 = (Decimal(one) * _PI / 180 for one in (*first[:2], *second[:2]))
        half = _sine((lat2 - lat1) / 2) ** 2
        half += _sine(_PI / 2 - lat1) * _sine(_PI / 2 - lat2) * _sine((lon2 - lon1) / 2) ** 2
        return 2 * _RADIUS * _arcsine(min(half, Decimal(1)).sqrt())


def _sine(angle: Decimal) -> Decimal:
    found = term = angle
    number = 1
    while term and abs(term) > Decimal(10) ** (-_DIGITS - 5):
        number += 2
        term = -term * angle * angle / (number * (number - 1))
        found += term
    return found


def _arcsine(sine: Decimal) -> Decimal:
    """By Newton's method from the float; near 1 from the other side of the right angle."""
    if sine > Decimal("0.8"):
        return _PI / 2 - 2 * _arcsine(((1 - sine) / 2).sqrt())
    angle = Decimal(math.asin(float(sine)))
    for _ in range(4):
        angle -= (_sine(angle) - sine) / _sine(_PI / 2 - angle)
    return angle
