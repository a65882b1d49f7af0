"""Units alone suffice: rules, conversions and types that nobody wrote. [ME-10, ME-11]"""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import Problem
from rapport.mediation.codegen.transformer import make_transformer
from rapport.mediation.concepts import ConceptAttribute, canonical_model
from rapport.mediation.conversion.conversions import (
    Call,
    Conversion,
    Enumeration,
    Formula,
    UnitChange,
    converts,
)
from rapport.mediation.conversion.lookups import TableLookup
from rapport.mediation.conversion.places import FixedOrigin, MovingOrigin, ToAbsolute
from rapport.mediation.declarations.files import Declarations, read_declarations
from rapport.mediation.declarations.inference import complete_declarations, infer
from rapport.mediation.declarations.typed_tables import UnitDeclaration
from rapport.mediation.interpretations.model import (
    DropAttribute,
    Interpretation,
    RenameAttribute,
    Rule,
    TypeMapping,
)
from rapport.mediation.interpretations.registry import InterpretationRegistry
from rapport.mediation.interpretations.type_changes import load_all
from rapport.mediation.types import Attribute, ComplexType, PrimitiveType, is_type_name
from rapport.units.catalogue import BY_NAME, UNITS
from rapport.units.quantities import converter

replace = msgspec.structs.replace


def completed(text: str, root: Interpretation) -> Declarations:
    known = [each.name for each in root.types]
    return complete_declarations(
        read_declarations("a.toml", text.encode(), "toml", known=known), root
    )


def in_force(found: Declarations, root: Interpretation) -> InterpretationRegistry:
    assert not found.problems, "\n".join(each.as_text() for each in found.problems)
    held, outcomes = load_all([root, *found.interpretations.values()])
    for name, (_, problems) in outcomes.items():
        assert not [each for each in problems if each.severity == "error"], (name, problems)
    return held


def test_ten_lines_are_enough_for_a_feed_in_other_units(root: Interpretation) -> None:
    text = """
    [interpretations.us.types.UsWeather]
    station = "text"
    temp = { type = "degF", optional = true }
    humidity = { unit = "fraction", optional = true }
    gust = { type = "mph", optional = true }
    [[interpretations.us.mappings]]
    from = "UsWeather"
    to = "station"
    direction = "in"
    rename = { station = "key", temp = "temperature", gust = "wind" }
    """
    held = in_force(completed(text, root), root)
    to_root = make_transformer(held, "us", "UsWeather", "in")
    assert to_root({"station": "KJFK", "temp": 77, "humidity": 0.5}) == {
        "key": "KJFK",
        "temperature": 25.0,
        "humidity": 50.0,
    }


def test_units_alone_derive_the_type_the_mappings_and_the_rules(root: Interpretation) -> None:
    text = """
    [interpretations.us]
    units = { "station.temperature" = "fahrenheit", "station.position" = "ft" }
    """
    found = completed(text, root)
    us = found.interpretations["us"]
    assert [str(each) for each in us.mappings] == [
        "us station => station (in)",
        "station => us station (out)",
    ]
    derived = next(each for each in us.types if each.name == "us station")
    assert isinstance(derived, ComplexType)
    original = next(each for each in root.types if each.name == "station")
    assert isinstance(original, ComplexType)
    assert [each.name for each in derived.attributes] == [each.name for each in original.attributes]
    assert [each.optional for each in derived.attributes] == [
        each.optional for each in original.attributes
    ]
    held = in_force(found, root)
    event = {"key": "s", "time": 5, "temperature": 77.0, "position": {"x": 10.0, "y": 0.0}}
    meant = {"key": "s", "time": 5, "temperature": 25.0, "position": {"x": 3.048, "y": 0.0}}
    assert make_transformer(held, "us", "us station", "in")(event) == meant
    assert make_transformer(held, "us", "station", "out")(meant) == event


def test_a_child_adds_to_the_units_of_its_parent(root: Interpretation) -> None:
    text = """
    [interpretations."us/desk"]
    units = { "station.wind" = "mph" }
    [interpretations.us]
    units = { "station.temperature" = "degF", "station.wind" = "kn" }
    """
    held = in_force(completed(text, root), root)
    shown = make_transformer(held, "us/desk", "station", "out")
    assert shown({"key": "s", "temperature": 25, "wind": 0.44704}) == {
        "key": "s",
        "temperature": 77.0,
        "wind": 1.0,
    }


