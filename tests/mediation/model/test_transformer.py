"""Generated transformers: shapes, subtypes, state, bad values, and text that stays text.
[ME-4, ME-8, ME-17]
"""

from typing import Any

import numpy as np
import pytest

from benchmarks.mediation.column_expressions import apply_formulas, column_plan
from rapport.core.errors import InterpretationError, Unsupported
from rapport.mediation.codegen.transformer import Transformer, make_transformer
from rapport.mediation.conversion.conversions import (
    Call,
    Conversion,
    Cut,
    Formula,
    Gather,
    Identity,
    Join,
    Lookup,
    Rename,
    Scatter,
    Stateful,
    UnitChange,
    converts,
)
from rapport.mediation.interpretations.model import (
    CreateAttribute,
    DropAttribute,
    Interpretation,
    MergeAttributes,
    RenameAttribute,
    Rule,
    ShapeStep,
    SplitAttribute,
    TypeMapping,
)
from rapport.mediation.interpretations.registry import InterpretationRegistry
from rapport.mediation.interpretations.type_changes import load_all
from rapport.mediation.memory import ConversionMemory
from rapport.mediation.rejections import RejectedValue
from rapport.mediation.types import Attribute, ComplexType, PrimitiveType, Type


def held(
    types: tuple[Type, ...],
    rules: tuple[Rule, ...] = (),
    conversions: tuple[Conversion, ...] = (),
    mappings: tuple[TypeMapping, ...] = (),
) -> InterpretationRegistry:
    child = Interpretation(
        name="c", rules=rules, conversions=conversions, mappings=mappings, types=types
    )
    found, outcomes = load_all([child])
    assert "c" in found, outcomes["c"][1]
    return found


def made(*given: Any, kind: str = "A", functions: Any = None, memory: Any = None) -> Transformer:
    return make_transformer(held(*given), "c", kind, "in", functions, memory)


def reshaped(
    source: ComplexType,
    target: ComplexType,
    *shape: ShapeStep,
    conversions: Any = (),
    each: str = "",
) -> Transformer:
    types = (*BELOW, source, target)
    mapping = TypeMapping(source.name, target.name, "in", shape, each)
    return made(types, (), conversions, (mapping,), functions=FUNCTIONS, kind=source.name)


