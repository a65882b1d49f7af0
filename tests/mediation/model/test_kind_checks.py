"""What is said about kinds of conversion before any event comes. [ME-4, ME-7]"""

import math
from typing import Any

import pytest

from rapport.core.errors import Problem
from rapport.mediation.conversion.conversion_checks import check_references
from rapport.mediation.conversion.conversions import (
    Chain,
    Conversion,
    Enumeration,
    Stateful,
    UnitChange,
    converts,
)
from rapport.mediation.conversion.currencies import ChangeCurrency, RateEvents, RateTable
from rapport.mediation.conversion.lookups import ContextLookup, TableLookup
from rapport.mediation.conversion.notations import ParseNumber, ParseTime, WriteNumber, WriteTime
from rapport.mediation.conversion.places import (
    FixedOrigin,
    MovingOrigin,
    TableOrigin,
    ToAbsolute,
    ToCartesian,
    ToPlan,
    ToPolar,
)
from rapport.mediation.interpretations.model import Interpretation
from rapport.mediation.interpretations.registry import feeds_of, functions_needed
from rapport.mediation.interpretations.type_changes import load_all
from rapport.mediation.types import Attribute, ComplexType, PrimitiveType, Type

TYPES: tuple[Type, ...] = (
    PrimitiveType("Time", "integer"),
    PrimitiveType("m", "number"),
    PrimitiveType("ft", "number"),
    PrimitiveType("deg", "number"),
    ComplexType("Point", (Attribute("x", "m"), Attribute("y", "m"))),
    ComplexType("Polar", (Attribute("bearing", "deg"), Attribute("distance", "ft"))),
    ComplexType("Loose", (Attribute("x", "number", optional=True), Attribute("y", "text"))),
    ComplexType("Tall", (Attribute("x", "m"), Attribute("y", "m"), Attribute("z", "m"))),
    ComplexType("Money", (Attribute("amount", "number"), Attribute("currency", "text"))),
    ComplexType("truck", (Attribute("key", "text"), Attribute("position", "Point", True))),
    ComplexType("Pair", (Attribute("day", "text"), Attribute("hour", "text"))),
)
POLAR = ToCartesian(unit="ft")


def problems_of(*conversions: Conversion) -> list[Problem]:
    root = Interpretation(name="root", parent="", types=TYPES)
    _, found = load_all([root, Interpretation(name="c", conversions=conversions)])
    ours = ("conversion.", "unit.", "time.", "place.", "type.")
    return [problem for problem in found["c"][1] if problem.code.startswith(ours)]


@pytest.mark.parametrize(
    "conversion",
    [
        converts("c", "Polar", "Point", POLAR),
        Conversion("c", ("deg", "ft"), ("m", "m"), POLAR),
        Conversion("c", ("deg", "ft"), ("Point",), POLAR),
        converts("c", "Point", "Polar", ToPolar(to_unit="ft")),
        converts("c", "Point", "Point", ToAbsolute(FixedOrigin(1, 2))),
        converts(
            "c",
            "Point",
            "Point",
            ToAbsolute(MovingOrigin("truck", x="position.x", y="position.y")),
        ),
        converts("c", "text", "Time", ParseTime("%d/%m/%Y %H:%M", "Europe/Berlin")),
        converts("c", "Pair", "Time", ParseTime(attributes=("day", "hour"))),
        Conversion("c", ("text", "text"), ("Time",), ParseTime()),
        Conversion("c", ("Time",), ("text", "text"), WriteTime("%Y-%m-%d %H:%M")),
        converts("c", "Time", "integer", WriteTime("epoch_s")),
        converts("c", "Money", "Money", ChangeCurrency("EUR", RateTable("rates", "EUR"))),
        converts("c", "text", "number", TableLookup("t", ("n",))),
        Conversion("c", ("text",), ("text", "boolean"), TableLookup("t", ("a", "b"))),
        converts("c", "text", "Point", ContextLookup("truck", "position", parts=("x", "y"))),
        converts("c", "ft", "m", UnitChange("[ft_i]", "m")),
        converts("c", "text", "text", Enumeration((("a", "b"), ("c", "d")))),
    ],
)
def test_sound_conversions_pass(conversion: Conversion) -> None:
    assert problems_of(conversion) == []