@pytest.mark.parametrize(
    ("wish", "code", "hint"),
    [
        ('"station.temperaturr" = "degF"', "mapping.no_place", "did you mean 'temperature'?"),
        ('"stations.temperature" = "degF"', "type.unknown", "did you mean 'station'?"),
        ('"station.temperature" = "degG"', "unit.unknown", "did you mean 'deg"),
        ('"station.temperature" = "m"', "unit.mismatch", "degC"),
        ('"station.count" = "m"', "unit.no_target", "the canonical unit"),
        ('"station.name" = "m"', "unit.no_target", "the canonical unit"),
        ('"station.position" = "degF"', "unit.mismatch", ""),
    ],
)
def test_an_impossible_unit_declaration_is_reported_at_its_line(
    root: Interpretation, wish: str, code: str, hint: str
) -> None:
    found = completed(f"[interpretations.us.units]\n\n{wish}\n", root)
    (problem,) = found.problems
    assert (problem.code, problem.file, problem.line) == (code, "a.toml", 3)
    assert hint in problem.hint
    assert not found.interpretations


def test_a_number_without_a_unit_is_refused_with_a_likely_unit(root: Interpretation) -> None:
    text = """
    [interpretations.us.types.UsWeather]
    key = "text"
    gust_mph = { type = "number", optional = true }
    temperature = { type = "number", optional = true }
    [[interpretations.us.mappings]]
    from = "UsWeather"
    to = "station"
    direction = "both"
    rename = { gust_mph = "wind" }
    """
    found = completed(text, root)
    assert [(each.code, each.line) for each in found.problems] == [
        ("unit.undeclared", 4),
        ("unit.undeclared", 5),
    ]
    assert found.problems[0].hint == "the name 'gust_mph' looks like unit = 'mph'"
    assert 'temperature = "degC"' in found.problems[1].hint
    assert "us" not in found.interpretations


def test_a_missing_canonical_unit_is_reported(root: Interpretation) -> None:
    text = """
    [interpretations.us.types.UsWeather]
    key = "text"
    count = { type = "m", optional = true }
    [[interpretations.us.mappings]]
    from = "UsWeather"
    to = "station"
    direction = "in"
    """
    (problem,) = completed(text, root).problems
    assert (problem.code, problem.line) == ("unit.no_target", 4)


DEEP_ROOT = Interpretation(
    name="root",
    parent="",
    types=(
        PrimitiveType("degC", "number"),
        PrimitiveType("m/s", "number"),
        ComplexType("Wind", (Attribute("speed", "m/s"), Attribute("gusts", "[m/s]"))),
        ComplexType("Layer", (Attribute("wind", "Wind"), Attribute("temperature", "degC"))),
        ComplexType("Report", (Attribute("layers", "[Layer]"), Attribute("name", "text"))),
    ),
)
DEEP = Interpretation(
    name="us",
    types=(
        PrimitiveType("degF", "number"),
        PrimitiveType("mph", "number"),
        ComplexType("UsWind", (Attribute("speed", "mph"), Attribute("gusts", "[mph]"))),
        ComplexType("UsLayer", (Attribute("wind", "UsWind"), Attribute("temperature", "degF"))),
        ComplexType("UsReport", (Attribute("layers", "[UsLayer]"), Attribute("label", "text"))),
    ),
    mappings=(
        TypeMapping("UsReport", "Report", "in", (RenameAttribute("label", "name"),)),
        TypeMapping("Report", "UsReport", "out", (RenameAttribute("name", "label"),)),
    ),
)


def test_units_are_found_below_nested_types_lists_and_renames() -> None:
    found = infer(DEEP, DEEP_ROOT)
    assert not found.problems
    assert {(each.pattern, each.conversion) for each in found.interpretation.rules} == {
        ("UsReport.layers(UsLayer).temperature", "degF to degC"),
        ("UsReport.layers(UsLayer).wind.speed", "mph to m/s"),
        ("UsReport.layers(UsLayer).wind.gusts(mph)", "mph to m/s"),
        ("Report.layers(Layer).temperature", "degC to degF"),
        ("Report.layers(Layer).wind.speed", "m/s to mph"),
        ('Report.layers(Layer).wind.gusts("m/s")', "m/s to mph"),
    }
    held, outcomes = load_all([DEEP_ROOT, found.interpretation])
    assert "us" in held, outcomes
    event = {
        "layers": [{"wind": {"speed": 10, "gusts": [20, 30]}, "temperature": 212}],
        "label": "n",
    }
    meant = make_transformer(held, "us", "UsReport", "in")(event)
    assert meant["name"] == "n"
    assert meant["layers"][0]["temperature"] == 100.0
    assert meant["layers"][0]["wind"]["gusts"] == [8.9408, 13.4112]
    back = make_transformer(held, "us", "Report", "out")(meant)
    assert back["layers"][0]["wind"] == {
        "speed": pytest.approx(10),
        "gusts": [pytest.approx(20), pytest.approx(30)],
    }


