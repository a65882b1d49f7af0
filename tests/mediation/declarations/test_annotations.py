"""Table 4.1 of the source: five annotations, each with the source's example. [ME-10]"""

import importlib.util
import sys
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal, NewType, Optional

import pytest

from rapport.core.errors import InterpretationError
from rapport.mediation.codegen.transformer import make_transformer
from rapport.mediation.conversion.conversions import Call
from rapport.mediation.declarations.inference import infer
from rapport.mediation.declarations.python_classes import (
    Unit,
    conv_function,
    interpretation_of,
    maps_to,
)
from rapport.mediation.interpretations.model import Interpretation
from rapport.mediation.interpretations.type_changes import load_all
from rapport.mediation.types import Attribute, ComplexType, PrimitiveType


@pytest.fixture(scope="module")
def logistics() -> ModuleType:
    """The module with the listing."""
    path = Path(__file__).with_name("logistics.py")
    spec = importlib.util.spec_from_file_location("logistics_of_the_source", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def european(logistics: ModuleType) -> Interpretation:
    """Root, declared by the same means."""
    return interpretation_of(logistics, "root")


def test_context_marks_the_parts_of_an_interpretation(logistics: ModuleType) -> None:
    us = interpretation_of(logistics, "us")
    names = [each.name for each in us.types]
    assert names == [
        "LatLonPosition in latlonPos",
        "Money in EUR",
        "Money in USD",
        "Position in cartesianPos",
        "LatLonPosition",
        "CustomerProductStatusEvent",
    ]
    assert us.parent == "root"
    assert interpretation_of(logistics, "root").parent == ""


def test_maps_to_gives_the_mappings_both_ways(logistics: ModuleType) -> None:
    us = interpretation_of(logistics, "us")
    assert [str(each) for each in us.mappings] == [
        "CustomerProductStatusEvent => ProductStatusEvent (in)",
        "ProductStatusEvent => CustomerProductStatusEvent (out)",
    ]


def test_conv_function_labels_functions_by_the_units_they_turn(logistics: ModuleType) -> None:
    us = interpretation_of(logistics, "us")
    signatures = {each.name: each.signature() for each in us.conversions}
    assert signatures == {
        "to_dollars": "(Money in EUR) -> Money in USD",
        "to_euros": "(Money in USD) -> Money in EUR",
        "to_lat_lon": "(Position in cartesianPos) -> LatLonPosition in latlonPos",
        "to_cartesian": "(LatLonPosition in latlonPos) -> Position in cartesianPos",
    }
    assert us.conversions[0].how == Call("logistics_of_the_source:CurrencyFunctions.to_dollars")
    assert us.conversions[2].how == Call("logistics_of_the_source:to_lat_lon")


def test_unit_is_enough_for_the_rules(logistics: ModuleType, european: Interpretation) -> None:
    """The source: "clients with the us context want pos to be the unit latlonPos and price to be
    in USD"; the functions are found by their units."""
    found = infer(interpretation_of(logistics, "us"), european)
    assert not found.problems
    assert [(str(each), each.direction) for each in found.interpretation.rules] == [
        ("CustomerProductStatusEvent.pos -> to_cartesian", "in"),
        ("CustomerProductStatusEvent.price -> to_euros", "in"),
        ("ProductStatusEvent.pos -> to_lat_lon", "out"),
        ("ProductStatusEvent.price -> to_dollars", "out"),
    ]
    held, outcomes = load_all([european, found.interpretation])
    assert "us" in held, outcomes
    functions = {
        "logistics_of_the_source:CurrencyFunctions.to_dollars": (
            logistics.CurrencyFunctions.to_dollars
        ),
        "logistics_of_the_source:to_lat_lon": logistics.to_lat_lon,
    }
    shown = make_transformer(held, "us", "ProductStatusEvent", "out", functions)
    event = {"pos": {"x": 8.0, "y": 49.0}, "price": {"currency": "EUR", "amount": 10.0}}
    assert shown(event) == {
        "pos": {"lat": 49.0, "lon": 8.0},
        "price": {"currency": "USD", "amount": 12.5},
    }


def test_transform_with_converts_a_whole_class(
    logistics: ModuleType, european: Interpretation
) -> None:
    whole = interpretation_of(logistics, "whole")
    assert [str(each) for each in whole.rules] == [
        "ProductStatusEvent -> to_customer",
        "WholeEvent -> from_customer",
    ]
    held, outcomes = load_all([european, infer(whole, european).interpretation])
    assert "whole" in held, outcomes
    named = infer(interpretation_of(logistics, "named"), european).interpretation
    assert named.conversions[0].signature() == "(NamedEvent) -> ProductStatusEvent"
    assert named.conversions[0].how == Call("site.logistics:from_named")
    held, outcomes = load_all([european, named])
    assert "named" in held, outcomes


def test_annotated_units_on_a_dataclass_become_rules(
    logistics: ModuleType, root: Interpretation
) -> None:
    found = infer(interpretation_of(logistics, "weather"), root).interpretation
    held, outcomes = load_all([root, found])
    assert "weather" in held, outcomes
    to_root = make_transformer(held, "weather", "FahrenheitReport", "in")
    assert to_root({"place": "s", "temperature": 212}) == {"key": "s", "temperature": 100.0}


Level = NewType("Level", int)


class Base:
    name: str


class Many(Base):
    constant: ClassVar[int] = 5
    level: Level
    flag: bool
    anything: Any
    table: dict[str, int]
    colour: Literal["red", "green"]
    bases: tuple[Base, ...]
    matrix: list[list[float]]
    maybe: Optional[Base]  # noqa: UP045
    lengths: Annotated[list[float], Unit("ft")]


def test_python_types_are_the_types_of_the_model() -> None:
    found = interpretation_of([Base, Many], "a/b/c")
    assert found.parent == "a/b"
    assert found.types == (
        PrimitiveType("ft", "number"),
        PrimitiveType("Level", "integer"),
        ComplexType("Base", (Attribute("name", "text"),)),
        ComplexType(
            "Many",
            (
                Attribute("level", "Level"),
                Attribute("flag", "boolean"),
                Attribute("anything", "json"),
                Attribute("table", "json"),
                Attribute("colour", "text"),
                Attribute("bases", "[Base]"),
                Attribute("matrix", "[[number]]"),
                Attribute("maybe", "Base", True),
                Attribute("lengths", "[ft]"),
            ),
            ("Base",),
        ),
    )


@maps_to("station", drop=["when"])
class Faulty:
    when: datetime
    either: int | str
    pair: tuple[int, int]
    colour: Annotated[str, Unit("degF")]
    far: Annotated[float, Unit("metrs")]
    gone: "Nobody"  # type: ignore[name-defined]  # noqa: F821


class Odd:
    when: datetime
    either: int | str
    pair: tuple[int, int]
    gaps: list[int | None]
    colour: Annotated[str, Unit("degF")]
    far: Annotated[float, Unit("metrs")]


def test_every_fault_of_a_class_is_reported_at_once() -> None:
    with pytest.raises(InterpretationError) as caught:
        interpretation_of([Odd], "x")
    results = [(each.code, each.message.split(":")[0]) for each in caught.value.problems]
    assert results == [
        ("type.unsupported_annotation", "Odd.when"),
        ("type.unsupported_annotation", "Odd.either"),
        ("type.unsupported_annotation", "Odd.pair"),
        ("type.unsupported_annotation", "Odd.gaps"),
        ("unit.mismatch", "Odd.colour"),
        ("unit.unknown", "Odd.far"),
    ]
    assert "meters" in caught.value.problems[-1].hint


def test_names_nobody_knows_and_mappings_of_one_way_are_faults() -> None:
    with pytest.raises(InterpretationError) as caught:
        interpretation_of([Faulty], "x")
    codes = [each.code for each in caught.value.problems]
    assert "type.unsupported_annotation" in codes
    assert "mapping.one_way" in codes


def test_labels_of_a_class_do_not_count_for_classes_derived_from_it() -> None:
    @maps_to("station", direction="in")
    class Above:
        key: str

    class Below(Above):
        more: str

    found = interpretation_of([Above, Below], "x")
    assert [each.source for each in found.mappings] == ["Above"]


def test_functions_without_types_take_the_types_of_their_units() -> None:
    @conv_function("degF", "degC")
    def to_celsius(value):  # type: ignore[no-untyped-def]
        return (value - 32) / 1.8

    found = interpretation_of([to_celsius], "x")
    assert found.conversions[0].signature() == "(degF) -> degC"
