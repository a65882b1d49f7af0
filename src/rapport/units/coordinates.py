"""Places on a plane: polar and cartesian, own frame and building frame. [ME-4]

Conventions, everywhere: metres; x grows to the east and y to the north of the plan; a heading or
bearing of 0 looks along +y and grows clockwise, in degrees. In a sensor's own frame +y is where it
looks and +x is to its right. Functions named in the plural or with `_many` take numpy arrays.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

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


def directions(angles_degrees: Array) -> tuple[Array, Array]:
    """`direction` of many angles; may differ from it in the last bit."""
    turned = np.mod(angles_degrees, 360.0)
    angles = np.radians(turned)
    x, y = np.sin(angles), np.cos(angles)
    for quarter, (exact_x, exact_y) in _QUARTERS.items():
        here = turned == quarter
        x[here], y[here] = exact_x, exact_y
    return x, y


def relative_to_absolute_many(
    x: Array, y: Array, origin_x: Array, origin_y: Array, headings_degrees: Array
) -> tuple[Array, Array]:
    """`relative_to_absolute` of many points; may differ from it in the last bit."""
    ahead_x, ahead_y = directions(headings_degrees)
    return origin_x + x * ahead_y + y * ahead_x, origin_y - x * ahead_x + y * ahead_y
