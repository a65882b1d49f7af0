"""Tables of a report under way lie where they are looked for, whatever the lake is called."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rapport.lake.places import Lake
from rapport.pipeline.figures.staging import staging

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


def test_a_lake_may_have_any_name(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "a [lake]{1}*"
    with staging(Lake.at(lake)) as stage:
        kept = stage.keep("people", spark.range(3), order="id")
        assert (kept.count(), stage.rows_of("people")) == (3, 3)
        stage.publish("people")
    published = Lake.at(lake).open("gold", "people").read()
    assert published.to_pydict() == {"id": [0, 1, 2]}
    assert [path.name for path in tmp_path.iterdir()] == [lake.name]
