"""What the kinds in `places.py` do. [ME-4]"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rapport.mediation.lookups import numbers_finder
from rapport.mediation.model.conversions import Conversion
from rapport.mediation.model.memory import Memory
from rapport.mediation.model.passing import Calculation
from rapport.mediation.model.places import (
    FixedOrigin,
    MovingOrigin,
    Place,
    TableOrigin,
    ToAbsolute,
    ToCartesian,
    ToLatLon,
    ToPlan,
    ToPolar,
    ToRelative,
)
from rapport.mediation.model.rejecting import SHOWN, finite, number, text
from rapport.mediation.model.surroundings import Surroundings
from rapport.mediation.rejection import Rejected
from rapport.units.coordinates import (
    PlanOrigin,
    absolute_to_relative,
    cartesian_to_polar,
    from_plan,
    polar_to_cartesian,
    relative_to_absolute,
    to_plan,
)
from rapport.units.quantities import converter

Position = tuple[float, float, float]
"""x and y in metres, heading in degrees."""
_EMPTY_KEY = ""


def place(
    conversion: Conversion, how: Place, surroundings: Surroundings, memory: Memory
) -> Calculation:
    """The kind as a calculation."""
    name = conversion.name
    if isinstance(how, (ToAbsolute, ToRelative)):
        return _framed(how, name, _origin_of(conversion, how, surroundings, memory))
    if isinstance(how, (ToPlan, ToLatLon)):
        return _planned(how, name)
    return _polar(how, name)


def _polar(how: ToCartesian | ToPolar, name: str) -> Calculation:
    if isinstance(how, ToCartesian):
        turn, stretch = converter(how.angle_unit, "deg"), converter(how.unit, how.to_unit)

        def to_cartesian(bearing: Any, distance: Any) -> tuple[float, float]:
            degrees = finite(turn.apply(number(bearing, name)), name)
            x, y = polar_to_cartesian(degrees, stretch.apply(number(distance, name)))
            return finite(x, name), finite(y, name)

        return to_cartesian
    turned, stretched = converter("deg", how.angle_unit), converter(how.unit, how.to_unit)

    def to_polar(x: Any, y: Any) -> tuple[float, float]:
        bearing, distance = cartesian_to_polar(number(x, name), number(y, name))
        return turned.apply(bearing), finite(stretched.apply(distance), name)

    return to_polar


def _framed(
    how: ToAbsolute | ToRelative, name: str, origin: Callable[[str], Position]
) -> Calculation:
    inward, outward = converter(how.unit, "m"), converter("m", how.to_unit)
    turn = relative_to_absolute if isinstance(how, ToAbsolute) else absolute_to_relative

    def framed(x: Any, y: Any, key: Any = _EMPTY_KEY) -> tuple[float, float]:
        at = origin(text(key, name))
        metres = inward.apply(number(x, name)), inward.apply(number(y, name))
        found_x, found_y = turn(*metres, *at)
        return finite(outward.apply(found_x), name), finite(outward.apply(found_y), name)

    return framed


def _origin_of(
    conversion: Conversion,
    how: ToAbsolute | ToRelative,
    surroundings: Surroundings,
    memory: Memory,
) -> Callable[[str], Position]:
    origin = how.origin
    length, turn = converter(origin.unit, "m"), converter(origin.heading_unit, "deg")
    if isinstance(origin, FixedOrigin):
        at = (length.apply(origin.x), length.apply(origin.y), turn.apply(origin.heading))
        return lambda key: at
    if isinstance(origin, MovingOrigin):
        return lambda key: _present(conversion, memory, key)
    return _from_table(origin, surroundings)


def _from_table(origin: TableOrigin, surroundings: Surroundings) -> Callable[[str], Position]:
    length, turn = converter(origin.unit, "m"), converter(origin.heading_unit, "deg")
    columns = [(origin.x, length), (origin.y, length)]
    if origin.heading:
        columns.append((origin.heading, turn))
    tables = surroundings.tables
    if tables is None:
        return lambda key: _no_tables(origin.table)
    find = numbers_finder(tables, origin.table, tuple(columns))

    def from_table(key: str) -> Position:
        x, y, *heading = find(key)
        return x, y, heading[0] if heading else 0.0

    return from_table


def _no_tables(table: str) -> Position:
    raise Rejected("lookup.unknown", f"there is no table {table!r}", "declare it in the site file")


def _present(conversion: Conversion, memory: Memory, key: str) -> Position:
    found = memory.state_of(conversion).get(key)
    if found is None:
        of = f" of {key[:SHOWN]!r}" if key else ""
        raise Rejected(
            "place.no_origin",
            f"{conversion.name}: nothing has said yet where the origin{of} is",
            "events of the type it is fed by must come first",
        )
    x, y, heading, _time = found
    return x, y, heading


def _planned(how: ToPlan | ToLatLon, name: str) -> Calculation:
    origin = PlanOrigin(how.latitude, how.longitude, how.range_metres)
    if isinstance(how, ToPlan):
        outward = converter("m", how.to_unit)

        def plan(lat: Any, lon: Any) -> tuple[float, float]:
            x, y = to_plan(number(lat, name), number(lon, name), origin)
            return outward.apply(x), outward.apply(y)

        return plan
    inward = converter(how.unit, "m")
    return lambda x, y: from_plan(
        inward.apply(number(x, name)), inward.apply(number(y, name)), origin
    )
