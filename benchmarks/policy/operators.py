"""Operators alone: sorted Arrow batches in, detections out; neither decoding nor reordering is
counted. One policy, many, many rooms, durations and silence. [PO-8, PO-13, UX-3]
"""

from __future__ import annotations

import gc
import tracemalloc

from benchmarks.policy.building import (
    LASTING,
    ONTOLOGY,
    SILENT,
    TOGETHER,
    WINDOW_MS,
    Building,
    alone_within,
    policy,
    policy_text,
    walk,
)
from benchmarks.policy.parts import (
    CLOCK,
    PEOPLE,
    ROOMS,
    SEED,
    Run,
    Scene,
    cut,
    say,
    through_operator,
    through_runner,
)
from benchmarks.results import Result, limit, rate, share
from rapport.policy.compiler.compile import compile_conditions
from rapport.policy.plan import Plan
from rapport.policy.runner.local import LocalRunner

_NEAREST, _FARTHEST = 1.0, 10.0


def one_policy(scene: Scene) -> list[Result]:
    """Listing 5.8 by itself."""
    run, _, state = through_operator(scene.building, scene.work.readings, policy())
    say(f"one policy: {run.rate:,.0f} events/s, {run.found:,} detections")
    return [
        rate(
            "secure-building, operators alone: sorted Arrow batches of 10,000 in, detections out",
            run.rate,
            "events/s",
            1_500_000,
        ),
        limit("secure-building, snapshot of the operator", state, "bytes"),
        rate("secure-building, detections", run.found, "detections"),
    ]


def other_kinds(scene: Scene) -> list[Result]:
    """Where events are used up, durations, silence."""
    kinds = {
        "'A is within 5m of B' (each pair a detection)": TOGETHER,
        "'A is inside R for 20 s'": LASTING,
        "'no position of A for 3 s'": SILENT,
    }
    results = []
    for what, conditions in kinds.items():
        run, _, _ = through_operator(
            scene.building, scene.work.readings, policy(conditions), rounds=1
        )
        say(f"{what}: {run.rate:,.0f} events/s, {run.found:,} detections")
        results.append(rate(f"{what}, operators alone, batches of 10,000", run.rate, "events/s"))
    return results


def copies(scene: Scene) -> list[Result]:
    """Policies that differ in one constant, and such that differ in more."""
    one = through_runner(scene.building, scene.work.readings, [policy()])
    hundred = _timed("100 distances", scene, _distances(100))
    thousand = _timed("1,000 distances", scene, _distances(1_000))
    badges = [policy(name=f"p{number}", who=f"badge='{number}'") for number in range(1_000)]
    named = _timed("1,000 badges", scene, badges)
    once = through_runner(scene.building, scene.work.readings, [policy(name="p1", who="badge='1'")])
    return [
        rate(
            "100 copies of the policy with distances from 1 m to 10 m",
            hundred.rate,
            "events/s",
            100_000,
        ),
        limit(
            f"1,000 copies with distances from 1 m to 10 m / one ({thousand.found:,} detections)",
            thousand.per_event / one.per_event,
            "times",
            20,
        ),
        rate(
            "1,000 copies with distances, detections given out",
            thousand.found / thousand.seconds,
            "detections/s",
        ),
        limit(
            "1,000 copies that each watch one person by badge (200 exist) / one of them",
            named.per_event / once.per_event,
            "times",
            20,
        ),
        limit(
            "1,000 copies that each watch one person / one that watches all guests",
            named.per_event / one.per_event,
            "times",
            20,
        ),
    ]


