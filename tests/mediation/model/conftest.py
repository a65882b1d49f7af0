"""The logistics example of the source: figures 4.2, 4.5, 4.6 and 4.7."""

from typing import Any

import pytest

from rapport.mediation.conversion.conversions import Call, Conversion, Formula, Identity, converts
from rapport.mediation.interpretations.model import Interpretation, Rule, TypeMapping
from rapport.mediation.interpretations.registry import InterpretationRegistry
from rapport.mediation.interpretations.type_changes import Declare, apply_change, load_all
from rapport.mediation.types import Attribute, ComplexType

MONEY = ComplexType("Money", (Attribute("currency", "text"), Attribute("amount", "number")))
POSITION = ComplexType("Position", (Attribute("x", "number"), Attribute("y", "number")))
LAT_LON = ComplexType("LatLonPosition", (Attribute("lat", "number"), Attribute("lon", "number")))
STATUS = (
    Attribute("productId", "text"),
    Attribute("pos", "Position"),
    Attribute("dynamicPrice", "Money"),
    Attribute("dynamicCost", "Money"),
)
PRODUCT_STATUS = ComplexType("ProductStatusEvent", STATUS)
CUSTOMER_STATUS = ComplexType(
    "CustomerProductStatusEvent",
    (STATUS[0], Attribute("pos", "LatLonPosition"), *STATUS[2:]),
)
DANGER_CHECK = ComplexType("DangerCheck", (Attribute("pos", "Position"),))


def to_lat_lon(position: dict[str, Any]) -> dict[str, Any]:
    return {"lat": 49.0 + position["y"] / 111_000, "lon": 8.0 + position["x"] / 73_000}


def to_dollars(money: dict[str, Any]) -> dict[str, Any]:
    return {"currency": "USD", "amount": money["amount"] * 1.25}


FUNCTIONS = {"to_lat_lon": to_lat_lon, "to_dollars": to_dollars}

ROOT = Interpretation(
    name="root",
    parent="",
    types=(MONEY, POSITION, PRODUCT_STATUS),
    conversions=(
        converts("meters-to-yards", "number", "number", Formula(1.09)),
        converts("meters-to-feet", "number", "number", Formula(3.28)),
        converts("meters-to-inch", "number", "number", Formula(39.37)),
        converts("toIdentity", "json", "json", Identity()),
    ),
)
TO_LAT_LON: Conversion = converts(
    "toLatLonCoordinates", "Position", "LatLonPosition", Call("to_lat_lon")
)
TO_DOLLARS: Conversion = converts("toDollars", "Money", "Money", Call("to_dollars"))
US = Interpretation(
    name="us",
    types=(LAT_LON, CUSTOMER_STATUS),
    mappings=(TypeMapping("ProductStatusEvent", "CustomerProductStatusEvent", "out"),),
    rules=(
        Rule("Position", "toLatLonCoordinates"),
        Rule("Money", "toDollars"),
        Rule("ProductStatusEvent.dynamicCost", "toIdentity"),
    ),
    conversions=(TO_LAT_LON, TO_DOLLARS),
)


@pytest.fixture
def logistics() -> InterpretationRegistry:
    """Root of figure 4.5 and the US interpretation of figure 4.6."""
    found, outcomes = load_all([ROOT, US])
    assert "us" in found, outcomes
    return found


@pytest.fixture
def parts() -> dict[str, Any]:
    """The pieces, for variations."""
    return {
        "root": ROOT,
        "us": US,
        "functions": FUNCTIONS,
        "danger_check": DANGER_CHECK,
        "position": POSITION,
        "money": MONEY,
        "status": STATUS,
        "declare": Declare,
        "apply_change": apply_change,
    }
