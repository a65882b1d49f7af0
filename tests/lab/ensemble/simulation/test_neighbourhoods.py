from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport_lab.ensemble.simulation.mobility import FixedPlaces
from rapport_lab.ensemble.simulation.radio import FixedLinks, InRange, neighbours_in_range
from support.examples import examples


@settings(max_examples=examples(20), deadline=None)
@given(
    st.integers(0, 300), st.integers(0, 2**32), st.floats(1, 400), st.sampled_from([50.0, 3_000.0])
)
def test_those_in_range_are_found_whatever_their_number(
    count: int, seed: int, range_metres: float, side: float
) -> None:
    positions = np.random.default_rng(seed).uniform(-side, side, size=(count, 2))
    found = neighbours_in_range(positions, range_metres)
    assert len(found) == count
    for number, (east, north) in enumerate(positions):
        apart = (positions[:, 0] - east) ** 2 + (positions[:, 1] - north) ** 2
        near = np.flatnonzero(apart <= range_metres**2).tolist()
        near.remove(number)
        assert found[number] == tuple(near)


def test_what_is_kept_is_the_same() -> None:
    places = FixedPlaces([(0.0, 0.0), (100.0, 0.0), (500.0, 0.0)])
    plain, kept = InRange(places, 250.0), InRange(places, 250.0, keep=True)
    assert kept.at(0.0) is kept.at(0.0)
    assert plain.at(0.0) == kept.at(0.0) == [(1,), (0,), ()]


def test_given_links_hold_both_ways() -> None:
    links = FixedLinks(3, [(0, 1), (2, 1)])
    assert links.at(0.0) == [(1,), (0, 2), (1,)]
    assert (len(links), links.renew_ms) == (3, None)


@pytest.mark.parametrize("link", [(0, 3), (1, 1), (-1, 0)], ids=["beyond", "itself", "negative"])
def test_an_impossible_link_is_refused(link: tuple[int, int]) -> None:
    with pytest.raises(InvalidInput):
        FixedLinks(3, [link])
