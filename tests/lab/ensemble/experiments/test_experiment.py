"""Points, grids and reports of experiments."""

from __future__ import annotations

import pickle

import msgspec
import pytest

from rapport.core.errors import InvalidInput, UnknownName
from rapport_lab.ensemble.experiments.catalogue import EXPERIMENTS
from rapport_lab.ensemble.experiments.experiment import one_row, read_grid, with_grid
from rapport_lab.ensemble.experiments.report import averaged, is_rising


class Cell(msgspec.Struct, frozen=True):
    chance: float
    metres: float | None = None
    seed: int = 1


CELLS = [Cell(0.1), Cell(0.9), Cell(0.9, 500.0)]


def test_a_grid_replaces_the_values_of_its_fields_and_equal_points_are_run_once() -> None:
    points = with_grid(CELLS, {"chance": ["0.5"], "metres": ["none", "200"]})
    assert points == [Cell(0.5), Cell(0.5, 200.0)]
    assert with_grid(CELLS, {"seed": ["1", "2"]})[:2] == [Cell(0.1), Cell(0.1, seed=2)]
    assert with_grid(CELLS, {}) == CELLS


@pytest.mark.parametrize(
    ("texts", "code"),
    [
        (["chance"], "ensemble.bad_grid"),
        (["=1"], "ensemble.bad_grid"),
        (["chance="], "ensemble.bad_grid"),
        (["chance=0.1,,2"], "ensemble.bad_grid"),
        (["chance=often"], "ensemble.bad_grid"),
        (["chance=none"], "ensemble.bad_grid"),
        (["seed=1.5"], "ensemble.bad_grid"),
    ],
)
def test_a_grid_that_cannot_be_meant_is_refused(texts: list[str], code: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        with_grid(CELLS, read_grid(texts))
    assert refused.value.code == code
    assert refused.value.hint


def test_a_field_that_points_do_not_have_is_named_with_those_they_have() -> None:
    with pytest.raises(UnknownName) as refused:
        with_grid(CELLS, read_grid(["chances=1"]))
    assert "chance" in str(refused.value.hint)


def test_a_row_says_its_point_and_a_column_without_values_has_a_type() -> None:
    rows = one_row(Cell(0.1), {"found": 3})
    assert rows.to_pylist() == [{"chance": 0.1, "metres": None, "seed": 1, "found": 3}]
    assert rows.schema == one_row(Cell(0.1, 5.0), {"found": 3}).schema


def test_rows_of_several_seeds_are_averaged() -> None:
    rows = [{"chance": 0.1, "way": "a", "seed": seed, "sent": 10 * seed} for seed in (1, 2, 3)]
    (mean,) = averaged(rows, ("chance", "way"))
    assert (mean["sent"], mean["way"], mean["chance"]) == (20.0, "a", 0.1)


def test_rising_may_stand_still_but_not_fall() -> None:
    assert is_rising([1, 1, 2])
    assert is_rising([])
    assert not is_rising([1, 2, 1])


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_can_be_run_elsewhere_and_its_points_differ(name: str) -> None:
    one = EXPERIMENTS[name]
    assert pickle.loads(pickle.dumps(one.run)) is one.run
    for quick in (True, False):
        points = one.points(quick, 7)
        assert len(set(points)) == len(points)
        assert pickle.loads(pickle.dumps(points)) == points


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_report_of_few_rows_is_a_report(name: str) -> None:
    one = EXPERIMENTS[name]
    assert one.report([]).tables is not None
