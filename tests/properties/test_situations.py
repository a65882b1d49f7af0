"""The operators tell what the judge tells, however readings are cut, delayed and the runner is
replaced by a restored one. [SI-1 to SI-8, SI-11]"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapport.core.detection import Detection, detection_lines
from rapport.policy.compiler.compile import compile_situation
from rapport.policy.situation_plan import SituationPlan
from rapport.policy.situations.situation_operator import SituationOperator
from rapport.policy.table_history import PullByTime, SwitchingRunner, TableSwitch
from support.examples import examples
from support.judge.holding import Reading
from support.situation_worlds import NAME, SituationWorld, judge_world, situation_trials
from support.varied.worlds import readings_batch

LATENESS_MS = 3_000
Trial = tuple[SituationWorld, str, list[int], bool, list[Reading], bool]
MANY = int(os.environ.get("SITUATION_TRIALS", "10000"))


class CutRun:
    """A run of one policy that is cut at some readings; at some cuts a restored runner goes on."""

    def __init__(self, world: SituationWorld, plan: SituationPlan, lateness_ms: int) -> None:
        self._world, self._plan, self._lateness = world, plan, lateness_ms
        self._runner = self._made(0)
        self.found: list[Detection] = []

    def feed(self, readings: Sequence[Reading]) -> None:
        if readings:
            batch = readings_batch(readings, self._world.ontology)
            self.found += self._runner.feed(batch)

    def restart(self) -> None:
        before = self._runner
        runner = self._made(len(before._left))
        runner.runner.restore(before.runner.snapshot())
        self._runner = runner

    def finish(self) -> list[Detection]:
        self.found += self._runner.finish(self._world.until)
        assert self._runner.runner.failed() == {}
        return self.found

    @property
    def counts(self) -> tuple[int, int, int]:
        """Open, pending and suppressed."""
        runner = self._runner.runner
        counts = runner.situations()[NAME]
        return counts.open, counts.pending, runner.suppressed()[NAME]

    def _made(self, left: int) -> SwitchingRunner:
        first, *later = sorted(self._world.tables, key=lambda one: one.since)
        switches = tuple(
            TableSwitch(one.since, lambda pull=one.pull: pull)  # type: ignore[misc]
            for one in later
        )
        pull, rest = first.pull, switches
        if self._is_started() and left < len(switches):
            passed = len(switches) - left
            pull, rest = switches[passed - 1].pull(), switches[passed:]
        return SwitchingRunner(
            [self._plan],
            PullByTime(pull=pull, switches=rest),
            lateness_ms=self._lateness,
            sources=self._world.ontology.sources,
            began=self._world.start,
        )

    def _is_started(self) -> bool:
        return hasattr(self, "_runner")


def plan_of(world: SituationWorld, text: str) -> SituationPlan:
    return compile_situation(text, name=NAME, ontology=world.ontology).plan


def since_start(world: SituationWorld) -> list[Reading]:
    """A policy sees what comes from its start on."""
    start = world.start
    return [one for one in world.readings if start is None or one.time >= start]


def check(
    world: SituationWorld,
    text: str,
    cuts: Sequence[int],
    restarts: bool,
    order: Sequence[Reading],
    drops: bool = False,
) -> None:
    """`drops`: bindings that do not matter are dropped after each step."""
    with pytest.MonkeyPatch.context() as patch:
        if drops:
            patch.setattr(SituationOperator, "worth_dropping", -1)
            patch.setattr(SituationOperator, "worth_dropping_again", 0)
        _check(world, text, cuts, restarts, order)


def _check(
    world: SituationWorld, text: str, cuts: Sequence[int], restarts: bool, order: Sequence[Reading]
) -> None:
    seen = SituationWorld(
        tables=world.tables,
        readings=tuple(since_start(world)),
        start=world.start,
        until=world.until,
        ontology=world.ontology,
    )
    verdict = judge_world(seen, text)
    run = CutRun(
        world, plan_of(world, text), LATENESS_MS if list(order) != list(seen.readings) else 0
    )
    begin = 0
    for cut in sorted(cuts):
        run.feed(order[begin:cut])
        begin = max(begin, cut)
        if restarts:
            run.restart()
    run.feed(order[begin:])
    found = detection_lines(run.finish()).decode().splitlines()
    expected = detection_lines(verdict.detections).decode().splitlines()
    assert found == expected, (text, set(found) ^ set(expected), len(found))
    assert run.counts == (len(verdict.open), len(verdict.pending), verdict.suppressed), text


@st.composite
def trials(draw: st.DrawFn) -> Trial:
    world, text = draw(situation_trials())
    readings = since_start(world)
    cuts = draw(st.lists(st.integers(0, len(readings)), max_size=6))
    delays = draw(st.lists(st.sampled_from((0, 0, 500, 2_999)), max_size=len(readings)))
    delays += [0] * (len(readings) - len(delays))
    order = readings
    if any(delays):
        places = sorted(
            range(len(readings)), key=lambda place: readings[place].time + delays[place]
        )
        order = [readings[place] for place in places]
    return world, text, cuts, draw(st.booleans()), order, draw(st.booleans())


QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@pytest.mark.slow
@settings(max_examples=examples(80), deadline=None, suppress_health_check=QUIET)
@given(trials())
def test_operators_tell_what_the_judge_tells(
    trial: Trial,
) -> None:
    check(*trial)


@pytest.mark.long
@settings(max_examples=MANY, deadline=None, suppress_health_check=QUIET)
@given(trials())
def test_operators_tell_what_the_judge_tells_of_many_worlds(
    trial: Trial,
) -> None:
    check(*trial)
