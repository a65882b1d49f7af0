"""Relationship functions, which decide whether two values are in a relationship, one by one or in
bulk; their parameters; and how named functions are found. [PO-1]

`get(name)` finds built-in ones, installed ones (entry points `rapport.relations`), and a site's own
`package.module:function`. Only a site file can name a function, never a policy text.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.schema import TYPE_NAMES, AttributeType
from rapport.kernel.plugins import Plugins
from rapport.units import areas, sphere

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
"""Exact, so that `3 ft` and `0.9144 m` are equal."""
_LARGEST = Decimal("1e12")
_PARAMETER = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([^\W\d]\w*)?\Z")
T = TypeVar("T")
__all__ = ["BUILT_IN", "ParameterKind", "Relation", "get", "names", "parse_parameter", "relation"]
Shape = Literal["contains", "distance", "opaque"]
Value = Sequence[Any]
Mask = npt.NDArray[np.bool_]
Holds = Callable[[Value, Value, float | None], bool]
HoldsMany = Callable[[npt.NDArray[Any], npt.NDArray[Any], float | None], Mask]
Floats = npt.NDArray[np.float64]
Space = Callable[[npt.NDArray[Any]], Floats]
_loaded: dict[str, Relation] = {}


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


class NamedFunctions(msgspec.Struct, frozen=True):
    """One kind of function; `group` is that of its plug-ins and the prefix of its error codes."""

    group: str
    what: str
    """For messages: `relationship function`."""
    names: Callable[[], list[str]]
    """Names that need no module."""

    def find(self, name: str, kind: type[T], not_one: InvalidInput) -> T:
        """Raises UnknownName, InvalidInput when its module cannot be imported, or `not_one` when it
        is something else.
        """
        found = self._import(name, kind) if ":" in name else self._installed(name)
        if not isinstance(found, kind):
            raise not_one
        return found

    def _installed(self, name: str) -> Any:
        known = self.names()
        if name not in known:
            raise UnknownName(self.what, name, known, code=f"{self.group}.unknown")
        try:
            return Plugins().get(self.group, name)
        except Exception as error:  # a foreign module may raise anything
            raise self._cannot_import(name, error) from error

    def _import(self, name: str, kind: type[Any]) -> Any:
        module_name, _, attribute = name.partition(":")
        try:
            module = importlib.import_module(module_name)
        except Exception as error:  # as above
            raise self._cannot_import(module_name, error) from error
        found = getattr(module, attribute, None)
        if found is None:
            known = [key for key, value in vars(module).items() if isinstance(value, kind)]
            code = f"{self.group}.unknown"
            raise UnknownName(f"function of {module_name}", attribute, known, code=code)
        return found

    def _cannot_import(self, name: str, error: Exception) -> InvalidInput:
        return InvalidInput(
            f"cannot import {name!r}: {type(error).__name__}: {error}",
            code=f"{self.group}.cannot_import",
            hint="the module must be installed, or lie on PYTHONPATH",
        )


class Relation(msgspec.Struct, frozen=True, kw_only=True):
    """One relationship function.

    A value is a sequence with one entry per part of its type (`core/schema.py`). `holds_many` takes
    arrays of shape (n, parts) and equals `holds` row by row; missing values (NaN, None) never hold.
    """

    name: str
    first_type: AttributeType
    second_type: AttributeType
    parameter_kind: ParameterKind
    holds: Holds
    holds_many: HoldsMany
    shape: Shape = "opaque"
    """What an index may assume: `contains` = the first, a point, lies within the `bounds` of the
    second, `distance` = at most the parameter apart in `space`."""
    bounds: Space | None = None
    """The rectangles (n, 4) around the second values; None: the values are the rectangles."""
    space: Space | None = None
    """Puts values where a straight distance never exceeds that of the relation; None: they are
    there."""
    symmetric: bool = False
    """Whether a policy may name the two values in either order."""


def _inside(first: Value, second: Value, parameter: float | None) -> bool:
    x, y = first
    x1, y1, x2, y2 = second
    return bool(x1 <= x <= x2 and y1 <= y <= y2)


def _inside_many(
    first: npt.NDArray[Any], second: npt.NDArray[Any], parameter: float | None
) -> Mask:
    x, y = first[:, 0], first[:, 1]
    mask = (second[:, 0] <= x) & (x <= second[:, 2])
    return np.asarray(mask & (second[:, 1] <= y) & (y <= second[:, 3]), np.bool_)


def _within(first: Value, second: Value, parameter: float | None) -> bool:
    reach = float(parameter or 0.0)
    dx, dy = first[0] - second[0], first[1] - second[1]
    return bool(dx * dx + dy * dy <= reach * reach)


def _within_many(
    first: npt.NDArray[Any], second: npt.NDArray[Any], parameter: float | None
) -> Mask:
    # Squares, not a root: the same two roundings as `_within`, so that both always agree.
    reach = float(parameter or 0.0)
    with np.errstate(all="ignore"):
        dx, dy = first[:, 0] - second[:, 0], first[:, 1] - second[:, 1]
        return np.asarray(dx * dx + dy * dy <= reach * reach, np.bool_)


def _same(first: Value, second: Value, parameter: float | None) -> bool:
    return first[0] is not None and bool(first[0] == second[0])


def _same_many(first: npt.NDArray[Any], second: npt.NDArray[Any], parameter: float | None) -> Mask:
    known = np.fromiter((value is not None for value in first[:, 0]), np.bool_, len(first))
    return np.asarray(known & (first[:, 0] == second[:, 0]), np.bool_)


def _contained(first: Value, second: Value, parameter: float | None) -> bool:
    if first[0] is None or second[0] is None:
        return False
    return second[0] in first[0].split("\n")


def _contained_many(
    first: npt.NDArray[Any], second: npt.NDArray[Any], parameter: float | None
) -> Mask:
    rows = zip(first[:, :1].tolist(), second[:, :1].tolist(), strict=True)
    return np.fromiter((_contained(a, b, None) for a, b in rows), np.bool_, len(first))


_INSIDE_AREAS: tuple[tuple[str, AttributeType, AttributeType], ...] = (
    ("inside_area", "point", "area"),
    ("inside_geo_area", "geo_point", "geo_area"),
)


def _inside_area(geographic: bool) -> Holds:
    def holds(first: Value, second: Value, parameter: float | None) -> bool:
        if second[0] is None or first[0] is None or first[1] is None:
            return False
        area = areas.area_of(second[0], geographic)
        return areas.contains(area, first, geographic=geographic)

    return holds


def _inside_areas(geographic: bool) -> HoldsMany:
    def holds_many(
        first: npt.NDArray[Any], second: npt.NDArray[Any], parameter: float | None
    ) -> Mask:
        points = np.asarray(first, np.float64)
        return areas.contains_many(second[:, 0].tolist(), points, geographic=geographic)

    return holds_many


def _bounds_of_areas(geographic: bool) -> Space:
    return lambda values: areas.bounds_of(values[:, 0].tolist(), geographic=geographic)


def _within_on_sphere(first: Value, second: Value, parameter: float | None) -> bool:
    return sphere.distance(first, second) <= float(parameter or 0.0)


def _within_on_sphere_many(
    first: npt.NDArray[Any], second: npt.NDArray[Any], parameter: float | None
) -> Mask:
    return np.asarray(sphere.distance_many(first, second) <= float(parameter or 0.0), np.bool_)


INSIDE = Relation(
    name="inside",
    first_type="point",
    second_type="rectangle",
    parameter_kind="none",
    holds=_inside,
    holds_many=_inside_many,
    shape="contains",
)
WITHIN = Relation(
    name="within",
    first_type="point",
    second_type="point",
    parameter_kind="length",
    holds=_within,
    holds_many=_within_many,
    shape="distance",
    symmetric=True,
)
INSIDE_AREA, INSIDE_GEO_AREA = (
    Relation(
        name=name,
        first_type=point,
        second_type=area,
        parameter_kind="none",
        holds=_inside_area(area == "geo_area"),
        holds_many=_inside_areas(area == "geo_area"),
        shape="contains",
        bounds=_bounds_of_areas(area == "geo_area"),
    )
    for name, point, area in _INSIDE_AREAS
)
WITHIN_GEO = Relation(
    name="within_geo",
    first_type="geo_point",
    second_type="geo_point",
    parameter_kind="length",
    holds=_within_on_sphere,
    holds_many=_within_on_sphere_many,
    shape="distance",
    space=sphere.positions,
    symmetric=True,
)
SAME = Relation(
    name="same",
    first_type="text",
    second_type="text",
    parameter_kind="none",
    holds=_same,
    holds_many=_same_many,
    symmetric=True,
)
CONTAINED = Relation(
    name="contained",
    first_type="text",
    second_type="text",
    parameter_kind="none",
    holds=_contained,
    holds_many=_contained_many,
)
"""The second is one of the lines of the first; decides `[containers]`."""

BUILT_IN = {
    relation.name: relation
    for relation in (INSIDE, INSIDE_AREA, INSIDE_GEO_AREA, WITHIN, WITHIN_GEO, SAME, CONTAINED)
} | {"near": WITHIN}
_VARIANTS = {
    "inside": (INSIDE, INSIDE_AREA, INSIDE_GEO_AREA),
    "within": (WITHIN, WITHIN_GEO),
    "near": (WITHIN, WITHIN_GEO),
}
"""By the name that a site writes, the functions for values of different types."""


def relation(
    *,
    first: AttributeType,
    second: AttributeType,
    parameter: ParameterKind = "none",
    symmetric: bool = False,
    many: HoldsMany | None = None,
) -> Callable[[Holds], Relation]:
    """Turns a function `(first, second, parameter) -> bool` into a Relation; for authors of
    plug-ins and sites. In bulk, neither it nor `many` is called with missing values.

    >>> @relation(first="number", second="number", symmetric=True)
    ... def equal_floor(first, second, parameter):
    ...     return first[0] == second[0]
    >>> equal_floor.holds((3.0,), (3.0,), None)
    True
    """
    for kind in (first, second):
        if kind not in TYPE_NAMES:
            raise UnknownName("attribute type", kind, TYPE_NAMES, code="relations.bad_type")

    def declare(function: Holds) -> Relation:
        return Relation(
            name=function.__name__,
            first_type=first,
            second_type=second,
            parameter_kind=parameter,
            holds=function,
            holds_many=_of_complete_rows(many or _row_by_row(function)),
            symmetric=symmetric,
        )

    return declare


def get(name: str) -> Relation:
    """Raises UnknownName, or InvalidInput when its module cannot be imported."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    if name not in _loaded:
        _loaded[name] = _as_relation(name)
    return _loaded[name]


