"""Sums of windows are the exact sums, rounded once. [SI-6]"""

from __future__ import annotations

import math

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from rapport.policy.situations.aggregates import exact_limbs, median, nearest_sums, percentile

USUAL = st.one_of(
    st.floats(-1e6, 1e6).map(lambda value: round(value, 3)),
    st.floats(-6e10, 6e10).filter(lambda value: value == 0 or abs(value) > 1e-9),
    st.integers(-1000, 1000).map(float),
)


@given(st.lists(USUAL, min_size=1, max_size=60))
@example([0.1] * 10)
@example([1e10, 1e-5, -1e10])
@example([2.0**35, 2.0**-18, 2.0**-71])
@example([1.0, 2.0**-53, 2.0**-80])
@example([1.0, -(2.0**-54), -(2.0**-80)])
def test_limbs_add_up_to_the_exact_sum(values: list[float]) -> None:
    limbs, fits = exact_limbs(np.array(values))
    kept = np.array(values)[fits].tolist()
    sums = [np.array([int(limb[fits].sum())]) for limb in limbs]
    assert nearest_sums(*sums).tolist() == [math.fsum(kept)]


def test_values_that_do_not_fit_are_known() -> None:
    _, fits = exact_limbs(np.array([21.3, 1e20, 5e-324, 0.0, -(2.0**40)]))
    assert fits.tolist() == [True, False, False, True, False]


def test_ranks_are_computed_exactly() -> None:
    assert percentile(33.4)([1.0, 2.0, 3.0]) == 2.0
    assert percentile(0.1)([float(one) for one in range(1000)]) == 0.0
    assert percentile(100.0)([1.0, 2.0]) == 2.0


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two() -> None:
    assert median([1.0, 2.0, 4.0, 9.0]) == 3.0
    assert median([1.0, 2.0, 9.0]) == 2.0