@pytest.mark.parametrize(
    ("conversion", "code", "says"),
    [
        (converts("c", "Polar", "Point", ToCartesian()), "unit.mismatch", "ft is not in m"),
        (converts("c", "Polar", "Point", ToCartesian(unit="fet")), "unit.unknown", "fet"),
        (converts("c", "Polar", "Point", ToCartesian(unit="degC")), "unit.mismatch", "degC"),
        (converts("c", "ft", "m", UnitChange("m", "ft")), "unit.mismatch", "ft is not in m"),
        (converts("c", "Pair", "Point", POLAR), "conversion.signature", "'bearing'"),
        (converts("c", "Polar", "Tall", POLAR), "conversion.signature", "'z'"),
        (converts("c", "Polar", "m", POLAR), "conversion.signature", "gives x, y"),
        (Conversion("c", ("deg",), ("Point",), POLAR), "conversion.signature", "takes bearing"),
        (converts("c", "Loose", "Point", ToAbsolute(FixedOrigin(0, 0))), "", "may be missing"),
        (converts("c", "Loose", "Point", ToAbsolute(FixedOrigin(0, 0))), "", "'y' is text"),
        (
            converts("c", "Point", "Point", ToAbsolute(FixedOrigin(math.nan, 0))),
            "place.bad_origin",
            "",
        ),
        (converts("c", "Point", "Point", ToAbsolute(MovingOrigin("trck"))), "type.unknown", "trck"),
        (
            converts("c", "Point", "Point", ToAbsolute(MovingOrigin("truck"))),
            "",
            "no attribute 'x'",
        ),
        (converts("c", "Point", "Point", ToAbsolute(MovingOrigin("Point", "x"))), "", "feed_key"),
        (converts("c", "Point", "Point", ToPlan(52.0, 13.0)), "conversion.signature", "'lat'"),
        (Conversion("c", ("deg", "deg"), ("m", "m"), ToPlan(89.0, 0.0)), "place.bad_origin", "89"),
        (
            converts("c", "text", "Time", ParseTime("%d/%m/%Y", "Europe/Berln")),
            "time.unknown_zone",
            "",
        ),
        (converts("c", "text", "Time", ParseTime("%d/%m/%Y")), "time.no_zone", ""),
        (converts("c", "text", "Time", ParseTime("%d/%Q", "UTC")), "time.bad_pattern", ""),
        (converts("c", "text", "Time", ParseTime("epoch_s")), "conversion.signature", "number"),
        (Conversion("c", ("number", "number"), ("Time",), ParseTime("epoch_s")), "", "one number"),
        (converts("c", "text", "text", ParseTime("iso8601", "UTC")), "", "expected integer"),
        (converts("c", "Money", "Money", ChangeCurrency("", RateTable("r", ""))), "", "currency"),
        (
            converts("c", "Money", "Money", ChangeCurrency("EUR", RateEvents("Rte", "EUR"))),
            "type.unknown",
            "",
        ),
        (converts("c", "text", "text", TableLookup("t", ())), "", "has no column or part"),
        (converts("c", "text", "text", TableLookup("t", ("a",), otherwise=(1, 2))), "", "1 values"),
        (converts("c", "text", "number", Enumeration((("a", "b"),))), "", "'b' is no number"),
        (converts("c", "number", "text", WriteNumber(digits=99)), "", "99 digits"),
        (converts("c", "text", "text", Stateful("f", b"{")), "", "not JSON"),
        (converts("c", "text", "text", Stateful("f", feed="Point")), "", "update"),
        (converts("c", "text", "text", Chain(())), "", "has no steps"),
    ],
)
def test_faults_are_named(conversion: Conversion, code: str, says: str) -> None:
    found = problems_of(conversion)
    assert any(
        problem.code == (code or "conversion.signature") and says in problem.message
        for problem in found
    ), found