def distinct(scene: Scene) -> list[Result]:
    """Policies that differ in window and distance: those with the same distance look for
    counterexamples once, each makes its own detections; and such with a duration in common.
    """
    results = []
    for number in (10, 1_000):
        plans = [
            policy(alone_within(1 + place % 9), name=f"p{place}", window_ms=1_000 + 10 * place)
            for place in range(number)
        ]
        run = _timed(f"{number:,} distinct policies", scene.part(40_000), plans)
        results.append(
            rate(f"{number:,} distinct policies (windows of 1 s to 11 s)", run.rate, "events/s")
        )
        shared = run.steps.wanted / max(run.steps.computed, 1)
        say(f"{number:,} distinct policies: {shared:.1f} steps wanted for one computed")
        results.append(
            rate(f"{number:,} distinct policies, steps wanted for one computed", shared, "times")
        )
    lasting = [
        policy(LASTING, name=f"p{place}", window_ms=1_000 + 10 * place) for place in range(10)
    ]
    run = _timed("10 policies with one duration", scene.part(40_000), lasting)
    results.append(rate("10 policies with one duration and other windows", run.rate, "events/s"))
    return results


def rooms(scene: Scene, quick: bool) -> list[Result]:
    """The same people in buildings with more rooms and the floor for them."""
    results = []
    few, _, _ = through_operator(scene.building, scene.work.readings, policy())
    for times in (100,) if quick else (100, 1_000):
        number = ROOMS * times
        walked = walk(PEOPLE, number, len(scene.work.readings), SEED)
        many, _, _ = through_operator(Building(PEOPLE, number, SEED), walked.readings, policy())
        say(f"{number:,} rooms: {many.rate:,.0f} events/s")
        results += [
            rate(f"people spread over {number:,} rooms instead of 100", many.rate, "events/s"),
            limit(
                f"time per event, {number:,} rooms / 100 rooms",
                many.per_event / few.per_event,
                "times",
                2,
            ),
        ]
    return results


def memory(scene: Scene, quick: bool) -> list[Result]:
    """What a runner with 100 policies holds after the stream, and after ten times as much."""
    short = 4_000 if quick else 50_000
    held = [_held(scene, short), _held(scene, 10 * short)]
    say(f"memory: {held[0]:,} and {held[1]:,} bytes")
    return [
        limit(f"memory of 100 policies after {10 * short:,} events", held[1], "bytes"),
        limit(
            f"memory after {10 * short:,} events / after {short:,}", held[1] / held[0], "times", 1.5
        ),
    ]


def registering(scene: Scene) -> list[Result]:
    """Compiling and starting a policy while 1,000 run."""
    runner = LocalRunner(_distances(1_000), scene.building, lateness_ms=0)
    runner.feed(scene.work.readings.slice(0, 5_000))
    took = []
    for number in range(30):
        text = policy_text(alone_within(2 + number / 7))
        began = CLOCK.steady_ns()
        plan = compile_conditions(
            text, name=f"new{number}", ontology=ONTOLOGY, window_ms=WINDOW_MS
        ).plan
        runner.deploy(plan)
        took.append((CLOCK.steady_ns() - began) / 1e6)
    say(f"registering: {share(took, 50):.1f} ms")
    return [
        limit("registering a policy beside 1,000, median", share(took, 50), "ms", 50),
        limit("registering a policy beside 1,000, slowest of 30", max(took), "ms", 50),
    ]


def _distances(number: int) -> list[Plan]:
    step = (_FARTHEST - _NEAREST) / number
    return [
        policy(alone_within(_NEAREST + step * place), name=f"p{place}") for place in range(number)
    ]


def _timed(what: str, scene: Scene, plans: list[Plan]) -> Run:
    run = through_runner(scene.building, scene.work.readings, plans)
    say(f"{what}: {run.rate:,.0f} events/s, {run.found:,} detections")
    return run


def _held(scene: Scene, events: int) -> int:
    """Bytes that a runner holds after so many events; the workload itself is there before."""
    plans, batches = _distances(100), cut(scene.work.readings.slice(0, events), 1_000)
    gc.collect()
    tracemalloc.start()
    try:
        runner = LocalRunner(plans, scene.building, lateness_ms=0)
        for batch, _ in batches:
            runner.feed(batch)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
