"""The listing of section 4.3.2 as it stands, within a named context. [ME-10]"""

from typing import Any

from rapport.mediation.codegen.transformer import make_transformer
from rapport.mediation.conversion.conversions import Identity, converts
from rapport.mediation.declarations.files import read_declarations
from rapport.mediation.declarations.inference import complete_declarations
from rapport.mediation.interpretations.model import Interpretation
from rapport.mediation.interpretations.type_changes import load_all
from rapport.mediation.types import Attribute, ComplexType

LISTING = b"""<?xml version="1.0"?>
<context id="us">
<types>
  <type>com.logistics.us.CustomerProductStatusEvent</type>
  <type>com.logistics.us.LatLonPosition</type>
</types>
<mappings>
  <mapping from="com.logistics.eu.ProductStatusEvent"
    to="com.logistics.us.CustomerProductStatusEvent"
    dir="outgoing" />
</mappings>
<rules>
  <rule pattern="Position" function="toLatLonCoordinates" />
  <rule pattern="Money" function="toDollars" />
  <rule pattern="ProductStatusEvent.dynamicCost" function="toIdentity" />
</rules>
<functions>
  <function name="toLatLonCoordinates" class="com.logistics.us.conversion.toLatLonCoordinates" />
  <function name="toDollars" class="com.logistics.us.conversion.DollarConverter" />
</functions>
</context>
"""


class Money:
    currency: str
    amount: float


class LatLonPosition:
    lat: float
    lon: float


class CustomerProductStatusEvent:
    productId: str
    pos: LatLonPosition
    dynamicPrice: Money
    dynamicCost: Money


ROOT = Interpretation(
    name="root",
    parent="",
    types=(
        ComplexType("Money", (Attribute("currency", "text"), Attribute("amount", "number"))),
        ComplexType("Position", (Attribute("x", "number"), Attribute("y", "number"))),
        ComplexType(
            "ProductStatusEvent",
            (
                Attribute("productId", "text"),
                Attribute("pos", "Position"),
                Attribute("dynamicPrice", "Money"),
                Attribute("dynamicCost", "Money"),
            ),
        ),
    ),
    conversions=(converts("toIdentity", "json", "json", Identity()),),
)


def dollars(money: dict[str, Any]) -> dict[str, Any]:
    return {"currency": "USD", "amount": money["amount"] * 1.25}


def lat_lon(position: dict[str, Any]) -> dict[str, Any]:
    return {"lat": position["y"], "lon": position["x"]}


def test_the_listing_is_read_as_it_stands_and_transforms_figure_4_7() -> None:
    classes = {
        f"com.logistics.us.{each.__name__}": each
        for each in (CustomerProductStatusEvent, LatLonPosition)
    }
    known = [each.name for each in ROOT.types]
    found = read_declarations("us.xml", LISTING, "xml", known=known, classes=classes)
    assert not found.problems, found.problems
    us = complete_declarations(found, ROOT).interpretations["us"]
    assert [each.signature() for each in us.conversions] == [
        "(Position) -> LatLonPosition",
        "(Money) -> Money",
    ]
    held, outcomes = load_all([ROOT, us])
    assert "us" in held, outcomes
    functions = {
        "com.logistics.us.conversion:toLatLonCoordinates": lat_lon,
        "com.logistics.us.conversion:DollarConverter": dollars,
    }
    shown = make_transformer(held, "us", "ProductStatusEvent", "out", functions)
    assert shown(
        {
            "productId": "p1",
            "pos": {"x": 8.0, "y": 49.0},
            "dynamicPrice": {"currency": "EUR", "amount": 10.0},
            "dynamicCost": {"currency": "EUR", "amount": 4.0},
        }
    ) == {
        "productId": "p1",
        "pos": {"lat": 49.0, "lon": 8.0},
        "dynamicPrice": {"currency": "USD", "amount": 12.5},
        "dynamicCost": {"currency": "EUR", "amount": 4.0},
    }


def test_files_never_load_a_class_by_themselves() -> None:
    found = read_declarations("us.xml", LISTING, "xml")
    assert {each.code for each in found.problems} == {"type.unknown_class"}
    assert [each.line for each in found.problems] == [4, 5]
    assert not found.interpretations


def test_texts_that_look_like_numbers_stand_in_quotes() -> None:
    text = b"""<context id="a"><functions><function name="f" from="text" to="text"><lookup>
    <entry from='"1"' to="one"/><entry from="2" to="true"/></lookup></function></functions>
    </context>"""
    found = read_declarations("a.xml", text, "xml")
    assert not found.problems
    (conversion,) = found.interpretations["a"].conversions
    assert conversion.how.entries == (("1", "one"), (2, True))  # type: ignore[union-attr]
