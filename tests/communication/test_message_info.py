"""What is told of messages: found, refused, shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.communication.content_rules import check_schema
from rapport.communication.message_info import (
    PREDEFINED,
    MessageCatalogue,
    MessageInformation,
    RelatedMessage,
    as_text,
    check_information,
    info_from_site,
)
from rapport.core.errors import InvalidInput, UnknownName
from rapport.kernel.toml import TomlFile

TASK = MessageInformation(text="Please check a machine.")
REQUEST = MessageInformation(
    text="Please check machine 7.",
    schema={"type": "object", "properties": {"machine": {"type": "integer"}}},
    answers=(RelatedMessage(type="TASK", subtype="DONE", text="when it is done"),),
    related=(RelatedMessage(type="TASK", subtype="CANCEL"),),
)


def catalogue(**layers: Any) -> MessageCatalogue:
    return MessageCatalogue([("shipped", PREDEFINED), *layers.items()])


def test_a_subtype_comes_before_its_type() -> None:
    known = catalogue(site={("TASK", ""): TASK, ("TASK", "REQUEST"): REQUEST})
    assert known.find("TASK", "REQUEST").information == REQUEST
    assert known.find("TASK", "OTHER").information == TASK
    assert known.find("TASK").subtype == ""


def test_what_was_added_replaces_what_the_site_says_and_that_what_is_shipped() -> None:
    known = catalogue(site={("TASK", ""): TASK}, added={("TASK", ""): REQUEST})
    assert known.find("TASK").origin == "added"
    assert catalogue(site={("CONTROL", "ACK"): TASK}).find("CONTROL", "ACK").information == TASK


@pytest.mark.parametrize(
    ("type", "subtype", "hint"),
    [
        ("TSAK", "", "did you mean 'TASK'?"),
        ("ALARM", "REQUESTT", "did you mean 'REQUEST'?"),
        ("ALARM", "", "give one of its subtypes: REQUEST"),
    ],
)
def test_an_unknown_message_is_refused_with_the_nearest(type: str, subtype: str, hint: str) -> None:
    known = catalogue(site={("TASK", ""): TASK, ("ALARM", "REQUEST"): REQUEST})
    with pytest.raises(UnknownName) as caught:
        known.find(type, subtype)
    assert (caught.value.code, caught.value.hint) == ("message.unknown", hint)


@pytest.mark.parametrize("kind", sorted(PREDEFINED))
def test_what_is_shipped_is_sound_and_names_only_what_is_known(kind: tuple[str, str]) -> None:
    information = PREDEFINED[kind]
    check_information(*kind, information)
    for other in (*information.answers, *information.related):
        catalogue().find(other.type, other.subtype)


def test_every_predefined_message_of_the_source_has_information() -> None:
    for type, subtypes in {
        "CONTROL": ("ACK", "ERROR", "COMERROR", "TIMEOUT"),
        "MESSAGEINFO": ("REQUEST", "REPLY"),
        "AUTH": ("REQUEST", "REPLY", "FAILED", "ERROR"),
        "NOTIFICATION": ("raise alarm",),
        "ACTION": ("open door",),
    }.items():
        for subtype in subtypes:
            assert catalogue().find(type, subtype).information.text


def test_a_person_reads_text_answers_relations_and_schema() -> None:
    text = as_text(catalogue(site={("TASK", "REQUEST"): REQUEST}).find("TASK", "REQUEST"))
    assert text.startswith("TASK REQUEST\nPlease check machine 7.\n")
    assert "Answer with:\n- TASK DONE: when it is done\n" in text
    assert "See also:\n- TASK CANCEL\n" in text
    assert '"machine": {' in text


@pytest.mark.parametrize(
    ("type", "information"),
    [
        ("", TASK),
        ("T\n", TASK),
        ("T" * 101, TASK),
        ("T", MessageInformation(text=" ")),
        ("T", MessageInformation(text="x" * 10_001)),
        ("T", MessageInformation(text="x", answers=(RelatedMessage(type=""),))),
        ("T", MessageInformation(text="x", related=(RelatedMessage(type="A"),) * 101)),
        ("T", MessageInformation(text="x", schema={"type": "text"})),
    ],
)
def test_invalid_information_is_refused(type: str, information: MessageInformation) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_information(type, "", information)
    assert caught.value.code in ("info.bad", "info.bad_schema")


# --- schemas ---

GOOD: list[dict[str, Any]] = [
    {},
    {"type": ["string", "null"], "pattern": r"^\p{L}+$", "x-own": 1},
    {"$defs": {"a/b": {"const": 1}}, "$ref": "#/$defs/a~1b"},
    {"anyOf": [True, {"not": {"enum": [1, None]}}], "$ref": "#/anyOf/1"},
    {"type": "array", "prefixItems": [{"minimum": 1.5}], "items": False, "minItems": 2},
    {"patternProperties": {"^x": {"multipleOf": 0.5}}, "dependentRequired": {"a": ["b"]}},
]


@pytest.mark.parametrize("schema", GOOD)
def test_sound_schemas_are_taken(schema: dict[str, Any]) -> None:
    check_schema(schema)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ([], ""),
        ({"type": "text"}, "/type"),
        ({"type": []}, "/type"),
        ({"propertis": {}}, "/propertis"),
        ({"properties": {"a": 1}}, "/properties/a"),
        ({"properties": []}, "/properties"),
        ({"items": {"minLength": -1}}, "/items/minLength"),
        ({"items": {"minLength": True}}, "/items/minLength"),
        ({"required": ["a", "a"]}, "/required"),
        ({"anyOf": []}, "/anyOf"),
        ({"oneOf": [{"pattern": "("}]}, "/oneOf/0/pattern"),
        ({"patternProperties": {"[": {}}}, "/patternProperties"),
        ({"$ref": "#/$defs/none"}, "/$ref"),
        ({"$ref": "http://example.org/x"}, "/$ref"),
        ({"multipleOf": 0}, "/multipleOf"),
        ({"enum": []}, "/enum"),
        ({"deprecated": "yes"}, "/deprecated"),
    ],
)
def test_faults_of_schemas_are_named_with_their_place(schema: Any, place: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_schema(schema)
    assert caught.value.code == "info.bad_schema"
    assert f" at {place}:" in caught.value.message or not place


def test_a_misspelt_keyword_is_refused_with_the_nearest() -> None:
    with pytest.raises(InvalidInput) as caught:
        check_schema({"propertis": {}})
    assert caught.value.hint == "did you mean 'properties'?"


def test_schemas_are_neither_endless_nor_bottomless() -> None:
    deep: dict[str, Any] = {}
    for _level in range(60):
        deep = {"not": deep}
    for schema in (deep, {"title": "x" * 70_000}):
        with pytest.raises(InvalidInput):
            check_schema(schema)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["string", "#/a", "("]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "items", "anyOf", "properties", "$ref", "required", "enum", "a"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_any_json_is_taken_or_refused_but_never_breaks(schema: Any) -> None:
    try:
        check_schema(schema)
    except InvalidInput as error:
        assert error.code == "info.bad_schema"


# --- the site file ---


def read_site(text: str, directory: Path) -> tuple[dict[Any, Any], list[tuple[str, int]]]:
    file = TomlFile.parse(text.encode(), name="site.toml")
    found, problems = info_from_site(file, directory)
    return found, [(problem.code, problem.line) for problem in problems]


def test_the_site_file_tells_of_messages(tmp_path: Path) -> None:
    (tmp_path / "task.json").write_text('{"type": "object"}')
    text = """