FUNCTIONS = {
    "fail": lambda value: 1 / 0,
    "wrong": lambda value: "not what was promised",
    "nan": lambda value: float("nan"),
    "add": lambda one, two: one + two,
    "divide": lambda value: (value // 10, value % 10),
    "triple": lambda value: [value],
}
POINT = ComplexType("Point", (Attribute("x", "number"), Attribute("y", "number")))
BELOW: tuple[Type, ...] = (POINT,)


# --- shapes (ME-17)


def test_attributes_are_renamed_dropped_and_created() -> None:
    source = ComplexType("A", (Attribute("a", "number"), Attribute("b", "number", True)))
    target = ComplexType("B", (Attribute("z", "number"), Attribute("new", "text")))
    change = reshaped(
        source,
        target,
        RenameAttribute("a", "z"),
        DropAttribute("b"),
        CreateAttribute("new", "text", "x"),
    )
    assert change({"a": 1, "b": 2}) == {"z": 1, "new": "x"}
    assert change({"a": 1}) == {"z": 1, "new": "x"}


def test_attributes_are_merged_and_split_by_conversions() -> None:
    source = ComplexType("A", (Attribute("first", "text"), Attribute("last", "text")))
    target = ComplexType("B", (Attribute("name", "text"),))
    join = Conversion("join", ("text", "text"), ("text",), Join(" "))
    cut = Conversion("cut", ("text",), ("text", "text"), Cut(" "))
    there = reshaped(
        source, target, MergeAttributes(("first", "last"), "name", "join"), conversions=(join,)
    )
    back = make_transformer(
        held(
            (source, target),
            (),
            (cut,),
            (TypeMapping("B", "A", "in", (SplitAttribute("name", ("first", "last"), "cut"),)),),
        ),
        "c",
        "B",
        "in",
    )
    assert there({"first": "Ada", "last": "King Lovelace"}) == {"name": "Ada King Lovelace"}
    assert back({"name": "Ada King Lovelace"}) == {"first": "Ada", "last": "King Lovelace"}
    with pytest.raises(RejectedValue) as caught:
        back({"name": "Ada"})
    assert caught.value.code == "value.too_few_parts"


def test_figure_3_2_flat_attributes_become_a_nested_object_and_back() -> None:
    flat = ComplexType("A", (Attribute("x", "number"), Attribute("y", "number")))
    nested = ComplexType("B", (Attribute("position", "Point"),))
    gather = Conversion("gather", ("number", "number"), ("Point",), Gather(("x", "y")))
    scatter = Conversion("scatter", ("Point",), ("number", "number"), Scatter(("x", "y")))
    there = reshaped(
        flat, nested, MergeAttributes(("x", "y"), "position", "gather"), conversions=(gather,)
    )
    assert there({"x": 25, "y": 30}) == {"position": {"x": 25, "y": 30}}
    back = reshaped(
        nested,
        ComplexType("C", flat.attributes),
        SplitAttribute("position", ("x", "y"), "scatter"),
        conversions=(scatter,),
    )
    assert back({"position": {"x": 25, "y": 30}}) == {"x": 25, "y": 30}


def test_functions_of_the_site_merge_and_split_too() -> None:
    source = ComplexType("A", (Attribute("a", "number"), Attribute("b", "number")))
    target = ComplexType("B", (Attribute("tens", "number"), Attribute("ones", "number")))
    change = reshaped(
        source,
        target,
        MergeAttributes(("a", "b"), "sum", "add"),
        SplitAttribute("sum", ("tens", "ones"), "divide"),
        conversions=(
            Conversion("add", ("number", "number"), ("number",), Call("add")),
            Conversion("divide", ("number",), ("number", "number"), Call("divide")),
        ),
    )
    assert change({"a": 12, "b": 30}) == {"tens": 4, "ones": 2}
    with pytest.raises(RejectedValue, match="has no attribute 'b'"):
        change({"a": 12})


def test_an_event_is_reduced_to_its_super_type() -> None:
    base = ComplexType("Base", (Attribute("a", "number"),))
    source = ComplexType("A", (Attribute("b", "number"),), ("Base",))
    change = made((base, source), (), (), (TypeMapping("A", "Base", "in"),))
    assert change.plan.result_type == "Base"
    assert change({"a": 1, "b": 2, "unknown": 3}) == {"a": 1}


def test_an_event_of_a_subtype_is_mapped_as_its_mapped_super_type() -> None:
    base = ComplexType("Base", (Attribute("a", "number"),))
    source = ComplexType("A", (Attribute("b", "number"),), ("Base",))
    target = ComplexType("Target", (Attribute("a", "number"),))
    change = made((base, source, target), (), (), (TypeMapping("Base", "Target", "in"),))
    assert change({"a": 1, "b": 2}) == {"a": 1}


def test_one_event_becomes_several_one_for_each_element() -> None:
    line = ComplexType("Line", (Attribute("item", "text"), Attribute("price", "number")))
    source = ComplexType("A", (Attribute("order", "text"), Attribute("lines", "[Line]")))
    target = ComplexType(
        "B", (Attribute("order", "text"), Attribute("item", "text"), Attribute("price", "number"))
    )
    scatter = Conversion("parts", ("Line",), ("text", "number"), Scatter(("item", "price")))
    cents = converts("cents", "number", "number", Formula(100.0))
    mapping = TypeMapping(
        "A", "B", "in", (SplitAttribute("lines", ("item", "price"), "parts"),), each="lines"
    )
    change = made(
        (line, source, target), (Rule("Line.price", "cents"),), (scatter, cents), (mapping,)
    )
    assert change.plan.several
    event = {"order": "o", "lines": [{"item": "a", "price": 1}, {"item": "b", "price": 2.5}]}
    assert change(event) == [
        {"order": "o", "item": "a", "price": 100.0},
        {"order": "o", "item": "b", "price": 250.0},
    ]
    found = change.batch([event, {"order": "o", "lines": None}, event])
    assert len(found.results) == 4
    assert [(index, each.code) for index, each in found.rejected] == [(1, "value.not_a_list")]


def test_a_rule_on_the_event_may_give_several_events() -> None:
    source, target = ComplexType("A", (Attribute("a", "number"),)), ComplexType("B")
    whole = converts("triple", "A", "[B]", Call("triple"))
    change = made(
        (source, target),
        (Rule("A", "triple"),),
        (whole,),
        (TypeMapping("A", "B", "in"),),
        functions=FUNCTIONS,
    )
    assert change.plan.several
    assert change({"a": 1}) == [{"a": 1}]


# --- subtypes and tags


def test_a_subtype_is_converted_by_its_own_rule_and_an_unknown_one_rejected() -> None:
    high = ComplexType("High", (Attribute("z", "number"),), ("Point",))
    source = ComplexType("A", (Attribute("at", "Point"),))
    change = made(
        (POINT, high, source),
        (Rule("A.at(High).z", "double"),),
        (converts("double", "number", "number", Formula(2.0)),),
    )
    assert change({"at": {"x": 1, "y": 1}}) == {"at": {"x": 1, "y": 1}}
    tagged = {"at": {"@type": "High", "x": 1, "y": 1, "z": 2}}
    assert change(tagged) == {"at": {"@type": "High", "x": 1, "y": 1, "z": 4.0}}
    with pytest.raises(RejectedValue) as caught:
        change({"at": {"@type": "Low"}})
    assert caught.value.code == "value.unknown_type"


def test_tags_follow_mappings_of_nested_types() -> None:
    metre, foot = PrimitiveType("Metre", "number"), PrimitiveType("Foot", "number")
    place = ComplexType("Place", (Attribute("x", "Foot"),))
    high = ComplexType("High", (Attribute("z", "Foot"),), ("Place",))
    root_place = ComplexType("RootPlace", (Attribute("x", "Metre"),))
    root_high = ComplexType("RootHigh", (Attribute("z", "Metre"),), ("RootPlace",))
    source = ComplexType("A", (Attribute("at", "Place"),))
    target = ComplexType("B", (Attribute("at", "RootPlace"),))
    change = made(
        (metre, foot, place, high, root_place, root_high, source, target),
        (Rule("Foot", "metres"),),
        (converts("metres", "Foot", "Metre", UnitChange("ft", "m")),),
        (TypeMapping("A", "B", "in"), TypeMapping("High", "RootHigh", "in")),
    )
    assert change({"at": {"@type": "High", "x": 10.0, "z": 20.0}}) == {
        "at": {"@type": "RootHigh", "x": 3.048, "z": 6.096}
    }
    assert change({"at": {"@type": "Place", "x": 10.0}}) == {"at": {"x": 3.048}}


# --- conversions (ME-4)


def test_state_is_explicit_and_fed_by_events() -> None:
    source = ComplexType("A", (Attribute("at", "Point"),))
    truck = converts(
        "absolute",
        "Point",
        "Point",
        Stateful("shift", b'{"x":0,"y":0,"seen":0}', feed="Truck", update="moved"),
    )

    def shift(state: Any, value: Any) -> Any:
        result = {"x": state["x"] + value["x"], "y": state["y"] + value["y"]}
        return {**state, "seen": state["seen"] + 1}, result

    functions = {"shift": shift, "moved": lambda state, event: {**state, **event}}
    memory = ConversionMemory()
    types = (POINT, source, ComplexType("Truck", POINT.attributes))
    change = made(types, (Rule("Point", "absolute"),), (truck,), functions=functions, memory=memory)
    assert change({"at": {"x": 1, "y": 2}}) == {"at": {"x": 1, "y": 2}}
    memory.feed(truck, {"x": 100, "y": 50}, functions)
    assert change({"at": {"x": 1, "y": 2}}) == {"at": {"x": 101, "y": 52}}
    assert memory.states["absolute"]["seen"] == 2
    again = ConversionMemory(memory.states)
    assert again.state_of(truck)["x"] == 100


def test_lookups_distinguish_numbers_from_booleans_and_reject_unknown_keys() -> None:
    source = ComplexType("A", (Attribute("a", "json"), Attribute("o", "Point", True)))
    table = Lookup(((1, "one"), (True, "yes"), ("x", "ex")))
    renamed = converts("renamed", "Point", "Point", Rename((("x", "y"), ("y", "x"))))
    change = made(
        (POINT, source),
        (Rule("A.a", "look"), Rule("Point", "renamed")),
        (converts("look", "json", "json", table), renamed),
    )
    assert [change({"a": key})["a"] for key in (1, True, "x")] == ["one", "yes", "ex"]
    assert change({"a": 1, "o": {"x": 1, "y": 2}})["o"] == {"y": 1, "x": 2}
    for odd in (2, [], {}, False):
        with pytest.raises(RejectedValue) as caught:
            change({"a": odd})
        assert caught.value.code == "lookup.unknown"


def test_a_rename_gives_exactly_the_declared_type() -> None:
    base = ComplexType("Base")
    here = ComplexType("Here", (Attribute("x", "number"), Attribute("note", "text")), ("Base",))
    there = ComplexType("There", (Attribute("y", "number"),), ("Base",))
    source = ComplexType("A", (Attribute("o", "Base"), Attribute("many", "[Base]")))
    change = made(
        (base, here, there, source),
        (Rule("Here", "renamed"),),
        (converts("renamed", "Here", "There", Rename((("x", "y"),))),),
    )
    value = {"@type": "Here", "x": 1, "note": "n", "strange": 2, "y": 3}
    expected = {"y": 1, "@type": "There"}
    assert change({"o": value, "many": [value, {}]}) == {"o": expected, "many": [expected, {}]}


def test_a_result_of_a_subtype_names_its_type_without_a_mapping_too() -> None:
    base = ComplexType("Base", (Attribute("x", "number"),))
    sub = ComplexType("Sub", (Attribute("y", "number"),), ("Base",))
    source = ComplexType("A", (Attribute("o", "Base"),))
    change = made(
        (base, sub, source),
        (Rule("Base", "more"),),
        (converts("more", "Base", "Sub", Call("more")),),
        functions={"more": lambda value: {"x": value["x"], "y": 2}},
    )
    assert change({"o": {"x": 1}})["o"] == {"x": 1, "y": 2, "@type": "Sub"}


def test_an_event_that_names_its_type_gets_the_target_type_of_its_mapping() -> None:
    local = ComplexType("Local", (Attribute("a", "number"),))
    given, _ = load_all(
        [
            Interpretation(
                name="root", parent="", types=(ComplexType("A", (Attribute("b", "number"),)),)
            ),
            Interpretation(
                name="us",
                types=(local,),
                mappings=(
                    TypeMapping("A", "Local", "out", (RenameAttribute("b", "a"),)),
                    TypeMapping("Local", "A", "in", (RenameAttribute("a", "b"),)),
                ),
            ),
        ]
    )
    out = make_transformer(given, "us", "A", "out")({"@type": "A", "b": 1})
    assert out == {"a": 1}
    assert make_transformer(given, "us", "Local", "in")({"@type": "Local", "a": 1}) == {"b": 1}


@pytest.mark.parametrize(
    ("function", "code"),
    [
        ("fail", "conversion.raised"),
        ("wrong", "conversion.bad_result"),
        ("nan", "conversion.bad_result"),
    ],
)
def test_a_function_that_fails_rejects_its_event_only(function: str, code: str) -> None:
    source = ComplexType("A", (Attribute("a", "number"),))
    change = made(
        (source,),
        (Rule("A.a", "f"),),
        (converts("f", "number", "number", Call(function)),),
        functions=FUNCTIONS,
    )
    found = change.batch([{"a": 1}, {"a": 2}])
    assert found.results == []
    assert [each.code for _, each in found.rejected] == [code, code]


def test_a_missing_function_is_an_error_before_any_event() -> None:
    source = ComplexType("A", (Attribute("a", "number"),))
    with pytest.raises(InterpretationError, match="there is no function 'nobody'"):
        made((source,), (Rule("A.a", "f"),), (converts("f", "number", "number", Call("nobody")),))


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (None, "value.not_a_number"),
        ("1", "value.not_a_number"),
        (True, "value.not_a_number"),
        (float("nan"), "value.not_finite"),
        (float("inf"), "value.not_finite"),
        (1e308, "value.not_finite"),
        (10**400, "value.not_finite"),
        ([], "value.not_a_number"),
    ],
)
def test_bad_numbers_are_rejected_with_their_path(value: Any, code: str) -> None:
    source = ComplexType("A", (Attribute("a", "number"),))
    change = made(
        (source,), (Rule("A.a", "f"),), (converts("f", "number", "number", Formula(100.0)),)
    )
    with pytest.raises(RejectedValue) as caught:
        change({"a": value})
    assert caught.value.code == code
    assert "A.a" in caught.value.message


