from __future__ import annotations

from itertools import pairwise
from math import hypot

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.kernel.clock import Chance
from rapport_lab.ensemble.simulation.mobility import (
    FixedPlaces,
    Mobility,
    PlanPoint,
    PlanSettings,
    drive_plan,
    traffic,
    walk_plan,
)
from rapport_lab.ensemble.simulation.streets import GridSettings, Street, StreetMap, grid_streets
from support.examples import examples

_STREETS = grid_streets(GridSettings(width_metres=1_000, height_metres=800), Chance(3))
_PLANS = PlanSettings(stay_ms=5_000, longest_stay_ms=60_000)


def _traffic(seed: int, until_ms: float = 300_000.0) -> Mobility:
    return traffic(
        _STREETS, drivers=10, walkers=10, until_ms=until_ms, chance=Chance(seed), settings=_PLANS
    )


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 10_000), st.booleans())
def test_everybody_keeps_to_streets_and_nobody_goes_too_fast(seed: int, by_car: bool) -> None:
    draw = drive_plan if by_car else walk_plan
    plan = draw(_STREETS, _PLANS, Chance(seed), 200_000.0)
    assert plan[0].time_ms == 0
    assert plan[-1].time_ms >= 200_000
    for one, then in pairwise(plan):
        seconds = (then.time_ms - one.time_ms) / 1_000
        assert seconds >= 0
        if one.place == then.place:
            continue
        assert then.place in _STREETS.neighbours(one.place, by_car=by_car)
        allowed = _STREETS.speed(one.place, then.place) if by_car else _PLANS.fastest_walk_speed
        assert _STREETS.length(one.place, then.place) / seconds <= allowed * 1.000001


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 5), st.floats(-1_000, 500_000))
def test_positions_of_all_are_the_positions_of_each(seed: int, time_ms: float) -> None:
    moving = _traffic(seed)
    together = moving.positions_at(time_ms)
    alone = [moving.position_at(actor, time_ms) for actor in range(len(moving))]
    assert np.allclose(together, alone, atol=1e-3)


@settings(max_examples=examples(10), deadline=None)
@given(st.integers(0, 100), st.floats(0, 290_000), st.floats(0, 10_000))
def test_nobody_jumps(seed: int, time_ms: float, later_ms: float) -> None:
    moving = _traffic(seed)
    before, after = moving.positions_at(time_ms), moving.positions_at(time_ms + later_ms)
    moved = np.hypot(*(after - before).T)
    assert moved.max() <= _STREETS.top_speed * later_ms / 1_000 + 1e-3


def test_before_its_plan_an_actor_is_at_its_first_place_and_after_it_at_its_last() -> None:
    streets = StreetMap([(0.0, 0.0), (100.0, 0.0)], [Street(0, 1, 10.0)])
    plans = [[PlanPoint(1_000, 0), PlanPoint(11_000, 1)], [PlanPoint(0, 1)]]
    moving = Mobility(streets, plans)
    for time_ms, east in [(0, 0), (1_000, 0), (3_500, 25), (11_000, 100), (99_000, 100)]:
        assert moving.position_at(0, time_ms) == pytest.approx((east, 0))
        assert moving.positions_at(time_ms).tolist() == [[pytest.approx(east), 0], [100, 0]]
    assert moving.plan(0) == plans[0]


def test_plans_depend_on_the_seed_alone() -> None:
    one, same, other = (_traffic(seed).positions_at(123_456.0).tolist() for seed in (1, 1, 2))
    assert one == same != other


def test_trips_stay_near_when_asked() -> None:
    near = PlanSettings(trip_metres=200, stay_ms=0, longest_stay_ms=0, walk_speed=1.6)
    plan = walk_plan(_STREETS, near, Chance(1), 200_000.0)
    assert len(plan) > 2
    first, last = _STREETS.places[plan[0].place], _STREETS.places[plan[1].place]
    assert hypot(first[0] - last[0], first[1] - last[1]) <= 200


def test_on_a_map_with_one_place_everybody_stays_there() -> None:
    alone = StreetMap([(5.0, 6.0)], [])
    moving = traffic(alone, drivers=1, walkers=1, until_ms=60_000, chance=Chance(1))
    assert moving.positions_at(30_000.0).tolist() == [[5, 6], [5, 6]]


def test_impossible_plans_are_refused() -> None:
    with pytest.raises(InvalidInput):
        PlanSettings(walk_speed=0)
    with pytest.raises(InvalidInput):
        Mobility(_STREETS, [[PlanPoint(5, 0), PlanPoint(4, 0)]])
    with pytest.raises(InvalidInput):
        Mobility(_STREETS, [[]])
    with pytest.raises(InvalidInput):
        traffic(StreetMap([], []), drivers=1, walkers=0, until_ms=1, chance=Chance(1))


def test_fixed_places_stay() -> None:
    places = FixedPlaces([(1.0, 2.0), (3.0, 4.0)])
    assert len(places) == 2
    assert places.position_at(1, 9.0) == (3.0, 4.0)
    assert places.positions_at(7.0).tolist() == [[1, 2], [3, 4]]
