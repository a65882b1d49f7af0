"""Conditions as people write them, and what they are told when they slip."""

from __future__ import annotations

import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rapport.channel.query.compiler import compile_condition
from rapport.channel.query.parser import MAX_DEPTH, QueryError, parse_condition
from rapport.channel.query.tree import EVERYTHING, FIELDS, KEYWORDS, print_condition
from rapport.core.event import Event, StoredEvent


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("", ""),
        ("type='a'", "type = 'a'"),
        ("TYPE = 1 or data.x", None),
        ("not type = 'a' and subject<>'b'", "NOT type = 'a' AND subject <> 'b'"),
        ("not (type = 'a' and id='b')", "NOT (type = 'a' AND id = 'b')"),
        ("(data.a or data.b) and data.c", "(data.a OR data.b) AND data.c"),
        ("data.a or (data.b and data.c)", "data.a OR data.b AND data.c"),
        ("data.x not between 1 and 2 or data.y", "data.x NOT BETWEEN 1 AND 2 OR data.y"),
        ("data.x Is Not Null", "data.x IS NOT NULL"),
        ("data.n not like 'a!%%' escape '!'", "data.n NOT LIKE 'a!%%' ESCAPE '!'"),
        ("data.x in ('it''s', 2, -3.5, true)", "data.x IN ('it''s', 2, -3.5, TRUE)"),
        ("data.a - (data.b - 1) > .5e1", "data.a - (data.b - 1) > 5.0"),
        ("(data.a * 2) + 1 >= -data.b", "data.a * 2 + 1 >= -data.b"),
        ('data."room number".value[0] = 5', 'data."room number".value[0] = 5'),
        ("data.in = 1", 'data."in" = 1'),
        ("time > '2026-03-02'", "time > '2026-03-02T00:00:00.000Z'"),
        (
            "received BETWEEN 5 AND '1970-01-01T00:00:01Z'",
            "received BETWEEN 5 AND '1970-01-01T00:00:01.000Z'",
        ),
        ("headers.traceparent LIKE '00-%'", "headers.traceparent LIKE '00-%'"),
        ("data\n  .x\t= 1", "data.x = 1"),
    ],
)
def test_what_people_write_has_one_canonical_form(written: str, canonical: str | None) -> None:
    if canonical is None:
        with pytest.raises(QueryError):
            parse_condition(written)
        return
    assert print_condition(parse_condition(written)) == canonical
    assert parse_condition(canonical) == parse_condition(written)


