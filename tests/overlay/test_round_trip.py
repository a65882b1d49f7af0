"""Round trips: a mean for choosing, a time-out for waiting. [CX-4]"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.overlay.liveness import LEAST_MS, MOST_MS, UNKNOWN_MS, RoundTrip


def test_the_mean_is_that_of_the_last_three() -> None:
    trip = RoundTrip()
    assert trip.mean_ms == float("inf")
    assert not trip.known
    for took_ms in (100.0, 1.0, 2.0, 6.0):
        trip.measured(took_ms)
    assert trip.mean_ms == 3.0
    assert trip.known


def test_an_unknown_one_is_given_some_time() -> None:
    assert RoundTrip().timeout_ms == UNKNOWN_MS


def test_the_timeout_follows_steady_answers_and_grows_with_unsteady_ones() -> None:
    steady, unsteady = RoundTrip(), RoundTrip()
    for turn in range(50):
        steady.measured(20.0)
        unsteady.measured(10.0 if turn % 2 else 30.0)
    assert steady.timeout_ms == pytest.approx(20.0, abs=0.5)
    assert unsteady.timeout_ms > 45


@given(st.lists(st.floats(0, 1e5), min_size=1))
def test_the_timeout_keeps_its_bounds(took: list[float]) -> None:
    trip = RoundTrip()
    for took_ms in took:
        trip.measured(took_ms)
    assert LEAST_MS <= trip.timeout_ms <= MOST_MS
