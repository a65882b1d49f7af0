"""Formatting: the same policy, the same comments, one form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapport.core.errors import PolicyError
from rapport.policy.language.formatter import format_policy
from rapport.policy.language.parser import parse_policy
from rapport.policy.language.printer import print_policy
from rapport.policy.language.situation_printer import print_situation
from rapport.policy.language.situation_tree import SituationTree
from rapport.policy.language.situations import parse_situation_policy
from rapport.policy.language.tree import PolicyTree
from support.examples import examples
from tests.support.situation_trees import situation_trees
from tests.support.situation_trees import without_places as places_removed

CHECKS = Path(__file__).parents[2] / "data" / "checks"
SITUATIONS = Path(__file__).parents[2] / "data" / "situations"
Strip = Callable[[PolicyTree], PolicyTree]
COMMENTS = ("# why", "// so", "#", "#  two  spaces", "// concepts", "# it's (open")

UNTIDY = """\
# Who may be where.


concepts person A (status="guest")  # who
  // a room
  room   R with property security='restricted' and floor > 3
  sensor S sensor T # two
conditions   # what
  A IS inside R or # at night
     # or at noon

     temperature of S is over 30degC   # hot
  use the newest first
  # not longer
  within 5000 ms # win
  (A is inside R  and temperature of T at most 5 °C) for 120 minutes
# what follows

actions // do
  call   http://example.org/#y   # loud
      to  guards # all of them
  # nothing else
"""
TIDY = """\
# Who may be where.

concepts
  person A (status='guest')  # who
  // a room
  room R (security='restricted' floor>3)
  sensor S
  sensor T  # two
conditions  # what
  # at night
  # or at noon
  A is inside R OR temperature of S above 30 degC  # hot
  consume recent
  # not longer
  within 5s  # win
  (A is inside R AND temperature of T at most 5 °C) for 2h
# what follows

actions  // do
  call http://example.org/#y  # loud
    to guards  # all of them
  # nothing else
"""
UNTIDY_SITUATION = """\
# How warm it is.
concepts
freezer F (site="north")  # cold
  // and another
  freezer G
  F and  G may be   the same # or not

situation # what
   temperature of F IS above -15degC for 600 s OR # hot
     # or silent
     no temperature of F for 30 minutes
  at most once per 60 s # quiet
  # later
  time is on sat, Sunday   in "Europe/Berlin"
  id of G is not '7'
# over
cleared by
  (temperature of F below -17 degC) for 5 min
actions   # do
  call # nobody
    say "{F} # is warm"
  # the end
actions when cleared
  all   is well  # good
"""
TIDY_SITUATION = """\
# How warm it is.
concepts
  freezer F (site='north')  # cold
  // and another
  freezer G
  F and G may be the same  # or not

situation  # what
  # hot
  # or silent
  temperature of F above -15 degC for 10min OR no temperature of F for 30min
  at most once per 1min  # quiet
  # later
  time is on Sat, Sun in 'Europe/Berlin'
  id of G is not '7'
# over
cleared by
  temperature of F below -17 degC for 5min
actions  # do
  call  # nobody
    say "{F} # is warm"
  # the end
actions when cleared
  all is well  # good
