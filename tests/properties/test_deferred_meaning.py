"""What waits until a match asks about it means the same whichever way it is then found: by
identity, by place, or all at once; however the rows were kept meanwhile. [PO-6, PO-7]

Random worlds are small, so the numbers that say which way is cheaper are drawn too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rapport.kernel.clock import Chance
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.operators import absence, correlations, deferred_terms
from rapport.policy.plan import Plan
from rapport.policy.runner.local import LocalRunner
from support.judge.trials import (
    judged,
    outcome_lines,
    run_any_way,
    run_locally,
    varied_trial,
    verdict_of,
)
from support.varied.worlds import readings_batch

pytestmark = pytest.mark.slow

CHOICES = (
    (absence, "_MANY_UNEVALUATED", (0, 1, 64)),
    (absence, "_FEW_PAIRS", (-1, 4_096)),
    (correlations, "_MOST_BOXES", (0, 16)),
    (deferred_terms, "_MOST_WAITING", (0, 2, 16)),
    (deferred_terms, "_FEW_CODES", (0, 4)),
    (deferred_terms, "_FEW_READERS", (0, 8)),
    (deferred_terms, "_LEAST_CAPACITY", (1, 1_024)),
)


@contextmanager
def drawn_numbers(chance: Chance) -> Iterator[None]:
    with ExitStack() as undone:
        for room, name, numbers in CHOICES:
            undone.enter_context(patch.object(room, name, chance.choice(numbers)))
        yield


def agrees(seed: int) -> None:
    chance = Chance(seed)
    trial = varied_trial(chance, events=chance.randint(1, 60))
    with drawn_numbers(chance):
        found = run_any_way(chance, trial, lateness_ms=chance.choice((0, 0, 30, 150)))
    assert outcome_lines(found) == outcome_lines(judged(trial)), trial.text


@given(st.integers(0, 2**32))
def test_however_it_is_found_it_means_what_the_evaluator_says(seed: int) -> None:
    agrees(seed)


@pytest.mark.long
def test_thousands_of_ways_mean_what_the_evaluator_says() -> None:
    for seed in range(10_000):
        agrees(seed)


@given(st.integers(0, 2**32))
@example(0)
def test_rows_kept_for_several_policies_are_seen_by_each_from_its_own_beginning(seed: int) -> None:
    """One policy in several windows and under several names; some begin in the midst of it, some
    leave.
    """
    chance = Chance(seed)
    one = varied_trial(chance, events=chance.randint(10, 60))
    windows = [one.window_ms * chance.randint(1, 3) for _ in range(4)]
    plans = [_plan(one.text, name, one, ms) for name, ms in zip("pqrs", windows, strict=True)]
    with drawn_numbers(chance):
        runner = LocalRunner(plans[:2], one.pull, lateness_ms=0, sources=one.ontology.sources)
        found, undecided = [], []
        begin = chance.randint(0, len(one.readings))
        parts = [one.readings[:begin], one.readings[begin:]]
        for number, part in enumerate(parts):
            for first in range(0, len(part), size := chance.choice((1, 2, 7, 100))):
                found += runner.feed(readings_batch(part[first : first + size], one.ontology))
                undecided += runner.take_undecided()
            if not number:
                for plan in plans[2:]:
                    runner.deploy(plan)
                if chance.randint(0, 1):
                    runner.withdraw("q")
        found += runner.finish()
        undecided += runner.take_undecided()
    mine = [item for item in found if item.policy == "p"]
    doubts = [item for item in undecided if item.policy == "p"]
    together = verdict_of(mine, doubts, runner.suppressed()["p"])
    alone = msgspec.structs.replace(one, window_ms=windows[0])
    assert outcome_lines(together) == outcome_lines(run_locally(alone))


def _plan(text: str, name: str, trial: object, window_ms: int) -> Plan:
    ontology = trial.ontology  # type: ignore[attr-defined]
    return compile_policy(text, name=name, ontology=ontology, window_ms=window_ms).plan
