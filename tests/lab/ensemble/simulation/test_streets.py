from __future__ import annotations

from heapq import heappop, heappush
from itertools import pairwise
from math import hypot

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.kernel.clock import Chance
from rapport_lab.ensemble.simulation.streets import (
    GridSettings,
    Street,
    StreetMap,
    grid_streets,
    strong_parts,
)

_coordinate = st.integers(0, 900).map(float)
_places = st.lists(st.tuples(_coordinate, _coordinate), min_size=2, max_size=14)


@st.composite
def _maps(draw: st.DrawFn) -> StreetMap:
    places = draw(_places)
    number = st.integers(0, len(places) - 1)
    speed = st.sampled_from([1.0, 5.0, 13.9])
    drawn = draw(st.lists(st.tuples(number, number, speed, st.booleans()), max_size=30))
    return StreetMap(places, [Street(*street) for street in drawn])


def _slow_seconds(streets: StreetMap, start: int, *, by_car: bool) -> dict[int, float]:
    """Dijkstra without any cleverness."""
    best: dict[int, float] = {}
    waiting = [(0.0, start)]
    while waiting:
        cost, here = heappop(waiting)
        if here in best:
            continue
        best[here] = cost
        for there in streets.neighbours(here, by_car=by_car):
            speed = streets.speed(here, there) if by_car else 1.0
            heappush(waiting, (cost + streets.length(here, there) / speed, there))
    return best


@given(_maps(), st.booleans())
def test_a_way_is_as_quick_as_any(streets: StreetMap, by_car: bool) -> None:
    best = _slow_seconds(streets, 0, by_car=by_car)
    for end in range(len(streets.places)):
        way = streets.way(0, end, by_car=by_car)
        assert bool(way) == (end in best)
        seconds = 0.0
        for here, there in pairwise(way):
            assert there in streets.neighbours(here, by_car=by_car)
            speed = streets.speed(here, there) if by_car else 1.0
            seconds += streets.length(here, there) / speed
        if way:
            assert (way[0], way[-1]) == (0, end)
            assert seconds == pytest.approx(best[end])


@given(_maps())
def test_in_the_largest_part_cars_reach_every_place_from_every_place(streets: StreetMap) -> None:
    part = streets.largest_part()
    assert len(part.places) >= 1
    for start in range(len(part.places)):
        assert len(_slow_seconds(part, start, by_car=True)) == len(part.places)


@given(_maps())
def test_parts_hold_each_place_once_and_none_is_larger_than_the_largest(streets: StreetMap) -> None:
    arcs = [streets.neighbours(place) for place in range(len(streets.places))]
    parts = strong_parts(arcs)
    assert sorted(place for part in parts for place in part) == list(range(len(arcs)))
    assert len(streets.largest_part().places) == max(map(len, parts))


@given(_places, st.floats(-9e3, 9e3), st.floats(-9e3, 9e3))
def test_the_nearest_place_is_the_nearest(
    places: list[tuple[float, float]], east: float, north: float
) -> None:
    streets = StreetMap(places, [])
    found = streets.places[streets.nearest(east, north)]
    least = min(hypot(place[0] - east, place[1] - north) for place in places)
    assert hypot(found[0] - east, found[1] - north) == pytest.approx(least)


def test_a_point_far_from_everything_still_has_a_nearest_place() -> None:
    assert StreetMap([(0.0, 0.0), (10.0, 0.0)], []).nearest(1e6, 0.0) == 1


def test_walkers_go_against_one_way_streets_and_cars_do_not() -> None:
    streets = StreetMap([(0.0, 0.0), (100.0, 0.0)], [Street(0, 1, 10.0, True)])
    assert streets.way(1, 0) == ()
    assert streets.way(1, 0, by_car=False) == (1, 0)


def test_the_default_grid_covers_eight_square_kilometres() -> None:
    streets = grid_streets(GridSettings(), Chance(1))
    easts, norths = zip(*streets.places, strict=True)
    area = (max(easts) - min(easts)) * (max(norths) - min(norths))
    assert area == pytest.approx(8e6, rel=0.03)
    assert streets.largest_part() is streets


def test_the_same_chance_makes_the_same_grid() -> None:
    one, same, other = (grid_streets(GridSettings(), Chance(seed)) for seed in (1, 1, 2))
    assert (one.places, one.streets) == (same.places, same.streets)
    assert one.places != other.places


@pytest.mark.parametrize(
    "settings",
    [
        GridSettings(block_metres=0.0),
        GridSettings(width_metres=10.0),
        GridSettings(jitter_metres=100.0),
        GridSettings(missing=0.9),
        GridSettings(main_every=0),
    ],
    ids=["no blocks", "too small", "too crooked", "hardly any streets", "no main streets"],
)
def test_an_impossible_grid_is_refused(settings: GridSettings) -> None:
    with pytest.raises(InvalidInput) as refused:
        grid_streets(settings, Chance(1))
    assert refused.value.code == "streets.bad_grid"
    assert refused.value.hint


@pytest.mark.parametrize(
    "street",
    [Street(0, 7, 1.0), Street(-1, 0, 1.0), Street(0, 1, 0.0), Street(0, 1, float("nan"))],
    ids=["to nowhere", "from nowhere", "without speed", "odd speed"],
)
def test_an_impossible_street_is_refused(street: Street) -> None:
    with pytest.raises(InvalidInput) as refused:
        StreetMap([(0.0, 0.0), (1.0, 1.0)], [street])
    assert refused.value.code == "streets.bad_street"
