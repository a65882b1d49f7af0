"""The tasks of a job as tasks of Spark. [PI-5]"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from rapport.pipeline.history.outcome import OUTCOME, SCHEMA
from rapport.pipeline.history.progress import Progress, counted
from rapport.pipeline.history.scattering import (
    ORDER,
    gathered,
    scatter,
    scattered_columns,
)
from rapport.pipeline.history.switching import Pull, tables_for_workers
from rapport.pipeline.history.task_run import Job, run_task
from rapport.policy.plan import Plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Batches = Iterable[pa.RecordBatch]


class SparkEngine:
    """Runs jobs on a session; tables travel once per worker, not once per task."""

    def __init__(
        self, spark: SparkSession, plans: Sequence[Plan], pull: Pull, progress: Progress
    ) -> None:
        self._spark, self._progress = spark, progress
        self._tables = tables_for_workers(plans, pull)

    def reading(self, job: Job) -> pa.Table:
        """Every task reads for itself; those that take longest come first."""
        count = len(job.tasks)
        if not count:
            return pa.Table.from_batches([], schema=SCHEMA)
        shared = self._spark.sparkContext.broadcast((job, self._tables))
        finished = counted(self._spark.sparkContext, self._progress)

        def work(batches: Batches) -> Iterator[pa.RecordBatch]:
            given, tables = shared.value
            for number in _numbers(batches):
                yield from run_task(given, number, tables)
                finished.add(sum(given.groups[own].facts.rows for own in given.tasks[number].own))

        try:
            return self._spark.range(0, count, 1, count).mapInArrow(work, OUTCOME).toArrow()
        finally:
            shared.destroy()

    def shuffled(self, job: Job) -> pa.Table:
        """Row groups are read once, their rows sorted by Spark."""
        groups, tasks = len(job.groups), len(job.tasks)
        shared = self._spark.sparkContext.broadcast((job, self._tables))

        def send(batches: Batches) -> Iterator[pa.RecordBatch]:
            given, tables = shared.value
            return scatter(given, _numbers(batches), tables)

        def run(batches: Batches) -> Iterator[pa.RecordBatch]:
            given, tables = shared.value
            return gathered(given, batches, tables)

        try:
            rows = self._spark.range(0, groups, 1, min(groups, tasks)).mapInArrow(
                send, scattered_columns(job)
            )
            spread = rows.repartitionById(tasks, "task").sortWithinPartitions(*ORDER)
            return spread.mapInArrow(run, OUTCOME).toArrow()
        finally:
            shared.destroy()


def _numbers(batches: Batches) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()
