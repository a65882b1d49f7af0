"""Reading tables key by key: the value, or a problem at its place and a stand-in."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from rapport.core.errors import InvalidInput, Problem
from rapport.kernel.config_fields import FaultCodes, Fields, keys_of, suggest
from rapport.kernel.toml import Section, TomlFile

OTHER = FaultCodes(
    unknown_key="other.unknown_key",
    missing_key="other.missing_key",
    wrong_type="other.bad_value",
    unknown_choice="other.bad_choice",
    out_of_range="other.bad_number",
    bad_duration="other.bad_duration",
    endless_duration="other.endless",
)
ENDLESS = '"' + "9" * 400 + 's"'


def fields_of(lines: str, **options: Any) -> Fields:
    """The table `[a.b]` with these lines; its first key stands in line 2."""
    file = TomlFile.parse(f"[a.b]\n{lines}\n".encode(), name="site.toml")
    return Fields(file.section("a", "b"), [], **options)


def only(fields: Fields) -> Problem:
    (problem,) = fields.problems
    return problem


def told(fields: Fields) -> tuple[str, int, str, str]:
    """Code, line, message and hint of the only problem, which is an error."""
    problem = only(fields)
    assert problem.severity == "error"
    return problem.code, problem.line, problem.message, problem.hint


# --- keys ---


def test_a_key_without_meaning_is_a_warning_with_the_nearest_known_one() -> None:
    problem = only(fields_of('latenes = "2s"', known=("name", "lateness")))
    assert (problem.code, problem.severity, problem.line) == ("site.unknown_key", "warning", 2)
    assert problem.message == "the key 'latenes' has no meaning here"
    assert problem.hint == "did you mean 'lateness'?"


def test_in_a_strict_table_a_key_without_meaning_is_an_error() -> None:
    fields = fields_of("urgnt = true", known=("urgent",), strict=True)
    assert only(fields).severity == "error"


def test_a_key_like_no_other_is_told_all_known_ones() -> None:
    known = [f"key{number:02}" for number in range(12)]
    assert only(fields_of("x = 1", known=known)).hint == f"known: {', '.join(known)}"


def test_a_table_of_names_of_the_site_has_no_unknown_keys() -> None:
    assert fields_of("anything = 1").problems == []


def test_a_key_is_there_however_wrong_and_empty_only_as_an_absent_or_empty_list() -> None:
    fields = fields_of('none = []\ntext = ""\nwrong = 5')
    assert fields.has("wrong")
    assert not fields.has("absent")
    assert fields.is_empty("none")
    assert fields.is_empty("absent")
    assert not fields.is_empty("text")
    assert not fields.is_empty("wrong")


# --- values of a kind ---


def test_values_of_the_wanted_kind_are_given_back() -> None:
    fields = fields_of(
        'text = "x"\none = "x"\nmany = ["x", "y"]\nnone = []\nempty = ""\nword = "hold"\n'
        'flag = true\nnumber = 7\nduration = "2 min"\nnothing = "0s"'
    )
    assert fields.text("text") == fields.filled_text("text") == "x"
    assert fields.text("empty") == ""
    assert fields.texts("one") == fields.names("one", example='"t"') == ("x",)
    assert fields.texts("many") == fields.names("many", example='"t"') == ("x", "y")
    assert fields.texts("none", ("default",)) == ()
    assert fields.choice("word", ("hold", "refuse"), "refuse") == "hold"
    assert fields.flag("flag")
    assert fields.number("number", 1, low=1, high=7) == 7
    assert fields.duration_ms("duration", 5) == 120_000
    assert fields.duration_ms("nothing", 5) == 0
    assert fields.problems == []


def test_absent_keys_take_their_default() -> None:
    fields = fields_of("")
    assert fields.text("key", "x") == fields.filled_text("key", "x") == "x"
    assert fields.filled_text("key", "") == ""
    assert fields.texts("key", ("x",)) == ("x",)
    assert fields.choice("key", ("hold",), "") == ""
    assert fields.flag("key", default=True)
    assert fields.number("key", 5, low=1, high=7) == 5
    assert fields.duration_ms("key", 0, least=1) == 0
    assert fields.table("key", (), "{}") is None
    assert fields.entries("key", (), "[{}]") == ()
    assert fields.problems == []


MISSING = [
    (lambda fields: fields.text("key"), "", 'add key = "..."'),
    (lambda fields: fields.text("key", example='"tag"'), "", 'add key = "tag"'),
    (lambda fields: fields.filled_text("key", example='"tag"'), "", 'add key = "tag"'),
    (lambda fields: fields.texts("key"), (), 'add key = ["..."]'),
    (lambda fields: fields.names("key", example='"tag"'), (), 'add key = "tag"'),
    (lambda fields: fields.table("key", (), "{ x = 1 }", needed=True), None, "add key = { x = 1 }"),
]


@pytest.mark.parametrize(("read", "stand_in", "hint"), MISSING)
def test_a_key_that_must_be_there_is_missed_at_the_header(
    read: Any, stand_in: object, hint: str
) -> None:
    fields = fields_of("")
    assert read(fields) == stand_in
    assert told(fields) == ("site.missing_key", 1, "[a.b] needs the key 'key'", hint)


NAMES = "a field's name, or a list of names for a nested one"
WRONG = [
    ("5", lambda fields: fields.text("key", "x"), "x", "text", 'key = "..."'),
    ("5", lambda fields: fields.text("key"), "", "text", 'key = "..."'),
    ("5", lambda fields: fields.filled_text("key", example='"t"'), "", "text", 'key = "t"'),
    (
        '""',
        lambda fields: fields.filled_text("key", "json"),
        "json",
        "text that is not empty",
        'key = "..."',
    ),
    ("3", lambda fields: fields.texts("key", ("x",)), ("x",), "a list of texts", 'key = ["..."]'),
    ('["x", 1]', lambda fields: fields.texts("key"), (), "a list of texts", 'key = ["..."]'),
    ("5", lambda fields: fields.names("key", example='"t"'), (), NAMES, 'key = "t"'),
    ("[]", lambda fields: fields.names("key", example='"t"'), (), NAMES, 'key = "t"'),
    ('""', lambda fields: fields.names("key", example='"t"'), (), NAMES, 'key = "t"'),
    (
        f'["x", "{"n" * 257}"]',
        lambda fields: fields.names("key", example='"t"'),
        (),
        NAMES,
        'key = "t"',
    ),
    ("5", lambda fields: fields.choice("key", ("hold",), ""), "", "text", 'key = "..."'),
    ("1", lambda fields: fields.flag("key"), False, "true or false", "key = true"),
    (
        "true",
        lambda fields: fields.number("key", 25, low=1, high=99),
        25,
        "a whole number",
        "key = 25",
    ),
    (
        "1.0",
        lambda fields: fields.number("key", 25, low=1, high=99),
        25,
        "a whole number",
        "key = 25",
    ),
    ("5", lambda fields: fields.duration_ms("key", 7), 7, "a duration", 'key = "5s"'),
    ("5", lambda fields: fields.table("key", (), "{ x = 1 }"), None, "a table", "key = { x = 1 }"),
    ("5", lambda fields: fields.entries("key", (), "[{}]"), (), "a list of tables", "key = [{}]"),
    ("[5]", lambda fields: fields.entries("key", (), "[{}]"), (), "a list of tables", "key = [{}]"),
]


@pytest.mark.parametrize(("value", "read", "stand_in", "wanted", "example"), WRONG)
def test_a_value_of_another_kind_is_one_error_at_its_key(
    value: str, read: Any, stand_in: object, wanted: str, example: str
) -> None:
    fields = fields_of(f"other = 1\nkey = {value}")
    assert read(fields) == stand_in
    message, hint = f"'key' must be {wanted}", f"write {example}"
    assert told(fields) == ("site.wrong_type", 3, message, hint)


def test_a_word_that_is_no_choice_is_told_the_nearest_and_shown_only_its_beginning() -> None:
    fields = fields_of(f'key = "hld"\nlong = "{"q" * 99}"')
    assert fields.choice("key", ("hold", "refuse"), "refuse") == "refuse"
    assert told(fields) == (
        "site.unknown_choice",
        2,
        "'key' cannot be 'hld'",
        "did you mean 'hold'?",
    )
    fields.choice("long", ("hold", "refuse"), "refuse")
    assert fields.problems[1].message == f"'long' cannot be {'q' * 40!r}"
    assert fields.problems[1].hint == "known: hold, refuse"


def test_an_empty_text_is_no_choice_even_where_empty_is_the_default() -> None:
    fields = fields_of('key = ""')
    assert fields.choice("key", ("point", "comma"), "") == ""
    assert only(fields).code == "site.unknown_choice"


@pytest.mark.parametrize("value", [0, 100, -5])
def test_a_number_outside_its_bounds_is_refused(value: int) -> None:
    fields = fields_of(f"port = {value}")
    assert fields.number("port", 25, low=1, high=99) == 25
    message = "'port' must lie between 1 and 99"
    assert told(fields) == ("site.out_of_range", 2, message, "such as port = 25")


@pytest.mark.parametrize(
    ("value", "message", "hint"),
    [
        ('"2 parsecs"', "'2 parsecs' is not a duration", "such as 500ms, 5s, 10 min, 2 hours"),
        ('""', "'' is not a duration", "such as 500ms"),
        (f'"{"q" * 99}"', f"{'q' * 40!r} is not a duration", "such as 500ms"),
        ('"0s"', "'key' must be longer than nothing", 'write key = "5s"'),
        (ENDLESS, "'key' must be a shorter duration", 'write key = "5s"'),
    ],
)
def test_a_duration_that_cannot_be_is_one_error_and_the_default_holds(
    value: str, message: str, hint: str
) -> None:
    fields = fields_of(f"key = {value}")
    assert fields.duration_ms("key", 7, least=1) == 7
    assert told(fields)[:3] == ("site.bad_duration", 2, message)
    assert hint in only(fields).hint


# --- tables within the table ---


def test_a_table_below_is_read_with_the_same_strictness_codes_and_problems() -> None:
    fields = fields_of("time = { fild = 1, format = 2 }", strict=True, codes=OTHER)
    time = fields.table("time", ("field", "format"), "{ ... }")
    assert time is not None
    assert time.problems is fields.problems
    time.text("format")
    time.text("field", example='"t"')
    assert [(problem.code, problem.severity, problem.line) for problem in fields.problems] == [
        ("other.unknown_key", "error", 2),
        ("other.bad_value", "error", 2),
        ("other.missing_key", "error", 2),
    ]
    assert fields.problems[2].message == "[a.b.time] needs the key 'field'"


def test_a_table_below_with_its_own_header_has_its_own_places() -> None:
    fields = fields_of("[a.b.time]\nformat = 2")
    time = fields.table("time", ("format",), "{ ... }")
    assert time is not None
    time.text("format")
    assert only(fields).line == 3


def test_entries_of_a_list_are_tables_whose_faults_stand_at_the_list() -> None:
    fields = fields_of('first = 1\nconvert = [{ call = "x" }, { call = 5, cal = 1 }]')
    one, two = fields.entries("convert", ("call",), "[{ ... }]")
    assert one.text("call") == "x"
    assert two.text("call", "none") == "none"
    assert [(problem.code, problem.line) for problem in fields.problems] == [
        ("site.unknown_key", 3),
        ("site.wrong_type", 3),
    ]


# --- faults ---


def test_a_room_may_promise_its_own_codes() -> None:
    fields = fields_of(
        f'word = "no"\nnumber = 9\nduration = "soon"\nendless = {ENDLESS}', codes=OTHER
    )
    fields.choice("word", ("hold",), "hold")
    fields.number("number", 1, low=1, high=2)
    fields.duration_ms("duration", 1)
    fields.duration_ms("endless", 1)
    assert [problem.code for problem in fields.problems] == [
        "other.bad_choice",
        "other.bad_number",
        "other.bad_duration",
        "other.endless",
    ]


def test_faults_of_a_room_stand_at_the_key_or_at_the_header_when_it_is_absent() -> None:
    fields = fields_of("key = 1")
    fields.fault("key", "a.b", "wrong", hint="mend it", severity="warning")
    fields.fault("absent", "a.c", "absent")
    fields.fault("", "a.d", "whole")
    fields.report("key", InvalidInput("raised", code="a.e", hint="do this"))
    fields.wrong("key", "a table", "[a.b.key]")
    assert [(found.code, found.line, found.hint) for found in fields.problems] == [
        ("a.b", 2, "mend it"),
        ("a.c", 1, ""),
        ("a.d", 1, ""),
        ("a.e", 2, "do this"),
        ("site.wrong_type", 2, "write [a.b.key]"),
    ]
    assert fields.problems[0].severity == "warning"
    assert fields.problems[3].message == "raised"


def test_a_suggestion_is_the_nearest_name_or_a_few_that_are_known() -> None:
    assert suggest("anna", ["ben", "ana"]) == "did you mean 'ana'?"
    assert suggest("zzz", {"ben", "ana"}) == "known: ana, ben"
    assert suggest("zzz", list("abcdefghij")) == "known: a, b, c, d, e, f, g, h"
    assert suggest("zzz", []) == ""


VALUES = st.recursive(
    st.one_of(st.text(max_size=5), st.integers(), st.floats(), st.booleans()),
    lambda below: st.one_of(
        st.lists(below, max_size=2), st.dictionaries(st.text(max_size=3), below, max_size=2)
    ),
    max_leaves=4,
)


@given(VALUES)
def test_any_value_is_of_the_kind_asked_for_or_exactly_one_problem(value: object) -> None:
    section = Section(TomlFile("site.toml", "", {}), ("a",), {"key": value})
    for read in (
        lambda fields: fields.text("key"),
        lambda fields: fields.filled_text("key"),
        lambda fields: fields.texts("key"),
        lambda fields: fields.names("key", example='"t"'),
        lambda fields: fields.choice("key", ("x",), ""),
        lambda fields: fields.flag("key"),
        lambda fields: fields.number("key", 1, low=1, high=3),
        lambda fields: fields.duration_ms("key", 1, least=1),
        lambda fields: fields.table("key", None, "{}", needed=True),
        lambda fields: fields.entries("key", ("x",), "[{}]"),
    ):
        problems: list[Problem] = []
        read(Fields(section, problems))
        assert len([found for found in problems if found.code != "site.unknown_key"]) <= 1
        assert all(problem.hint for problem in problems)


# --- settings ---


class Pump(msgspec.Struct, frozen=True, kw_only=True):
    name: Annotated[str, Meta(min_length=1)] = "p"
    mode: Literal["slow", "fast"] = "slow"
    on: bool = False
    level: Annotated[int, Meta(ge=1, le=9)] = 3
    wait_ms: Annotated[int, Meta(ge=1)] = 500
    tags: tuple[str, ...] = ()
    secret: str = ""


def test_settings_are_read_by_the_types_and_bounds_of_a_struct() -> None:
    fields = fields_of('name = "q"\nmode = "fast"\non = true\nlevel = 9\nwait = "2s"\ntags = "a"')
    expected = Pump(name="q", mode="fast", on=True, level=9, wait_ms=2_000, tags=("a",), secret="s")
    assert fields.settings(Pump(), secret="s") == expected
    assert fields.problems == []
    assert keys_of(Pump, but=("secret",)) == ("name", "mode", "on", "level", "wait", "tags")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ('name = ""', "site.wrong_type"),
        ('mode = "fest"', "site.unknown_choice"),
        ("on = 1", "site.wrong_type"),
        ("level = 10", "site.out_of_range"),
        ('wait = "0s"', "site.bad_duration"),
        ("tags = 1", "site.wrong_type"),
    ],
)
def test_a_setting_out_of_bounds_is_told_and_keeps_its_default(line: str, code: str) -> None:
    fields = fields_of(line)
    assert fields.settings(Pump()) == Pump()
    assert told(fields)[:2] == (code, 2)
