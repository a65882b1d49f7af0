"""A policy with `while` finds what the judge finds, however readings are cut, delayed and the
runner is replaced by a restored one. [SI-9, SI-11]"""

from __future__ import annotations

import os
import re

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapport.core.errors import PolicyError
from rapport.kernel.clock import Chance
from rapport.policy.compiler.compile import compile_conditions
from rapport.policy.ontology import Ontology
from support.judge.trials import Trial, judged, outcome_lines, run_any_way, run_locally
from support.situation_policies import ZONES, PolicyWriter
from support.situation_worlds import EDGES, attributes_in, varied_world
from support.varied.sites import Draws

pytestmark = pytest.mark.slow
MANY = int(os.environ.get("GUARD_TRIALS", "60"))
_WINDOW_MS = 3_000


def varied_guard(draws: Draws) -> Trial:
    """A random policy with `while` over a random site, such that the compiler takes it."""
    edge, zone = draws.choice(EDGES), draws.choice(("Europe/Berlin", *ZONES))
    while True:
        text = PolicyWriter(draws, edge, zone).guarded()
        world = varied_world(
            draws, attributes_in(text), edge=edge, zone=zone, events=30, changing_tables=False
        )
        try:
            compile_conditions(text, name="p", ontology=world.ontology, window_ms=_WINDOW_MS)
        except PolicyError:
            continue
        return Trial(
            text=text,
            ontology=_with_a_period(draws, world.ontology),
            pull=world.tables[0].pull,
            readings=world.readings,
            window_ms=_WINDOW_MS,
            tables=world.tables,
        )


def _with_a_period(draws: Draws, ontology: Ontology) -> Ontology:
    """Perhaps a source promises readings, so that absence may be undecided."""
    if draws.randint(0, 2):
        return ontology
    name = draws.choice(sorted(ontology.sources))
    promised = msgspec.structs.replace(ontology.sources[name], period_ms=2_000)
    return msgspec.structs.replace(ontology, sources={**ontology.sources, name: promised})


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