def test_an_unknown_name_comes_with_the_nearest() -> None:
    hints = [
        problem.hint
        for problem in problems_of(
            converts("a", "text", "Time", ParseTime("%d/%m/%Y", "Europe/Berln")),
            converts("b", "Polar", "Point", ToCartesian(bearing="bearng", unit="ft")),
            converts("c", "Point", "Point", ToAbsolute(MovingOrigin("trck", x="key", y="key"))),
        )
    ]
    assert [hint for hint in hints if "did you mean" in hint] == [
        "did you mean 'Europe/Berlin'?",
        "did you mean 'bearing'?",
        "did you mean 'truck'?",
    ]


def test_steps_of_a_chain_are_checked_and_must_fit() -> None:
    read = converts("read", "text", "number", ParseNumber())
    feet = converts("feet", "ft", "m", UnitChange("fet", "m"))
    found = problems_of(converts("c", "text", "m", Chain((read, feet))))
    assert [problem.code for problem in found] == ["conversion.signature", "unit.unknown"]
    assert "read gives number, feet takes ft" in found[0].message


def test_words_that_become_one_are_reported_as_lossy() -> None:
    words = (("ok", "1"), ("fine", "1"), ("bad", "2"))
    there = problems_of(converts("c", "text", "text", Enumeration(words)))
    back = problems_of(converts("c", "text", "text", Enumeration(words, backwards=True)))
    assert [(each.code, each.severity) for each in (*there, *back)] == [
        ("conversion.lossy", "hint"),
        ("conversion.lossy", "hint"),
    ]
    assert "'ok', 'fine' all become '1'" in there[0].message
    assert "'1' stands for 'ok', 'fine'" in back[0].message


def test_tables_columns_and_concepts_that_the_site_lacks_are_named_with_the_nearest() -> None:
    conversions = (
        converts("a", "text", "text", TableLookup("badge", ("person",))),
        converts("b", "text", "text", TableLookup("badges", ("persn",))),
        converts("c", "Point", "Point", ToAbsolute(TableOrigin("sensors", "x", y="y_m"))),
        converts("d", "Money", "Money", ChangeCurrency("EUR", RateTable("rates", "EUR"))),
        converts("e", "text", "number", ContextLookup("rom", "temperature")),
        converts(
            "f",
            "text",
            "number",
            Chain((converts("g", "text", "number", ContextLookup("room", "heat")),)),
        ),
    )
    tables = {
        "badges": ("tag", "person"),
        "sensors": ("id", "x", "y"),
        "rates": ("currency", "rate"),
    }
    found = check_references(conversions, tables, {"room": ("temperature",)})
    assert [(problem.code, problem.hint) for problem in found] == [
        ("lookup.unknown_table", "did you mean 'badges'?"),
        ("lookup.unknown_column", "did you mean 'person'?"),
        ("lookup.unknown_column", "there are id, x, y"),
        ("lookup.unknown_column", "there are currency, rate"),
        ("lookup.unknown_concept", "did you mean 'room'?"),
        ("lookup.unknown_attribute", "there are temperature"),
    ]


def test_feeds_and_functions_of_an_interpretation_include_inherited_ones() -> None:
    origin = MovingOrigin("truck", x="position.x", y="position.y")
    parent = Interpretation(
        name="p", conversions=(converts("at", "Point", "Point", ToAbsolute(origin)),)
    )
    child = Interpretation(
        name="q",
        parent="p",
        conversions=(converts("s", "m", "m", Stateful("a:f", feed="truck", update="a:g")),),
    )
    held, _ = load_all([Interpretation(name="root", parent="", types=TYPES), parent, child])
    feeds: dict[str, Any] = feeds_of(held, "q")
    assert {name: [each.name for each in fed] for name, fed in feeds.items()} == {
        "truck": ["at", "s"]
    }
    assert functions_needed(held, "q") == ("a:f", "a:g")
