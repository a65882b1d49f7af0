"""Policies with a situation: parsing, printing and faults."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given

from rapport.policy.language.situation_printer import print_situation
from rapport.policy.language.situation_tree import SituationTree
from rapport.policy.language.situations import parse_situation_policy
from tests.support.situation_trees import situation_trees, without_places

CASES = sorted((Path(__file__).parents[2] / "data" / "situations").glob("*.dpl"))


def policy(line: str, section: str = "situation") -> str:
    """A policy whose fourth line is `line`; A, B and S are named in the third."""
    concepts = "concepts\n  person A person B station S\n"
    named = "id of A != id of S OR A is near B\n"
    if section == "situation":
        return f"{concepts}situation {line}\nactions\n  raise alarm\n"
    return f"{concepts}situation\n  {named}{section}\n  {line}\nactions\n  raise alarm\n"


def with_line(line: str) -> str:
    return (
        "concepts\n  person A person B station S\nsituation\n"
        f"  {line}\n  id of A != id of S OR A is near B\nactions\n  raise alarm\n"
    )


def parse(text: str) -> SituationTree:
    return without_places(parse_situation_policy("x", text))


def test_there_are_all_worked_cases() -> None:
    assert len(CASES) == 37


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_worked_cases_parse_and_print_and_parse_to_the_same(path: Path) -> None:
    tree = parse(path.read_text(encoding="utf-8"))
    assert parse(print_situation(tree)) == tree


@given(situation_trees())
def test_a_printed_tree_parses_to_the_same(tree: SituationTree) -> None:
    text = print_situation(tree)
    assert parse_situation_policy("random", text) is not None
    assert without_places(parse_situation_policy("random", text)) == without_places(tree)
