"""Contents against JSON Schemas: the first violation is named, and no content holds up a node.
[CO-14]
"""

from __future__ import annotations

from typing import Any

import pytest

from rapport.communication.content_rules import ContentRules, ContentSchema, Misfit, check_schema
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


def misfit(schema: dict[str, Any], value: Any) -> Misfit | None:
    return ContentSchema(schema).misfit(value)


@pytest.mark.parametrize(
    ("value", "place", "reason"),
    [
        ([], "", 'not of type "object"'),
        ({"machine": "m-1"}, "", '"parts" is a required property'),
        ({"machine": "m-1\n", "parts": [{}]}, "/machine", "does not match"),
        ({"machine": "m-1", "parts": []}, "/parts", "less than 1 item"),
        ({"machine": "m-1", "parts": [{}, {"a/b": 6}]}, "/parts/1/a~1b", "maximum of 5"),
        ({"machine": "m-1", "parts": [{}], "x~y": 1}, "/x~0y", "not allowed"),
    ],
)
def test_the_first_misfit_is_named_with_its_place(value: Any, place: str, reason: str) -> None:
    found = misfit(TASK, value)
    assert found is not None
    assert found.place == place
    assert reason in found.reason


def test_what_fits_passes() -> None:
    assert misfit(TASK, {"machine": "m-1", "parts": [{"a/b": 5}]}) is None


def test_of_several_alternatives_the_one_that_came_furthest_is_named() -> None:
    inner = {"properties": {"b": {"type": "integer"}}}
    found = misfit({"properties": {"a": {"anyOf": [inner, {"type": "string"}]}}}, {"a": {"b": "x"}})
    assert found is not None
    assert found.place == "/a/b"


# --- what must not happen ---


def test_schemas_that_lead_in_a_circle_end() -> None:
    circle = {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}
    check_schema(circle)
    misfit(circle, 1)
    misfit({"not": {"$ref": "#"}}, 1)


def test_a_schema_with_very_many_ways_is_given_up_at_once() -> None:
    doubling: dict[str, Any] = {"$defs": {"s0": {"minimum": 5}}}
    for level in range(1, 30):
        below = {"$ref": f"#/$defs/s{level - 1}"}
        doubling["$defs"][f"s{level}"] = {"anyOf": [below, below]}
    doubling["$ref"] = "#/$defs/s29"
    check_schema(doubling)
    found = misfit(doubling, 1)
    assert found is not None
    assert "too large" in found.reason


def test_a_deep_content_of_a_schema_that_doubles_with_each_level_is_given_up_at_once() -> None:
    left = {"properties": {"a": {"$ref": "#"}}}
    schema = {"anyOf": [left, {**left, "required": ["b"]}, {"type": "integer"}]}
    check_schema(schema)
    shallow, deep = "x", "x"
    for level in range(40):
        deep = {"a": deep}  # type: ignore[assignment]
        shallow = deep if level == 4 else shallow
    assert misfit(schema, shallow) is None or "too large" not in str(misfit(schema, shallow))
    found = misfit(schema, deep)
    assert found is not None
    assert "too deep" in found.reason


def test_a_long_list_is_checked_and_a_very_deep_one_is_not() -> None:
    schema = {"type": "array", "items": {"type": "integer"}}
    assert misfit(schema, list(range(50_000))) is None
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    assert "too deep" in str(misfit({"type": "array"}, deep))


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
        (r"^(?=.*[A-Z])(?=.*\d).{8,}$", "Abcdefg1", True),
    ],
)
def test_patterns_mean_what_they_mean_in_json_schema(pattern: str, text: str, found: bool) -> None:
    assert (misfit({"pattern": pattern}, text) is None) is found


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
        r"^(?=(a+)+$)",
        r"^(a+)+\1$",
    ],
)
def test_no_text_holds_up_the_node_by_a_pattern_with_many_ways(pattern: str) -> None:
    assert misfit({"pattern": pattern}, "a" * 4_000 + "!") is not None


def test_a_pattern_that_the_engine_does_not_know_is_not_judged() -> None:
    assert misfit({"pattern": r"\Z", "maxLength": 3}, "1") is None
    assert misfit({"pattern": r"\Z", "maxLength": 3}, "1234") is not None
    assert misfit({"patternProperties": {r"\Z": False, "^x": False}}, {"a": 1}) is None
    assert misfit({"patternProperties": {r"\Z": False, "^x": False}}, {"xa": 1}) is not None


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
    assert "it is not JSON" in told.message


def test_what_strangers_write_comes_back_printable() -> None:
    rules = ContentRules({("TASK", ""): TASK})
    fault = rules.fault(_message('{"machine":"m-1","parts":[{}],"\\u001b[31m":1}'))
    assert fault is not None
    assert fault.place == "/?[31m"
    assert fault.message.isprintable()
