"""Policies that are nearly right, and what their author is told: `wrong/NAME.dpl` beside
`wrong/NAME.expected`.

To see the messages of a new one, leave its `.expected` empty and read the failure.
"""

from pathlib import Path

import pytest

from rapport.core.errors import PolicyError, Problem
from rapport.policy.language.parser import parse_policy

WRONG = sorted((Path(__file__).parent / "wrong").glob("*.dpl"))


def told(path: Path) -> tuple[Problem, ...]:
    with pytest.raises(PolicyError) as caught:
        parse_policy(path.read_text(encoding="utf-8"), name=path.stem)
    return caught.value.problems


@pytest.mark.parametrize("path", WRONG, ids=lambda path: path.stem)
def test_the_author_gets_every_fault_with_a_hint(path: Path) -> None:
    shown = "".join(f"{problem.code}\n{problem.as_text()}\n" for problem in told(path))
    assert shown == path.with_suffix(".expected").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", WRONG, ids=lambda path: path.stem)
def test_every_problem_has_a_place_and_says_what_to_do(path: Path) -> None:
    for problem in told(path):
        assert problem.line
        assert problem.column
        assert problem.excerpt
        assert problem.hint


def test_there_are_enough_wrong_policies() -> None:
    assert len(WRONG) >= 40
