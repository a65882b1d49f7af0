"""Work beside the loop leaves it its turns. [ME-6]"""

import asyncio
import sys

import pytest

from rapport.mediation.model.beside import TURN_SECONDS, beside, short_turns


def test_turns_are_short_while_the_work_runs_and_as_before_afterwards() -> None:
    usual = sys.getswitchinterval()
    seen = asyncio.run(beside(sys.getswitchinterval))
    assert seen == pytest.approx(TURN_SECONDS, rel=0.01)
    assert sys.getswitchinterval() == usual


def test_turns_stay_short_until_the_last_work_ends() -> None:
    usual = sys.getswitchinterval()
    first, second = short_turns(), short_turns()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(TURN_SECONDS, rel=0.01)
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == usual


def test_what_the_work_raises_is_raised_and_turns_are_as_before() -> None:
    usual = sys.getswitchinterval()

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        asyncio.run(beside(fail))
    assert sys.getswitchinterval() == usual
