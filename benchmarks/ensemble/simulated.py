"""How fast the simulator of ensembles is: the source's sweep, cities of ten and a hundred thousand,
a rumour among a million. [EN-11, EN-12]
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec

from benchmarks.results import Result, limit, rate
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.kernel.clock import SystemClock
from rapport_lab.ensemble.experiments.broadcasts import (
    broadcast_points,
    report_broadcasts,
    run_broadcasts,
)
from rapport_lab.ensemble.simulation.city import City, CitySettings
from rapport_lab.ensemble.simulation.measurements import KnowledgeAges
from rapport_lab.ensemble.simulation.rumour_rounds import spread_rumour
from rapport_lab.grids import run_grid

SWEEP_GOAL_S, LARGE_GOAL_S, RUMOUR_GOAL_S = 60.0, 600.0, 5.0
_BOUNDARY_METRES = 500.0
_CLOCK = SystemClock()


def sweep(quick: bool) -> list[Result]:
    """200 nodes, 15 simulated minutes, 11 probabilities, with and without the boundary; on as many
    processes as there are cores, with their start.
    """
    points = broadcast_points(quick=False, seed=1)
    if quick:
        points = [msgspec.structs.replace(point, minutes=0.5) for point in points[:6]]
    began = _CLOCK.steady_ns()
    with tempfile.TemporaryDirectory() as folder:
        rows = run_grid(
            None,
            points,
            run_broadcasts,
            lake=Path(folder),
            name="sweep",
            processes=os.cpu_count() or 1,
        ).to_pylist()
    took_s = _seconds_since(began)
    held = report_broadcasts(rows).statements
    what = f"200 nodes, {points[0].minutes:g} simulated minutes, {len(points)} runs"
    return [
        limit(f"{what}, all cores", took_s, "s", None if quick else SWEEP_GOAL_S),
        rate(f"{what}: messages sent", sum(row["messages"] for row in rows) / took_s, "messages/s"),
        rate(f"{what}: received", sum(row["delivered"] for row in rows) / took_s, "messages/s"),
        rate(f"{what}: events", sum(row["events"] for row in rows) / took_s, "events/s"),
        rate(f"{what}: statements about the shape that hold", sum(one.holds for one in held), "")
        | {"goal": len(held), "ok": all(one.holds for one in held)},
    ]


def large(quick: bool) -> list[Result]:
    """10,000 nodes at the published density for 15 minutes at P = 0.5 with the boundary."""
    nodes, minutes = (500, 0.5) if quick else (10_000, 15.0)
    return _one_city(nodes, minutes, None if quick else LARGE_GOAL_S)


def huge(quick: bool) -> list[Result]:
    """100,000 nodes for a minute, everything else the same."""
    return _one_city(1_000 if quick else 100_000, 0.1 if quick else 1.0, None)


def _one_city(nodes: int, minutes: float, goal_s: float | None) -> list[Result]:
    began = _CLOCK.steady_ns()
    duration_ms = minutes * 60_000 + GossipSettings().knowledge_ms
    city = City(CitySettings(nodes=nodes, duration_ms=duration_ms))
    made_s = _seconds_since(began)
    ages = KnowledgeAges()
    world = city.gossip_world(
        GossipSettings(probability=0.5), boundary_metres=_BOUNDARY_METRES, ages=ages
    )
    city.run(world)
    took_s = _seconds_since(began)
    assert world.radio is not None
    radio = world.radio.counters
    what = f"{nodes:,} nodes, {minutes:g} simulated minutes, P 0.5, boundary 0.5 km"
    return [
        limit(f"{what}, one core", took_s, "s", goal_s),
        limit(f"{what}: of these for streets and plans", made_s, "s"),
        rate(f"{what}: messages sent", world.counters.total, "messages"),
        rate(f"{what}: deliveries", radio.delivered, "messages"),
        rate(f"{what}: newer versions among them", len(ages.ages), "messages"),
        limit(f"{what}: median age of knowledge", ages.quartiles().median, "ms"),
        rate(f"{what}: deliveries per second", radio.delivered / took_s, "messages/s"),
    ]


def rumours(quick: bool) -> list[Result]:
    """A rumour among a million nodes with fan-out 3, vectorised."""
    nodes = 100_000 if quick else 1_000_000
    began = _CLOCK.steady_ns()
    run = spread_rumour(nodes)
    took_s = _seconds_since(began)
    what = f"a rumour among {nodes:,} nodes, fan-out 3"
    return [
        limit(f"{what}, one core", took_s, "s", RUMOUR_GOAL_S),
        limit(f"{what}: rounds until all {run.informed[-1]:,} know", run.rounds, "rounds"),
        rate(f"{what}: messages", run.messages / took_s, "messages/s"),
    ]


def _seconds_since(began_ns: int) -> float:
    return (_CLOCK.steady_ns() - began_ns) / 1e9
