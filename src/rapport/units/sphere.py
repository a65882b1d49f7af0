"""Distances between longitudes and latitudes on a sphere with the Earth's mean radius. [SI-10]

Only additions, multiplications, divisions and square roots are used, which every machine rounds in
the same way, so numbers and columns of numbers give the same bits everywhere. A distance is off by
less than 1e-15 of itself plus the rounding of the coordinates, except near the antipode, where the
haversine loses about 0.1 m. The Earth is flattened: a true distance differs by up to 0.5 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

RADIUS_METRES = 6_371_008.8
"""Mean radius (2a + b) / 3 of the WGS 84 ellipsoid."""
_RADIANS = math.pi / 180.0
# Taylor series of the sine up to x^23: exact to the last bits for angles up to a quarter turn.
_SINE = tuple((-1.0) ** k / math.factorial(2 * k + 1) for k in range(11, -1, -1))
# Rational approximation of (asin(x) - x) / x^3 for x <= 0.5, as in the C library fdlibm.
_ARC_ABOVE = (
    3.47933107596021167570e-05,
    7.91534994289814532176e-04,
    -4.00555345006794114027e-02,
    2.01212532134862925881e-01,
    -3.25565818622400915405e-01,
    1.66666666666666657415e-01,
)
_ARC_BELOW = (
    7.70381505559019352791e-02,
    -6.88283971605453293030e-01,
    2.02094576023350569471e00,
    -2.40339491173441421878e00,
    1.0,
)
_WIDER = 1.0 + 1e-9
_APART_DEGREES = 1e-9
"""Added to bounds, because the sine and its inverse are rounded."""


def distance(first: Sequence[float], second: Sequence[float]) -> float:
    """Metres between two points (longitude, latitude) in degrees.

    >>> round(distance((13.377704, 52.516266), (2.294481, 48.85837)))
    878445
    """
    half = _haversine(first[0], first[1], second[0], second[1], min)
    if not half <= 1.0:
        half = 1.0 if half > 1.0 else half
    return 2.0 * RADIUS_METRES * _arc(math.sqrt(half))


def distance_many(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> Floats:
    """The same for arrays (n, 2), row by row; NaN where a coordinate is missing."""
    with np.errstate(all="ignore"):
        ends = first[:, 0], first[:, 1], second[:, 0], second[:, 1]
        half = _haversine(*ends, np.minimum)
        roots = np.sqrt(np.where(half > 1.0, 1.0, half))
        return np.asarray(2.0 * RADIUS_METRES * _arc_many(roots), np.float64)


def _haversine(lon1: Any, lat1: Any, lon2: Any, lat2: Any, smaller: Callable[..., Any]) -> Any:
    """The square of half the chord; for numbers and columns of numbers."""
    # Beyond a quarter turn the sine is that of the supplement.
    half_lon, half_lat = abs(lon2 - lon1) * 0.5, abs(lat2 - lat1) * 0.5
    across, along = _sine(smaller(half_lon, 180.0 - half_lon)), _sine(half_lat)
    # The cosine of a latitude is the sine of its distance from the pole.
    return along * along + _sine(90.0 - abs(lat1)) * _sine(90.0 - abs(lat2)) * (across * across)


def _sine(degrees: Any) -> Any:
    """Of an angle of at most a quarter turn."""
    angle = degrees * _RADIANS
    square = angle * angle
    found = _SINE[0]
    for factor in _SINE[1:]:
        found = found * square + factor
    return found * angle


def _ratio(square: Any) -> Any:
    above, below = _ARC_ABOVE[0], _ARC_BELOW[0]
    for factor in _ARC_ABOVE[1:]:
        above = above * square + factor
    for factor in _ARC_BELOW[1:]:
        below = below * square + factor
    return square * above / below


def _arc(sine: float) -> float:
    """The angle of a sine between 0 and 1."""
    if sine <= 0.5:
        return float(sine + sine * _ratio(sine * sine))
    rest = (1.0 - sine) * 0.5
    root = math.sqrt(rest) if rest >= 0.0 else rest
    return float(math.pi / 2 - 2.0 * (root + root * _ratio(rest)))


def _arc_many(sines: Floats) -> Floats:
    rest = (1.0 - sines) * 0.5
    roots = np.sqrt(rest)
    large = math.pi / 2 - 2.0 * (roots + roots * _ratio(rest))
    found = np.where(sines <= 0.5, sines + sines * _ratio(sines * sines), large)
    return np.asarray(found, np.float64)


def positions(points: npt.NDArray[Any]) -> Floats:
    """Points (n, 2) in space, (n, 3) in metres: their straight distance never exceeds that on the
    sphere (but for rounding, below a micrometre)."""
    with np.errstate(invalid="ignore"):
        lon, lat = np.radians(points[:, 0]), np.radians(points[:, 1])
        flat = RADIUS_METRES * np.cos(lat)
        return np.column_stack(
            (flat * np.cos(lon), flat * np.sin(lon), RADIUS_METRES * np.sin(lat))
        )


def bounds(lon: float, lat: float, radius: float) -> tuple[float, float, float, float]:
    """Longitudes and latitudes (west, south, east, north) around all points within the radius; all
    longitudes where the circle meets a pole or the 180th meridian."""
    angle = radius / RADIUS_METRES * _WIDER
    reach = math.degrees(angle) + _APART_DEGREES
    south, north = lat - reach, lat + reach
    if south > -90.0 and north < 90.0:
        sine = math.sin(angle) / math.cos(math.radians(lat))
        width = math.degrees(math.asin(min(sine, 1.0))) * _WIDER + _APART_DEGREES
        if lon - width >= -180.0 and lon + width <= 180.0:
            return (lon - width, south, lon + width, north)
    return (-180.0, max(south, -90.0), 180.0, min(north, 90.0))


def bounds_many(points: npt.NDArray[Any], radius: float) -> Floats:
    """The same for points (n, 2) without missing ones."""
    rows = [bounds(lon, lat, radius) for lon, lat in points.tolist()]
    return np.array(rows, np.float64).reshape(-1, 4)
