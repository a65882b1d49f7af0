"""How far points are from each other and from areas, and the smallest moves that change whether
they are near or inside. [PO-11, SI-10]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rapport.policy.relations import Relation, Space
from rapport.units import areas, sphere

Point = tuple[float, float]
_INWARD = 1e-12
"""Relative margin, so that rounding cannot put a moved point on the wrong side of a border."""
_LEAST = 1e-9
_MARGINS = (0.0, 1e-12, 1e-9, 1e-6, 1e-3, 1e-2)
"""How much further than computed a point is moved until it is where it should be."""
_LEAST_STEP = 1e-6
_DIRECTIONS = [(math.cos(turn * math.pi / 8), math.sin(turn * math.pi / 8)) for turn in range(16)]


def distance(first: Sequence[float], second: Sequence[float], space: Space | None = None) -> float:
    """Metres between two points, on the plane or, with a space, on the sphere."""
    if space is not None:
        return sphere.distance(first, second)
    return math.hypot(first[0] - second[0], first[1] - second[1])


def distance_outside(relation: Relation, point: Sequence[float], value: Sequence[Any]) -> float:
    """The distance of a point from what contains points by the relation; 0 inside."""
    if relation.bounds is None:
        return float(_outside_rectangles(point, np.array([value]))[0])
    geographic = _is_geographic(relation)
    area = areas.area_of(value[0], geographic)
    return areas.distance_outside(area, point, geographic=geographic)


def distances_outside(
    relation: Relation, point: Sequence[float], column: npt.NDArray[Any]
) -> npt.NDArray[np.float64]:
    """The same for a column of a table; infinite where one is missing. For areas other than
    rectangles the distance from their bounds."""
    if relation.bounds is not None:
        column = relation.bounds(column.reshape(-1, 1))
    return _outside_rectangles(point, column)


def _outside_rectangles(
    point: Sequence[float], rectangles: npt.NDArray[Any]
) -> npt.NDArray[np.float64]:
    x, y = point[0], point[1]
    dx = np.maximum(np.maximum(rectangles[:, 0] - x, x - rectangles[:, 2]), 0.0)
    dy = np.maximum(np.maximum(rectangles[:, 1] - y, y - rectangles[:, 3]), 0.0)
    found = np.hypot(dx, dy)
    return np.asarray(np.where(np.isnan(found), np.inf, found), np.float64)


def moved_point(
    relation: Relation, point: Sequence[float], value: Sequence[Any], *, inside: bool
) -> Point | None:
    """About the nearest point that the area contains, or does not; None if none is found."""
    if relation.bounds is None:
        return nearest_inside(point, value) if inside else nearest_outside(point, value)
    geographic = _is_geographic(relation)
    area = areas.area_of(value[0], geographic)
    border = _border(area, point, geographic=geographic)
    step = border[0] - point[0], border[1] - point[1]
    size = max(math.hypot(*step), _LEAST_STEP * max(abs(point[0]), abs(point[1]), 1.0))
    for margin in _MARGINS:
        aims = [(point[0] + step[0] * (1 + margin), point[1] + step[1] * (1 + margin))]
        # Beside a corner, or from the border itself, further along is not across.
        aims += [
            (border[0] + dx * margin * size, border[1] + dy * margin * size)
            for dx, dy in _DIRECTIONS
        ]
        for aim in aims:
            if areas.contains(area, aim, geographic=geographic) == inside:
                return aim
    return None


def _border(area: areas.Area, point: Sequence[float], *, geographic: bool) -> Point:
    if area.circle is None:
        return areas.nearest_on_outline(area, point, geographic=geographic)
    x, y, radius = area.circle
    apart = sphere.distance(point, (x, y)) if geographic else distance(point, (x, y))
    if apart == 0:
        width = math.degrees(radius / sphere.RADIUS_METRES) if geographic else radius
        return (x, y + width)
    return (x + (point[0] - x) * radius / apart, y + (point[1] - y) * radius / apart)


def extent(relation: Relation, value: Sequence[Any]) -> float:
    """The longer side of the area's bounds, in metres."""
    if relation.bounds is None:
        x1, y1, x2, y2 = value
    else:
        x1, y1, x2, y2 = relation.bounds(np.array([[value[0]]], object))[0].tolist()
    if not _is_geographic(relation):
        return float(max(abs(x2 - x1), abs(y2 - y1)))
    middle = (y1 + y2) / 2
    return max(sphere.distance((x1, middle), (x2, middle)), sphere.distance((x1, y1), (x1, y2)))


def _is_geographic(relation: Relation) -> bool:
    return relation.second_type == "geo_area"


def nearest_inside(point: Sequence[float], area: Sequence[float]) -> Point:
    """The nearest point of a closed rectangle."""
    x1, y1, x2, y2 = area
    return (min(max(point[0], x1), x2), min(max(point[1], y1), y2))


def nearest_outside(point: Sequence[float], area: Sequence[float]) -> Point:
    """The nearest point just outside a closed rectangle."""
    x, y = point[0], point[1]
    x1, y1, x2, y2 = area
    ways = [
        (math.nextafter(x1, -math.inf), y),
        (math.nextafter(x2, math.inf), y),
        (x, math.nextafter(y1, -math.inf)),
        (x, math.nextafter(y2, math.inf)),
    ]
    return min(ways, key=lambda way: distance(way, point))


def at_distance(point: Sequence[float], other: Sequence[float], wanted: float, side: int) -> Point:
    """Moves a point on the line to the other until their distance is `wanted`: surely not more
    (`side` -1) or surely more (1).
    """
    apart = distance(point, other)
    reach = wanted * (1 + side * _INWARD) if wanted else max(side, 0) * _LEAST
    if apart == 0:
        return (other[0] + reach, other[1])
    factor = reach / apart
    return (
        other[0] + (point[0] - other[0]) * factor,
        other[1] + (point[1] - other[1]) * factor,
    )


def at_distance_on_sphere(
    point: Sequence[float], other: Sequence[float], wanted: float, side: int
) -> Point | None:
    """`at_distance` in longitude and latitude; None if no such point is found."""
    apart = sphere.distance(point, other)
    across = math.remainder(point[0] - other[0], 360.0)
    along = point[1] - other[1]
    if apart == 0:
        across, along, apart = 0.0, -math.copysign(1.0, other[1]), 0.0
        apart = sphere.distance((other[0], other[1] + along), other)
    fits: Callable[[float], bool] = (
        (lambda far: far <= wanted) if side < 0 else (lambda far: far > wanted)
    )
    for margin in _MARGINS:
        factor = (wanted / apart) * (1 + side * margin)
        moved = (math.remainder(other[0] + across * factor, 360.0), other[1] + along * factor)
        if abs(moved[1]) <= 90 and fits(sphere.distance(moved, other)):
            return moved
    return None
