"""Lines below an action: what they mean, and what is said about those that mean nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.policy.delivery import LINES, DeliveryBlock, read_delivery
from rapport.policy.language.diagnostics import Diagnostics
from rapport.policy.language.formatter import format_policy
from rapport.policy.language.parser import parse_policy
from rapport.policy.language.printer import print_policy

HEAD = "concepts\n  person A\n  room R\nconditions\n  A is inside R\nactions\n  raise alarm\n"


def read(*lines: str) -> tuple[DeliveryBlock, Diagnostics]:
    text = HEAD + "".join(f"    {line}\n" for line in lines)
    faults = Diagnostics("test", text)
    (action,) = parse_policy(text, name="test").actions
    return read_delivery(action, faults), faults


def test_a_whole_block_is_read() -> None:
    block, faults = read(
        "to guards",
        "first answer wins",
        "answer within 60 s",
        "then security-leads",
        "then peer 'the boss' within 10 min",
        "urgent",
        'say "guest {A}, alone in room # {R}"  # a comment',
        "until 30 min",
    )
    assert faults.problems() == ()
    assert block.to is not None
    assert (block.to.kind, block.to.name) == ("", "guards")
    assert [(each.receiver.kind, each.receiver.name, each.within_ms) for each in block.then] == [
        ("", "security-leads", 0),
        ("peer", "the boss", 600_000),
    ]
    assert (block.reach, block.awaits_answer, block.answer_within_ms) == ("anybody", True, 60_000)
    assert (block.urgent, block.until_ms) == (True, 1_800_000)
    assert block.say == "guest {A}, alone in room # {R}"


def test_options_that_are_not_set_are_left_to_the_site() -> None:
    block, _ = read("not urgent")
    assert block.urgent is False
    assert (block.to, block.say, block.reach, block.until_ms) == (None, None, None, None)
    assert not block.awaits_answer


@pytest.mark.parametrize(
    ("line", "reach", "awaits"),
    [
        ("everybody", "everybody", False),
        ("Everybody Answers", "everybody", True),
        ("FIRST ANSWER WINS", "anybody", True),
    ],
)
def test_how_many_have_to_be_reached(line: str, reach: str, awaits: bool) -> None:
    block, faults = read(line)
    assert faults.problems() == ()
    assert (block.reach, block.awaits_answer) == (reach, awaits)


@pytest.mark.parametrize(
    "line", ["at least 3 answer", "at least 3 answers", "any 3 answer", "Any 3", "AT LEAST 3"]
)
def test_a_number_counts_answers(line: str) -> None:
    block, faults = read(line)
    assert faults.problems() == ()
    assert (block.least, block.reach, block.awaits_answer) == (3, None, True)


@pytest.mark.parametrize(
    ("line", "every_ms", "most"),
    [
        ("repeat every 2 min", 120_000, 0),
        ("repeat every 90 s at most 5 times", 90_000, 5),
        ("Repeat Every 1 h at most 1 time", 3_600_000, 1),
    ],
)
def test_a_message_is_repeated_until_somebody_answers(line: str, every_ms: int, most: int) -> None:
    block, faults = read(line)
    assert faults.problems() == ()
    assert (block.repeat_every_ms, block.repeat_most) == (every_ms, most)
    assert block.awaits_answer


@pytest.mark.parametrize(
    ("line", "ways"),
    [
        ("by preferred way", "preferred"),
        ("by their preferred way", "preferred"),
        ("on all channels", "all"),
        ("on any channel", "any"),
    ],
)
def test_by_which_way_people_are_told(line: str, ways: str) -> None:
    block, faults = read(line)
    assert faults.problems() == ()
    assert (block.ways, block.awaits_answer) == (ways, False)


def test_the_time_that_the_next_have_waits_for_an_answer() -> None:
    assert read("then guards within 5 min")[0].awaits_answer
    assert not read("then guards")[0].awaits_answer  # the site knows whether the first answer


WRONG = [
    ("tto guards", "policy.unknown_delivery", 5, "did you mean 'to'"),
    ("anser within 60 s", "policy.unknown_delivery", 5, "did you mean 'answer within'"),
    ("hurry up please", "policy.unknown_delivery", 5, "known: to guards"),
    ("to", "policy.no_receiver", 7, "to guards"),
    ("to 5", "policy.no_receiver", 8, "to guards"),
    ("to ana, ben", "policy.delivery_too_long", 11, "collective"),
    ("to ana and ben", "policy.delivery_too_long", 12, "collective"),
    ("urgent now", "policy.delivery_too_long", 12, "line of its own"),
    ("say hello", "policy.no_text", 9, "in quotes"),
    ('say ""', "policy.no_text", 9, "in quotes"),
    ('say "hello', "policy.unclosed_quote", 9, "end it"),
    ("answer within soon", "policy.bad_duration", 19, "60 s"),
    ("until 30 m", "policy.ambiguous_unit", 14, "min"),
    ("at least", "policy.bad_count", 13, "at least 3 answer"),
    ("at least three answer", "policy.bad_count", 14, "at least 3 answer"),
    ("any 0 answer", "policy.bad_count", 9, "from 1"),
    ("any 1.5 answer", "policy.bad_count", 9, "from 1"),
    ("any -3 answer", "policy.bad_count", 9, "from 1"),
    ("any 3 people", "policy.delivery_too_long", 11, "line of its own"),
    ("repeat", "policy.bad_repeat", 5, "repeat every 2 min"),
    ("repeat 5 times", "policy.bad_repeat", 5, "repeat every 2 min"),
    ("repeat every day", "policy.bad_duration", 18, "repeat every 2 min"),
    ("repeat every 10 ms", "policy.bad_repeat", 18, "1 s"),
    ("repeat every 2 min at most often", "policy.bad_repeat", 32, "at most 5 times"),
    ("repeat every 2 min at most 5", "policy.bad_repeat", 32, "at most 5 times"),
    ("repeat every 2 min at most 0 times", "policy.bad_repeat", 32, "at most 5 times"),
    ("then guards within soon", "policy.bad_duration", 24, "within 10 min"),
    ("then guards within", "policy.bad_duration", 23, "within 10 min"),
    ("by prefered way", "policy.unknown_delivery", 5, "did you mean 'by preferred way'"),
    ("on all chanels", "policy.unknown_delivery", 5, "did you mean 'on all channels'"),
    ("to peer:ana", "policy.bad_character", 12, ""),
]


@pytest.mark.parametrize(("line", "code", "column", "hint"), WRONG)
def test_a_wrong_line_is_reported_at_its_place(
    line: str, code: str, column: int, hint: str
) -> None:
    _block, faults = read("urgent", line) if "urgent" not in line else read(line, "everybody")
    (problem,) = faults.problems()
    assert (problem.code, problem.column) == (code, column)
    assert hint in problem.hint
    assert problem.hint


def test_every_fault_of_a_block_is_told() -> None:
    _block, faults = read("to guards", "to leads", "say nothing", "urgent", "not urgent")
    assert [(each.code, each.line) for each in faults.problems()] == [
        ("policy.delivery_twice", 9),
        ("policy.no_text", 10),
        ("policy.delivery_twice", 12),
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("any 3 answer", "first answer wins"),
        ("everybody", "at least 2"),
        ("repeat every 2 min", "repeat every 3 min"),
        ("by their preferred way", "on all channels"),
    ],
)
def test_two_lines_that_say_how_many_or_how_contradict_each_other(one: str, other: str) -> None:
    _block, faults = read(one, other)
    assert [(each.code, each.line) for each in faults.problems()] == [("policy.delivery_twice", 9)]


def test_the_examples_that_hints_show_are_right() -> None:
    for line in LINES:
        assert read(line)[1].problems() == ()


def test_a_block_is_printed_as_it_was_written() -> None:
    text = HEAD + '    to guards\n    say "a # b"\n'
    assert 'say "a # b"' in print_policy(parse_policy(text, name="test"))


def test_every_line_is_kept_by_formatting() -> None:
    text = HEAD + "".join(f"        {line}   # why\n" for line in LINES)
    formatted = format_policy(text, name="test")
    assert formatted.splitlines()[-len(LINES) :] == [f"    {line}  # why" for line in LINES]
    assert format_policy(formatted, name="test") == formatted
    again = parse_policy(formatted, name="test").actions[0].delivery
    assert tuple(line.text for line in again) == LINES


_WORDS = st.sampled_from(
    [
        "to",
        "then",
        "peer",
        "say",
        '"x"',
        "'",
        "5",
        "s",
        "urgent",
        "not",
        "at",
        "least",
        "any",
        "repeat",
        "every",
        "most",
        "within",
        ",",
        "{",
        "é",
    ]
)


@given(st.lists(st.lists(st.one_of(_WORDS, st.text(max_size=4)), max_size=5), max_size=4))
def test_any_lines_are_read_or_reported_at_a_place(lines: list[list[str]]) -> None:
    texts = [" ".join("".join(words.split()) for words in line) for line in lines]
    _block, faults = read(*texts)
    assert all(problem.line and problem.message for problem in faults.problems())
