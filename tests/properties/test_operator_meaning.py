"""Operators and runner mean what the evaluator means, on random worlds and policies. [PO-7, PO-8]

Worlds of positions (`worlds.py`, which Spark is compared on too), then sites and policies of every
kind (`varied_worlds.py`, `varied_policies.py`).
"""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rapport.core.detection import Detection, Undecided, detection_lines, unique_undecided
from rapport.core.errors import PolicyError
from rapport.kernel.clock import Chance
from rapport.policy.compiler.compile import CompiledPolicy, compile_policy
from rapport.policy.ontology import Ontology
from rapport.policy.plan import Absent, Plan, Sequence
from rapport.policy.runner.local import LocalRunner
from support.judge.evaluator import evaluate, judge
from support.judge.occurrences import Reading
from support.judge.trials import (
    Trial,
    outcome_lines,
    run_any_way,
    run_locally,
    varied_trial,
    verdict_of,
)
from support.judge.trials import judged as judged_trial
from support.varied.sites import Draws
from support.varied.worlds import (
    ONTOLOGY,
    WINDOW_MS,
    World,
    random_policy,
    random_world,
    readings_batch,
    with_periods,
)

pytestmark = pytest.mark.slow

SIZES = (1, 2, 3, 7, 100)


def compiled_policy(chance: Chance, window_ms: int = WINDOW_MS) -> CompiledPolicy:
    return compile_policy(random_policy(chance), name="p", ontology=ONTOLOGY, window_ms=window_ms)


def moved(world: World, by_ms: int) -> World:
    """The same world at another time, perhaps before 1970."""
    readings = [
        msgspec.structs.replace(reading, time=reading.time + by_ms) for reading in world.readings
    ]
    return World(world.pull, tuple(readings))


def judged(policy: CompiledPolicy, world: World) -> bytes:
    window_ms = policy.plan.window_ms
    found = evaluate(policy.tree, ONTOLOGY, world.pull, world.readings, window_ms=window_ms)
    return detection_lines(found)


def run(chance: Chance, policy: CompiledPolicy, world: World, lateness_ms: int) -> list[Detection]:
    return run_with(chance, policy, world, ONTOLOGY, lateness_ms)[0]


def run_with(
    chance: Chance, policy: CompiledPolicy, world: World, ontology: Ontology, lateness_ms: int
) -> tuple[list[Detection], list[Undecided]]:
    """Shuffled within the lateness, cut anywhere, saved and restored now and then."""

    def fresh() -> LocalRunner:
        return LocalRunner(
            [policy.plan], world.pull, lateness_ms=lateness_ms, sources=ontology.sources
        )

    arrivals: list[Reading] = sorted(
        world.readings, key=lambda reading: reading.time + chance.randint(0, lateness_ms)
    )
    runner = fresh()
    found: list[Detection] = []
    undecided: list[Undecided] = []
    while arrivals:
        size = chance.choice(SIZES)
        found += runner.feed(readings_batch(arrivals[:size], ontology))
        undecided += runner.take_undecided()
        arrivals = arrivals[size:]
        if chance.randint(0, 2) == 0:
            saved = runner.snapshot()
            runner = fresh()
            runner.restore(saved)
    assert runner.late == 0
    found += runner.finish()
    return found, undecided + runner.take_undecided()


@given(st.integers(0, 2**32))
def test_the_runner_finds_what_the_evaluator_finds(seed: int) -> None:
    chance = Chance(seed)
    world = moved(random_world(chance, events=chance.randint(5, 45)), chance.choice((0, -2_000)))
    policy = compiled_policy(chance, chance.choice((1, 20, WINDOW_MS, WINDOW_MS, 1_000)))
    lateness_ms = chance.choice((0, 0, 30, 150))
    assert detection_lines(run(chance, policy, world, lateness_ms)) == judged(policy, world)


def plainly(undecided: list[Undecided]) -> list[Undecided]:
    """Without the version, which the evaluator does not know."""
    return unique_undecided(msgspec.structs.replace(item, version="") for item in undecided)


@given(st.integers(0, 2**32))
def test_what_a_silent_source_leaves_open_is_undecided_as_the_evaluator_says(seed: int) -> None:
    chance = Chance(seed)
    world, ontology = with_periods(chance, random_world(chance, events=chance.randint(5, 45)))
    policy = compiled_policy(chance, chance.choice((20, WINDOW_MS, WINDOW_MS, 1_000)))
    lateness_ms = chance.choice((0, 0, 30, 150))
    found, undecided = run_with(chance, policy, world, ontology, lateness_ms)
    verdict = judge(
        policy.tree, ontology, world.pull, world.readings, window_ms=policy.plan.window_ms
    )
    assert detection_lines(found) == detection_lines(verdict.detections)
    assert plainly(undecided) == verdict.undecided


def test_random_worlds_leave_some_things_open_and_decide_others() -> None:
    """Else the comparison would prove nothing."""
    some = both = 0
    for seed in range(150):
        chance = Chance(seed)
        world, ontology = with_periods(chance, random_world(chance))
        policy = compiled_policy(chance)
        verdict = judge(policy.tree, ontology, world.pull, world.readings, window_ms=WINDOW_MS)
        some += bool(verdict.undecided)
        both += bool(verdict.undecided and verdict.detections)
    assert some > 12
    assert both > 0


