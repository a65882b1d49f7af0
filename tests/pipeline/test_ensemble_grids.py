"""Experiments of ensembles over processes and over Spark. [EN-12, PI-8]"""

from pathlib import Path
from typing import Any

import pytest

from rapport.core.errors import Unavailable
from rapport_lab.ensemble.experiments.broadcasts import BroadcastPoint, run_broadcasts
from rapport_lab.grids import count_made, run_grid
from rapport_lab.spread import spread

POINTS = [BroadcastPoint(probability=p, nodes=20, minutes=0.2, seed=3) for p in (0.9, 0.5, 0.1)]


@pytest.mark.slow
def test_several_processes_give_the_same_rows_as_one(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    here = run_grid(None, POINTS, run_broadcasts, lake=one, name="both")
    there = run_grid(None, POINTS, run_broadcasts, lake=two, name="both", processes=2)
    assert there.equals(here)
    assert count_made(two, "both", POINTS) == 3
    assert count_made(tmp_path / "none", "both", POINTS) == 0


@pytest.mark.slow
def test_a_process_that_is_ended_is_told() -> None:
    import os

    with pytest.raises(Unavailable) as ended:
        spread(None, os._exit, [3, 3], doing="testing", processes=2)
    assert ended.value.code == "grid.process_ended"


@pytest.mark.spark
def test_spark_gives_the_same_rows_as_this_process(spark: Any, tmp_path: Path) -> None:
    here = run_grid(None, POINTS, run_broadcasts, lake=tmp_path / "here", name="both")
    there = run_grid(spark, POINTS, run_broadcasts, lake=tmp_path / "there", name="both")
    assert there.equals(here)
