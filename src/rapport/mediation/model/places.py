"""Kinds of conversion between ways to say where something is. [ME-4]

Conventions as in `units/coordinates.py`: x to the east, y to the north; a bearing or heading of 0
looks along +y and grows clockwise. Each is plain data; what it does is in `placing.py`.
"""

from __future__ import annotations

import msgspec

from rapport.mediation.model.ports import Port, numbers


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
            *numbers(self.bearing, unit=self.angle_unit),
            *numbers(self.distance, unit=self.unit),
        )

    def gives(self, results: int) -> tuple[Port, ...]:
        return numbers(self.x, self.y, unit=self.to_unit)


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
        return numbers(self.x, self.y, unit=self.unit)

    def gives(self, results: int) -> tuple[Port, ...]:
        return (
            *numbers(self.bearing, unit=self.angle_unit),
            *numbers(self.distance, unit=self.to_unit),
        )


class FixedOrigin(msgspec.Struct, frozen=True, tag_field="kind", tag="fixed"):
    """A device that never moves: where it is and where it looks."""

    x: float
    y: float
    heading: float = 0.0
    unit: str = "m"
    heading_unit: str = "deg"


class TableOrigin(msgspec.Struct, frozen=True, tag_field="kind", tag="table"):
    """A row of a table of the site, found by the value `key`, says where the device is."""

    table: str
    key: str
    x: str = "x"
    y: str = "y"
    heading: str = ""
    """Columns; without a heading it looks to the north."""
    unit: str = "m"
    heading_unit: str = "deg"


class MovingOrigin(msgspec.Struct, frozen=True, tag_field="kind", tag="moving"):
    """Events of the type `feed`, of root or of the source itself, say where it is at present.

    `x`, `y`, `heading`, `time` and `feed_key` are attributes of such an event, `position.x` one
    further down. An event without x and y does not count, nor one older than the last. With `key`
    there are many such origins, and that value says whose it is.
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


class ToAbsolute(msgspec.Struct, frozen=True, tag="relative-to-absolute"):
    """x and y as a device sees them (+y is where it looks) to where they are."""

    origin: Origin
    x: str = "x"
    y: str = "y"
    to_x: str = "x"
    to_y: str = "y"
    unit: str = "m"
    to_unit: str = "m"

    def takes(self, arguments: int) -> tuple[Port, ...]:
        return (*numbers(self.x, self.y, unit=self.unit), *_key_of(self.origin))

    def gives(self, results: int) -> tuple[Port, ...]:
        return numbers(self.to_x, self.to_y, unit=self.to_unit)


class ToRelative(msgspec.Struct, frozen=True, tag="absolute-to-relative"):
    """Where x and y are to how a device sees them."""

    origin: Origin
    x: str = "x"
    y: str = "y"
    to_x: str = "x"
    to_y: str = "y"
    unit: str = "m"
    to_unit: str = "m"

    def takes(self, arguments: int) -> tuple[Port, ...]:
        return (*numbers(self.x, self.y, unit=self.unit), *_key_of(self.origin))

    def gives(self, results: int) -> tuple[Port, ...]:
        return numbers(self.to_x, self.to_y, unit=self.to_unit)


class ToPlan(msgspec.Struct, frozen=True, tag="lat-lon-to-plan"):
    """Latitude and longitude (WGS 84, degrees) to x and y on a plan that begins at the origin.

    Error and range: `units/coordinates.py`. What is further away than the range is rejected.
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
        return numbers(self.lat, self.lon, unit="deg")

    def gives(self, results: int) -> tuple[Port, ...]:
        return numbers(self.x, self.y, unit=self.to_unit)


class ToLatLon(msgspec.Struct, frozen=True, tag="plan-to-lat-lon"):
    """x and y on a plan to latitude and longitude."""

    latitude: float
    longitude: float
    range_metres: float = 200_000.0
    x: str = "x"
    y: str = "y"
    lat: str = "lat"
    lon: str = "lon"
    unit: str = "m"

    def takes(self, arguments: int) -> tuple[Port, ...]:
        return numbers(self.x, self.y, unit=self.unit)

    def gives(self, results: int) -> tuple[Port, ...]:
        return numbers(self.lat, self.lon, unit="deg")


Place = ToCartesian | ToPolar | ToAbsolute | ToRelative | ToPlan | ToLatLon
PLACES = (ToCartesian, ToPolar, ToAbsolute, ToRelative, ToPlan, ToLatLon)


def _key_of(origin: Origin) -> tuple[Port, ...]:
    if isinstance(origin, FixedOrigin) or not origin.key:
        return ()
    return (Port(origin.key, "text"),)