# --- generated text


def test_names_from_outside_never_become_code() -> None:
    evil = "a'] = 1\nimport os\n#"
    source = ComplexType("A", (Attribute(evil, "number"), Attribute("\x00\x85", "number")))
    change = made(
        (source,), (Rule("number", "f"),), (converts("f", "number", "number", Formula(2.0)),)
    )
    assert change({evil: 1.0, "\x00\x85": 2.0}) == {evil: 2.0, "\x00\x85": 4.0}
    assert "\nimport os" not in change.source


def test_deep_types_become_flat_text() -> None:
    types: list[Type] = [ComplexType("L0", (Attribute("v", "number"),))]
    for level in range(1, 120):
        types.append(ComplexType(f"L{level}", (Attribute("a", f"[L{level - 1}]", True),)))
    change = made(
        tuple(types),
        (Rule("number", "f"),),
        (converts("f", "number", "number", Formula(2.0)),),
        kind="L119",
    )
    value: Any = {"v": 1.0}
    for _ in range(119):
        value = {"a": [value]}
    found = change(value)
    for _ in range(119):
        (found,) = found["a"]
    assert found == {"v": 2.0}
    assert max(len(line) - len(line.lstrip()) for line in change.source.splitlines()) <= 12


def test_a_rule_that_keeps_a_value_costs_nothing() -> None:
    source = ComplexType("A", (Attribute("a", "number"), Attribute("b", "number")))
    change = made(
        (source,),
        (Rule("number", "f"), Rule("A.b", "same")),
        (
            converts("f", "number", "number", Formula(2.0)),
            converts("same", "json", "json", Identity()),
        ),
    )
    assert "'b'" not in change.source
    assert change({"a": 1, "b": "anything"}) == {"a": 2.0, "b": "anything"}


