from __future__ import annotations

import pytest

from rapport.core.errors import InvalidInput
from rapport_lab.ensemble.simulation.rumour_rounds import spread_rumour


@pytest.mark.parametrize(("nodes", "least", "most"), [(1_000, 7, 10), (10_000, 9, 12)])
def test_all_know_a_rumour_after_about_as_many_rounds_as_published(
    nodes: int, least: int, most: int
) -> None:
    for seed in range(20):
        run = spread_rumour(nodes, seed=seed)
        assert run.is_complete
        assert least <= run.rounds <= most


@pytest.mark.slow
def test_a_million_nodes_know_it_after_about_fifteen_rounds() -> None:
    assert 14 <= spread_rumour(1_000_000).rounds <= 17


def test_more_and_more_know_it_and_each_message_is_counted() -> None:
    run = spread_rumour(500, fan_out=2, seed=4)
    assert list(run.informed) == sorted(run.informed)
    assert run.messages == 2 * sum(run.informed[:-1])
    assert run.informed[0] == 1


def test_loss_takes_more_rounds() -> None:
    plain = sum(spread_rumour(2_000, seed=seed).rounds for seed in range(5))
    lossy = sum(spread_rumour(2_000, loss=0.5, seed=seed).rounds for seed in range(5))
    assert lossy > plain


def test_the_seed_decides() -> None:
    assert spread_rumour(999, seed=7) == spread_rumour(999, seed=7)
    assert spread_rumour(999, seed=7) != spread_rumour(999, seed=8)
    assert spread_rumour(999, seed=-1) == spread_rumour(999, seed=-1)


def test_one_node_knows_it_without_any_round() -> None:
    assert (spread_rumour(1).rounds, spread_rumour(1).messages) == (0, 0)


def test_it_ends_when_the_rounds_are_over() -> None:
    run = spread_rumour(1_000_00, most_rounds=3)
    assert (run.rounds, run.is_complete) == (3, False)


def test_impossible_rumours_are_refused() -> None:
    for arguments in ({"nodes": 0}, {"nodes": 5, "fan_out": 0}, {"nodes": 5, "loss": 1.0}):
        with pytest.raises(InvalidInput):
            spread_rumour(**arguments)
