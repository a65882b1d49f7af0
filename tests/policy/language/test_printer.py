"""What is printed can be read again."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapport.policy.language.parser import parse_policy
from rapport.policy.language.printer import print_policy
from rapport.policy.language.tree import PolicyTree

CHECKS = Path(__file__).parents[2] / "data" / "checks"
Strip = Callable[[PolicyTree], PolicyTree]


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_a_printed_policy_parses_to_the_same_tree(
    data: st.DataObject, random_policies: st.SearchStrategy[PolicyTree], without_places: Strip
) -> None:
    tree = data.draw(random_policies)
    again = parse_policy(print_policy(tree), name="random")
    assert without_places(again) == without_places(tree)


@pytest.mark.parametrize("path", sorted(CHECKS.glob("*/*.dpl")), ids=lambda path: path.stem)
def test_the_recorded_policies_survive_printing(path: Path, without_places: Strip) -> None:
    tree = parse_policy(path.read_text(encoding="utf-8"), name=path.stem)
    printed = print_policy(tree)
    assert without_places(parse_policy(printed, name=path.stem)) == without_places(tree)
    assert print_policy(parse_policy(printed, name=path.stem)) == printed
