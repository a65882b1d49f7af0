"""Policies over silver find what they found live: late readings left out, corrections applied."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from rapport.core.detection import Detection, detection_lines
from rapport.core.errors import UnknownName
from rapport.core.event import Event, make_event
from rapport.pipeline.history.runner import PartCounts, evaluate_history
from rapport.pipeline.lake.silver import update_silver
from rapport.pipeline.lake.silver_readings import silver_history
from rapport.policy.engine.stream_steps import late_event
from rapport.site.site import Site
from support.history_here import Here
from support.silver_lake import BEGIN, DAY, SilverLake, make_ontology, reading

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
Readings = Callable[..., list[pa.RecordBatch]]


@pytest.fixture
def filled(tmp_path: Path) -> SilverLake:
    return SilverLake(tmp_path / "lake")


def events_of(batches: list[pa.RecordBatch]) -> list[Event]:
    return [
        make_event(
            source="positions",
            id=row["id"],
            type="person.position",
            time=row["time"],
            data={
                "key": row["key"],
                "value": [row["person.position.x"], row["person.position.y"]],
            },
        )
        for batch in batches
        for row in batch.to_pylist()
    ]


def test_policies_find_the_same_in_silver(
    spark: SparkSession, filled: SilverLake, small_policies: Site, readings: Readings
) -> None:
    site, directory = small_policies, small_policies.directory
    events = events_of(readings(directory / "events_shuffled.csv"))
    wrong = make_event(
        source="positions",
        id="wrong",
        type="person.position",
        time=events[50].time,
        data={"key": "1", "value": [1, 1]},
    )
    # One reading that live left out as late: it must not count.
    for some in (events[:90], [wrong, *events[90:]]):
        filled.fill(*some)
        update_silver(spark, filled.lake, site.ontology)
    filled.append("detections", late_event("p", (wrong.time, "wrong")))
    filled.export()
    assert update_silver(spark, filled.lake, site.ontology).late == 1
    history = silver_history(filled.lake, site.ontology, ["person.position"])
    assert history.rows == 201
    plans = [compiled.plan for compiled in site.policies.values()]
    found = evaluate_history(
        plans,
        site.tables,
        history,
        Here(site.tables),
        lateness_ms=0,
        parts=PartCounts(slices=3, buckets=2),
        sources=site.ontology.sources,
    )
    for name in site.policies:
        expected = (directory / f"{name}.expected.jsonl").read_bytes()
        own: list[Detection] = [one for one in found.detections() if one.policy == name]
        assert detection_lines(own) == expected, name


def test_only_the_days_asked_for_are_given(spark: SparkSession, filled: SilverLake) -> None:
    ontology = make_ontology(room_size="number")
    filled.fill(
        *(reading(str(n), BEGIN + n * DAY) for n in range(4)),
        reading("far", 2**59),
        reading("a", stream="room.size", value=[1]),
    )
    update_silver(spark, filled.lake, ontology)

    def rows(*span: int) -> int:
        return silver_history(filled.lake, ontology, ["person.position"], *span).rows

    assert (rows(), rows(BEGIN + DAY, BEGIN + 2 * DAY), rows(BEGIN + 3 * DAY)) == (4, 1, 1)
    assert rows(BEGIN + DAY, BEGIN + 2 * DAY + 1) == 2
    # Files from when an attribute was of another type have no such values.
    point = make_ontology(room_size="point")
    filled.fill(reading("b", stream="room.size", value=[1, 2]))
    update_silver(spark, filled.lake, point)
    assert silver_history(filled.lake, point, ["room.size"]).rows == 1
    assert silver_history(filled.lake, point, ["room.warmth"]).rows == 0
    with pytest.raises(UnknownName):
        silver_history(filled.lake, point, ["room.warmht"])
