"""The tasks of a job one after the other in this process, without Spark: to try things, and for
tests. [PI-5]
"""

from __future__ import annotations

import pyarrow as pa

from rapport.pipeline.history.outcome import SCHEMA
from rapport.pipeline.history.scattering import (
    ORDER,
    gathered,
    scatter,
    scattered_schema,
)
from rapport.pipeline.history.switching import Pull
from rapport.pipeline.history.task_run import Job, run_task

_BATCH = 1_000


class Here:
    """Runs jobs as Spark does, in both ways."""

    def __init__(self, pull: Pull) -> None:
        self._pull = pull

    def reading(self, job: Job) -> pa.Table:
        """See `driving.Engine`."""
        told = (run_task(job, number, self._pull) for number in range(len(job.tasks)))
        return pa.Table.from_batches([batch for own in told for batch in own], schema=SCHEMA)

    def shuffled(self, job: Job) -> pa.Table:
        """See `driving.Engine`."""
        sent = scatter(job, range(len(job.groups)), self._pull)
        rows = pa.Table.from_batches(sent, schema=scattered_schema(job))
        ordered = rows.sort_by([(name, "ascending") for name in ORDER])
        batches = ordered.combine_chunks().to_batches(max_chunksize=_BATCH)
        return pa.Table.from_batches(gathered(job, batches, self._pull), schema=SCHEMA)
