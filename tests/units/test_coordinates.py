"""Polar and cartesian, own frame and building frame."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.units.coordinates import (
    absolute_to_relative,
    cartesian_to_polar,
    polar_to_cartesian,
    relative_to_absolute,
)

metres = st.floats(-1e4, 1e4)
degrees = st.floats(-720, 720)


@pytest.mark.parametrize(
    ("bearing", "place"),
    [(0, (0, 2)), (90, (2, 0)), (180, (0, -2)), (270, (-2, 0)), (360, (0, 2)), (-90, (-2, 0))],
)
def test_bearing_zero_looks_north_and_grows_clockwise(bearing, place):
    assert polar_to_cartesian(float(bearing), 2.0) == place


def test_a_camera_that_looks_east_sees_ahead_in_the_east_and_right_in_the_south():
    assert relative_to_absolute(0.0, 3.0, 10.0, 20.0, 90.0) == (13.0, 20.0)
    assert relative_to_absolute(3.0, 0.0, 10.0, 20.0, 90.0) == (10.0, 17.0)


@given(metres, metres)
def test_polar_there_and_back(x, y):
    bearing, distance = cartesian_to_polar(x, y)
    assert 0.0 <= bearing < 360.0
    back = polar_to_cartesian(bearing, distance)
    assert math.dist(back, (x, y)) <= 1e-9 * max(distance, 1.0)


@given(metres, metres, metres, metres, degrees)
def test_relative_there_and_back(x, y, origin_x, origin_y, heading):
    there = relative_to_absolute(x, y, origin_x, origin_y, heading)
    back = absolute_to_relative(*there, origin_x, origin_y, heading)
    assert math.dist(back, (x, y)) < 1e-6


@given(metres, metres, metres, metres, degrees)
def test_turning_keeps_the_distance(x, y, origin_x, origin_y, heading):
    there = relative_to_absolute(x, y, origin_x, origin_y, heading)
    assert math.isclose(math.dist(there, (origin_x, origin_y)), math.hypot(x, y), abs_tol=1e-6)


@given(degrees, metres)
def test_a_bearing_from_a_heading_is_the_sum_of_both(heading, distance):
    seen = relative_to_absolute(*polar_to_cartesian(31.0, distance), 0.0, 0.0, heading)
    assert math.dist(seen, polar_to_cartesian(31.0 + heading, distance)) < 1e-6
