"""Sensors along the coast: bearing and nautical miles from the lighthouse, knots, seconds."""

import math
from typing import Annotated, NewType

from rapport.mediation.declarations.python_classes import Unit, context, conv_function, maps_to

from .root import Location, Time

Seconds = NewType("Seconds", int)
LIGHTHOUSE = (21_000.0, -4_500.0)


class Sighting:
    bearing: float
    range: float


@context("coast")
@maps_to("Sensor", direction="in", rename={"seconds": "time", "seen": "location"})
class CoastSensor:
    id: str
    seconds: Seconds
    seen: Sighting


@context("coast")
@maps_to("Speed", direction="in")
class CoastSpeed:
    sensor: CoastSensor
    speed: Annotated[float, Unit("kn")]


@context("coast")
@maps_to("Flow", direction="in")
class CoastFlow:
    sensor: CoastSensor
    vehicles: int
    headway: Annotated[float, Unit("s")]


@context("coast")
@maps_to("Temperature", direction="in")
class CoastTemperature:
    sensor: CoastSensor
    surface: Annotated[float, Unit("degC")]
    air: Annotated[float, Unit("degC")]


@context("coast")
@maps_to("Rain", direction="in")
class CoastRain:
    sensor: CoastSensor
    rate: Annotated[float, Unit("mm/h")]


@context("coast")
@maps_to("Visibility", direction="in")
class CoastVisibility:
    sensor: CoastSensor
    distance: Annotated[float, Unit("nmi")]


@context("coast")
@maps_to("Wind", direction="in")
class CoastWind:
    sensor: CoastSensor
    speed: Annotated[float, Unit("kn")]
    gust: Annotated[float, Unit("kn")]


@context("coast")
@maps_to("Queue", direction="in")
class CoastQueue:
    sensor: CoastSensor
    length: Annotated[float, Unit("nmi")]
    end: Sighting


@conv_function()
def from_the_lighthouse(seen: Sighting) -> Location:
    angle, metres = math.radians(seen["bearing"]), seen["range"] * 1852
    x, y = LIGHTHOUSE
    return {"x": x + metres * math.sin(angle), "y": y + metres * math.cos(angle)}


@conv_function()
def to_milliseconds(seconds: Seconds) -> Time:
    return seconds * 1000
