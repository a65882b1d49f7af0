"""Recorded events through policies on Spark, with the stops and goes of the local replay. [PO-8]

Workers read Parquet files in root form themselves; everything else the driver reads and writes out
for them first. A stopped replay keeps how far it was, not the operators' state: history is there to
be read again, and the job that goes on gives the complete output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from rapport.core.errors import InvalidInput
from rapport.pipeline.history.detect import replay_spark
from rapport.pipeline.history.files import recorded_files, why_not_files
from rapport.pipeline.history.result import SparkReplay
from rapport.pipeline.history.run import run_history
from rapport.policy.ontology import Ontology
from rapport.policy.operators.base import PullData
from rapport.policy.plan import Plan
from rapport.policy.replay.replay import (
    DEFAULT_BATCH,
    EngineResult,
    Recording,
    ReplayResult,
    ReplayState,
    digest_of,
    load_state,
    replay,
    save_state,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STATE = "spark"
"""Folder of its state beside that of the local replay: neither can go on from the other's."""


def replay_recorded(
    spark: SparkSession,
    ontology: Ontology,
    pull: PullData,
    plans: Sequence[Plan],
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
) -> ReplayResult:
    """What `policy.replay.replay` promises, on Spark; the same detections at every stop."""
    if stop_after is not None and stop_after < 1:
        raise InvalidInput(
            f"stop_after is {stop_after}; it must be at least 1", code="replay.bad_number"
        )
    folder, digest = Path(), ""
    if resume or stop_after is not None:
        folder = _state_folder(state_directory)
        files = [(item.source.name, item.path) for item in recordings]
        digest = digest_of(plans, lateness_ms, tables_version, files, ontology.sources)
    before = load_state(folder, digest).events if resume else 0
    if stop_after is None and not why_not_files(recordings):
        history = recorded_files(ontology, [(item.source, item.path) for item in recordings])
        made = run_history(
            spark,
            plans,
            pull,
            history,
            lateness_ms=lateness_ms,
            partitions=partitions,
            sources=ontology.sources,
            progress=progress,
        )
        return _replayed(made)
    taken = _Taken(None if stop_after is None else before + stop_after, progress)

    def engine(
        plans: Sequence[Plan], pull: PullData, readings: Iterable[pa.RecordBatch]
    ) -> EngineResult:
        rows = taken.of(readings)
        made = replay_spark(
            spark,
            plans,
            pull,
            rows,
            lateness_ms=lateness_ms,
            partitions=partitions,
            goes_on=lambda: taken.stopped,
            sources=ontology.sources,
        )
        return EngineResult(
            detections=made.detections,
            late=made.late,
            events=made.events,
            undecided=made.undecided,
            suppressed=made.suppressed,
        )

    result = replay(
        ontology, pull, plans, recordings, lateness_ms=lateness_ms, batch=batch, engine=engine
    )
    if taken.stopped:
        state = ReplayState(
            digest=digest,
            events=result.events,
            runner=b"",
            detections=result.detections,
            late=result.late,
            undecided=result.undecided,
        )
        save_state(folder, state)
    return msgspec.structs.replace(result, stopped=taken.stopped)


def _replayed(made: SparkReplay) -> ReplayResult:
    return ReplayResult(
        detections=made.detections,
        late=made.late,
        problems=made.problems,
        faulty=made.faulty,
        events=made.events,
        undecided=made.undecided,
        suppressed=made.suppressed,
        first=made.first,
        last=made.last,
    )


class _Taken:
    """Hands readings on up to a number of events; reads the rest only for its faulty rows."""

    def __init__(self, most: int | None, progress: Callable[[int], None] | None) -> None:
        self._most, self._progress = most, progress
        self._events = 0
        self.stopped = False

    def of(self, readings: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in readings:
            if self.stopped:
                continue
            part = rows if self._most is None else rows.slice(0, self._most - self._events)
            self._events += len(part)
            self.stopped = self._events == self._most
            if self._progress is not None:
                self._progress(self._events)
            yield part


def _state_folder(state_directory: Path | None) -> Path:
    if state_directory is None:
        raise InvalidInput("there is no place for the state", code="replay.no_state_directory")
    return state_directory / STATE
