"""Kinds of conversion on whole columns of numbers, where they are formulas: places and epochs.
[ME-4, ME-14]

May differ from the calculation of single values in the last bit. What would be rejected is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rapport.core.errors import Unsupported
from rapport.mediation.model.conversions import Conversion, ValueKind
from rapport.mediation.model.notations import EPOCH_MILLISECONDS, EPOCH_SECONDS, ParseTime
from rapport.mediation.model.places import (
    FixedOrigin,
    ToAbsolute,
    ToCartesian,
    ToLatLon,
    ToPlan,
    ToPolar,
    ToRelative,
)
from rapport.units.coordinates import Array, PlanOrigin, directions, from_plan_many, to_plan_many
from rapport.units.quantities import converter
from rapport.units.timeformats import from_epoch_many

Numbers = npt.NDArray[np.float64]
_UNIT_MS = {EPOCH_SECONDS: 1_000.0, EPOCH_MILLISECONDS: 1.0}


def is_columnar(how: object) -> bool:
    """It can be said as arithmetic on columns of numbers."""
    if isinstance(how, (ToCartesian, ToPolar, ToPlan, ToLatLon)):
        return True
    if isinstance(how, ParseTime):
        return how.format in _UNIT_MS
    return isinstance(how, (ToAbsolute, ToRelative)) and isinstance(how.origin, FixedOrigin)


def calculate_columns(conversion: Conversion, columns: Sequence[Numbers]) -> tuple[Numbers, ...]:
    """The columns it gives of those it takes, in the order of its ports; raises Unsupported."""
    how = conversion.how
    if isinstance(how, ParseTime) and how.format in _UNIT_MS:
        times, good = from_epoch_many(columns[0], _UNIT_MS[how.format])
        return (np.where(good, times.astype(np.float64), np.nan),)
    if not is_columnar(how):
        raise Unsupported(f"{conversion.name}", "arithmetic on columns")
    first, second = columns
    with np.errstate(invalid="ignore", over="ignore"):
        return _placed(how, first, second)


def _placed(how: ValueKind | object, first: Array, second: Array) -> tuple[Numbers, ...]:
    if isinstance(how, ToCartesian):
        x, y = directions(converter(how.angle_unit, "deg").apply(first))
        distance = converter(how.unit, how.to_unit).apply(second)
        return distance * x, distance * y
    if isinstance(how, ToPolar):
        return _polar(how, first, second)
    if isinstance(how, ToPlan):
        outward = converter("m", how.to_unit)
        origin = PlanOrigin(how.latitude, how.longitude, how.range_metres)
        x, y, _good = to_plan_many(first, second, origin)
        return outward.apply(x), outward.apply(y)
    if isinstance(how, ToLatLon):
        inward = converter(how.unit, "m")
        origin = PlanOrigin(how.latitude, how.longitude, how.range_metres)
        return from_plan_many(inward.apply(first), inward.apply(second), origin)[:2]
    assert isinstance(how, (ToAbsolute, ToRelative))
    return _framed(how, first, second)


def _polar(how: ToPolar, x: Array, y: Array) -> tuple[Numbers, ...]:
    bearing = np.mod(np.degrees(np.arctan2(x, y)), 360.0)
    bearing = np.where((bearing == 360.0) | ((x == 0.0) & (y == 0.0)), 0.0, bearing)
    distance = converter(how.unit, how.to_unit).apply(np.hypot(x, y))
    return converter("deg", how.angle_unit).apply(bearing), distance


def _framed(how: ToAbsolute | ToRelative, x: Array, y: Array) -> tuple[Numbers, ...]:
    origin = how.origin
    assert isinstance(origin, FixedOrigin)
    inward, outward, length = (
        converter(how.unit, "m"),
        converter("m", how.to_unit),
        converter(origin.unit, "m"),
    )
    at_x, at_y = length.apply(origin.x), length.apply(origin.y)
    heading = converter(origin.heading_unit, "deg").apply(origin.heading)
    ahead_x, ahead_y = (float(each[0]) for each in directions(np.array([heading])))
    x, y = inward.apply(x), inward.apply(y)
    if isinstance(how, ToAbsolute):
        found = at_x + x * ahead_y + y * ahead_x, at_y - x * ahead_x + y * ahead_y
    else:
        x, y = x - at_x, y - at_y
        found = x * ahead_y - y * ahead_x, x * ahead_x + y * ahead_y
    return outward.apply(found[0]), outward.apply(found[1])
