"""Conversions between representations of a position. [ME-4]

Conventions as in `units/coordinates.py`: x to the east, y to the north; a bearing or heading of 0
points along +y and grows clockwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from rapport.mediation.conversion.lookups import ConversionEnvironment, NoTables, numbers_finder
from rapport.mediation.rejections import (
    SHOWN,
    Calculation,
    Port,
    RejectedValue,
    finite,
    number,
    number_ports,
    text,
)
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

if TYPE_CHECKING:
    from rapport.mediation.conversion.conversions import Conversion
    from rapport.mediation.memory import ConversionMemory


class ToCartesian(msgspec.Struct, frozen=True, tag="polar-to-cartesian"):
    """Bearing and distance to x and y."""

    bearing: str = "bearing"
    distance: str = "distance"
    x: str = "x"
    y: str = "y"
    angle_unit: str = "deg"
    unit: str = "m"
    """Of the distance."""
    to_unit: str = "m"
    """Of x and y."""

    def takes(self, arguments: int) -> tuple[Port, ...]:
        return (
            *number_ports(self.bearing, unit=self.angle_unit),
            *number_ports(self.distance, unit=self.unit),
        )

    def gives(self, results: int) -> tuple[Port, ...]:
        return number_ports(self.x, self.y, unit=self.to_unit)


class ToPolar(msgspec.Struct, frozen=True, tag="cartesian-to-polar"):
    """x and y to bearing (from 0 up to a full turn) and distance."""

    x: str = "x"
    y: str = "y"
    bearing: str = "bearing"
    distance: str = "distance"
    angle_unit: str = "deg"
    unit: str = "m"
    """Of x and y."""
    to_unit: str = "m"
    """Of the distance."""

    def takes(self, arguments: int) -> tuple[Port, ...]:
        return number_ports(self.x, self.y, unit=self.unit)

    def gives(self, results: int) -> tuple[Port, ...]:
        return (
            *number_ports(self.bearing, unit=self.angle_unit),
            *number_ports(self.distance, unit=self.to_unit),
        )


class FixedOrigin(msgspec.Struct, frozen=True, tag_field="kind", tag="fixed"):
    """The position and heading of a device that never moves."""

    x: float
    y: float
    heading: float = 0.0
    unit: str = "m"
    heading_unit: str = "deg"


class TableOrigin(msgspec.Struct, frozen=True, tag_field="kind", tag="table"):
    """The position of a device from the row of a site table with the key in `key`."""

    table: str
    key: str
    x: str = "x"
    y: str = "y"
    heading: str = ""
    """The column of the heading; empty: north."""
    unit: str = "m"
    heading_unit: str = "deg"


class MovingOrigin(msgspec.Struct, frozen=True, tag_field="kind", tag="moving"):
    """The position of a device from the latest event of the type `feed`, canonical or of the
    source. `x`, `y`, `heading`, `time` and `feed_key` are attributes of that event, also nested
    as `position.x`. Events without x and y and outdated events are ignored. With `key` there
    are many origins, selected by that value.
    """

    feed: str
    key: str = ""
    feed_key: str = ""
    x: str = "x"
    y: str = "y"
    heading: str = ""
    time: str = ""
    unit: str = "m"
    heading_unit: str = "deg"


Origin = FixedOrigin | TableOrigin | MovingOrigin


class _Framed(msgspec.Struct, frozen=True):
    """A conversion between absolute positions and positions relative to an origin."""

    origin: Origin
    x: str = "x"
    y: str = "y"
    to_x: str = "x"
    to_y: str = "y"
    unit: str = "m"
    to_unit: str = "m"

    def takes(self, arguments: int) -> tuple[Port, ...]:
        return (*number_ports(self.x, self.y, unit=self.unit), *_key_of(self.origin))

    def gives(self, results: int) -> tuple[Port, ...]:
        return number_ports(self.to_x, self.to_y, unit=self.to_unit)


class ToAbsolute(_Framed, frozen=True, tag="relative-to-absolute"):
    """Converts x and y relative to a device (+y is its heading) to absolute ones."""


class ToRelative(_Framed, frozen=True, tag="absolute-to-relative"):
    """Converts absolute x and y to ones relative to a device."""


class ToPlan(msgspec.Struct, frozen=True, tag="lat-lon-to-plan"):
    """Converts latitude and longitude (WGS 84, degrees) to x and y on a plan around the origin.
    Error and range: see `units/coordinates.py`. Positions beyond the range are rejected.
    """

    latitude: float
    longitude: float
    range_metres: float = 200_000.0
    lat: str = "lat"
    lon: str = "lon"
    x: str = "x"
    y: str = "y"
    to_unit: str = "m"

    def takes(self, arguments: int) -> tuple[Port, ...]:
        return number_ports(self.lat, self.lon, unit="deg")

    def gives(self, results: int) -> tuple[Port, ...]:
        return number_ports(self.x, self.y, unit=self.to_unit)


class ToLatLon(msgspec.Struct, frozen=True, tag="plan-to-lat-lon"):
    """Converts x and y on a plan to latitude and longitude."""

    latitude: float
    longitude: float
    range_metres: float = 200_000.0
    x: str = "x"
    y: str = "y"
    lat: str = "lat"
    lon: str = "lon"
    unit: str = "m"

    def takes(self, arguments: int) -> tuple[Port, ...]:
        return number_ports(self.x, self.y, unit=self.unit)

    def gives(self, results: int) -> tuple[Port, ...]:
        return number_ports(self.lat, self.lon, unit="deg")


Place = ToCartesian | ToPolar | ToAbsolute | ToRelative | ToPlan | ToLatLon


def _key_of(origin: Origin) -> tuple[Port, ...]:
    if isinstance(origin, FixedOrigin) or not origin.key:
        return ()
    return (Port(origin.key, "text"),)


OriginPosition = tuple[float, float, float]
"""x and y in metres, heading in degrees."""
_EMPTY_KEY = ""


def place_calculation(
    conversion: Conversion,
    how: Place,
    surroundings: ConversionEnvironment,
    memory: ConversionMemory,
) -> Calculation:
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
    how: ToAbsolute | ToRelative, name: str, origin: Callable[[str], OriginPosition]
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
    surroundings: ConversionEnvironment,
    memory: ConversionMemory,
) -> Callable[[str], OriginPosition]:
    origin = how.origin
    length, turn = converter(origin.unit, "m"), converter(origin.heading_unit, "deg")
    if isinstance(origin, FixedOrigin):
        at = (length.apply(origin.x), length.apply(origin.y), turn.apply(origin.heading))
        return lambda key: at
    if isinstance(origin, MovingOrigin):
        return lambda key: _present(conversion, memory, key)
    return _from_table(origin, surroundings)


def _from_table(
    origin: TableOrigin, surroundings: ConversionEnvironment
) -> Callable[[str], OriginPosition]:
    length, turn = converter(origin.unit, "m"), converter(origin.heading_unit, "deg")
    columns = [(origin.x, length), (origin.y, length)]
    if origin.heading:
        columns.append((origin.heading, turn))
    tables = surroundings.tables
    find = numbers_finder(tables or NoTables(), origin.table, tuple(columns))

    def from_table(key: str) -> OriginPosition:
        x, y, *heading = find(key)
        return x, y, heading[0] if heading else 0.0

    return from_table


def _present(conversion: Conversion, memory: ConversionMemory, key: str) -> OriginPosition:
    found = memory.state_of(conversion).get(key)
    if found is None:
        of = f" of {key[:SHOWN]!r}" if key else ""
        raise RejectedValue(
            "place.no_origin",
            f"{conversion.name}: the position of the origin{of} is not known yet",
            "events of its feed type must arrive first",
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
