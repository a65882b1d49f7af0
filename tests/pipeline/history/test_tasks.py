"""A worker's part without Spark: sorted rows in, detections out."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from rapport.core.detection import Detection, Undecided, detection_lines
from rapport.pipeline.history.partitioning import BEGIN_OF_TIME, Task
from rapport.pipeline.history.tasks import (
    Job,
    detections_from,
    encode_detections,
    run_tasks,
    undecided_from,
)
from rapport.policy.plan import encode_plan
from rapport.policy.runners.base import END_OF_TIME
from rapport.site.site import Site

Readings = Callable[..., list[pa.RecordBatch]]


def test_detections_come_back_as_they_were() -> None:
    found = [
        Detection(policy="p", version="1", time=-3, bindings={"A": "ü", "B": ""}, causes=()),
        Detection(policy="q", time=2**62, bindings={}, causes=((1, "e1"), (1, "e2"))),
    ]
    assert detections_from(pa.Table.from_batches([encode_detections(found)])) == found
    assert detections_from(pa.Table.from_batches([encode_detections([])])) == []


def one_job(site: Site, schema: pa.Schema) -> Job:
    """Two tasks that run policy `or` and `and-not` over everything."""
    everything = {"begin": BEGIN_OF_TIME, "until": END_OF_TIME, "read_until": END_OF_TIME}
    plans = [site.policies[name].plan for name in ("or", "and-not")]
    return Job(
        plans=[encode_plan(plan) for plan in plans],
        tasks=tuple(Task(plans=(index,), **everything) for index in range(2)),
        schema=schema.serialize().to_pybytes(),
    )


@pytest.mark.parametrize("rows", [1, 7, 1_000])
def test_several_tasks_may_follow_each_other_in_the_same_batches(
    small_policies: Site, readings: Readings, rows: int
) -> None:
    (batch,) = readings(small_policies.directory / "events.csv")
    table = pa.Table.from_batches([batch]).sort_by([("time", "ascending"), ("id", "ascending")])
    parts = [table.add_column(0, "task", pa.array([n] * len(table), pa.int32())) for n in (0, 1)]
    batches = pa.concat_tables(parts).combine_chunks().to_batches(max_chunksize=rows)
    job = one_job(small_policies, batch.schema)
    instances = {name: small_policies.tables.instances(name) for name in ("person", "room")}
    found = detections_from(pa.Table.from_batches(run_tasks(job, instances, batches)))
    for name in ("or", "and-not"):
        expected = (small_policies.directory / f"{name}.expected.jsonl").read_bytes()
        assert detection_lines(d for d in found if d.policy == name) == expected


def test_no_rows_give_nothing(small_policies: Site, readings: Readings) -> None:
    (batch,) = readings(small_policies.directory / "events.csv")
    assert list(run_tasks(one_job(small_policies, batch.schema), {}, [])) == []


def test_what_is_undecided_comes_back_beside_the_detections() -> None:
    found = Detection(policy="p", version="1", time=3, bindings={"A": "1"}, causes=((1, "e"),))
    unsure = Undecided.of(found, ("cameras", "gate"))
    table = pa.Table.from_batches([encode_detections([found, unsure])])
    assert detections_from(table) == [found]
    assert undecided_from(table) == [unsure]
