"""A radio station that speaks to drivers: miles, Fahrenheit, times as text."""

from datetime import datetime
from typing import Annotated, NewType
from zoneinfo import ZoneInfo

from rapport.mediation.declarations.python_classes import Unit, context, conv_function, maps_to

from .root import Time

IsoTime = NewType("IsoTime", str)


@context("radio")
@maps_to("Location", direction="out", rename={"east": "x", "north": "y"})
class Spot:
    east: Annotated[float, Unit("mi")]
    north: Annotated[float, Unit("mi")]


@context("radio")
@maps_to("Sensor", direction="out", rename={"since": "time", "spot": "location"})
class Where:
    id: str
    since: IsoTime
    spot: Spot


@context("radio")
@maps_to("Speed", direction="out")
class RadioSpeed:
    sensor: Where
    speed: Annotated[float, Unit("mph")]


@context("radio")
@maps_to("Temperature", direction="out")
class RadioTemperature:
    sensor: Where
    surface: Annotated[float, Unit("degF")]
    air: Annotated[float, Unit("degF")]


@context("radio")
@maps_to("Rain", direction="out")
class RadioRain:
    sensor: Where
    rate: Annotated[float, Unit("in/h")]


@context("radio")
@maps_to("Visibility", direction="out")
class RadioVisibility:
    sensor: Where
    distance: Annotated[float, Unit("yd")]


@context("radio")
@maps_to("Wind", direction="out")
class RadioWind:
    sensor: Where
    speed: Annotated[float, Unit("mph")]
    gust: Annotated[float, Unit("mph")]


@context("radio")
@maps_to("Queue", direction="out")
class RadioQueue:
    sensor: Where
    length: Annotated[float, Unit("mi")]
    end: Spot


@context("radio")
@maps_to("Oil", direction="out")
class RadioOil:
    sensor: Where
    length: Annotated[float, Unit("mi")]


@conv_function()
def to_iso(time: Time) -> IsoTime:
    return datetime.fromtimestamp(time / 1000, ZoneInfo("America/Chicago")).isoformat()