def test_a_rule_that_decides_is_left_to_decide() -> None:
    own = converts("mine", "degF", "degC", Formula(0.5))
    rules = (Rule("degF", "mine"),)
    given = Interpretation(
        name="us",
        types=DEEP.types,
        mappings=DEEP.mappings[:1],
        rules=rules,
        conversions=(own,),
    )
    found = infer(given, DEEP_ROOT).interpretation
    assert "degF to degC" not in [each.name for each in found.conversions]
    assert all("temperature" not in each.pattern for each in found.rules)


def test_a_conversion_whose_signature_fits_is_used_before_arithmetic() -> None:
    own = converts("measured", "degF", "degC", Formula(0.5, -16))
    given = Interpretation(
        name="us", types=DEEP.types, mappings=DEEP.mappings[:1], conversions=(own,)
    )
    found = infer(given, DEEP_ROOT).interpretation
    assert ("UsReport.layers(UsLayer).temperature", "measured") in [
        (each.pattern, each.conversion) for each in found.rules
    ]


def test_two_conversions_that_fit_are_never_chosen_between() -> None:
    both = tuple(converts(name, "degF", "degC", Formula(0.5)) for name in ("one", "two"))
    given = Interpretation(
        name="us", types=DEEP.types, mappings=DEEP.mappings[:1], conversions=both
    )
    ((place, problem),) = infer(given, DEEP_ROOT).problems
    assert place == "UsReport.layers[].temperature"
    assert problem.code == "conversion.ambiguous"
    assert "one and two lead from degF to degC" in problem.message


WORDS = Interpretation(
    name="desk",
    types=(
        PrimitiveType("Word", "text"),
        PrimitiveType("mph", "number"),
        ComplexType("Told", (Attribute("state", "Word"), Attribute("wind", "mph"))),
    ),
    mappings=(TypeMapping("Told", "Known", "in"), TypeMapping("Known", "Told", "out")),
)
WORDS_ROOT = Interpretation(
    name="root",
    parent="",
    types=(
        PrimitiveType("State", "number"),
        PrimitiveType("m/s", "number"),
        ComplexType("Known", (Attribute("state", "State"), Attribute("wind", "m/s"))),
    ),
)


def declared_in_words(*conversions: Conversion) -> Interpretation:
    return infer(replace(WORDS, conversions=conversions), WORDS_ROOT).interpretation


def test_one_conversion_serves_both_directions() -> None:
    words = converts("words", "Word", "State", Enumeration((("ok", 1), ("fine", 1), ("bad", 2))))
    found = declared_in_words(words)
    assert infer(found, WORDS_ROOT).interpretation == found
    held, outcomes = load_all([WORDS_ROOT, found])
    assert "desk" in held, outcomes["desk"]
    there = make_transformer(held, "desk", "Told", "in")
    back = make_transformer(held, "desk", "Known", "out")
    meant = there({"state": "fine", "wind": 10.0})
    assert meant == {"state": 1, "wind": 4.4704}
    assert back(meant) == {"state": "ok", "wind": pytest.approx(10.0)}


def test_there_is_no_way_back_where_two_lead_there_or_none_leads_back() -> None:
    one = converts("one", "Word", "State", Enumeration((("ok", 1),)))
    other = converts("other", "Word", "State", Enumeration((("ok", 2),)))
    rule = Rule("Told.state", "one", "in")
    given = replace(WORDS, conversions=(one, other), rules=(rule,))
    found = infer(given, WORDS_ROOT).interpretation
    assert "State to Word" not in [each.name for each in found.conversions]
    looked_up = converts("one", "Word", "State", TableLookup("states", ("number",)))
    assert [each.name for each in declared_in_words(looked_up).conversions] == [
        "one", "mph to m/s", "m/s to mph",
    ]  # fmt: skip


def test_a_conversion_with_memory_has_no_inverse() -> None:
    origin = MovingOrigin("Ship")
    moving = converts("moved", "Word", "State", ToAbsolute(origin))
    fixed = converts("moved", "Word", "State", ToAbsolute(FixedOrigin(1, 2)))
    assert "State to Word" not in [each.name for each in declared_in_words(moving).conversions]
    assert "State to Word" in [each.name for each in declared_in_words(fixed).conversions]


def test_an_open_signature_is_that_of_the_places_where_its_rule_counts() -> None:
    given = Interpretation(
        name="us",
        types=DEEP.types,
        mappings=DEEP.mappings[:1],
        rules=(Rule("UsWind", "turn"),),
        conversions=(Conversion("turn", (), (), Call("site:turn")),),
    )
    found = infer(given, DEEP_ROOT).interpretation
    assert found.conversions[0].signature() == "(UsWind) -> Wind"


