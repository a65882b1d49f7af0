"""What a Spark worker does: operators fed with the sorted readings of its tasks. [PI-5]

No Spark in here: batches in, batches of detections out, so it is tested without a session.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from rapport.core.detection import Detection
from rapport.pipeline.partitioning import Task
from rapport.policy.plan import decode_plan
from rapport.policy.runners.base import Operator
from rapport.policy.runners.operators import make_operator
from rapport.tables.instances import Instances

DETECTIONS = (
    "policy STRING, version STRING, time BIGINT, bindings MAP<STRING, STRING>, "
    "cause_times ARRAY<BIGINT>, cause_ids ARRAY<STRING>"
)
"""Columns of detections on their way back, as Spark writes them."""

_DETECTIONS = pa.schema(
    [
        ("policy", pa.string()),
        ("version", pa.string()),
        ("time", pa.int64()),
        ("bindings", pa.map_(pa.string(), pa.string())),
        ("cause_times", pa.list_(pa.int64())),
        ("cause_ids", pa.list_(pa.string())),
    ]
)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """All that workers need besides tables and readings, as plain data."""

    plans: list[bytes]
    """Each as JSON."""
    tasks: tuple[Task, ...]
    schema: bytes
    """Arrow schema of the readings."""


class _Tables:
    """Tables that came with the job, in the form operators ask for."""

    def __init__(self, instances: Mapping[str, Instances]) -> None:
        self._instances = instances

    def instances(self, concept: str) -> Instances:
        known = self._instances.get(concept)
        return Instances(concept, [], {}) if known is None else known


class TaskRun:
    """One task under way: its operators, and the readings of the newest time, which may have more
    to come."""

    def __init__(self, task: Task, operators: Sequence[Operator]) -> None:
        self._task, self._operators = task, operators
        self._held: pa.RecordBatch | None = None

    def feed(self, readings: pa.RecordBatch) -> list[Detection]:
        """Takes the next readings in order; decides all that lies before the newest time."""
        if self._held is not None:
            readings = pa.concat_batches([self._held, readings])
        times = readings.column("time").to_numpy()
        newest = int(times[-1])
        ready = int(np.searchsorted(times, newest))
        self._held = readings.slice(ready)
        return self._process(readings.slice(0, ready), newest)

    def finish(self) -> list[Detection]:
        """Decides everything up to where the task reads; nothing more will come."""
        if self._held is None:
            return []
        return self._process(self._held, self._task.read_until)

    def _process(self, readings: pa.RecordBatch, watermark: int) -> list[Detection]:
        begin, until = self._task.begin, self._task.until
        return [
            detection
            for operator in self._operators
            for detection in operator.process(readings, watermark)
            if begin <= detection.time < until
        ]


def run_tasks(
    job: Job, instances: Mapping[str, Instances], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Detections of all tasks whose readings come in `batches`, sorted by (task, time, id)."""
    schema = pa.ipc.read_schema(pa.py_buffer(job.schema))
    running: TaskRun | None = None
    current = -1
    for batch in batches:
        for number, rows in _by_task(batch):
            if running is None or number != current:
                if running is not None:
                    yield encode_detections(running.finish())
                running, current = _start(job, number, instances), number
            yield encode_detections(running.feed(_named(rows, schema)))
    if running is not None:
        yield encode_detections(running.finish())


def encode_detections(detections: Sequence[Detection]) -> pa.RecordBatch:
    """The detections as columns."""
    columns = [
        [item.policy for item in detections],
        [item.version for item in detections],
        [item.time for item in detections],
        [list(item.bindings.items()) for item in detections],
        [[time for time, _ in item.causes] for item in detections],
        [[id for _, id in item.causes] for item in detections],
    ]
    arrays = [
        pa.array(column, field.type) for column, field in zip(columns, _DETECTIONS, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_DETECTIONS)


def detections_from(table: pa.Table) -> list[Detection]:
    """The detections that `encode_detections` wrote."""
    return [
        Detection(
            policy=row["policy"],
            version=row["version"],
            time=row["time"],
            bindings=dict(row["bindings"]),
            causes=tuple(zip(row["cause_times"], row["cause_ids"], strict=True)),
        )
        for row in table.to_pylist()
    ]


def _start(job: Job, number: int, instances: Mapping[str, Instances]) -> TaskRun:
    task, tables = job.tasks[number], _Tables(instances)
    plans = [decode_plan(job.plans[index]) for index in task.plans]
    return TaskRun(task, [make_operator(plan, tables) for plan in plans])


def _named(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The readings that follow the task's number in each row, with their own names and types."""
    columns = zip(rows.columns[1:], schema, strict=True)
    return pa.RecordBatch.from_arrays([c.cast(f.type) for c, f in columns], schema=schema)


def _by_task(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The stretches of rows that belong to one task."""
    if not batch.num_rows:
        return
    numbers = batch.column(0).to_numpy()
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1))
    for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
        yield int(numbers[start]), batch.slice(int(start), int(end - start))