@pytest.mark.parametrize(
    ("text", "line", "column", "code"),
    [
        ("typ = 'a'", 1, 1, "query.unknown_field"),
        ("type = 'a'\n  AND temperature > 5", 2, 7, "query.unknown_field"),
        ("type =", 1, 7, "query.unexpected"),
        ("type = 'a' type = 'b'", 1, 12, "query.unexpected"),
        ("type = 'a", 1, 8, "query.unclosed_quote"),
        ('data."a = 1', 1, 6, "query.unclosed_quote"),
        ("type == 'a'", 1, 7, "query.unexpected"),
        ("type != 'a'", 1, 6, "query.bad_character"),
        ("type = ‘a’", 1, 8, "query.bad_character"),
        ("type = 5", 1, 8, "query.wrong_kind"),
        ("position LIKE '5%'", 1, 1, "query.wrong_kind"),
        ("data.x < TRUE", 1, 10, "query.wrong_kind"),
        ("time > 'soon'", 1, 8, "query.bad_time"),
        ("time IN ('soon')", 1, 10, "query.bad_time"),
        ("5 AND data.x", 1, 1, "query.not_a_condition"),
        ("type", 1, 1, "query.not_a_condition"),
        ("(data.x = 1) = 2", 1, 1, "query.not_a_value"),
        ("type + 1 = 2", 1, 1, "query.not_a_number"),
        ("data.x IN ()", 1, 12, "query.unexpected"),
        ("data.x IN (data.y)", 1, 12, "query.not_a_literal"),
        ("data.x LIKE 'a' ESCAPE 'bc'", 1, 24, "query.bad_escape"),
        ("data.x LIKE 'a!' ESCAPE '!'", 1, 13, "query.bad_escape"),
        ("data.x IS 5", 1, 11, "query.unexpected"),
        ("data.x NOT = 5", 1, 12, "query.unexpected"),
        ("(data.x = 5", 1, 12, "query.unexpected"),
        ("data.x = 5)", 1, 11, "query.unexpected"),
        ("type.x = 5", 1, 1, "query.unknown_field"),
        ("headers = 'a'", 1, 1, "query.unknown_field"),
        ("data. = 5", 1, 7, "query.unexpected"),
        ("data.x[-1] = 5", 1, 8, "query.unexpected"),
        ("data.x[1.5] = 5", 1, 8, "query.bad_number"),
        ("data.x = " + "9" * 41, 1, 10, "query.bad_number"),
        ("data.x = 1e999", 1, 10, "query.bad_number"),
        ("data.x = 1" + " + 1" * 51, 1, 212, "query.too_deep"),
        ("(" * (MAX_DEPTH + 1) + "data.x", 1, MAX_DEPTH + 2, "query.too_deep"),
        ("NOT " * (MAX_DEPTH + 1) + "data.x", 1, 4 * MAX_DEPTH + 5, "query.too_deep"),
        ("data" + ".x" * 20, 1, 1, "query.too_deep"),
        ("data.x IN (" + "1," * 1_000 + "1)", 1, 2_012, "query.too_many"),
        ("x" * 8_193, 1, 8_193, "query.too_long"),
    ],
)
def test_a_slip_is_placed(text: str, line: int, column: int, code: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse_condition(text)
    (problem,) = caught.value.problems_found()
    assert (problem.line, problem.column, problem.code) == (line, column, code)
    assert "^" in problem.excerpt
    assert len(problem.excerpt.splitlines()[0]) < 130
    assert (caught.value.code, caught.value.status) == (code, 400)


def test_the_nearest_field_is_offered() -> None:
    with pytest.raises(QueryError, match="did you mean 'subject'"):
        parse_condition("subjct = 'a'")
    with pytest.raises(QueryError, match=r"data\.temperature"):
        parse_condition("temperature > 5")


def test_an_empty_text_is_everything() -> None:
    assert parse_condition("  \n ") == EVERYTHING


PIECES = st.sampled_from(
    [*KEYWORDS, *FIELDS, *"()[]<>=+-*/.,'\" ", "<>", "data.x", "'a'", "1", "1.5", "\n", "é", "\x00"]
)


@pytest.mark.slow
@given(st.lists(PIECES, max_size=25).map(" ".join) | st.text(string.printable + "é‘\x85\u2028"))
@example("data.x = 1 AND\x85y")
@example("(" * 5_000)
@example("-" * 5_000 + "1 = 1")
@example("NOT " * 2_000)
@example("1" + "+1" * 4_000 + "=1")
@example("data.x" + " OR data.x" * 800)
@example("ıs")
@example("NOT (" * 16 + "position" + " + (position" * 12 + ")" * 12 + " > 1" + ")" * 16)
@example("position" + " - 1" * 50 + " > 5 AND NOT data.x")
def test_any_text_parses_or_is_refused_with_a_place(text: str) -> None:
    try:
        tree = parse_condition(text)
    except QueryError as error:
        (problem,) = error.problems_found()
        lines = text.split("\n")
        assert 1 <= problem.line <= len(lines)
        assert 1 <= problem.column <= len(lines[problem.line - 1]) + 1
    else:
        assert parse_condition(print_condition(tree)) == tree
        compile_condition(tree)(StoredEvent(1, 1, Event("s", "i", "t", "", 0)))
