"""Measuring functions: a number from one or two values, for comparisons. [PO-1, PO-3]

`get(name)` finds built-in ones, installed ones (entry points `rapport.measures`), and a site's own
`package.module:function`. Only a site file can name a function, never a policy text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.schema import TYPE_NAMES, AttributeType
from rapport.kernel.plugins import Plugins
from rapport.policy.relations import NamedFunctions, Space
from rapport.units import sphere

Value = Sequence[Any]
Numbers = npt.NDArray[np.float64]
Shape = Literal["distance", "opaque"]


class MeasuringFunction(msgspec.Struct, frozen=True, kw_only=True):
    """One measuring function over one or two values (a sequence of parts each).

    `many` takes arrays of shape (n, parts) and equals `one` row by row; NaN where there is no
    result, which no comparison satisfies.
    """

    name: str
    types: tuple[AttributeType, ...]
    one: Callable[..., float]
    many: Callable[..., Numbers]
    unit: str = ""
    """The canonical unit of its result; empty: the site declares it, or it has none."""
    shape: Shape = "opaque"
    """What an index may assume: `distance` = at least the Euclidean distance in `space`."""
    space: Space | None = None
    """As of a relation."""


def _distance(first: Value, second: Value) -> float:
    dx, dy = first[0] - second[0], first[1] - second[1]
    return float(np.sqrt(dx * dx + dy * dy))


def _distance_many(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> Numbers:
    with np.errstate(all="ignore"):
        dx, dy = first[:, 0] - second[:, 0], first[:, 1] - second[:, 1]
        # Not hypot, which rounds differently from `_distance`; both must agree.
        return np.asarray(np.sqrt(dx * dx + dy * dy), np.float64)


DISTANCE = MeasuringFunction(
    name="distance",
    types=("point", "point"),
    one=_distance,
    many=_distance_many,
    unit="m",
    shape="distance",
)

DISTANCE_GEO = MeasuringFunction(
    name="distance_geo",
    types=("geo_point", "geo_point"),
    one=sphere.distance,
    many=sphere.distance_many,
    unit="m",
    shape="distance",
    space=sphere.positions,
)

BUILT_IN = {measuring.name: measuring for measuring in (DISTANCE, DISTANCE_GEO)}
_VARIANTS = {"distance": (DISTANCE, DISTANCE_GEO)}
"""By the name that a site writes, the functions for values of different types."""
_loaded: dict[str, MeasuringFunction] = {}


def measure(
    *types: AttributeType, unit: str = "", many: Callable[..., Numbers] | None = None
) -> Callable[[Callable[..., float]], MeasuringFunction]:
    """Turns a function of one or two values into a measuring function; for authors of plug-ins and
    sites.

    >>> @measure("number", "number")
    ... def angstrom(temperature, humidity):
    ...     return 0.05 * humidity[0] - 0.1 * (temperature[0] - 27)
    >>> round(angstrom.one((25.0,), (80.0,)), 3)
    4.2
    """
    if not 1 <= len(types) <= 2:
        raise InvalidInput("a measure is of one or two values", code="measures.bad_type")
    for kind in types:
        if kind not in TYPE_NAMES:
            raise UnknownName("attribute type", kind, TYPE_NAMES, code="measures.bad_type")

    def declare(function: Callable[..., float]) -> MeasuringFunction:
        return MeasuringFunction(
            name=function.__name__,
            types=types,
            one=function,
            many=many or _row_by_row(function),
            unit=unit,
        )

    return declare


def get(name: str) -> MeasuringFunction:
    """Raises UnknownName, or InvalidInput when its module cannot be imported."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    if name not in _loaded:
        _loaded[name] = _as_measure(name)
    return _loaded[name]


def variants(name: str) -> tuple[MeasuringFunction, ...]:
    """The functions of a name, one per types; raises as `get`."""
    return _VARIANTS.get(name) or (get(name),)


def names() -> list[str]:
    """Built-in and installed names, sorted; loads nothing."""
    return sorted({*BUILT_IN, *Plugins().names("measures")})


def _row_by_row(function: Callable[..., float]) -> Callable[..., Numbers]:
    def many(*values: npt.NDArray[Any]) -> Numbers:
        rows = zip(*(column.tolist() for column in values), strict=True)
        return np.fromiter((_number(function, row) for row in rows), np.float64, len(values[0]))

    return many


def _number(function: Callable[..., float], row: tuple[Any, ...]) -> float:
    if any(part is None for value in row for part in value):
        return float("nan")
    return float(function(*row))


_FUNCTIONS = NamedFunctions("measures", "measuring function", names)


def _as_measure(name: str) -> MeasuringFunction:
    not_one = InvalidInput(
        f"{name!r} is not a measuring function",
        code="measures.not_a_measure",
        hint="put @measure(...) of rapport.policy.measures before it",
    )
    return _FUNCTIONS.find(name, MeasuringFunction, not_one)
