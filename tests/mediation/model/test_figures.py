"""Figures 4.4 to 4.8: the logistics example, from declarations to events. [ME-5]"""

from typing import Any

from rapport.mediation.codegen.transformer import Transformer, make_transformer
from rapport.mediation.conversion.conversions import Call, converts
from rapport.mediation.interpretations.model import Interpretation, Rule, TypeMapping
from rapport.mediation.interpretations.registry import InterpretationRegistry
from rapport.mediation.interpretations.type_changes import Declare, apply_change
from rapport.mediation.plans import ConvertStep, ObjectStep

EVENT = {
    "productId": "p1",
    "pos": {"x": 730.0, "y": -1110.0},
    "dynamicPrice": {"currency": "EUR", "amount": 10.0},
    "dynamicCost": {"currency": "EUR", "amount": 4.0},
}


def transformer(
    held: InterpretationRegistry, name: str, kind: str, direction: Any, parts: Any
) -> Transformer:
    return make_transformer(held, name, kind, direction, parts["functions"])


def test_figure_4_5_root_has_types_and_conversions_but_no_mappings(
    logistics: InterpretationRegistry,
) -> None:
    assert logistics.canonical.mappings == ()
    assert logistics.checked("root").problems == ()
    convert = logistics.checked("us").scope.conversions["meters-to-feet"]
    assert convert.signature() == "(number) -> number"


def test_figure_4_6_the_us_interpretation_resolves_to_its_three_rules(
    logistics: InterpretationRegistry,
) -> None:
    (step,) = logistics.plan("us", "ProductStatusEvent", "out").stages
    assert isinstance(step, ObjectStep)
    rules = {
        part.attribute: part.step.rule for part in step.parts if isinstance(part.step, ConvertStep)
    }
    assert rules == {
        "pos": "Position -> toLatLonCoordinates",
        "dynamicPrice": "Money -> toDollars",
        "dynamicCost": "ProductStatusEvent.dynamicCost -> toIdentity",
    }


def test_figure_4_7_a_product_status_event_becomes_that_of_a_customer(
    logistics: InterpretationRegistry, parts: dict[str, Any]
) -> None:
    made = transformer(logistics, "us", "ProductStatusEvent", "out", parts)
    assert made.plan.result_type == "CustomerProductStatusEvent"
    assert made(EVENT) == {
        "productId": "p1",
        "pos": {"lat": 48.99, "lon": 8.01},
        "dynamicPrice": {"currency": "USD", "amount": 12.5},
        "dynamicCost": {"currency": "EUR", "amount": 4.0},
    }
    assert EVENT["pos"] == {"x": 730.0, "y": -1110.0}


def test_figure_4_8_a_grandchild_is_transformed_directly_with_one_stage(
    logistics: InterpretationRegistry, parts: dict[str, Any]
) -> None:
    texas = Interpretation(
        name="texas",
        parent="us",
        rules=(Rule("ProductStatusEvent.dynamicCost", "toDollars"),),
    )
    held, problems = apply_change(logistics, Declare(texas))
    assert "texas" in held, problems
    made = transformer(held, "texas", "ProductStatusEvent", "out", parts)
    assert len(made.plan.stages) == 1
    assert made(EVENT)["dynamicCost"] == {"currency": "USD", "amount": 5.0}
    assert made(EVENT)["pos"] == {"lat": 48.99, "lon": 8.01}
    parent = transformer(held, "us", "ProductStatusEvent", "out", parts)
    assert parent(EVENT)["dynamicCost"] == EVENT["dynamicCost"], "the parent is as it was"


def test_figure_4_4_a_client_of_root_gets_events_as_they_are(
    logistics: InterpretationRegistry,
) -> None:
    assert logistics.plan("root", "ProductStatusEvent", "out").stages == ()


def test_a_mapping_of_the_child_overrides_that_of_the_parent(
    logistics: InterpretationRegistry, parts: dict[str, Any]
) -> None:
    texas = Interpretation(
        name="texas",
        parent="us",
        types=(parts["us"].types[1].__class__("TexanEvent", parts["us"].types[1].attributes),),
        mappings=(TypeMapping("ProductStatusEvent", "TexanEvent", "out"),),
    )
    held, problems = apply_change(logistics, Declare(texas))
    assert held.plan("texas", "ProductStatusEvent", "out").result_type == "TexanEvent", problems
    assert held.plan("us", "ProductStatusEvent", "out").result_type != "TexanEvent"


def test_a_mapping_of_a_subtype_counts_more_for_its_instances(
    logistics: InterpretationRegistry, parts: dict[str, Any]
) -> None:
    complex_type = type(parts["money"])
    special = complex_type("SpecialStatus", (), ("ProductStatusEvent",))
    target = complex_type("SpecialCustomer", (), ("CustomerProductStatusEvent",))
    held, problems = apply_change(
        logistics,
        Declare(
            Interpretation(
                name="special",
                parent="us",
                types=(special, target),
                mappings=(TypeMapping("SpecialStatus", "SpecialCustomer", "out"),),
            )
        ),
    )
    assert "special" in held, problems
    assert held.plan("special", "SpecialStatus", "out").result_type == "SpecialCustomer"
    other = held.plan("special", "ProductStatusEvent", "out").result_type
    assert other == "CustomerProductStatusEvent"


def test_a_conversion_may_be_overridden_only_with_the_same_signature(
    logistics: InterpretationRegistry, parts: dict[str, Any]
) -> None:
    good = converts("toDollars", "Money", "Money", Call("to_texan_dollars"))
    texas = Interpretation(name="texas", parent="us", conversions=(good,))
    held, _ = apply_change(logistics, Declare(texas))
    functions = {**parts["functions"], "to_texan_dollars": lambda money: {**money, "amount": 1.0}}
    made = make_transformer(held, "texas", "ProductStatusEvent", "out", functions)
    assert made(EVENT)["dynamicPrice"]["amount"] == 1.0
    bad = converts("toDollars", "Money", "Position", Call("to_texan_dollars"))
    texas = Interpretation(name="texas", parent="us", conversions=(bad,))
    after, problems = apply_change(held, Declare(texas))
    assert after is held
    assert "conversion.signature" in [each.code for each in problems]
