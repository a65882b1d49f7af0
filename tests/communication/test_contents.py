"""Contents against JSON Schemas: the small judge here and a large one agree. [CO-14]"""

from __future__ import annotations

import re
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.communication.contents.all_ways import EveryWay
from rapport.communication.contents.expressions import parts_of
from rapport.communication.contents.fitting import misfit
from rapport.communication.contents.patterns import python_pattern
from rapport.communication.contents.rules import ContentRules
from rapport.communication.message_schema import check_schema
from rapport.core.errors import InvalidInput
from rapport.core.message import Identifier, Message

TASK = {
    "type": "object",
    "required": ["machine", "parts"],
    "properties": {
        "machine": {"type": "string", "pattern": "^m-[0-9]+$"},
        "parts": {"type": "array", "items": {"$ref": "#/$defs/part"}, "minItems": 1},
    },
    "$defs": {"part": {"type": "object", "properties": {"a/b": {"maximum": 5}}}},
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("value", "place", "wanted"),
    [
        ([], "", "an object is wanted"),
        ({"machine": "m-1"}, "", '"parts" is missing'),
        ({"machine": "m-1\n", "parts": [{}]}, "/machine", "a text like"),
        ({"machine": "m-1", "parts": []}, "/parts", "at least 1 items"),
        ({"machine": "m-1", "parts": [{}, {"a/b": 6}]}, "/parts/1/a~1b", "at most 5"),
        ({"machine": "m-1", "parts": [{}], "x~y": 1}, "/x~0y", "nothing may stand here"),
    ],
)
def test_the_first_misfit_is_named_with_its_place(value: Any, place: str, wanted: str) -> None:
    found = misfit(TASK, value)
    assert found is not None
    assert found.place == place
    assert wanted in found.wanted


def test_what_fits_passes() -> None:
    assert misfit(TASK, {"machine": "m-1", "parts": [{"a/b": 5}]}) is None


# --- the same verdict as another implementation ---

names = st.sampled_from(["a", "b", "xa"])
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-4, 4)
    | st.sampled_from([0.5, 1.0, 2.5, -0.0, 1e300])
    | st.sampled_from(["", "a", "ab", "1", "a\n", "é"])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
counts = st.integers(0, 3)
numbers = st.integers(-3, 3) | st.sampled_from([0.5, 1.0])
leaves = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["string", "number", "integer", "object", "array", "null"])
        | st.just(["boolean", "array"]),
        "enum": st.lists(values, min_size=1, max_size=3),
        "const": values,
        "minimum": numbers,
        "exclusiveMaximum": numbers,
        "multipleOf": st.sampled_from([1, 2, 0.5, 0.1]),
        "minLength": counts,
        "maxLength": counts,
        "pattern": st.sampled_from(["^a$", "b", r"^\d+$", r"\w", "[a-c]"]),
        "minItems": counts,
        "maxItems": counts,
        "uniqueItems": st.booleans(),
        "required": st.lists(names, unique=True, max_size=2),
        "maxProperties": counts,
        "dependentRequired": st.dictionaries(names, st.lists(names, unique=True, max_size=1)),
    },
)


def _larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    by_name = st.dictionaries(names, inner, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            "allOf": several,
            "anyOf": several,
            "oneOf": several,
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
            "properties": by_name,
            "patternProperties": st.dictionaries(st.sampled_from(["^x", "a"]), inner, max_size=2),
            "additionalProperties": inner,
            "propertyNames": inner,
            "dependentSchemas": by_name,
            "prefixItems": several,
            "items": inner,
            "contains": inner,
            "minContains": counts,
            "maxContains": counts,
            "unevaluatedProperties": inner,
            "unevaluatedItems": inner,
        },
    )


schemas = st.recursive(st.booleans() | leaves, _larger, max_leaves=8).filter(
    lambda schema: isinstance(schema, dict)
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(schema=schemas, value=values)
def test_the_verdict_is_that_of_another_implementation(schema: dict[str, Any], value: Any) -> None:
    check_schema(schema)
    value = msgspec.json.decode(msgspec.json.encode(value))
    expected = jsonschema_rs.Draft202012Validator(schema).is_valid(value)
    assert (misfit(schema, value) is None) == expected


# --- what must not happen ---


def test_schemas_that_lead_in_a_circle_end() -> None:
    circle = {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}
    check_schema(circle)
    found = misfit(circle, 1)
    assert found is not None
    assert "too deep" in found.wanted


def test_being_too_deep_is_a_fault_also_under_not() -> None:
    assert misfit({"not": {"$ref": "#"}}, 1) is not None


def test_a_large_content_is_given_up_in_bounded_time() -> None:
    doubling: dict[str, Any] = {"$defs": {"s0": {"minimum": 5}}}
    for level in range(1, 30):
        below = {"$ref": f"#/$defs/s{level - 1}"}
        doubling["$defs"][f"s{level}"] = {"anyOf": [below, below]}
    doubling["$ref"] = "#/$defs/s29"
    check_schema(doubling)
    found = misfit(doubling, 1)
    assert found is not None
    assert "too large" in found.wanted


def test_a_reference_to_what_is_no_schema_is_refused() -> None:
    with pytest.raises(InvalidInput, match="/x-own"):
        check_schema({"x-own": {"type": 5}, "$ref": "#/x-own"})


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        (r"^\p{L}+$", "Zoë", True),
        (r"^\p{L}+$", "Zo1", False),
        (r"^\d$", "٣", False),
        ("^a$", "a\n", False),
        (r"[$]", "$", True),
        (r"^\$$", "$", True),
        ("[[]", "[", True),
    ],
)
def test_patterns_mean_what_they_mean_in_json_schema(pattern: str, text: str, found: bool) -> None:
    compiled = python_pattern(pattern)
    assert compiled is not None
    assert bool(compiled.search(text)) is found


