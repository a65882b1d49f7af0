"""What a worker does: reads its part of history in order and runs the operators over it. [PI-5,
PO-8]

No Spark in here: a job and the number of a task in, batches of outcomes out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from rapport.core.detection import Detection, Undecided
from rapport.core.errors import Problem, RapportError, SiteError
from rapport.pipeline.history.feeds import Feed, Judge, in_order
from rapport.pipeline.history.files import Series
from rapport.pipeline.history.interest import Interest, Needs
from rapport.pipeline.history.lateness import GroupAt
from rapport.pipeline.history.layout import BEGIN_OF_TIME, Task
from rapport.pipeline.history.outcome import (
    Failed,
    Faulty,
    LateCount,
    Refused,
    Suppressed,
    packed,
    packed_detections,
)
from rapport.pipeline.history.reading import BATCH_ROWS, Reader
from rapport.pipeline.history.rows import TIME, Codes, as_readings, rows_schema
from rapport.pipeline.history.switching import Found, Pull, SwitchingPlans
from rapport.policy.ontology import PushSource
from rapport.policy.operators.uncertainty import SourceSilence
from rapport.policy.plan import Plan, SilentTerm, decode_plan
from rapport.policy.replay.replay import RowFaults

PORTION = 20_000
"""Readings given to operators at once: enough for columns to pay, few enough for the caches."""
_LEAST_BATCH = 1 << 13


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """All that workers need besides tables, as plain data."""

    plans: list[bytes]
    """Each as JSON."""
    tasks: tuple[Task, ...]
    series: tuple[Series, ...]
    groups: tuple[GroupAt, ...]
    lateness_ms: int
    sources: dict[str, PushSource] = {}
    """Those of the site."""
    began: int | None = None
    """Time of the first reading of any source that is not late; tasks may not see it."""
    most_late: int | None = None


def run_task(job: Job, number: int, pull: Pull) -> Iterator[pa.RecordBatch]:
    """Everything that one task finds, as `outcome.py` packs it; also why it could not be done."""
    try:
        yield from _run(job, number, pull)
    except SiteError as error:
        yield from packed(number, [Refused(problem) for problem in error.problems])


def _run(job: Job, number: int, pull: Pull) -> Iterator[pa.RecordBatch]:
    task = job.tasks[number]
    faults = RowFaults()
    judge = Judge(faults.report, job.most_late)
    run = start_plans(job, number, pull)
    for rows, watermark in _rows_of(job, task, run, judge):
        yield from found_rows(number, run.take(rows, watermark))
    yield from found_rows(number, run.finish())
    yield from packed(number, list(run.failed.values()))
    yield from packed(number, run.suppressed())
    yield from packed(number, judge.facts)
    yield from packed(number, judge.late)
    if judge.late_count:
        yield from packed(number, [LateCount(judge.late_count)])
    if faults.problems:
        yield from packed(number, [Faulty(faults.problems, faults.by_reason())])


def start_plans(job: Job, number: int, pull: Pull) -> PlanRun:
    """The plans of a task, ready to run; raises SiteError when this worker cannot run one."""
    task = job.tasks[number]
    plans = [decode_plan(job.plans[index]) for index in task.plans]
    try:
        return PlanRun(plans, pull, task, job.sources, job.began)
    except RapportError as error:
        # The driver could: so it is this worker that lacks something.
        raise SiteError(
            [
                Problem(
                    code="history.not_on_workers",
                    message=f"Spark's workers cannot run it: {error.message}",
                    hint="install what it names where the workers run, or put it on their "
                    "PYTHONPATH before Spark is started; or use --engine local",
                )
            ]
        ) from error


def found_rows(number: int, found: Sequence[Found]) -> Iterator[pa.RecordBatch]:
    """Detections and what is undecided, as tasks send them back."""
    certain = [item for item in found if isinstance(item, Detection)]
    yield from packed_detections(number, certain)
    if len(certain) < len(found):
        yield from packed(number, [item for item in found if isinstance(item, Undecided)])


def _rows_of(
    job: Job, task: Task, run: PlanRun, judge: Judge
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The rows of a task in event order; groups that it only answers for give none."""
    needs = run.interest.needs
    by_series: dict[int, list[tuple[int, GroupAt]]] = {}
    own = frozenset(task.own)
    for number, at in enumerate(job.groups):
        wanted = needs.wants(job.series[at.series]) and task.reads(at)
        if wanted or number in own:
            by_series.setdefault(at.series, []).append((number, at))
    size = max(BATCH_ROWS // max(len(by_series), 1), _LEAST_BATCH)
    schema = rows_schema(job.series, needs.streams)
    reader = Reader(job.series, schema, run.codes, batch_rows=size)
    feeds = [
        Feed(
            reader,
            groups if not job.series[place].is_judged else sorted(groups, key=_by_first),
            lateness_ms=None if job.series[place].is_judged else job.lateness_ms,
            span=(task.read_from, task.read_until),
            chosen=run.interest.wanted,
            judge=judge,
            own=own,
        )
        for place, groups in by_series.items()
    ]
    return in_order(feeds, run.codes, task.read_until)


def _by_first(group: tuple[int, GroupAt]) -> int:
    return group[1].first


class PlanRun:
    """The plans of a task under way; keeps only what the task owns."""

    def __init__(
        self,
        plans: Sequence[Plan],
        pull: Pull,
        task: Task,
        sources: Mapping[str, PushSource],
        began: int | None,
    ) -> None:
        self.codes = Codes.none()
        self.failed: dict[str, Failed] = {}
        self._task, self._plans = task, plans
        needs = Needs.of(plans, sources)
        heard = {name: sources[name] for name in sorted(needs.sources)}
        self._silence = SourceSilence(heard, began=began)
        self._running = SwitchingPlans(
            plans,
            pull,
            self._silence,
            sources,
            self._owns,
            began=began,
            read_from=task.read_from,
        )
        self.interest = Interest(plans, task, pull, sources, self.codes)
        self._keys = dict(zip((plan.policy for plan in plans), task.keys, strict=False))
        silent = any(isinstance(term, SilentTerm) for plan in plans for term in plan.terms)
        self._began = began if silent else None
        self._watermark = BEGIN_OF_TIME

    @property
    def read_until(self) -> int:
        """The task decides up to before this time."""
        return self._task.read_until

    def take(self, rows: pa.RecordBatch, watermark: int) -> list[Found]:
        """Runs the operators over rows in event order, in portions that part no moment."""
        times = rows.column(TIME).to_numpy()
        found: list[Found] = []
        first = 0
        while first < len(rows):
            until = first + PORTION
            if until >= len(rows):
                part, limit = rows.slice(first), watermark
                until = len(rows)
            else:
                limit = int(times[until])
                until = int(np.searchsorted(times, limit))
                if until <= first:  # more than a portion at one moment
                    until = int(np.searchsorted(times, limit, side="right"))
                    limit = int(times[until]) if until < len(rows) else watermark
                part = rows.slice(first, until - first)
            found += self._process(part, limit)
            first = until
        return found

    def finish(self) -> list[Found]:
        """Decides everything up to where the task reads; nothing more will come."""
        if not self._plans or self._watermark >= self._task.read_until:
            return []
        return self._process(None, self._task.read_until)

    def suppressed(self) -> list[Suppressed]:
        """What `at most once per` left out of that which the task owns."""
        counts = self._running.suppressed()
        return [Suppressed(policy, count) for policy, count in counts.items() if count]

    def _process(self, rows: pa.RecordBatch | None, watermark: int) -> list[Found]:
        """Up to each change of rows by those of before, then by the new ones."""
        found: list[Found] = []
        while (since := self._running.next_switch(watermark)) is not None:
            before = None
            if rows is not None:
                cut = int(np.searchsorted(rows.column(TIME).to_numpy(), since))
                before, rows = rows.slice(0, cut) if cut else None, rows.slice(cut)
            if before is not None or self._has_begun(since):
                found += self._process_part(before, since)
            self._running.switch()
        rows = None if rows is not None and not len(rows) else rows
        if rows is not None or self._watermark < watermark:
            found += self._process_part(rows, watermark)
        return found

    def _has_begun(self, time: int) -> bool:
        """Whether time runs already: not before the first reading of anybody, where it counts."""
        return not self._running.is_untouched or (self._began is not None and self._began < time)

    def _process_part(self, rows: pa.RecordBatch | None, watermark: int) -> list[Found]:
        readings = None if rows is None else as_readings(rows, self.codes)
        if readings is not None:
            self._silence.take(readings)
            mine = self.interest.own(rows)
            if mine is not None:
                readings = readings.filter(pa.array(mine)) if mine.any() else None
        if self._began is not None:
            readings, self._began = _with_begin(readings, self._began), None
        found = self._running.process(readings, watermark)
        self._note_failed()
        self._watermark = watermark
        return [item for item in found if self._owns(item)]

    def _owns(self, item: Found) -> bool:
        task = self._task
        if task.keys:
            return self._keys[item.policy].owns(item, task.bucket, task.buckets)
        return task.begin <= item.time < task.until

    def _note_failed(self) -> None:
        for name, failed in self._running.failed.items():
            if name not in self.failed:
                self.failed[name] = Failed(name, self._watermark, failed.problem)


def _with_begin(readings: pa.RecordBatch | None, began: int) -> pa.RecordBatch:
    """Puts a reading of no stream before the first one: time began then, whoever was heard."""
    names = ("id", "stream", "source", "key")
    begin = {"time": pa.array([began])} | {name: pa.array([""]) for name in names}
    if readings is None:
        return pa.RecordBatch.from_pydict(begin)
    columns = []
    for field, column in zip(readings.schema, readings.columns, strict=True):
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        own = begin.get(field.name)
        one = pa.nulls(1, kind) if own is None else own
        columns.append(pa.concat_arrays([one, column.cast(kind)]))
    return pa.RecordBatch.from_arrays(columns, names=readings.schema.names)
