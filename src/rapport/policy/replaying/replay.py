"""Running policies over recorded events in event time; can stop in the middle and go on later.
[PO-8, UX-3]
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from rapport.core.detection import Cause, Detection, Undecided, detection_order, each_once
from rapport.core.errors import InvalidInput, Problem, UnknownName, Unsupported
from rapport.policy.ontology import Ontology, PushSource
from rapport.policy.plan import Plan
from rapport.policy.recorded.files import read_recorded, refuse
from rapport.policy.recorded.merge import merge_recordings
from rapport.policy.recorded.rows import Report
from rapport.policy.replaying.faults import FaultyRows, RowFaults
from rapport.policy.replaying.state import ReplayState, digest_of, load_state, save_state
from rapport.policy.runners.base import PullData
from rapport.policy.runners.local import LocalRunner

DEFAULT_BATCH = 10_000


ReadFile = Callable[[int, Report], Iterator[pa.RecordBatch]]
"""Takes how many readings make a batch, and who is told of rows that cannot be used."""


class Recording(msgspec.Struct, frozen=True):
    """A file with recorded events of a source."""

    source: PushSource
    path: Path
    read: ReadFile | None = None
    """Who makes readings of it; None: the file is in root form. The site hands in what gives raw
    events their meaning, of which policies know nothing.
    """
    strict: bool = False
    """Whether the first row that cannot be used raises."""

    def batches(self, ontology: Ontology, batch: int, report: Report) -> Iterator[pa.RecordBatch]:
        """Its readings in the order they stand there, none of the batches empty; rows that cannot
        be used are reported, or raise SiteError when it is strict.
        """
        told = refuse if self.strict else report
        if self.read is not None:
            return self.read(batch, told)
        return read_recorded(self.path, self.source, ontology, batch=batch, report=told)


class EngineResult(msgspec.Struct, frozen=True, kw_only=True):
    """What another engine made of the readings."""

    detections: list[Detection]
    late: list[Cause]
    events: int
    undecided: list[Undecided] = []
    suppressed: dict[str, int] = {}


ReplayEngine = Callable[[Sequence[Plan], PullData, Iterable[pa.RecordBatch]], EngineResult]
"""Takes plans, tables and readings in arrival order; the Spark engine is one, handed in by the
caller.
"""


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """All detections since the beginning in the order of the fixed output, and what could not be
    used.
    """

    detections: list[Detection]
    late: list[Cause]
    problems: list[Problem]
    """Rows that could not be used, the first thousand of them (`faulty` counts all), and policies
    that failed.
    """
    events: int
    undecided: list[Undecided] = []
    """What would be detections, had no source been silent; each once."""
    stopped: bool = False
    """True when `stop_after` ended it before the end of the events."""
    faulty: list[FaultyRows] = []
    suppressed: dict[str, int] = {}
    """Of each policy what `at most once per` left out."""
    first: int | None = None
    last: int | None = None
    """The smallest and the largest time of a reading."""


def recordings_of(
    ontology: Ontology, directory: Path, files: Sequence[str] = ()
) -> list[Recording]:
    """The files to replay: those the sources name (relative to the site's directory), or `files`
    instead.

    With several sources a file goes to the one that names a file of that name, or say
    `source=FILE`. Raises InvalidInput when there is nothing to replay, or nobody can tell whose a
    file is.
    """
    sources = ontology.sources
    if files:
        return [_recording(sources, file) for file in files]
    found = [
        Recording(source, directory / source.events) for source in sources.values() if source.events
    ]
    if not found:
        raise InvalidInput(
            "no source of the site names recorded events",
            code="replay.no_events",
            hint='name a file with --events, or add events = "events.csv" to a [sources.*] table',
        )
    return found


def replay(
    ontology: Ontology,
    pull: PullData,
    plans: Sequence[Plan],
    recordings: Sequence[Recording],
    *,
    lateness_ms: int,
    batch: int = DEFAULT_BATCH,
    engine: ReplayEngine | None = None,
    stop_after: int | None = None,
    resume: bool = False,
    state_directory: Path | None = None,
    tables_version: str = "",
    progress: Callable[[int], None] | None = None,
) -> ReplayResult:
    """Runs the plans over the recordings; what is pending at their end is decided.

    Args:
        batch: readings per step; the result does not depend on it.
        engine: another engine than the local runner; it cannot stop and resume.
        stop_after: end after this many more events and keep the state in `state_directory`.
        resume: go on where the state says; refused when policies, tables or files are not the same.
        tables_version: what tells tables from changed ones (`Tables.version()`).
        progress: called with the number of events after each step.
    """
    _check_numbers(batch, stop_after)
    faults, span = RowFaults(), TimeExtent()
    readings = span.watch(_readings(ontology, recordings, batch, faults))
    if engine is not None:
        if stop_after is not None or resume:
            raise Unsupported("stopping and resuming", "this engine", hint="use --engine local")
        made = engine(plans, pull, readings)
        return ReplayResult(
            detections=sorted(made.detections, key=detection_order),
            late=made.late,
            problems=faults.problems,
            faulty=faults.by_reason(),
            events=made.events,
            undecided=each_once(made.undecided),
            suppressed=made.suppressed,
            first=span.first,
            last=span.last,
        )
    digest = ""
    if resume or stop_after is not None:
        if state_directory is None:
            raise InvalidInput("there is no place for the state", code="replay.no_state_directory")
        paths = [(item.source.name, item.path) for item in recordings]
        digest = digest_of(plans, lateness_ms, tables_version, paths, ontology.sources)
    runner = LocalRunner(plans, pull, lateness_ms=lateness_ms, sources=ontology.sources)
    run = _LocalReplay(runner, progress)
    if resume and state_directory is not None:
        state = load_state(state_directory, digest)
        if state.runner:
            run.take_over(state)
        elif stop_after is not None:
            stop_after += state.events  # another engine stopped there: all is gone over again
    run.go(readings, stop_after)
    if run.stopped and state_directory is not None:
        save_state(state_directory, run.state(digest))
    return ReplayResult(
        detections=sorted(run.detections, key=detection_order),
        late=run.late,
        problems=[*faults.problems, *runner.failed().values()],
        faulty=faults.by_reason(),
        events=run.events,
        undecided=each_once(run.undecided),
        stopped=run.stopped,
        suppressed=runner.suppressed(),
        first=span.first,
        last=span.last,
    )


class TimeExtent:
    """From when to when there are readings."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.last: int | None = None

    def watch(self, readings: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same readings; their times are taken in as they pass."""
        for rows in readings:
            times = rows.column("time").to_numpy()
            self.note([int(times.min()), int(times.max())])
            yield rows

    def note(self, times: Sequence[int]) -> int:
        """Takes in times; returns how many."""
        if times:
            first, last = min(times), max(times)
            self.first = first if self.first is None else min(first, self.first)
            self.last = last if self.last is None else max(last, self.last)
        return len(times)


class _LocalReplay:
    """A replay under way on the local runner."""

    def __init__(self, runner: LocalRunner, progress: Callable[[int], None] | None) -> None:
        self._runner, self._progress = runner, progress or _ignore
        self.detections: list[Detection] = []
        self.late: list[Cause] = []
        self.undecided: list[Undecided] = []
        self.events = 0
        self.stopped = False

    def take_over(self, state: ReplayState) -> None:
        self._runner.restore(state.runner)
        self.detections, self.late = list(state.detections), list(state.late)
        self.undecided, self.events = list(state.undecided), state.events

    def state(self, digest: str) -> ReplayState:
        return ReplayState(
            digest=digest,
            events=self.events,
            runner=self._runner.snapshot(),
            detections=self.detections,
            late=self.late,
            undecided=self.undecided,
        )

    def go(self, readings: Iterator[pa.RecordBatch], stop_after: int | None) -> None:
        """Feeds what was not fed before, at most `stop_after` readings."""
        left = stop_after
        for rows in _skip(readings, self.events):
            taken = rows if left is None else rows.slice(0, left)
            self.detections += self._runner.feed(taken)
            self.late += self._runner.take_late()
            self.undecided += self._runner.take_undecided()
            self.events += len(taken)
            self._progress(self.events)
            if left is not None:
                left -= len(taken)
                if left <= 0:
                    self.stopped = True
                    for _ in readings:  # to the end, so that all faulty rows are reported
                        pass
                    return
        self.detections += self._runner.finish()
        self.undecided += self._runner.take_undecided()


def _ignore(events: int) -> None:
    """Nobody watches."""


def _check_numbers(batch: int, stop_after: int | None) -> None:
    for name, value in (("batch", batch), ("stop_after", stop_after)):
        if value is not None and value < 1:
            raise InvalidInput(
                f"{name} is {value}; it must be at least 1", code="replay.bad_number"
            )


def _readings(
    ontology: Ontology, recordings: Sequence[Recording], batch: int, faults: RowFaults
) -> Iterator[pa.RecordBatch]:
    files = [item.batches(ontology, batch, faults.report) for item in recordings]
    return itertools.chain(merge_recordings(files, batch=batch) if files else ())


def _skip(readings: Iterator[pa.RecordBatch], count: int) -> Iterator[pa.RecordBatch]:
    for rows in readings:
        skipped = min(count, len(rows))
        count -= skipped
        if skipped < len(rows):
            yield rows.slice(skipped)


def _recording(sources: dict[str, PushSource], file: str) -> Recording:
    name, equals, path = file.partition("=")
    if equals and name in sources:
        return Recording(sources[name], Path(path))
    if len(sources) == 1:
        return Recording(next(iter(sources.values())), Path(file))
    owners = [item for item in sources.values() if Path(item.events).name == Path(file).name]
    if len(owners) == 1:
        return Recording(owners[0], Path(file))
    if equals and not Path(file).exists():
        raise UnknownName("source", name, list(sources))
    raise InvalidInput(
        f"nobody can tell which source {file} was recorded from",
        code="replay.whose_events",
        hint=f"write SOURCE={file} with one of: {', '.join(sorted(sources))}",
    )
