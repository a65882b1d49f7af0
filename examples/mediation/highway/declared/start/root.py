"""What all share: metres on the plan of the region, seconds, milliseconds since 1970 UTC."""

from typing import Annotated, NewType

from rapport.mediation.declarations.python_classes import Unit, context

Time = NewType("Time", int)


@context("root")
class Location:
    x: Annotated[float, Unit("m")]
    y: Annotated[float, Unit("m")]


@context("root")
class Sensor:
    id: str
    time: Time
    location: Location


@context("root")
class Speed:
    sensor: Sensor
    speed: Annotated[float, Unit("m/s")]


@context("root")
class Flow:
    sensor: Sensor
    vehicles: int
    headway: Annotated[float, Unit("s")]


@context("root")
class Temperature:
    sensor: Sensor
    surface: Annotated[float, Unit("degC")]
    air: Annotated[float, Unit("degC")]


@context("root")
class Rain:
    sensor: Sensor
    rate: Annotated[float, Unit("mm/h")]


@context("root")
class Visibility:
    sensor: Sensor
    distance: Annotated[float, Unit("m")]


@context("root")
class Wind:
    sensor: Sensor
    speed: Annotated[float, Unit("m/s")]
    gust: Annotated[float, Unit("m/s")]


@context("root")
class Queue:
    sensor: Sensor
    length: Annotated[float, Unit("m")]
    end: Location
