"""What membership promises, measured: time to find the dead, false accusations, load. [EN-10]"""

from __future__ import annotations

import pytest

from rapport.core.errors import InvalidInput
from rapport_lab.swim_study import measure_detection, measure_load


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


@pytest.mark.parametrize(
    ("nodes", "deaths", "starved"),
    [(0, 1, 0), (-3, 1, 0), (1, 1, 0), (2, 1, 1), (5, 0, 0), (5, -1, 0), (5, 1, -1)],
)
def test_a_study_in_which_nobody_dies_or_sees_it_is_refused(
    nodes: int, deaths: int, starved: int
) -> None:
    with pytest.raises(InvalidInput) as refused:
        measure_detection(nodes, deaths=deaths, starved=starved)
    assert refused.value.code == "overlay.bad_study"
    assert refused.value.hint


@pytest.mark.parametrize(("nodes", "periods"), [(0, 5), (3, 0), (-1, -1)])
def test_the_load_of_nobody_is_refused(nodes: int, periods: int) -> None:
    with pytest.raises(InvalidInput, match="send nothing"):
        measure_load(nodes, periods=periods)


def test_two_are_enough_for_one_to_see_the_other_die() -> None:
    found = measure_detection(2, deaths=1)
    assert (found.missed, found.false_positives) == (0, 0)