def variants(name: str) -> tuple[Relation, ...]:
    """The functions of a name, one per pair of types; raises as `get`."""
    return _VARIANTS.get(name) or (get(name),)


def names() -> list[str]:
    """Built-in and installed names, sorted; loads nothing."""
    return sorted({*BUILT_IN, *Plugins().names("relations")})


def _row_by_row(function: Holds) -> HoldsMany:
    def holds_many(
        first: npt.NDArray[Any], second: npt.NDArray[Any], parameter: float | None
    ) -> Mask:
        rows = zip(first.tolist(), second.tolist(), strict=True)
        return np.fromiter((bool(function(a, b, parameter)) for a, b in rows), np.bool_, len(first))

    return holds_many


def _of_complete_rows(many: HoldsMany) -> HoldsMany:
    """Wraps a bulk function: rows with a missing part are false, which authors need not handle."""

    def holds_many(
        first: npt.NDArray[Any], second: npt.NDArray[Any], parameter: float | None
    ) -> Mask:
        complete = _are_complete(first) & _are_complete(second)
        if complete.all():
            return many(first, second, parameter)
        found = np.zeros(len(complete), np.bool_)
        if complete.any():
            found[complete] = many(first[complete], second[complete], parameter)
        return found

    return holds_many


def _are_complete(values: npt.NDArray[Any]) -> Mask:
    """Which rows have no missing part (None or NaN)."""
    is_there = values == values
    if values.dtype == object:
        known = [value is not None for value in values.ravel().tolist()]
        is_there &= np.array(known, np.bool_).reshape(values.shape)
    return np.asarray(is_there.all(axis=1), np.bool_)


_FUNCTIONS = NamedFunctions("relations", "relationship function", names)


def _as_relation(name: str) -> Relation:
    not_one = InvalidInput(
        f"{name!r} is not a relationship function",
        code="relations.not_a_relation",
        hint="put @relation(first=..., second=...) of rapport.policy.relations before it",
    )
    return _FUNCTIONS.find(name, Relation, not_one)
