"""Distances on the sphere against fifty digits, as numbers and as columns."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.units import sphere
from support.judge.areas import sphere_distance

POINTS = st.tuples(st.floats(-180, 180), st.floats(-90, 90))
NEAR = st.floats(-1e-3, 1e-3)


@given(POINTS, POINTS)
def test_any_distance_is_right_to_a_tenth_of_a_micrometre_per_metre(
    first: tuple[float, float], second: tuple[float, float]
) -> None:
    expected = float(sphere_distance(first, second))
    found = sphere.distance(first, second)
    # Near the antipode the haversine itself loses digits.
    slack = 0.2 if expected > 2.0e7 else 1e-8
    assert found == pytest.approx(expected, rel=1e-12, abs=slack)


@given(POINTS, NEAR, NEAR)
def test_neighbours_are_measured_to_a_micrometre(
    first: tuple[float, float], east: float, north: float
) -> None:
    second = (first[0] + east, max(-90.0, min(90.0, first[1] + north)))
    expected = float(sphere_distance(first, second))
    assert sphere.distance(first, second) == pytest.approx(expected, rel=1e-12, abs=1e-6)


@given(st.lists(st.tuples(POINTS, POINTS), min_size=1, max_size=40))
def test_columns_give_the_same_bits_as_numbers(pairs: list) -> None:
    first, second = (np.array([pair[place] for pair in pairs]) for place in (0, 1))
    expected = [sphere.distance(one, other) for one, other in pairs]
    assert sphere.distance_many(first, second).tolist() == expected


def test_the_meridian_of_the_date_and_the_poles_are_no_borders() -> None:
    assert sphere.distance((180.0, -17.0), (-180.0, -17.0)) == 0
    assert sphere.distance((179.999, -17.0), (-179.999, -17.0)) == pytest.approx(212.7, abs=0.1)
    assert sphere.distance((0.0, 90.0), (77.0, 90.0)) == 0
    assert sphere.distance((0.0, 89.999), (180.0, 89.999)) == pytest.approx(222.4, abs=0.1)
    half = math.pi * sphere.RADIUS_METRES
    assert sphere.distance((0.0, 90.0), (0.0, -90.0)) == pytest.approx(half)


def test_a_missing_coordinate_has_no_distance() -> None:
    found = sphere.distance_many(np.array([[math.nan, 1.0]]), np.array([[1.0, 1.0]]))
    assert np.isnan(found).all()
    assert math.isnan(sphere.distance((math.nan, 1.0), (1.0, 1.0)))


@given(POINTS, POINTS)
def test_the_straight_distance_is_never_longer(
    first: tuple[float, float], second: tuple[float, float]
) -> None:
    there = sphere.positions(np.array([first, second]))
    assert np.linalg.norm(there[0] - there[1]) <= sphere.distance(first, second) + 1e-6
