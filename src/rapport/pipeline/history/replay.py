"""Recorded events through policies on Spark, with the stops and resumes of the local replay.
[PO-8]

Spark scans Parquet files in canonical form; other formats, and sources that need an interpretation,
are read by the driver, which writes them as Parquet first. A stopped replay keeps how far it was,
not the operators' state: the job that resumes reads the history again and gives the complete
output.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from rapport.core.errors import InvalidInput
from rapport.lake.parquet_files import export_readings
from rapport.pipeline.errors import spark_errors
from rapport.pipeline.history.arrival import NEVER
from rapport.pipeline.history.files import (
    ReadingsFiles,
    readings_files,
    recorded_files,
    why_not_files,
)
from rapport.pipeline.history.results import SparkReplay
from rapport.pipeline.history.runner import (
    check_plans,
    find_in_history,
    part_counts,
    run_history,
)
from rapport.pipeline.history.scan import why_not_scanned
from rapport.pipeline.history.tables import Pull
from rapport.policy.ontology import Ontology, PushSource
from rapport.policy.operators.base import END_OF_TIME, PullData
from rapport.policy.plan import PolicyPlan
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


class Ingestion:
    """Writes readings to a file and counts them."""

    def __init__(self, lateness_ms: int) -> None:
        self.events = 0
        self._lateness_ms = lateness_ms
        self._newest = NEVER

    def write(self, readings: Iterable[pa.RecordBatch], path: Path) -> bool:
        """Writes all readings as Parquet; False: there was no batch, and so no file."""
        stream = iter(readings)
        first = next(stream, None)
        if first is None:
            return False
        export_readings(self._counted(chain([first], stream)), path, first.schema)
        return True

    def watermark(self) -> int:
        """Everything before this time is certain: older readings would be late."""
        return self._newest - self._lateness_ms

    def _counted(self, readings: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in readings:
            if len(batch):
                self._newest = max(self._newest, int(batch.column("time").to_numpy().max()))
                self.events += len(batch)
            yield batch


def replay_spark(
    spark: SparkSession,
    plans: Sequence[PolicyPlan],
    pull: Pull,
    readings: Iterable[pa.RecordBatch],
    *,
    lateness_ms: int,
    partitions: int | None = None,
    directory: Path | None = None,
    goes_on: Callable[[], bool] = lambda: False,
    sources: Mapping[str, PushSource] | None = None,
    until: Callable[[], int | None] = lambda: None,
) -> SparkReplay:
    """Runs the plans over readings given in arrival order, as one Spark job.

    `partitions` (default: as fits rows and cores) is the number of parts. `directory` is where the
    readings are kept while the job runs, a temporary one by default; on a cluster every worker must
    see it. `goes_on` is called when all readings are read: if more follow another time, only what
    is certain is decided, as by a local runner. `sources` are those of the
    site: periods, clock uncertainties and staleness matter. `until` is called when all readings are
    read: for situations recorded time runs on to what it gives. Raises what `make_operator` raises,
    and RapportErrors for everything that goes wrong on Spark.
    """
    check_plans(plans, pull, sources)
    part_counts(partitions, 0, 1)
    with tempfile.TemporaryDirectory(prefix="rapport-replay-", dir=directory) as folder:
        path = Path(folder) / "readings.parquet"
        ingestion = Ingestion(lateness_ms)
        history = ReadingsFiles(())
        if ingestion.write(readings, path):
            history = readings_files([path])
        with spark_errors("replaying on Spark"):
            found = find_in_history(
                spark,
                plans,
                pull,
                history,
                lateness_ms=lateness_ms,
                partitions=partitions,
                sources=sources,
                end=ingestion.watermark() if goes_on() else END_OF_TIME,
                until_ms=until(),
            )
        return SparkReplay.of(found)


STATE = "spark"
"""Folder of its state beside that of the local replay: neither can resume the other."""


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
    """`policy.replay.replay` on Spark: the same detections at every stop."""
    if stop_after is not None and stop_after < 1:
        raise InvalidInput(
            f"stop_after is {stop_after}; it must be at least 1", code="replay.bad_number"
        )
    folder, digest = Path(), ""
    if resume or stop_after is not None:
        folder = _state_folder(state_directory)
        named = [(item.source.name, item.path) for item in recordings]
        digest = digest_of(plans, lateness_ms, tables_version, named, ontology.sources)
    before = load_state(folder, digest).events if resume else 0
    files = None if stop_after is not None else _scannable(ontology, plans, recordings)
    if files is not None:
        made = run_history(
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
        return _replayed(made)
    taken = _Taken(None if stop_after is None else before + stop_after, progress)

    def engine(
        plans: Sequence[PolicyPlan], pull: PullData, readings: Iterable[pa.RecordBatch]
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


def _scannable(
    ontology: Ontology, plans: Sequence[PolicyPlan], recordings: Sequence[Recording]
) -> ReadingsFiles | None:
    """The recordings as files that Spark scans; None if it cannot."""
    if why_not_files(recordings):
        return None
    files = recorded_files(ontology, [(item.source, item.path) for item in recordings])
    streams = {stream for plan in plans for stream in plan.streams()}
    return None if why_not_scanned(files, streams) else files


def _replayed(made: SparkReplay) -> ReplayResult:
    return ReplayResult(
        detections=made.detections,
        late=made.late,
        problems=made.problems,
        faulty=made.faulty,
        events=made.events,
        undecided=made.undecided,
        suppressed=made.suppressed,
        situations=made.situations,
        first=made.first,
        last=made.last,
    )


class _Taken:
    """Passes readings on up to a number of events; reads the rest only for its faulty rows."""

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