# --- columns (ME-14)


def test_formulas_are_the_same_by_column_and_by_event() -> None:
    source = ComplexType("A", (Attribute("at", "Point"), Attribute("t", "number")))
    change = made(
        (POINT, source),
        (Rule("Point.number", "double"), Rule("A.t", "celsius")),
        (
            converts("double", "number", "number", Formula(2.0)),
            converts("celsius", "number", "number", UnitChange("degF", "degC")),
        ),
    )
    events = [{"at": {"x": n * 0.1, "y": -n}, "t": n * 1.7} for n in range(50)]
    expected = change.batch(events).results
    numbers = {
        ("at", "x"): np.array([each["at"]["x"] for each in events]),
        ("at", "y"): np.array([each["at"]["y"] for each in events], dtype=np.float64),
        ("t",): np.array([each["t"] for each in events]),
    }
    found = apply_formulas(column_plan(change.plan), numbers)
    assert found["at", "x"].tolist() == [each["at"]["x"] for each in expected]
    assert found["at", "y"].tolist() == [each["at"]["y"] for each in expected]
    assert found["t",].tolist() == [each["t"] for each in expected]


def test_a_step_that_is_no_column_expression_is_named() -> None:
    source = ComplexType("A", (Attribute("a", "number"),))
    change = made(
        (source,),
        (Rule("A.a", "f"),),
        (converts("f", "number", "number", Call("add")),),
        functions=FUNCTIONS,
    )
    with pytest.raises(Unsupported, match=r"A\.a: the conversion f is not supported by columns"):
        column_plan(change.plan)
