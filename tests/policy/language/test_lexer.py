"""Tokens and the modules' own examples."""

import doctest

import pytest

from rapport.policy.language import lexer, printer
from rapport.policy.language.diagnostics import Diagnostics
from rapport.policy.language.lexer import comment_at, tokenize_line


def kinds(text: str) -> list[tuple[str, str]]:
    return [(token.kind, token.text) for token in tokenize_line(text, 1, Diagnostics("t", text))]


def test_a_quantity_is_a_number_with_a_glued_word() -> None:
    found = tokenize_line("5m 5 m", 1, Diagnostics("t", ""))
    assert [(token.text, token.glued) for token in found] == [
        ("5", False),
        ("m", True),
        ("5", False),
        ("m", False),
    ]


def test_units_that_are_more_than_a_word_stand_after_a_number_only() -> None:
    assert kinds("5m/s 5 °C 15% 3 [in_i'Hg] 60 dB(A)") == [
        *[("number", "5"), ("unit", "m/s"), ("number", "5"), ("unit", "°C")],
        *[("number", "15"), ("unit", "%"), ("number", "3"), ("unit", "[in_i'Hg]")],
        *[("number", "60"), ("unit", "dB(A)")],
    ]
    assert kinds("5 and 5 m // why") == [
        *[("number", "5"), ("keyword", "and"), ("number", "5"), ("word", "m")]
    ]


def test_a_comment_begins_neither_in_quotes_nor_in_units() -> None:
    assert comment_at("p of S above 3 [in_i'Hg] # it's") == 25
    assert comment_at("p of S above 3 m/s// fast") == 18
    assert comment_at("actions call http://x # now") == 22


def test_exponents_are_numbers_and_units_that_begin_with_e_are_not() -> None:
    assert kinds("1e3 1e-3 2em") == [
        ("number", "1e3"),
        ("number", "1e-3"),
        ("number", "2"),
        ("word", "em"),
    ]


def test_comments_end_a_line_but_not_inside_quotes() -> None:
    assert kinds("a '#//' # b") == [("word", "a"), ("text", "#//")]
    assert kinds("a // b") == [("word", "a")]


def test_doubled_quotes_stand_for_one() -> None:
    assert kinds("'it''s' \"a\"\"b\"") == [("text", "it's"), ("text", 'a"b')]


def test_keywords_are_known_in_any_case() -> None:
    assert kinds("Followed-By AND oR") == [
        ("keyword", "followed-by"),
        ("keyword", "and"),
        ("keyword", "or"),
    ]


def test_what_follows_the_actions_header_is_left_alone() -> None:
    faults = Diagnostics("t", "")
    assert [t.text for t in tokenize_line("actions send; 'now", 1, faults)] == ["actions"]
    assert faults.problems() == ()


@pytest.mark.parametrize("module", [lexer, printer])
def test_the_examples_in_the_docstrings_hold(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]
