"""Sensors of the northern district: latitude and longitude, local times, US units."""

from datetime import datetime
from typing import Annotated, NewType
from zoneinfo import ZoneInfo

from rapport.mediation.declarations.python_classes import Unit, context, conv_function, maps_to
from rapport.units.coordinates import PlanOrigin, to_plan

from .root import Location, Time

LocalTime = NewType("LocalTime", str)
CENTRE = PlanOrigin(41.88, -87.63)
CHICAGO = ZoneInfo("America/Chicago")


class LatLon:
    lat: float
    lon: float


@context("north")
@maps_to("Sensor", direction="in", rename={"at": "time", "position": "location"})
class NorthSensor:
    id: str
    at: LocalTime
    position: LatLon


@context("north")
@maps_to("Speed", direction="in")
class NorthSpeed:
    sensor: NorthSensor
    speed: Annotated[float, Unit("mph")]


@context("north")
@maps_to("Flow", direction="in")
class NorthFlow:
    sensor: NorthSensor
    vehicles: int
    headway: Annotated[float, Unit("s")]


@context("north")
@maps_to("Temperature", direction="in")
class NorthTemperature:
    sensor: NorthSensor
    surface: Annotated[float, Unit("degF")]
    air: Annotated[float, Unit("degF")]


@context("north")
@maps_to("Rain", direction="in")
class NorthRain:
    sensor: NorthSensor
    rate: Annotated[float, Unit("in/h")]


@context("north")
@maps_to("Visibility", direction="in")
class NorthVisibility:
    sensor: NorthSensor
    distance: Annotated[float, Unit("yd")]


@context("north")
@maps_to("Wind", direction="in")
class NorthWind:
    sensor: NorthSensor
    speed: Annotated[float, Unit("mph")]
    gust: Annotated[float, Unit("mph")]


@context("north")
@maps_to("Queue", direction="in")
class NorthQueue:
    sensor: NorthSensor
    length: Annotated[float, Unit("ft")]
    end: LatLon


@context("north")
@maps_to("Oil", direction="in")
class NorthOil:
    sensor: NorthSensor
    length: Annotated[float, Unit("ft")]


@conv_function()
def on_the_plan(place: LatLon) -> Location:
    x, y = to_plan(place["lat"], place["lon"], CENTRE)
    return {"x": x, "y": y}


@conv_function()
def from_local_time(text: LocalTime) -> Time:
    local = datetime.strptime(text, "%m/%d/%Y %H:%M:%S").replace(tzinfo=CHICAGO)
    return round(local.timestamp() * 1000)
