"""The section `while` of policies with conditions."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapport.core.errors import PolicyError
from rapport.policy.language.formatter import format_policy
from rapport.policy.language.parser import parse_policy
from rapport.policy.language.printer import print_policy
from rapport.policy.language.situation_printer import print_situation_condition
from rapport.policy.language.situation_tree import AndOf
from support.examples import examples
from tests.support.situation_trees import situation_trees, without_places

GUARDED = """\
concepts
  person A
  room R
conditions
  A is inside R
  within 10s
while  # at night
  time is between 22:00 and 06:00 AND security of R is 'high'
  # and warm
  mean of temperature of R in the last 1h above 20 degC OR no person B with (B is inside R)
actions
  raise alarm
"""
EARLY = "while\n  id of A = id of R"
SILENT = "concepts\n  person A\nconditions\n  no event of A for 3 s\n"


def test_a_guard_is_the_lines_of_while_joined_by_and() -> None:
    tree = parse_policy(GUARDED, name="test")
    assert isinstance(tree.guard, AndOf)
    assert [print_situation_condition(part) for part in tree.guard.parts] == [
        "time is between 22:00 and 06:00 AND security of R is 'high'",
        "mean of temperature of R in the last 1h above 20 degC OR no person B with (B is inside R)",
    ]
    assert tree.guard.parts[0].parts[0].place.line == 8
    assert tree.window_ms == 10_000


def test_a_guarded_policy_is_printed_and_formatted_as_it_is() -> None:
    assert format_policy(GUARDED, name="test") == GUARDED
    printed = print_policy(parse_policy(GUARDED, name="test"))
    before, after = (parse_policy(text, name="test") for text in (GUARDED, printed))
    assert without_places(before) == without_places(after)


@pytest.mark.slow
@settings(max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_condition_of_a_situation_can_be_a_guard(data: st.DataObject) -> None:
    guard = data.draw(situation_trees()).situation
    text = "concepts\n  person A person B station S\nconditions\n  A is inside S\nactions\n  go\n"
    tree = parse_policy(text, name="test")
    printed = print_policy(type(tree)(**{**_fields(tree), "guard": guard}))
    assert without_places(parse_policy(printed, name="test").guard) == without_places(guard)


def _fields(tree: object) -> dict[str, object]:
    return {name: getattr(tree, name) for name in tree.__struct_fields__}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        (GUARDED.replace("while", "while:"), "policy.unknown_section", 7),
        (GUARDED.replace("actions", "while\nactions"), "policy.repeated_section", 11),
        (
            GUARDED.replace("conditions\n", "while\n  id of A = id of R\nconditions\n"),
            "policy.section_order",
            4,
        ),
        (
            "concepts\n  person A\nconditions\n  no event of A for 3 s\nwhile\nactions\n  go\n",
            "policy.empty_section",
            5,
        ),
        (GUARDED.replace("mean of", "average of"), "policy.bad_aggregate", 10),
        (GUARDED.replace("of R is", "of Q is"), "policy.unknown_alias", 8),
    ],
)
def test_a_wrong_guard_is_reported_at_its_place(text: str, code: str, line: int) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy(text, name="test")
    problem = caught.value.problems[0]
    assert (problem.code, problem.line) == (code, line)
    assert problem.hint


def test_an_action_named_while_is_an_action() -> None:
    tree = parse_policy(f"{SILENT}actions\n  while\n", name="test")
    assert tree.guard is None
    assert [action.phrase for action in tree.actions] == ["while"]
