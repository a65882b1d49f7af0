"""The operators tell what the judge tells, however readings are cut, delayed and the runner is
replaced by a restored one. [SI-1 to SI-8, SI-11]"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings, target
from hypothesis import strategies as st

from rapport.core.detection import Detection, detection_lines
from rapport.policy.compiler.compile import compile_situation
from rapport.policy.compiler.situation_planner import counted_terms
from rapport.policy.language.situation_tree import named_instances
from rapport.policy.language.situations import parse_situation_policy
from rapport.policy.runner.local import LocalRunner
from rapport.policy.situation_plan import NamedAtTurns, SituationPlan
from rapport.policy.situations.situation_operator import SituationOperator
from rapport.policy.table_history import PullByTime, SwitchingRunner, TableSwitch
from support.examples import examples
from support.judge.holding import Reading
from support.judge.situation_names import JudgedNames
from support.situation_worlds import (
    NAME,
    SituationTables,
    SituationWorld,
    judge_world,
    situation_trials,
)
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


def check_names(world: SituationWorld, text: str, cuts: Sequence[int], drops: bool) -> int:
    """What detections carry for texts is what the judge counts; returns how many carried some."""
    tree = parse_situation_policy(NAME, text)
    plan, readings = plan_of(world, text), since_start(world)
    terms = counted_terms(tree, world.ontology)
    named = NamedAtTurns(
        {str(number): term for number, (_, term) in enumerate(terms)},
        frozenset(named_instances(tree.situation) | named_instances(tree.cleared_by)),
    )
    runner = LocalRunner(
        [plan],
        world.tables[0].pull,
        lateness_ms=0,
        sources=world.ontology.sources,
        began=world.start,
    )
    runner.name_values({NAME: named})
    found, begin = list[Detection](), 0
    with pytest.MonkeyPatch.context() as patch:
        if drops:
            patch.setattr(SituationOperator, "worth_dropping", -1)
            patch.setattr(SituationOperator, "worth_dropping_again", 0)
        for cut in [*sorted(cuts), len(readings)]:
            if readings[begin:cut]:
                batch = readings_batch(readings[begin:cut], world.ontology)
                found += runner.feed(batch)
            begin = max(begin, cut)
        found += runner.finish(world.until)
    judged = JudgedNames(
        tree,
        world.ontology,
        list(world.tables),
        readings,
        start=world.start,
        until=world.until,
    )
    for one in found:
        counts = {str(number): judged.count(own, one) for number, (own, _) in enumerate(terms)}
        assert (one.values or {}) == counts | judged.instances(one), (text, one)
    return sum(bool(one.values) for one in found)


def has_names(text: str) -> bool:
    return re.search(r"count of \(|\bsome\b|at least \d+ [a-z]+ [A-Z]\b", text) is not None


QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def test_a_pair_that_comes_near_later_counts_the_readings_from_before() -> None:
    text = """concepts
  person A
  room R
situation
  A is inside R AND count of (NOT A is inside R) in the last 10 s at least 2
actions
  look
"""
    places = [(30.0, 4.0), (30.0, 0.0), (5.0, 5.0), (5.0, 4.0)]
    readings = tuple(
        Reading(1_000 * number, f"e{number}", "person.position", "ann", place, "gates")
        for number, place in enumerate(places)
    )
    room = {"r1": {"security": "public", "limit": None, "area": (0.0, 0.0, 10.0, 10.0)}}
    world = SituationWorld(
        tables=(SituationTables(room=room).version(),),
        readings=readings,
        start=-20_000,
        until=30_000,
    )
    assert len(judge_world(world, text).detections) == 2
    for cuts in ([], [1], [2], [1, 2, 3]):
        for restarts in (False, True):
            check(world, text, cuts, restarts, readings)


@pytest.mark.slow
@settings(max_examples=examples(80), deadline=None, suppress_health_check=QUIET)
@given(trials())
def test_operators_tell_what_the_judge_tells(
    trial: Trial,
) -> None:
    check(*trial)


@pytest.mark.slow
@settings(max_examples=80, deadline=None, suppress_health_check=QUIET)
@given(
    situation_trials(changing_tables=False).filter(lambda one: has_names(one[1])),
    st.lists(st.integers(0, 40), max_size=4),
    st.booleans(),
)
def test_texts_name_what_the_judge_counts(
    trial: tuple[SituationWorld, str], cuts: list[int], drops: bool
) -> None:
    target(check_names(*trial, cuts, drops))


@pytest.mark.long
@settings(max_examples=MANY, deadline=None, suppress_health_check=QUIET)
@given(trials())
def test_operators_tell_what_the_judge_tells_of_many_worlds(
    trial: Trial,
) -> None:
    check(*trial)
