"""A policy with `while` finds what the judge finds, however readings are cut, delayed and the
runner is replaced by a restored one. [SI-9, SI-11]"""

from __future__ import annotations

import os
import re

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapport.kernel.clock import Chance
from support.examples import examples
from support.guard_trials import varied_guard
from support.judge.trials import judged, outcome_lines, run_any_way, run_locally

pytestmark = pytest.mark.slow
MANY = int(os.environ.get("GUARD_TRIALS", examples(60)))


@settings(max_examples=MANY, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32))
def test_a_policy_with_while_finds_what_the_judge_finds(seed: int) -> None:
    chance = Chance(seed)
    trial = varied_guard(chance)
    expected = outcome_lines(judged(trial))
    assert outcome_lines(run_locally(trial)) == expected, trial.text
    lateness_ms = chance.choice((0, 0, 700, 3_000))
    assert outcome_lines(run_any_way(chance, trial, lateness_ms=lateness_ms)) == expected


def test_guards_let_some_matches_pass_and_others_not() -> None:
    """Else the comparison would prove nothing."""
    both = 0
    for seed in range(60):
        trial = varied_guard(Chance(seed))
        free = msgspec.structs.replace(trial, text=re.sub(r"while\n(  .*\n)+", "", trial.text))
        both += 0 < len(judged(trial).detections) < len(judged(free).detections)
    assert both > 5