[messages.TASK]
text = "Something to do."

[messages.TASK.REQUEST]
text = "Please check a machine."
schema = "task.json"
answers = [{ type = "TASK", subtype = "DONE", text = "when it is done" }]

[messages.ALARM.FIRE]
text = "Leave the building."
[messages.ALARM.FIRE.schema]
type = "string"
"""
    found, problems = read_site(text, tmp_path)
    assert problems == []
    assert sorted(found) == [("ALARM", "FIRE"), ("TASK", ""), ("TASK", "REQUEST")]
    assert found["TASK", "REQUEST"].schema == {"type": "object"}
    assert found["TASK", "REQUEST"].answers[0].subtype == "DONE"
    assert found["ALARM", "FIRE"].schema == {"type": "string"}


def test_faults_of_message_tables_stand_at_their_place(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("[1")
    text = """[messages.A]
schema = "none.json"

[messages.B]
text = "b"
schema = { typ = "object" }

[messages.C]
text = "c"
schema = "bad.json"
answers = [{ subtype = "X" }]

[messages.D]
text = ""
check = true

[messages]
E = 1
"""
    found, problems = read_site(text, tmp_path)
    assert found == {}
    assert sorted(problems, key=lambda problem: problem[1]) == [
        ("site.missing_key", 1),
        ("site.no_file", 2),
        ("info.bad_schema", 6),
        ("info.bad_schema", 10),
        ("site.missing_key", 11),
        ("site.wrong_type", 14),
        ("site.unknown_key", 15),
        ("site.not_a_table", 18),
    ]


def test_a_schema_file_outside_the_site_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text("{}")
    site = tmp_path / "site"
    site.mkdir()
    text = '[messages.A]\ntext = "a"\nschema = "../secret.json"\n'
    assert read_site(text, site)[1] == [("site.no_file", 3)]
