"""What membership promises, measured: time to find the dead, false accusations, load. [EN-10]"""

from __future__ import annotations

import pytest

from rapport.overlay.swim_study import measure_detection, measure_load


@pytest.mark.slow
def test_of_fifty_the_first_notices_within_three_periods_and_all_within_ten() -> None:
    found = measure_detection(50, deaths=6)
    assert found.suspected <= 3
    assert found.longest <= 10
    assert (found.missed, found.false_positives) == (0, 0)


def test_a_starved_one_is_the_only_one_that_is_called_dead() -> None:
    found = measure_detection(12, deaths=3, starved=1)
    assert (found.missed, found.false_positives) == (0, 0)


@pytest.mark.slow
def test_what_a_node_sends_does_not_grow_with_the_network() -> None:
    few, many = measure_load(10, periods=30), measure_load(100, periods=30)
    assert many.messages == pytest.approx(few.messages, rel=0.05)
    assert many.bytes == pytest.approx(few.bytes, rel=0.1)
