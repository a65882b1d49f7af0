"""Operators and runner mean what the evaluator means, on random worlds and policies. [PO-7]"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.detection import Detection, Undecided, detection_lines, each_once
from rapport.kernel.chance import Chance
from rapport.policy.compiler.compile import Compiled, compile_policy
from rapport.policy.ontology import Ontology
from rapport.policy.runners.local import LocalRunner
from rapport.testing.evaluator import evaluate, judge
from rapport.testing.occurrences import Reading
from rapport.testing.worlds import (
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


def compiled_policy(chance: Chance, window_ms: int = WINDOW_MS) -> Compiled:
    return compile_policy(random_policy(chance), name="p", ontology=ONTOLOGY, window_ms=window_ms)


def moved(world: World, by_ms: int) -> World:
    """The same world at another time, perhaps before 1970."""
    readings = [
        msgspec.structs.replace(reading, time=reading.time + by_ms) for reading in world.readings
    ]
    return World(world.pull, tuple(readings))


def judged(policy: Compiled, world: World) -> bytes:
    window_ms = policy.plan.window_ms
    found = evaluate(policy.tree, ONTOLOGY, world.pull, world.readings, window_ms=window_ms)
    return detection_lines(found)


def run(chance: Chance, policy: Compiled, world: World, lateness_ms: int) -> list[Detection]:
    return run_with(chance, policy, world, ONTOLOGY, lateness_ms)[0]


def run_with(
    chance: Chance, policy: Compiled, world: World, ontology: Ontology, lateness_ms: int
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
    return each_once(msgspec.structs.replace(item, version="") for item in undecided)


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