@given(st.integers(0, 2**32))
def test_policies_do_not_depend_on_each_other(seed: int) -> None:
    chance = Chance(seed)
    world = random_world(chance)
    alone = compiled_policy(chance)
    renamed = compile_policy(
        random_policy(chance), name="other", ontology=ONTOLOGY, window_ms=WINDOW_MS
    )
    runner = LocalRunner([renamed.plan, alone.plan], world.pull, lateness_ms=0)
    found = runner.feed(readings_batch(world.readings)) + runner.finish()
    mine = [item for item in found if item.policy == "p"]
    assert detection_lines(mine) == judged(alone, world)


def test_random_policies_are_not_all_silent() -> None:
    """Else the comparison would prove nothing."""
    found = 0
    for seed in range(60):
        chance = Chance(seed)
        world = random_world(chance)
        found += judged(compiled_policy(chance), world).count(b"\n") > 0
    assert found > 15


# Every kind of condition on every kind of site.

LATENESS_MS = (0, 0, 30, 150)


def agrees(draws: Draws, events: int) -> Trial:
    """Detections, doubts and what is left out are those of the evaluator, however it is fed."""
    trial = varied_trial(draws, events=events)
    found = run_any_way(draws, trial, lateness_ms=draws.choice(LATENESS_MS))
    assert outcome_lines(found) == outcome_lines(judged_trial(trial)), trial.text
    return trial


@settings(suppress_health_check=list(HealthCheck))  # a site and a policy are many draws
@given(st.randoms(use_true_random=False), st.integers(1, 30))
def test_every_kind_of_policy_means_what_the_evaluator_says(draws: Draws, events: int) -> None:
    """The draws are hypothesis's own, so that what fails becomes small."""
    agrees(draws, events)


@given(st.integers(0, 2**32))
@example(0)
def test_longer_streams_mean_what_the_evaluator_says(seed: int) -> None:
    agrees(Chance(seed), events=60)


@given(st.integers(0, 2**32))
def test_varied_policies_do_not_depend_on_each_other(seed: int) -> None:
    chance = Chance(seed)
    one = varied_trial(chance)
    other = msgspec.structs.replace(one, text=varied_trial(chance).text)
    try:
        plans = [plan_of(one, "p"), plan_of(other, "q")]
    except PolicyError:
        return  # the second is about another site, which this one need not be like
    runner = LocalRunner(plans, one.pull, lateness_ms=0, sources=one.ontology.sources)
    found = runner.feed(readings_batch(one.readings, one.ontology)) + runner.finish()
    mine = [item for item in found if item.policy == "p"]
    doubts = [item for item in runner.take_undecided() if item.policy == "p"]
    together = verdict_of(mine, doubts, runner.suppressed()["p"])
    assert outcome_lines(together) == outcome_lines(run_locally(one))


def plan_of(trial: Trial, name: str) -> Plan:
    return compile_policy(
        trial.text, name=name, ontology=trial.ontology, window_ms=trial.window_ms
    ).plan


def test_varied_policies_are_of_every_kind_and_find_something() -> None:
    """Else the comparison would prove nothing."""
    kinds: Counter[str] = Counter()
    for seed in range(300):
        trial = varied_trial(Chance(seed))
        verdict = judged_trial(trial)
        kinds["detected"] += bool(verdict.detections)
        kinds["undecided"] += bool(verdict.undecided)
        kinds["left out"] += bool(verdict.suppressed)
        if verdict.detections:
            kinds.update(kinds_in(plan_of(trial, "p")))
    rare = {name: count for name, count in kinds.items() if count < 3}
    assert rare == {}
    assert kinds.keys() >= EVERY_KIND


EVERY_KIND = {
    "query",
    "correlation",
    "constraint",
    "reading",
    "lasting",
    "silent",
    "compared",
    "absent",
    "followed-by",
    "not followed-by",
    "followed-by not",
    "mixed",
    "own window",
}


def kinds_in(plan: Plan) -> set[str]:
    """Names of what a plan has."""
    kinds = {type(term).__struct_config__.tag for term in plan.terms}
    kinds |= {"compared" for term in plan.terms if getattr(term, "compared", None) is not None}
    for clause in plan.clauses:
        absent = [child for child in clause.children if isinstance(child, Absent)]
        kinds |= {"absent"} if absent else set()
        kinds |= {"mixed"} if 0 < len(absent) < len(clause.children) else set()
        kinds |= {"own window"} if clause.window_ms is not None else set()
        for child in clause.children:
            if isinstance(child, Sequence):
                before = "not " if child.first_negated else ""
                kinds.add(f"{before}followed-by{' not' if child.second_negated else ''}")
                kinds |= {"own window"} if child.window_ms is not None else set()
    return kinds


def test_readings_of_one_time_and_id_are_one_cause() -> None:
    """Two people in one event lead to the same clause: not the order of rows decides who is named,
    but the order of identities.
    """
    chance = Chance(33_965)
    agrees(chance, events=chance.randint(1, 60))


@pytest.mark.long
def test_thousands_of_policies_mean_what_the_evaluator_says() -> None:
    for seed in range(10_000):
        chance = Chance(seed)
        agrees(chance, events=chance.randint(1, 60))
