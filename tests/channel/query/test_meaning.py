"""An independent, slow evaluator of conditions judges the compiled ones."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.query.compiler import compile_condition
from rapport.channel.query.parser import QueryError, parse_condition
from rapport.channel.query.tree import Not, position_bounds, print_condition
from rapport.channel.query.values import like_test, mixed_characters
from rapport.core.event import Event, StoredEvent
from support.judge.conditions import CONDITIONS, row_of, stored_events, truth


@pytest.mark.slow
@given(CONDITIONS, st.lists(stored_events(), min_size=1, max_size=6))
def test_compiled_conditions_mean_what_the_slow_evaluator_says(
    condition: Any, events: list[StoredEvent]
) -> None:
    matches = compile_condition(condition)
    negated = compile_condition(Not(condition))
    for stored in events:
        expected = truth(condition, row_of(stored))
        assert matches(stored) == (expected is True)
        assert negated(stored) == (expected is False)


@pytest.mark.slow
@given(CONDITIONS)
def test_printing_and_parsing_give_the_same_tree(condition: Any) -> None:
    text = print_condition(condition)
    again = parse_condition(text)
    assert again == condition
    assert print_condition(again) == text


@pytest.mark.slow
@given(CONDITIONS, st.lists(stored_events(), min_size=1, max_size=6))
def test_position_bounds_leave_no_match_out(condition: Any, events: list[StoredEvent]) -> None:
    bounds = position_bounds(condition)
    matches = compile_condition(condition)
    for stored in events:
        if matches(stored):
            assert stored.position > bounds.after
            assert bounds.last is None or stored.position <= bounds.last


@pytest.mark.parametrize("pattern", ["%a" * 40, "_%" * 40, "%" * 100 + "b", "%_a_%" * 20])
def test_no_pattern_takes_long(pattern: str) -> None:
    condition = parse_condition(f"data LIKE '{pattern}'")
    event = Event("s", "i", "t", "", 0, json.dumps("a" * 20_000).encode())
    compile_condition(condition)(StoredEvent(1, 1, event))


@given(
    st.lists(st.sampled_from(["a", "b", "%", "_", "!%", "!_", "!!", "."]), max_size=9),
    st.text("ab%_!.", max_size=12),
)
def test_a_pattern_fits_what_its_definition_says(signs: list[str], text: str) -> None:
    assert like_test("".join(signs), "!")(text) == _fits(signs, text)


def _fits(signs: list[str], text: str) -> bool:
    """The definition of LIKE, tried in every way."""
    if not signs:
        return not text
    if signs[0] == "%":
        return any(_fits(signs[1:], text[cut:]) for cut in range(len(text) + 1))
    wanted = signs[0][-1]
    return bool(text) and (signs[0] == "_" or text[0] == wanted) and _fits(signs[1:], text[1:])


def test_wildcards_beside_letters_cost_no_more_than_the_letters_alone() -> None:
    text, jokers = "a" * 1_000_000, "_" * 3_900
    for pattern in (f"%{jokers}X%", f"%X{jokers}%", f"%{jokers}X", f"X{jokers}%", f"%{jokers}%X%"):
        assert mixed_characters(pattern, "") == 0  # searched for as a plain text
        assert not like_test(pattern, "")(text)


def test_patterns_that_would_cost_text_times_pattern_are_refused() -> None:
    allowed = "_a" * 31 + "a_"
    parse_condition(f"data LIKE '%a{allowed}%'")
    parse_condition(f"data LIKE '{'a_' * 2_000}'")  # whole texts are compared once
    for refused in (f"'%a{allowed}aa%'", f"'%a{allowed}%' OR data LIKE '%b_b%'"):
        with pytest.raises(QueryError) as fault:
            parse_condition(f"data LIKE {refused}")
        assert fault.value.code == "query.too_many_wildcards"


def test_a_payload_that_is_no_json_is_null() -> None:
    stored = StoredEvent(1, 1, Event("s", "i", "t", "", 0, b"\xff<xml/>"))
    assert compile_condition(parse_condition("data IS NULL"))(stored)
    assert not compile_condition(parse_condition("data.x = 1"))(stored)


def test_nothing_a_person_wrote_becomes_code() -> None:
    text = """data."x'] or __import__('os')" = '"; import os' AND headers."a\\n" LIKE '\\%'"""
    event = Event("s", "i", "t", "", 0, b"{}")
    assert not compile_condition(parse_condition(text))(StoredEvent(1, 1, event))
    assert re.search("__import__", text)
