"""Recorded events through policies on Spark. [PO-8]

Spark scans Parquet files in canonical form; other formats, and sources that need an interpretation,
are read by the driver, which writes them as Parquet first. A replay that stops or resumes runs in
this process, where operators keep their state.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from rapport.lake.parquet_files import export_readings
from rapport.pipeline.history.files import (
    ReadingsFiles,
    readings_files,
    recorded_files,
    why_not_files,
)
from rapport.pipeline.history.results import SparkReplay
from rapport.pipeline.history.runner import check_plans, find_in_history, part_counts
from rapport.pipeline.history.scan import why_not_scanned
from rapport.pipeline.history.tables import Pull
from rapport.policy.ontology import Ontology, PushSource
from rapport.policy.operators.base import PullData
from rapport.policy.plan import PolicyPlan
from rapport.policy.replay.replay import (
    DEFAULT_BATCH,
    EngineResult,
    Recording,
    ReplayResult,
    replay,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def replay_spark(
    spark: SparkSession,
    plans: Sequence[PolicyPlan],
    pull: Pull,
    readings: Iterable[pa.RecordBatch],
    *,
    lateness_ms: int,
    partitions: int | None = None,
    directory: Path | None = None,
    sources: Mapping[str, PushSource] | None = None,
    until: Callable[[], int | None] = lambda: None,
) -> SparkReplay:
    """Runs the plans over readings given in arrival order, as one Spark job; see
    `find_in_history`.

    `directory` is where the readings are kept while the job runs, a temporary one by default; on a
    cluster every worker must see it. `until` is called when all readings are read: for situations
    recorded time runs on to what it gives.
    """
    check_plans(plans, pull, sources)
    part_counts(partitions, 0, 1)
    with tempfile.TemporaryDirectory(prefix="rapport-replay-", dir=directory) as folder:
        path = Path(folder) / "readings.parquet"
        history = ReadingsFiles(())
        batches = iter(readings)
        if (first := next(batches, None)) is not None:
            export_readings(chain([first], batches), path, first.schema)
            history = readings_files([path])
        found = find_in_history(
            spark,
            plans,
            pull,
            history,
            lateness_ms=lateness_ms,
            partitions=partitions,
            sources=sources,
            until_ms=until(),
        )
        return SparkReplay.of(found)


STATE = "spark"
"""Folder of the state of replays with this engine, beside that of others."""


def replay_recorded(
    spark: SparkSession,
    ontology: Ontology,
    pull: PullData,
    plans: Sequence[PolicyPlan],
    recordings: Sequence[Recording],
    *,
    lateness_ms: int,
    batch: int = DEFAULT_BATCH,
    partitions: int | None = None,
    stop_after: int | None = None,
    resume: bool = False,
    state_directory: Path | None = None,
    tables_version: str = "",
    progress: Callable[[int], None] | None = None,
    until_ms: int | None = None,
) -> ReplayResult:
    """`policy.replay.replay` on Spark: the same detections."""
    again = partial(replay, ontology, pull, plans, recordings, lateness_ms=lateness_ms, batch=batch)
    if stop_after is not None or resume:
        return again(
            stop_after=stop_after,
            resume=resume,
            state_directory=None if state_directory is None else state_directory / STATE,
            tables_version=tables_version,
            progress=progress,
            until_ms=until_ms,
        )
    files = _scannable(ontology, plans, recordings)
    if files is not None:
        found = find_in_history(
            spark,
            plans,
            pull,
            files,
            lateness_ms=lateness_ms,
            partitions=partitions,
            sources=ontology.sources,
            progress=progress,
            until_ms=until_ms,
        )
        return SparkReplay.of(found)

    def engine(
        plans: Sequence[PolicyPlan], pull: PullData, readings: Iterable[pa.RecordBatch]
    ) -> EngineResult:
        made = replay_spark(
            spark,
            plans,
            pull,
            _reported(readings, progress),
            lateness_ms=lateness_ms,
            partitions=partitions,
            sources=ontology.sources,
            until=lambda: until_ms,
        )
        return EngineResult(
            detections=made.detections,
            late=made.late,
            events=made.events,
            undecided=made.undecided,
            suppressed=made.suppressed,
            situations=made.situations,
        )

    return again(engine=engine)


def _scannable(
    ontology: Ontology, plans: Sequence[PolicyPlan], recordings: Sequence[Recording]
) -> ReadingsFiles | None:
    """The recordings as files that Spark scans; None if it cannot."""
    if why_not_files(recordings):
        return None
    files = recorded_files(ontology, [(item.source, item.path) for item in recordings])
    streams = {stream for plan in plans for stream in plan.streams()}
    return None if why_not_scanned(files, streams) else files


def _reported(
    readings: Iterable[pa.RecordBatch], progress: Callable[[int], None] | None
) -> Iterator[pa.RecordBatch]:
    """The readings; `progress` is called with how many there were."""
    events = 0
    for rows in readings:
        events += len(rows)
        if progress is not None:
            progress(events)
        yield rows
