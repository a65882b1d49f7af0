"""Listing 4.1 of the source in Python: a US client of a European logistics provider."""

from dataclasses import dataclass
from typing import Annotated

from rapport.mediation.declarations.python_classes import (
    Unit,
    context,
    conv_function,
    maps_to,
    transform_with,
)


@context("root")
class Money:
    currency: str
    amount: float


@context("root")
class Position:
    x: float
    y: float


@context("root")
class ProductStatusEvent:
    pos: Annotated[Position, Unit("cartesianPos")]
    price: Annotated[Money, Unit("EUR")]


@dataclass
class LatLonPosition:
    """Has no label: it belongs to what uses it."""

    lat: float
    lon: float


@context("us")
@maps_to("com.logistics.eu.ProductStatusEvent")
class CustomerProductStatusEvent:
    pos: Annotated[LatLonPosition, Unit("latlonPos")]
    price: Annotated[Money, Unit("USD")]


@context("us")
class CurrencyFunctions:
    @staticmethod
    @conv_function(source_unit="EUR", target_unit="USD")
    def to_dollars(value: Money) -> Money:
        return {"currency": "USD", "amount": value["amount"] * 1.25}  # type: ignore[index, return-value]

    @conv_function(source_unit="USD", target_unit="EUR")
    @staticmethod
    def to_euros(value: Money) -> Money:
        return {"currency": "EUR", "amount": value["amount"] / 1.25}  # type: ignore[index, return-value]


@context("us")
@conv_function(source_unit="cartesianPos", target_unit="latlonPos")
def to_lat_lon(value: Position) -> LatLonPosition:
    return {"lat": value["y"], "lon": value["x"]}  # type: ignore[index, return-value]


@context("us")
@conv_function(source_unit="latlonPos", target_unit="cartesianPos")
def to_cartesian(value: LatLonPosition) -> Position:
    return {"x": value["lon"], "y": value["lat"]}  # type: ignore[index, return-value]


def from_customer(value: "WholeEvent") -> ProductStatusEvent:
    return value  # type: ignore[return-value]


def to_customer(value: ProductStatusEvent) -> "WholeEvent":
    return value  # type: ignore[return-value]


@context("whole")
@maps_to("ProductStatusEvent")
@transform_with(from_customer)
@transform_with(to_customer)
class WholeEvent:
    anything: dict


@context("named")
@maps_to("ProductStatusEvent", direction="in")
@transform_with("site.logistics:from_named")
class NamedEvent:
    anything: dict


class Unused:
    nothing: str


@context("weather")
@maps_to("station", direction="in", rename={"place": "key"})
@dataclass
class FahrenheitReport:
    place: str
    temperature: Annotated[float, Unit("degF")] | None = None
