"""Types may have almost any name; in patterns odd ones stand in double quotes. [ME-1, ME-2]"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import Problem
from rapport.mediation.codegen.transformer import make_transformer
from rapport.mediation.conversion.conversions import Formula, converts
from rapport.mediation.interpretations.model import Interpretation, Rule, TypeMapping
from rapport.mediation.interpretations.type_changes import load_all
from rapport.mediation.patterns import (
    BoundPattern,
    Pattern,
    PatternItem,
    bind,
    parse_pattern,
    quoted_type,
)
from rapport.mediation.types import (
    Attribute,
    ComplexType,
    PrimitiveType,
    Types,
    check_types,
    is_type_name,
)
from rapport.units.catalogue import UNITS

TYPES = Types(
    (
        PrimitiveType("m/s", "number"),
        PrimitiveType("%", "number"),
        ComplexType("Wind 2.0", (Attribute("speed", "m/s"), Attribute("gusts", "[m/s]"))),
        ComplexType("Report", (Attribute("wind now", "Wind 2.0"), Attribute("[m/s]", "text"))),
    )
)


@pytest.mark.parametrize(
    ("written", "means"),
    [
        ('"m/s"', '"m/s"'),
        ('"Wind 2.0"."m/s"', '"Wind 2.0".*"m/s"'),
        ('"Wind 2.0".*"m/s"', '"Wind 2.0".*"m/s"'),
        ('"Wind 2.0".speed("m/s")', '"Wind 2.0".speed("m/s")'),
        ('"Wind 2.0".["m/s"]', '"Wind 2.0".*["m/s"]'),
        ('"Wind 2.0".gusts( ["m/s"] )', '"Wind 2.0".gusts(["m/s"])'),
        ('Report."wind now"("Wind 2.0").speed', 'Report."wind now"("Wind 2.0").speed("m/s")'),
        ('Report."[m/s]"', 'Report."[m/s]"(text)'),
    ],
)
def test_an_odd_name_is_quoted_wherever_a_type_may_stand(written: str, means: str) -> None:
    parsed = parse_pattern(written)
    assert isinstance(parsed, Pattern), parsed
    found = bind(parsed, TYPES)
    assert isinstance(found, BoundPattern), found
    assert str(found) == means
    again = parse_pattern(means)
    assert isinstance(again, Pattern)
    assert bind(again, TYPES) == found


@pytest.mark.parametrize(
    "text",
    ['"a[b"', 'A."b"("c(d")', '["a"', '[["a"]', 'A.*"b', 'A.*"\\q"', '""', 'A.*""', '["a b]"]'],
)
def test_an_invalid_type_name_is_refused(text: str) -> None:
    assert isinstance(parse_pattern(text), Problem)


def test_a_quoted_name_with_brackets_is_an_attribute_and_never_a_list() -> None:
    parsed = parse_pattern('"Wind 2.0"."[m/s]"')
    assert isinstance(parsed, Pattern)
    assert isinstance(bind(parsed, TYPES), Problem)


names = st.text(st.characters(blacklist_characters='"[]()'), min_size=1, max_size=12).filter(
    is_type_name
)
references = st.builds(
    lambda name, depth: "[" * depth + name + "]" * depth, names, st.integers(0, 2)
)
anything = st.text(min_size=1, max_size=8).filter(
    lambda text: text.encode("utf-8", "ignore").decode() == text
)
items = st.one_of(
    st.builds(PatternItem, st.just(""), references),
    st.builds(PatternItem, anything, st.one_of(st.just(""), references)),
)


@given(references, st.lists(items, max_size=3))
def test_every_printed_pattern_parses_to_itself(head: str, rest: list[PatternItem]) -> None:
    pattern = Pattern((PatternItem("", head), *rest))
    assert parse_pattern(str(pattern)) == pattern


@given(st.text(alphabet='Ab".()[]*/ \\%', max_size=14))
def test_any_text_is_a_pattern_that_prints_as_itself_or_a_problem(text: str) -> None:
    found = parse_pattern(text)
    if isinstance(found, Pattern):
        assert parse_pattern(str(found)) == found
    else:
        assert found.code == "pattern.syntax"


@given(st.text(max_size=110))
def test_any_text_is_a_name_or_refused(name: str) -> None:
    refused = [each.code for each in check_types((ComplexType(name),))]
    taken = name in ("text", "number", "integer", "boolean", "json")
    if is_type_name(name) and not taken:
        assert refused == []
        assert parse_pattern(quoted_type(name)) == Pattern((PatternItem("", name),))
    else:
        assert refused


def test_transformers_know_odd_types_down_to_subtypes() -> None:
    root = Interpretation(
        name="root",
        parent="",
        types=(
            PrimitiveType("m/s", "number"),
            ComplexType("a 'wind'", (Attribute("speed", "m/s"),)),
            ComplexType("a \\gale", (Attribute("name", "text"),), ("a 'wind'",)),
            ComplexType("report #1", (Attribute("wind", "a 'wind'"),)),
        ),
    )
    child = Interpretation(
        name="child",
        mappings=(TypeMapping("report #1", "report #1", "out"),),
        rules=(Rule('"report #1".wind("a \\\\gale")."m/s"', "twice", "out"),),
        conversions=(converts("twice", "m/s", "m/s", Formula(2.0)),),
    )
    held, outcomes = load_all([root, child])
    assert "child" in held, outcomes
    shown: Any = make_transformer(held, "child", "report #1", "out")
    plain = {"wind": {"speed": 1}}
    gale = {"wind": {"@type": "a \\gale", "speed": 1, "name": "x"}}
    assert shown(plain) == plain
    assert shown(gale)["wind"]["speed"] == 2.0


def test_every_unit_can_name_a_type() -> None:
    assert [each.symbol for each in UNITS if not is_type_name(each.symbol)] == []
