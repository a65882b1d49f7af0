"""Latitude and longitude on a local plan, judged by another series over an integrated meridian."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.units.coordinates import PlanOrigin, from_plan, to_plan
from support.judge.meridian import plan_of

BERLIN = PlanOrigin(52.5, 13.4)
LATITUDES, LONGITUDES = st.floats(-80, 80), st.floats(-180, 180)
DISTANCES, DIRECTIONS = st.floats(0, 199_000), st.floats(0, 2 * math.pi)


@given(LATITUDES, LONGITUDES, DISTANCES, DIRECTIONS)
def test_there_and_back_is_where_we_were(latitude, longitude, distance, direction):
    origin = PlanOrigin(latitude, longitude)
    x, y = distance * math.cos(direction), distance * math.sin(direction)
    back = to_plan(*from_plan(x, y, origin), origin)
    assert math.dist(back, (x, y)) < 1e-6


@given(LATITUDES, LONGITUDES, DISTANCES, DIRECTIONS)
def test_the_plan_agrees_with_an_independent_series_to_a_tenth_of_a_millimetre(
    latitude, longitude, distance, direction
):
    origin = PlanOrigin(latitude, longitude)
    x, y = distance * math.cos(direction), distance * math.sin(direction)
    place = from_plan(x, y, origin)
    assert math.dist(plan_of(*place, (latitude, longitude)), (x, y)) < 1e-4


def test_distances_are_true_near_the_origin_and_off_as_stated_far_from_its_meridian():
    for east, excess in ((1_000.0, 1e-7), (100_000.0, 1.3e-4), (199_000.0, 5.1e-4)):
        one, other = (from_plan(east, north, BERLIN) for north in (-500.0, 500.0))
        measured = true_distance(one, other)
        assert 0 <= 1_000.0 / measured - 1 <= excess


def true_distance(one, other):
    """Along the ellipsoid: a plan of its own, centred between the two, is true to 1e-9."""
    middle = PlanOrigin((one[0] + other[0]) / 2, (one[1] + other[1]) / 2)
    return math.dist(to_plan(*one, middle), to_plan(*other, middle))


def test_the_antimeridian_is_no_edge():
    fiji = PlanOrigin(-17.0, 179.9)
    x, _y = to_plan(-17.0, -179.9, fiji)
    assert 21_000 < x < 21_400
    latitude, longitude = from_plan(x, 0.0, fiji)
    assert -180 <= longitude < -179
    assert latitude == pytest.approx(-17.0, abs=1e-4)


@pytest.mark.parametrize(
    ("latitude", "longitude"),
    [(13.4, 52.5), (91.0, 0.0), (0.0, 181.0), (-52.5, -166.6), (0.0, 103.4), (90.0, 0.0)],
)
def test_an_invalid_or_distant_position_is_refused(latitude, longitude):
    with pytest.raises(InvalidInput) as caught:
        to_plan(latitude, longitude, BERLIN)
    assert caught.value.code == "place.out_of_range"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_is_refused(bad):
    for call in (to_plan, from_plan):
        for pair in ((bad, 1.0), (1.0, bad)):
            with pytest.raises(InvalidInput):
                call(*pair, BERLIN)


@pytest.mark.parametrize(
    "origin",
    [
        PlanOrigin(81.0, 0.0),
        PlanOrigin(0.0, 200.0),
        PlanOrigin(math.nan, 0.0),
        PlanOrigin(0.0, 0.0, 0.0),
        PlanOrigin(0.0, 0.0, 2e6),
    ],
)
def test_an_origin_that_no_plan_can_have_is_refused(origin):
    with pytest.raises(InvalidInput) as caught:
        origin.check()
    assert caught.value.code == "place.bad_origin"