@pytest.mark.parametrize(
    "pattern",
    [
        r"^(a+)+$",
        r"^([a-zA-Z0-9_.-]+)*@example\.org$",
        r"^(\w+\s?)*$",
        r"^(a|a)*$",
        r"^(a?a?)*$",
        r"a*a*a*b",
        r"^a?a?a?a?a?a?a?a?a?a?a?a?a?aaaaaaaaaaaaaab$",
        r"^(a{1,9}){1,9}$",
    ],
    ids=["nested", "mail", "words", "choice", "optional", "in a row", "many optional", "counted"],
)
def test_no_text_keeps_everybody_waiting_for_a_pattern_with_many_ways(pattern: str) -> None:
    compiled = python_pattern(pattern)
    assert isinstance(compiled, EveryWay)
    assert not compiled.search("a" * 4_000 + "!")
    assert misfit({"pattern": pattern}, "a" * 4_000 + "!") is not None


@pytest.mark.parametrize(
    "pattern",
    [r"^m-[0-9]+$", r"^\d{1,3}(,\d{3})*$", r"^([0-9A-F]{2})+$", r"^(?=.*[A-Z])(?=.*\d).{8,}$"],
    ids=["name", "thousands", "bytes", "password"],
)
def test_usual_patterns_are_left_to_python(pattern: str) -> None:
    assert isinstance(python_pattern(pattern), re.Pattern)


def test_a_pattern_of_many_ways_that_only_python_can_match_is_not_judged() -> None:
    assert python_pattern(r"^(?=(a+)+$)") is None
    assert python_pattern(r"^(a+)+\1$") is None
    assert misfit({"pattern": r"^(?=(a+)+$)"}, "a" * 4_000 + "!") is None


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    counts = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}", "{,2}", "*?", "{", "{}"])
    return st.one_of(
        st.builds(lambda one, count: f"(?:{one}){count}", inner, counts),
        st.builds("({})".format, inner),
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map("|".join),
    )


expressions = st.recursive(
    st.sampled_from(
        [
            "a",
            "b",
            ".",
            "[ab]",
            "[^a]",
            "[]a]",
            r"[\]b]",
            r"\w",
            r"\.",
            r"\x61",
            "^",
            r"\Z",
            r"\b",
            "",
        ]
    ),
    _larger,
    max_leaves=8,
)


@given(expressions, st.text("ab. ]\n{", max_size=9))
def test_all_ways_at_once_find_what_python_finds(pattern: str, text: str) -> None:
    compiled = re.compile(pattern)
    assert EveryWay(parts_of(pattern)).search(text) == (compiled.search(text) is not None)


def test_a_pattern_that_cannot_be_expressed_is_not_judged() -> None:
    assert python_pattern(r"\p{Script=Greek}") is None
    assert misfit({"pattern": r"[\p{L}]"}, "1") is None


# --- which schema counts for a message ---


def _message(content: str, *, subtype: str = "REQUEST", language: str = "") -> Message:
    ana = Identifier("peer", "ana")
    return Message(type="TASK", subtype=subtype, sender=ana, content=content, language=language)


def test_a_subtype_without_a_schema_of_its_own_has_that_of_its_type() -> None:
    rules = ContentRules({("TASK", ""): TASK, ("TASK", "NOTE"): None})
    fault = rules.fault(_message("{}"))
    assert fault is not None
    assert fault.code == "message.bad_content"
    assert "rapport info show TASK REQUEST" in fault.hint
    assert rules.fault(_message("{}", subtype="NOTE")) is None


def test_what_is_no_json_is_judged_as_text_unless_it_says_that_it_is_json() -> None:
    rules = ContentRules({("TASK", ""): {"type": "string", "maxLength": 3}})
    assert rules.fault(_message("abc")) is None
    assert rules.fault(_message("123")) is None
    assert rules.fault(_message("abcd")) is not None
    for broken in ("{", "[1", '"ab'):
        assert rules.fault(_message(broken)) is not None
    told = rules.fault(_message("abc", language="application/json"))
    assert told is not None
    assert "JSON is wanted" in told.message


def test_what_strangers_write_comes_back_printable() -> None:
    rules = ContentRules({("TASK", ""): TASK})
    fault = rules.fault(_message('{"machine":"m-1","parts":[{}],"\\u001b[31m":1}'))
    assert fault is not None
    assert fault.place == "/?[31m"
    assert fault.message.isprintable()
