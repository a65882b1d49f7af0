"""History whose rows do not stand about in order of time: sorted by Spark's shuffle instead of by
the tasks. [PI-5, PO-8]

Every row group is read once; its rows are sent to the tasks that want them, and each task takes
them sorted. No Spark in here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from rapport.core.errors import SiteError
from rapport.pipeline.history.interest import Interest, Needs
from rapport.pipeline.history.lateness import is_late
from rapport.pipeline.history.layout import Task
from rapport.pipeline.history.outcome import Refused, packed
from rapport.pipeline.history.reading import Reader
from rapport.pipeline.history.rows import (
    CLOCK,
    KEY,
    SERIES,
    SOURCE,
    STREAM,
    TIME,
    Codes,
    rows_schema,
)
from rapport.pipeline.history.switching import Pull
from rapport.pipeline.history.task_run import Job, found_rows, start_plans
from rapport.policy.plan import decode_plan

_SQL = {
    pa.int64(): "BIGINT",
    pa.string(): "STRING",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.int32(): "INT",
}
ORDER = ("task", "c0", "c1", "c2", "c4", "c5", "c6", "c7")
"""By task, then in event order: time, id, stream, key, and what is alike in these as it arrived
(clock, series, position)."""


def scattered_schema(job: Job) -> pa.Schema:
    """The columns of rows on their way: Spark does not hand names with dots to Python, so they go
    by number.
    """
    rows = list(_schema(job))
    kinds = [
        pa.string() if place in (STREAM, SOURCE, KEY) else f.type for place, f in enumerate(rows)
    ]
    kinds.insert(SERIES + 1, pa.int64())
    numbered = [(f"c{number}", kind) for number, kind in enumerate(kinds)]
    return pa.schema([("task", pa.int32()), *numbered])


def scattered_columns(job: Job) -> str:
    """The same as Spark writes it."""
    return ", ".join(f"{field.name} {_SQL[field.type]}" for field in scattered_schema(job))


def scatter(job: Job, numbers: Iterable[int], pull: Pull) -> Iterator[pa.RecordBatch]:
    """The rows of some row groups, each once per task that wants it."""
    codes = Codes.none()
    reader = Reader(job.series, _schema(job), codes)
    interests = _interests(job, pull, codes)
    schema = scattered_schema(job)
    for number in numbers:
        if number == 0 and job.began is not None:
            yield _first_moments(job, schema)
        at = job.groups[number]
        series = job.series[at.series]
        position = at.position
        for rows in reader.read(at, lambda problem: None):
            places = np.arange(position, position + len(rows))
            position += len(rows)
            kept = np.ones(len(rows), np.bool_)
            times = rows.column(TIME).to_numpy()
            if not series.is_judged:
                kept = ~is_late(times, rows.column(CLOCK).to_numpy(), job.lateness_ms)
            for interest, tasks in interests:
                if not interest.needs.wants(series):
                    continue
                wanted = kept & interest.wanted(rows)
                for task_number in tasks if wanted.any() else ():
                    task = job.tasks[task_number]
                    own = wanted & (times >= task.read_from) & (times < task.read_until)
                    if own.any():
                        yield _sent(rows, places, own, task_number, codes, schema)


def gathered(job: Job, batches: Iterable[pa.RecordBatch], pull: Pull) -> Iterator[pa.RecordBatch]:
    """What the tasks find whose rows come in `batches`, sorted as ORDER says."""
    running: SortedRun | None = None
    for batch in batches:
        for number, part in _by_task(batch):
            if running is None or number != running.number:
                if running is not None:
                    yield from running.end()
                try:
                    running = SortedRun(job, number, pull)
                except SiteError as error:
                    yield from packed(number, [Refused(problem) for problem in error.problems])
                    return
            yield from running.take(part)
    if running is not None:
        yield from running.end()


class SortedRun:
    """A task that takes its rows sorted; holds those of the newest time, which may have more to
    come.
    """

    def __init__(self, job: Job, number: int, pull: Pull) -> None:
        self.number = number
        self._run = start_plans(job, number, pull)
        self._schema = _schema(job)
        self._held: pa.RecordBatch | None = None

    def take(self, part: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """What became certain by the next rows."""
        rows = _received(part, self._schema, self._run.codes)
        if self._held is not None:
            rows = pa.concat_batches([self._held, rows])
        times = rows.column(TIME).to_numpy()
        newest = int(times[-1])
        ready = int(np.searchsorted(times, newest))
        self._held = rows.slice(ready)
        if ready:
            yield from found_rows(self.number, self._run.take(rows.slice(0, ready), newest))

    def end(self) -> Iterator[pa.RecordBatch]:
        """Everything else: no more rows will come."""
        if self._held is not None:
            last = self._run.take(self._held, self._run.read_until)
            yield from found_rows(self.number, last)
        yield from found_rows(self.number, self._run.finish())
        yield from packed(self.number, list(self._run.failed.values()))
        yield from packed(self.number, self._run.suppressed())


def _interests(job: Job, pull: Pull, codes: Codes) -> list[tuple[Interest, list[int]]]:
    """What tasks want, with their numbers: slices of time want the same of what lies in them, so
    that is asked once for all.
    """
    alike: dict[Task, list[int]] = {}
    for number, task in enumerate(job.tasks):
        whole = Task(plans=task.plans, keys=task.keys, bucket=task.bucket, buckets=task.buckets)
        alike.setdefault(whole, []).append(number)
    return [
        (
            Interest(
                [decode_plan(job.plans[index]) for index in task.plans],
                task,
                pull,
                job.sources,
                codes,
            ),
            numbers,
        )
        for task, numbers in alike.items()
    ]


def _schema(job: Job) -> pa.Schema:
    plans = [decode_plan(plan) for plan in job.plans]
    return rows_schema(job.series, Needs.of(plans, job.sources).streams)


def _first_moments(job: Job, schema: pa.Schema) -> pa.RecordBatch:
    """A row of no stream for every task: one that gets no other must run too, for silence counts
    from the first moment on.
    """
    count = len(job.tasks)
    columns = {"task": pa.array(np.arange(count, dtype=np.int32))}
    for field in list(schema)[1:]:
        value = job.began if field.name == "c0" else "" if field.type == pa.string() else 0
        is_part = int(field.name[1:]) > SERIES + 1
        columns[field.name] = (
            pa.nulls(count, field.type)
            if is_part
            else pa.repeat(pa.scalar(value, field.type), count)
        )
    return pa.RecordBatch.from_pydict(columns, schema=schema)


def _sent(
    rows: pa.RecordBatch,
    places: np.ndarray[tuple[int], np.dtype[np.int64]],
    own: np.ndarray[tuple[int], np.dtype[np.bool_]],
    task: int,
    codes: Codes,
    schema: pa.Schema,
) -> pa.RecordBatch:
    chosen = rows.filter(pa.array(own))
    columns = list(chosen.columns)
    for place, texts in ((STREAM, codes.streams), (SOURCE, codes.sources), (KEY, codes.keys)):
        columns[place] = texts.column(columns[place]).cast(pa.string())
    columns.insert(SERIES + 1, pa.array(places[own]))
    number = pa.array(np.full(len(chosen), task, np.int32))
    return pa.RecordBatch.from_arrays([number, *columns], schema=schema)


def _received(part: pa.RecordBatch, schema: pa.Schema, codes: Codes) -> pa.RecordBatch:
    columns = part.columns[1:]
    del columns[SERIES + 1]
    arrays = [
        column if place in (STREAM, SOURCE, KEY) else column.cast(schema.field(place).type)
        for place, column in enumerate(columns)
    ]
    for place, texts in ((STREAM, codes.streams), (SOURCE, codes.sources), (KEY, codes.keys)):
        arrays[place] = pa.array(texts.codes(columns[place].cast(pa.string())))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _by_task(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The stretches of rows that belong to one task."""
    if not batch.num_rows:
        return
    numbers = batch.column(0).to_numpy()
    starts: Sequence[int] = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1)).tolist()
    for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
        yield int(numbers[start]), batch.slice(start, end - start)