def test_one_event_per_element_is_in_the_unit_of_root() -> None:
    root = Interpretation(
        name="root",
        parent="",
        types=(
            PrimitiveType("degC", "number"),
            ComplexType("Reading", (Attribute("temperature", "degC"),)),
        ),
    )
    us = Interpretation(
        name="us",
        types=(
            PrimitiveType("degF", "number"),
            ComplexType("Series", (Attribute("values", "[degF]"), Attribute("note", "text"))),
        ),
        mappings=(
            TypeMapping(
                "Series",
                "Reading",
                "in",
                (DropAttribute("note"), RenameAttribute("values", "temperature")),
                "values",
            ),
        ),
    )
    held, outcomes = load_all([root, infer(us, root).interpretation])
    assert "us" in held, outcomes
    several = make_transformer(held, "us", "Series", "in")
    assert several({"values": [32, 212], "note": ""}) == [
        {"temperature": 0.0},
        {"temperature": 100.0},
    ]


def test_attributes_that_the_other_side_lacks_can_be_dropped(root: Interpretation) -> None:
    text = """
    [interpretations.desk.types.Shown]
    label = "text"
    temperature = { type = "degF", optional = true }
    colour = { type = "text", optional = true }
    [[interpretations.desk.mappings]]
    from = "Shown"
    to = "station"
    direction = "both"
    rename = { label = "key" }
    drop = ["*"]
    """
    found = completed(text, root)
    held = in_force(found, root)
    back = make_transformer(held, "desk", "station", "out")
    assert back({"key": "s", "temperature": 25, "wind": 3.0}) == {"label": "s", "temperature": 77.0}
    forth = make_transformer(held, "desk", "Shown", "in")
    assert forth({"label": "s", "colour": "red"}) == {"key": "s"}
    again = infer(found.interpretations["desk"], root).interpretation
    assert again == found.interpretations["desk"]


def test_inferring_again_adds_nothing() -> None:
    once = infer(DEEP, DEEP_ROOT).interpretation
    assert infer(once, DEEP_ROOT).interpretation == once


def test_faulty_types_are_left_for_the_checks_that_follow() -> None:
    faulty = Interpretation(
        name="us",
        types=(ComplexType("A", (Attribute("a", "[A]"),)),),
        mappings=(TypeMapping("A", "Report", "in"),),
    )
    assert infer(faulty, DEEP_ROOT).interpretation == faulty
    unknown = Interpretation(name="us", mappings=(TypeMapping("Nobody", "Report", "in"),))
    assert infer(unknown, DEEP_ROOT).interpretation == unknown


def test_parents_in_circles_and_faulty_ones_do_not_stop_the_others(root: Interpretation) -> None:
    text = """
    [interpretations.a]
    parent = "b"
    units = { "station.wind" = "kn" }
    [interpretations.b]
    parent = "a"
    [interpretations.good]
    units = { "station.wind" = "kn" }
    [interpretations.bad]
    units = { "station.wind" = "kg" }
    """
    found = completed(text, root)
    assert [each.code for each in found.problems] == ["unit.mismatch"]
    assert set(found.interpretations) == {"a", "b", "good"}


@given(st.data())
def test_any_two_units_of_a_dimension_are_turned_into_each_other(data: st.DataObject) -> None:
    units = [each for each in UNITS if is_type_name(each.symbol)]
    one = data.draw(st.sampled_from(units))
    same = [each for each in units if each.dimension == one.dimension]
    other = data.draw(st.sampled_from(same))
    alias = data.draw(st.sampled_from([one.symbol, *one.names]))
    value = data.draw(st.floats(-1e6, 1e6))
    concepts: Any = {"thing": {"value": ConceptAttribute("number", other.symbol)}}
    root, _ = canonical_model(concepts)
    found = infer(Interpretation(name="x"), root, (), (UnitDeclaration("thing.value", alias),))
    assert not found.problems
    held, outcomes = load_all([root, found.interpretation])
    assert "x" in held, outcomes
    to_root = make_transformer(held, "x", "x thing", "in")
    expected = converter(one.symbol, other.symbol).apply(value)
    assert to_root({"key": "k", "value": value})["value"] == expected
    assert alias in BY_NAME
    kinds = [each.how for each in found.interpretation.conversions]
    assert all(isinstance(each, UnitChange) for each in kinds)


def test_problems_name_the_interpretation(root: Interpretation) -> None:
    found = completed('[interpretations.us]\nunits = { "station.wind" = "kg" }', root)
    problem: Problem = found.problems[0]
    assert problem.message.startswith("us: ")