"""


def test_an_untidy_policy_becomes_tidy_with_all_its_comments() -> None:
    assert format_policy(UNTIDY, name="test") == TIDY


def test_a_tidy_policy_stays_as_it_is() -> None:
    assert format_policy(TIDY, name="test") == TIDY
    assert format_policy(TIDY.replace("\n", "\r\n"), name="test") == TIDY


def test_an_untidy_situation_becomes_tidy_with_all_its_comments() -> None:
    assert format_policy(UNTIDY_SITUATION, name="test") == TIDY_SITUATION
    assert format_policy(TIDY_SITUATION, name="test") == TIDY_SITUATION


@pytest.mark.parametrize("path", sorted(SITUATIONS.glob("*.dpl")), ids=lambda path: path.stem)
def test_the_worked_situations_are_formatted_without_a_change_of_meaning(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    formatted = format_policy(text, name="test")
    assert format_policy(formatted, name="test") == formatted
    before, after = (parse_situation_policy("test", each) for each in (text, formatted))
    assert places_removed(before) == places_removed(after)


@pytest.mark.slow
@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), tree=situation_trees())
def test_formatting_a_situation_keeps_its_meaning_and_comments(
    data: st.DataObject, tree: SituationTree
) -> None:
    printed = print_situation(tree)
    assert format_policy(printed, name="random") == printed
    untidy, comments = _untidy(printed, data)
    formatted = format_policy(untidy, name="random")
    assert format_policy(formatted, name="random") == formatted
    assert places_removed(parse_situation_policy("random", formatted)) == places_removed(tree)
    assert _comments_in(formatted, printed) == sorted(comments)


def test_a_faulty_policy_is_refused_with_its_problems() -> None:
    with pytest.raises(PolicyError) as caught:
        format_policy(TIDY.replace("above 30", "above"), name="test")
    assert caught.value.problems[0].line == 12


@pytest.mark.parametrize("path", sorted(CHECKS.glob("*/*.dpl")), ids=lambda path: path.stem)
def test_the_recorded_policies_are_formatted_without_a_change_of_meaning(
    path: Path, without_places: Strip
) -> None:
    text = path.read_text(encoding="utf-8")
    formatted = format_policy(text, name="test")
    assert format_policy(formatted, name="test") == formatted
    before, after = (parse_policy(each, name="test") for each in (text, formatted))
    assert without_places(before) == without_places(after)


@pytest.mark.slow
@settings(
    max_examples=examples(80),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_formatting_keeps_meaning_and_comments_and_is_idempotent(
    data: st.DataObject, random_policies: st.SearchStrategy[PolicyTree], without_places: Strip
) -> None:
    tree = data.draw(random_policies)
    printed = print_policy(tree)
    assert format_policy(printed, name="random") == printed
    untidy, comments = _untidy(printed, data)
    formatted = format_policy(untidy, name="random")
    assert format_policy(formatted, name="random") == formatted
    assert without_places(parse_policy(formatted, name="random")) == without_places(tree)
    assert _comments_in(formatted, printed) == sorted(comments)


def _untidy(printed: str, data: st.DataObject) -> tuple[str, list[str]]:
    """The lines with comments, blank lines and needless space; sequences cut where they may be."""
    lines: list[str] = []
    comments: list[str] = []

    def comment() -> str:
        comments.append(data.draw(st.sampled_from(COMMENTS)))
        return comments[-1]

    for line in printed.splitlines():
        kind = data.draw(st.sampled_from(("plain", "above", "behind", "blank", "cut", "wide")))
        if kind == "above":
            lines.append(data.draw(st.sampled_from(("", "  ", "\t"))) + comment())
        elif kind == "blank":
            lines += ["", "  "]
        if kind == "cut" and line.count(" AND ") == 1 and "'" not in line and '"' not in line:
            before, after = line.split(" AND ")
            lines += [f"{before} and {comment()}", "", f"    {comment()}", f"    {after}"]
        elif kind == "behind":
            lines.append(f"{line}   {comment()}")
        else:
            lines.append(line + "  " * (kind == "wide"))
    return "\n".join(lines), comments


def _comments_in(formatted: str, printed: str) -> list[str]:
    """What stands in the formatted text beyond the printed lines."""
    found: list[str] = []
    rest = iter(formatted.splitlines())
    for line in printed.splitlines():
        for candidate in rest:
            if candidate == line:
                break
            if candidate.startswith(f"{line}  ") and candidate[len(line) :].strip():
                found.append(candidate[len(line) :].strip())
                break
            found += [candidate.strip()] if candidate.strip() else []
    found += [line.strip() for line in rest if line.strip()]
    return sorted(found)
