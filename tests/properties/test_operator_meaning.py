"""Operators and runner mean what the evaluator means, on random worlds and policies. [PO-7]"""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.detection import Detection, detection_lines
from rapport.kernel.chance import Chance
from rapport.policy.compiler.compile import Compiled, compile_policy
from rapport.policy.runners.local import LocalRunner
from rapport.testing.evaluator import evaluate
from rapport.testing.occurrences import Reading
from rapport.testing.worlds import (
    ONTOLOGY,
    WINDOW_MS,
    World,
    random_policy,
    random_world,
    readings_batch,
)

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
    """Shuffled within the lateness, cut anywhere, saved and restored now and then."""
    arrivals: list[Reading] = sorted(
        world.readings, key=lambda reading: reading.time + chance.randint(0, lateness_ms)
    )
    runner = LocalRunner([policy.plan], world.pull, lateness_ms=lateness_ms)
    found: list[Detection] = []
    while arrivals:
        size = chance.choice(SIZES)
        found += runner.feed(readings_batch(arrivals[:size]))
        arrivals = arrivals[size:]
        if chance.randint(0, 2) == 0:
            saved = runner.snapshot()
            runner = LocalRunner([policy.plan], world.pull, lateness_ms=lateness_ms)
            runner.restore(saved)
    assert runner.late == 0
    return found + runner.finish()


@given(st.integers(0, 2**32))
def test_the_runner_finds_what_the_evaluator_finds(seed: int) -> None:
    chance = Chance(seed)
    world = moved(random_world(chance, events=chance.randint(5, 45)), chance.choice((0, -2_000)))
    policy = compiled_policy(chance, chance.choice((1, 20, WINDOW_MS, WINDOW_MS, 1_000)))
    lateness_ms = chance.choice((0, 0, 30, 150))
    assert detection_lines(run(chance, policy, world, lateness_ms)) == judged(policy, world)


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
