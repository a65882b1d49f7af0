"""What a Spark worker does: operators fed with the sorted readings of its tasks. [PI-5]

No Spark in here: batches in, batches of detections out, so it is tested without a session.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from rapport.core.detection import Detection, Undecided
from rapport.core.errors import UnknownName
from rapport.pipeline.history.partitioning import Task
from rapport.policy.ontology import PushSource
from rapport.policy.plan import decode_plan
from rapport.policy.runners.base import Operator
from rapport.policy.runners.operators import make_operator
from rapport.policy.runners.silence import Silence
from rapport.tables.instances import Instances

DETECTIONS = (
    "policy STRING, version STRING, time BIGINT, bindings MAP<STRING, STRING>, "
    "cause_times ARRAY<BIGINT>, cause_ids ARRAY<STRING>, silent ARRAY<STRING>"
)
"""Columns of detections on their way back, as Spark writes them; `silent` is null for detections
and names the silent sources of what is undecided.
"""

_DETECTIONS = pa.schema(
    [
        ("policy", pa.string()),
        ("version", pa.string()),
        ("time", pa.int64()),
        ("bindings", pa.map_(pa.string(), pa.string())),
        ("cause_times", pa.list_(pa.int64())),
        ("cause_ids", pa.list_(pa.string())),
        ("silent", pa.list_(pa.string())),
    ]
)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """All that workers need besides tables and readings, as plain data."""

    plans: list[bytes]
    """Each as JSON."""
    tasks: tuple[Task, ...]
    schema: bytes
    """Arrow schema of the readings."""
    sources: dict[str, PushSource] = {}
    """Those of the site."""
    began: int | None = None
    """Time of the first event of any source; tasks may not see it."""


class _Tables:
    """Tables that came with the job, in the form operators ask for."""

    def __init__(
        self,
        instances: Mapping[str, Instances],
        pairs: Mapping[str, Mapping[tuple[str, ...], float]],
    ) -> None:
        self._instances, self._pairs = instances, pairs

    def instances(self, concept: str) -> Instances:
        """The instances of a concept, empty when no table gives any."""
        known = self._instances.get(concept)
        return Instances(concept, [], {}) if known is None else known

    def pairs(self, function: str) -> Mapping[tuple[str, ...], float]:
        """What a looked-up function gives; raises UnknownName."""
        if function not in self._pairs:
            raise UnknownName("looked-up function", function, list(self._pairs))
        return self._pairs[function]


Found = Detection | Undecided


class TaskRun:
    """One task under way: its operators, and the readings of the newest time, which may have more
    to come."""

    def __init__(self, task: Task, operators: Sequence[Operator], silence: Silence) -> None:
        self._task, self._operators, self._silence = task, operators, silence
        self._held: pa.RecordBatch | None = None

    def feed(self, readings: pa.RecordBatch) -> list[Found]:
        """Takes the next readings in order; decides all that lies before the newest time."""
        if self._held is not None:
            readings = pa.concat_batches([self._held, readings])
        times = readings.column("time").to_numpy()
        newest = int(times[-1])
        ready = int(np.searchsorted(times, newest))
        self._held = readings.slice(ready)
        return self._process(readings.slice(0, ready), newest)

    def finish(self) -> list[Found]:
        """Decides everything up to where the task reads; nothing more will come."""
        if self._held is None:
            return []
        return self._process(self._held, self._task.read_until)

    def _process(self, readings: pa.RecordBatch, watermark: int) -> list[Found]:
        begin, until = self._task.begin, self._task.until
        self._silence.take(readings)
        found: list[Found] = []
        for operator in self._operators:
            found += operator.process(readings, watermark)
            found += operator.take_undecided()
        return [item for item in found if begin <= item.time < until]


def run_tasks(
    job: Job,
    instances: Mapping[str, Instances],
    batches: Iterable[pa.RecordBatch],
    pairs: Mapping[str, Mapping[tuple[str, ...], float]] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Detections of all tasks whose readings come in `batches`, sorted by (task, time, id);
    `pairs` are what looked-up functions give.
    """
    tables = _Tables(instances, pairs or {})
    schema = pa.ipc.read_schema(pa.py_buffer(job.schema))
    running: TaskRun | None = None
    current = -1
    for batch in batches:
        for number, rows in _by_task(batch):
            if running is None or number != current:
                if running is not None:
                    yield encode_detections(running.finish())
                running, current = _start(job, number, tables), number
            yield encode_detections(running.feed(_named(rows, schema)))
    if running is not None:
        yield encode_detections(running.finish())


def encode_detections(detections: Sequence[Found]) -> pa.RecordBatch:
    """Detections and what is undecided as columns."""
    columns = [
        [item.policy for item in detections],
        [item.version for item in detections],
        [item.time for item in detections],
        [list(item.bindings.items()) for item in detections],
        [[time for time, _ in item.causes] for item in detections],
        [[id for _, id in item.causes] for item in detections],
        [item.silent if isinstance(item, Undecided) else None for item in detections],
    ]
    arrays = [
        pa.array(column, field.type) for column, field in zip(columns, _DETECTIONS, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_DETECTIONS)


def detections_from(table: pa.Table) -> list[Detection]:
    """The detections that `encode_detections` wrote."""
    return [_detection(row) for row in table.to_pylist() if row["silent"] is None]


def undecided_from(table: pa.Table) -> list[Undecided]:
    """What is undecided of that which `encode_detections` wrote."""
    return [
        Undecided.of(_detection(row), tuple(row["silent"]))
        for row in table.to_pylist()
        if row["silent"] is not None
    ]


def _detection(row: Mapping[str, Any]) -> Detection:
    return Detection(
        policy=row["policy"],
        version=row["version"],
        time=row["time"],
        bindings=dict(row["bindings"]),
        causes=tuple(zip(row["cause_times"], row["cause_ids"], strict=True)),
    )


def _start(job: Job, number: int, tables: _Tables) -> TaskRun:
    task = job.tasks[number]
    plans = [decode_plan(job.plans[index]) for index in task.plans]
    silence = Silence(job.sources, began=job.began)
    operators = [
        make_operator(plan, tables, silence, sources=job.sources, began=job.began) for plan in plans
    ]
    return TaskRun(task, operators, silence)


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
