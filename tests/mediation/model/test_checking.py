"""Checks before use: complete, with rule, path, expected and found. [ME-7]"""

import pytest

from rapport.core.errors import Problem
from rapport.mediation.conversion.conversions import (
    Call,
    Conversion,
    Cut,
    Formula,
    Gather,
    Join,
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
    SplitAttribute,
    TypeMapping,
)
from rapport.mediation.interpretations.type_changes import Declare, apply_change, load_all
from rapport.mediation.types import Attribute, ComplexType, PrimitiveType

CELSIUS, FAHRENHEIT = PrimitiveType("Celsius", "number"), PrimitiveType("Fahrenheit", "number")
PLACE = ComplexType("Place", (Attribute("lat", "number"), Attribute("lon", "number")))
WEATHER = ComplexType(
    "Weather",
    (
        Attribute("temperature", "Celsius"),
        Attribute("station", "text"),
        Attribute("place", "Place", optional=True),
    ),
)
LOCAL = ComplexType(
    "LocalWeather", (Attribute("temperature", "Fahrenheit"), Attribute("station", "text"))
)
ROOT = Interpretation(name="root", parent="", types=(CELSIUS, PLACE, WEATHER))
TO_CELSIUS = converts("to-celsius", "Fahrenheit", "Celsius", UnitChange("degF", "degC"))


def local(**changes: object) -> Interpretation:
    given: dict[str, object] = {
        "name": "local",
        "types": (FAHRENHEIT, LOCAL),
        "mappings": (TypeMapping("LocalWeather", "Weather", "in"),),
        "rules": (Rule("Fahrenheit", "to-celsius"),),
        "conversions": (TO_CELSIUS,),
    }
    return Interpretation(**{**given, **changes})  # type: ignore[arg-type]


def problems_of(interpretation: Interpretation, severity: str = "error") -> list[Problem]:
    held, _ = load_all([ROOT])
    new, problems = apply_change(held, Declare(interpretation))
    assert (new is held) == any(each.severity == "error" for each in problems)
    return [each for each in problems if each.severity == severity]


def test_a_sound_interpretation_has_no_errors() -> None:
    assert problems_of(local()) == []


def test_every_wrong_rule_is_reported_with_the_expected_and_the_found_type() -> None:
    rules = (
        Rule("LocalWeather.station", "to-celsius"),
        Rule("LocalWeather.temperature2", "to-celsius"),
        Rule("Fahrenheit", "to-kelvin"),
        Rule("LocalWeather..x", "to-celsius"),
    )
    found = problems_of(local(rules=rules))
    assert [each.code for each in found[:4]] == [
        "rule.argument",
        "pattern.invalid",
        "rule.unknown_conversion",
        "pattern.syntax",
    ]
    assert "expected Fahrenheit, found text" in found[0].message
    assert found[1].hint == "did you mean 'temperature'?"
    assert found[2].hint == "did you mean 'to-celsius'?"


def test_a_result_that_the_mapping_does_not_promise_is_named_with_its_path() -> None:
    wrong = converts("to-celsius", "Fahrenheit", "Fahrenheit", Formula(2.0))
    (found,) = problems_of(local(conversions=(wrong,)))
    assert found.code == "rule.result"
    assert found.message == (
        "rule Fahrenheit -> to-celsius at LocalWeather.temperature: "
        "expected Celsius, found Fahrenheit"
    )


def test_a_unit_that_no_rule_converts_is_a_misfit_and_never_passed() -> None:
    (found,) = problems_of(local(rules=()))
    assert found.code == "mapping.misfit"
    assert found.message == "LocalWeather.temperature: expected Celsius, found Fahrenheit"


def test_attributes_without_a_place_and_places_without_an_attribute_are_named() -> None:
    extra = ComplexType(
        "LocalWeather", (Attribute("temperature", "Fahrenheit"), Attribute("name", "text"))
    )
    found = problems_of(local(types=(FAHRENHEIT, extra)))
    assert sorted((each.code, each.message) for each in found) == [
        ("mapping.incomplete", "LocalWeather: attribute 'station' of Weather comes from nowhere"),
        ("mapping.no_place", "LocalWeather: Weather has no attribute 'name'"),
    ]
    renamed = TypeMapping("LocalWeather", "Weather", "in", (RenameAttribute("name", "station"),))
    assert problems_of(local(types=(FAHRENHEIT, extra), mappings=(renamed,))) == []


def test_an_optional_attribute_does_not_fit_a_required_one() -> None:
    loose = ComplexType(
        "LocalWeather", (Attribute("temperature", "Fahrenheit"), Attribute("station", "text", True))
    )
    (found,) = problems_of(local(types=(FAHRENHEIT, loose)))
    assert found.message == "LocalWeather: attribute 'station' of Weather may be missing"


def test_default_rules_may_give_wrong_types_where_specific_rules_override_them() -> None:
    wrong = converts("wrong", "Fahrenheit", "text", Call("f"))
    rules = (Rule("Fahrenheit", "wrong"), Rule("LocalWeather.temperature", "to-celsius"))
    assert problems_of(local(rules=rules, conversions=(TO_CELSIUS, wrong))) == []


