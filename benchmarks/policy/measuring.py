"""How fast policies are executed, and what exactly was counted. [PO-8, PO-13, UX-3]"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from benchmarks.policy.building import Building, policy, walk
from benchmarks.policy.by_hand import raised_by_hand
from benchmarks.policy.flow import from_bytes, from_log, latency, single_readings
from benchmarks.policy.operators import (
    copies,
    distinct,
    memory,
    one_policy,
    other_kinds,
    registering,
    rooms,
)
from benchmarks.policy.parts import CLOCK, PEOPLE, ROOMS, SEED, Scene, say, through_operator
from benchmarks.results import Result, rate


def run(quick: bool) -> dict[str, Any]:
    """All measurements; progress goes to stderr."""
    events = 40_000 if quick else 1_000_000
    scene = Scene(Building(PEOPLE, ROOMS, SEED), walk(PEOPLE, ROOMS, events, SEED))
    say(f"{events:,} events, seed {SEED}, digest {scene.work.digest}")
    results = [_workload(scene)]
    parts: tuple[Callable[[], list[Result]], ...] = (
        lambda: one_policy(scene),
        lambda: against_by_hand(scene.part(events // 10)),
        lambda: copies(scene),
        lambda: distinct(scene.part(2_000 if quick else 40_000)),
        lambda: other_kinds(scene.part(events // 5)),
        lambda: rooms(scene, quick),
        lambda: memory(scene, quick),
        lambda: registering(scene),
        lambda: from_bytes(scene),
        lambda: from_log(scene if not quick else scene.part(events // 2)),
        lambda: latency(scene),
        lambda: single_readings(scene),
    )
    for part in parts:
        # As `rapport up` does: a collection of what came before is no cost of what is measured.
        gc.collect()
        gc.freeze()
        results += part()
    return {"name": "policy", "results": results}


def against_by_hand(scene: Scene) -> list[Result]:
    """The same policy as a program of its own; both must find the same."""
    began = CLOCK.steady_ns()
    alarms = raised_by_hand(scene.building, scene.work.readings)
    by_hand = len(scene.work.readings) / (CLOCK.steady_ns() - began) * 1e9
    ours, found, _ = through_operator(scene.building, scene.work.readings, policy())
    same = [
        (item.time, item.bindings["A"], item.bindings["R"], item.causes[0][1]) for item in found
    ]
    if sorted(same) != sorted(alarms):
        raise RuntimeError(f"by hand {len(alarms)} alarms, by operators {len(same)}, not the same")
    say(f"by hand: {by_hand:,.0f} events/s, the same {len(alarms):,} alarms")
    return [
        rate(
            "peer: listing 5.8 written by hand in Python, one event at a time", by_hand, "events/s"
        ),
        rate("one policy, operators alone / written by hand", ours.rate / by_hand, "times"),
    ]


def _workload(scene: Scene) -> Result:
    what = f"workload: seed {SEED}, digest {scene.work.digest}, {PEOPLE} people, {ROOMS} rooms"
    return rate(what, len(scene.work.readings), "events")
