"""Circles, polygons, longitudes and latitudes give on Spark the bytes they give in the node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rapport.core.detection import detection_lines
from rapport.pipeline.history.replay import replay_spark
from support.area_site import DIRECTORY, area_site, recorded_readings
from support.varied.worlds import readings_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark")]


def test_the_recorded_site_gives_its_expected_bytes(spark: SparkSession) -> None:
    site = area_site()
    batch = readings_batch(recorded_readings(site), site.ontology)
    plans = [compiled.plan for compiled in site.policies.values()]
    found = replay_spark(spark, plans, site.tables, [batch], lateness_ms=0, partitions=2)
    assert detection_lines(found.detections) == (DIRECTORY / "expected.jsonl").read_bytes()
