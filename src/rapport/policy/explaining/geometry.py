"""How far a point lies from where a relationship begins or ends to hold, and the nearest point
there. [PO-11]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Point = tuple[float, float]
_INWARD = 1e-12
"""Relative: rounding must not put a moved point on the wrong side of a border."""
_LEAST = 1e-9


def distance(first: Sequence[float], second: Sequence[float]) -> float:
    """Straight."""
    return math.hypot(first[0] - second[0], first[1] - second[1])


def nearest_inside(point: Sequence[float], area: Sequence[float]) -> Point:
    """The point of a closed rectangle that lies nearest."""
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
    """The point moved straight until it lies `wanted` from the other, surely not more (`side` -1)
    or surely more (1).
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


def longest_side(area: Sequence[float]) -> float:
    """Of a rectangle."""
    return max(abs(area[2] - area[0]), abs(area[3] - area[1]))


def distances_outside(point: Sequence[float], areas: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """How far a point lies outside each rectangle; 0 inside, infinite where one is missing."""
    x, y = point[0], point[1]
    dx = np.maximum(np.maximum(areas[:, 0] - x, x - areas[:, 2]), 0.0)
    dy = np.maximum(np.maximum(areas[:, 1] - y, y - areas[:, 3]), 0.0)
    found = np.hypot(dx, dy)
    return np.asarray(np.where(np.isnan(found), np.inf, found), np.float64)
