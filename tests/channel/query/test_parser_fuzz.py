"""Whatever comes as a condition is understood or refused with its place and what to do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rapport.channel.query.compiler import compile_condition
from rapport.channel.query.parser import QueryError, parse_condition
from rapport.channel.query.postgres_sql import to_sql
from rapport.channel.query.query_kinds import make_query
from rapport.channel.query.tree import print_condition
from rapport.core.event import Event, StoredEvent
from support.judge.conditions import CONDITIONS

pytestmark = pytest.mark.slow

STORED = StoredEvent(1, 2, Event("s", "1", "t", "", 3, b'{"x": 5, "y": "a"}'))
WORDS = """type data.x data.order.@id headers.h time position 'a' 'it''s' 5 2.5 -1 TRUE = <> < >=
AND OR NOT BETWEEN IN LIKE ESCAPE IS NULL ( ) , . [ ] [0] + - * / @ " ' ; % ü '2026-03-02' 1e999"""
PIECES = st.sampled_from([*WORDS.split(), "\n", "\0"])


def judge(text: str) -> None:
    try:
        condition = parse_condition(text)
    except QueryError as error:
        (problem,) = error.problems_found()
        lines = text.split("\n")
        assert 1 <= problem.line <= len(lines)
        assert 1 <= problem.column <= len(lines[problem.line - 1]) + 1
        assert problem.hint, problem
        assert problem.excerpt
        assert problem.code.startswith("query.")
        return
    canonical = print_condition(condition)
    assert print_condition(parse_condition(canonical)) == canonical
    compile_condition(condition)(STORED)
    to_sql(make_query("sql", canonical))


@given(st.text(max_size=60))
@example("'")
@example("data.")
@example("data.@")
@example("\u2028type = 5")
@example("NOT")
@example("(" * 40)
@example("data.x IN (data.y)")
@example("data.x LIKE 'a' ESCAPE 'ab'")
@example("time = 'soon'")
@example("data.x + 'a' = 5")
@example("data.x = (data.y = 5)")
@example("1" * 41)
def test_any_text_is_understood_or_refused_with_place_and_hint(text: str) -> None:
    judge(text)


@given(st.lists(PIECES, max_size=12))
def test_words_in_any_order_are_too(pieces: list[str]) -> None:
    judge(" ".join(pieces))


@given(CONDITIONS, st.data())
def test_valid_conditions_with_a_slip_are_too(condition: Any, data: st.DataObject) -> None:
    text = print_condition(condition)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(start + 4, len(text))))
    judge(text[:start] + data.draw(PIECES | st.text(max_size=2)) + text[end:])
