"""Policies on Spark give the bytes they give in the node, however the history is parted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pytest

from rapport.core.detection import detection_lines
from rapport.core.errors import InvalidInput, RapportError
from rapport.pipeline.history.replay import replay_spark
from rapport.pipeline.history.results import SparkReplay
from rapport.policy.plan import Plan
from rapport.site.site import Site

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

Readings = Callable[..., list[pa.RecordBatch]]
LATENESS = {"events.csv": 0, "events_shuffled.csv": 2_000}


def plans_of(site: Site) -> list[Plan]:
    return [compiled.plan for compiled in site.policies.values()]


def replay(
    spark: SparkSession, site: Site, batches: list[pa.RecordBatch], lateness: int, partitions: int
) -> SparkReplay:
    return replay_spark(
        spark,
        plans_of(site),
        site.tables,
        batches,
        lateness_ms=lateness,
        partitions=partitions,
    )


@pytest.mark.parametrize("partitions", [1, 2, 7])
@pytest.mark.parametrize("events", LATENESS)
def test_all_small_policies_in_one_job_give_their_expected_bytes(
    spark: SparkSession, small_policies: Site, readings: Readings, events: str, partitions: int
) -> None:
    directory = small_policies.directory
    batches = readings(directory / events, batch=50)
    found = replay(spark, small_policies, batches, LATENESS[events], partitions)
    assert (found.events, found.late) == (200, [])
    for name in small_policies.policies:
        expected = (directory / f"{name}.expected.jsonl").read_bytes()
        assert detection_lines(d for d in found.detections if d.policy == name) == expected, name


@pytest.mark.parametrize("partitions", [1, 2, 7])
def test_the_secure_building_gives_its_expected_bytes(
    spark: SparkSession, secure_building: Site, readings: Readings, partitions: int
) -> None:
    directory = secure_building.directory
    found = replay(spark, secure_building, readings(directory / "events.csv"), 2_000, partitions)
    assert detection_lines(found.detections) == (directory / "expected.jsonl").read_bytes()
    assert found.layout.slices == partitions


def test_late_readings_are_left_out_and_named(
    spark: SparkSession, small_policies: Site, readings: Readings
) -> None:
    batches = readings(small_policies.directory / "events_shuffled.csv", batch=1)
    found = replay(spark, small_policies, batches, 0, 2)
    times = [batch["time"][0].as_py() for batch in batches]
    late = [t for n, t in enumerate(times) if t < max(times[:n], default=t)]
    assert late
    assert [time for time, _ in found.late] == late


def test_no_readings_and_no_plans_give_nothing(spark: SparkSession, small_policies: Site) -> None:
    assert replay(spark, small_policies, [], 0, 2).detections == []
    nothing = replay_spark(spark, [], small_policies.tables, [], lateness_ms=0)
    assert (nothing.detections, nothing.events) == ([], 0)


def test_readings_of_no_plan_give_nothing(
    spark: SparkSession, small_policies: Site, readings: Readings
) -> None:
    (batch,) = readings(small_policies.directory / "events.csv")
    other = batch.set_column(2, "stream", pa.array(["cart.place"] * batch.num_rows))
    found = replay(spark, small_policies, [other], 0, 3)
    assert (found.detections, found.events) == ([], 200)


def test_times_at_the_end_of_the_scale_do_not_overflow(
    spark: SparkSession, small_policies: Site, readings: Readings
) -> None:
    (batch,) = readings(small_policies.directory / "events.csv")
    first, last = batch.slice(0, 1), batch.slice(1, 1)
    far = last.set_column(0, "time", pa.array([2**62 - 1], pa.int64()))
    found = replay(spark, small_policies, [first, far], 0, 2)
    assert found.events == 2


def test_a_number_of_partitions_out_of_bounds_is_refused(
    spark: SparkSession, small_policies: Site
) -> None:
    for partitions in (0, -1, 1_000_000):
        with pytest.raises(InvalidInput) as caught:
            replay(spark, small_policies, [], 0, partitions)
        assert caught.value.code == "spark.bad_partitions"


def test_a_plan_that_cannot_run_is_refused_before_anything_is_written(
    spark: SparkSession, small_policies: Site, tmp_path: Path
) -> None:
    plan = msgspec.structs.replace(plans_of(small_policies)[0], clauses=())
    with pytest.raises(RapportError):
        replay_spark(spark, [plan], small_policies.tables, [], lateness_ms=0, directory=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_stays_behind_in_the_directory_of_a_replay(
    spark: SparkSession, small_policies: Site, readings: Readings, tmp_path: Path
) -> None:
    batches = readings(small_policies.directory / "events.csv")
    found = replay_spark(
        spark,
        plans_of(small_policies)[:1],
        small_policies.tables,
        batches,
        lateness_ms=0,
        directory=tmp_path,
    )
    assert found.detections
    assert list(tmp_path.iterdir()) == []