def test_a_duplicate_is_a_warning_and_the_last_one_applies() -> None:
    mappings = (
        TypeMapping("LocalWeather", "Place", "in"),
        TypeMapping("LocalWeather", "Weather", "in"),
    )
    rules = (Rule("Fahrenheit", "other"), Rule("Fahrenheit", "to-celsius"))
    other = converts("other", "Fahrenheit", "text", Call("f"))
    given = local(mappings=mappings, rules=rules, conversions=(other, TO_CELSIUS))
    assert problems_of(given) == []
    warnings = {each.code for each in problems_of(given, "warning")}
    assert {"rule.duplicate", "mapping.duplicate"} <= warnings


def test_a_rule_that_counts_nowhere_is_a_warning() -> None:
    given = local(
        rules=(Rule("Fahrenheit", "to-celsius"), Rule("Celsius", "warm")),
        conversions=(TO_CELSIUS, converts("warm", "Celsius", "Celsius", Formula(1.0, 1.0))),
    )
    assert problems_of(given, "warning") == []
    unused = Rule("Fahrenheit", "to-celsius", "out")
    found = problems_of(local(rules=(*given.rules[:1], unused)), "warning")
    assert "rule.duplicate" in [each.code for each in found]


def test_a_missing_mapping_is_an_observation() -> None:
    found = problems_of(local(mappings=(TypeMapping("LocalWeather", "Weather", "in"),)), "hint")
    assert [each.message for each in found] == ["Weather has no mapping (out) and keeps its type"]


@pytest.mark.parametrize(
    ("conversion", "code"),
    [
        (converts("c", "Nobody", "number", Formula()), "type.unknown"),
        (converts("c", "text", "number", Formula()), "conversion.signature"),
        (converts("c", "number", "integer", Formula(2.0)), "conversion.signature"),
        (converts("c", "number", "number", Formula(1.0, 0.0, 0.0)), "conversion.formula"),
        (converts("c", "number", "number", Formula(float("inf"))), "conversion.formula"),
        (converts("c", "number", "number", UnitChange("degX", "m")), "unit.unknown"),
        (converts("c", "number", "number", UnitChange("degC", "m")), "unit.mismatch"),
        (Conversion("c", (), ("number",), Call("f")), "conversion.signature"),
        (Conversion("c", ("text", "number"), ("text",), Join()), "conversion.signature"),
        (Conversion("c", ("text",), ("text", "text"), Cut("")), "conversion.signature"),
        (Conversion("c", ("number",), ("Place",), Gather(("lat",))), "conversion.signature"),
        (
            Conversion("c", ("text", "number"), ("Place",), Gather(("lat", "lon"))),
            "conversion.signature",
        ),
    ],
)
def test_a_conversion_that_cannot_work_is_refused(conversion: Conversion, code: str) -> None:
    found = problems_of(local(conversions=(TO_CELSIUS, conversion)))
    assert code in [each.code for each in found]


@pytest.mark.parametrize(
    "shape",
    [
        RenameAttribute("nobody", "station"),
        RenameAttribute("temperature", "station"),
        DropAttribute("nobody"),
        CreateAttribute("new", "Nobody", 1),
        CreateAttribute("new", "number", "text"),
        CreateAttribute("new", "number", float("inf")),
        MergeAttributes(("station", "temperature"), "place", "to-celsius"),
        MergeAttributes(("station",), "place", "nobody"),
        SplitAttribute("station", ("a", "b"), "to-celsius"),
    ],
)
def test_a_change_of_shape_that_cannot_be_is_refused(shape: object) -> None:
    mapping = TypeMapping("LocalWeather", "Weather", "in", (shape,))  # type: ignore[arg-type]
    found = problems_of(local(mappings=(mapping,)))
    assert "mapping.shape" in [each.code for each in found]


def test_mappings_name_complex_types() -> None:
    found = problems_of(local(mappings=(TypeMapping("LocalWeather", "Nobody", "in"),)))
    assert [each.code for each in found] == ["mapping.unknown_type"]


def test_a_type_of_the_parent_is_not_declared_again_with_another_meaning() -> None:
    other = ComplexType("Place", (Attribute("lat", "text"),))
    found = problems_of(local(types=(FAHRENHEIT, LOCAL, other)))
    assert "type.duplicate" in [each.code for each in found]
    assert problems_of(local(types=(FAHRENHEIT, LOCAL, PLACE))) == [], "the same is no fault"


@pytest.mark.slow
def test_types_with_too_many_paths_are_refused_not_expanded() -> None:
    types: list[ComplexType] = [ComplexType("L0", (Attribute("v", "number"),))]
    for level in range(1, 9):
        types.append(
            ComplexType(f"L{level}", tuple(Attribute(f"a{n}", f"L{level - 1}") for n in range(6)))
        )
    given = Interpretation(
        name="wide",
        types=tuple(types),
        rules=(Rule("number", "c"),),
        conversions=(converts("c", "number", "number", Formula(2.0)),),
    )
    assert [each.code for each in problems_of(given)] == ["type.too_wide"]
