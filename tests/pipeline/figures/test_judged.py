"""Every cell of every table is what plain loops over the same files say, also when the lake grew
between two reports. [PI-6, LK-4]
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rapport.lake.places import Lake
from rapport.pipeline.figures.reports import make_report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.slow]

Tables = dict[str, list[dict[str, Any]]]


def assert_same(lake: Path, expected: Tables) -> None:
    for name, rows in expected.items():
        table = Lake.at(lake).open("gold", name).read()
        found = table.to_pylist()
        if name == "provenance":
            found, rows = _sorted(found), _sorted(rows)
        for one, other in zip(found, rows, strict=False):
            assert one == other, name
        assert len(found) == len(rows), name
        assert not found or set(found[0]) == set(rows[0]), name


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: [str(value) for value in row.values()])


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_odd_ledgers_are_counted_as_they_stand(
    spark: SparkSession,
    tmp_path: Path,
    judged: Callable[[Path], Tables],
    odd_lake: Callable[[Path, int, Callable[[], object]], None],
    seed: int,
) -> None:
    odd_lake(tmp_path, seed, lambda: make_report(spark, tmp_path))
    make_report(spark, tmp_path)
    assert_same(tmp_path, judged(tmp_path))
