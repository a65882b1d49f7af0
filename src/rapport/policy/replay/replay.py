"""Replay of policies over recorded files in event time, which can stop and resume; the readings
behind detections; comparison of two versions. [PO-8, PO-9, PO-11, UX-3, ME-7]
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.detection import Cause, Detection, Undecided, detection_order, unique_undecided
from rapport.core.errors import (
    Conflict,
    Corrupt,
    InvalidInput,
    Problem,
    StoreUnavailable,
    UnknownName,
    Unsupported,
)
from rapport.core.event import content_id
from rapport.kernel.files import make_private_directory, sync_path
from rapport.policy.explain.evidence import Reading, readings_of
from rapport.policy.ontology import Ontology, PushSource
from rapport.policy.operators.base import PullData
from rapport.policy.plan import PolicyPlan
from rapport.policy.recordings.files import merge_recordings, read_recorded, refuse
from rapport.policy.recordings.formats import Report
from rapport.policy.runner.deployed_plans import SituationCounts
from rapport.policy.runner.local import LocalRunner
from rapport.policy.situation_plan import PresentValue, SituationPlan, plan_nodes

_MOST_KEPT = 1_000
_MOST_LINES = 4
_VERSION = 2
_FILE = "state.msgpack"
DEFAULT_BATCH = 10_000
ReadFile = Callable[[int, Report], Iterator[pa.RecordBatch]]
"""Takes the batch size and the handler of unusable rows."""
FoundBy = Literal["site", "changed"]


class FaultyRows(msgspec.Struct, kw_only=True):
    """Unusable rows of one file with the same reason."""

    first: Problem
    lines: list[int]
    """Lines of the first few."""
    count: int = 1


class RowFaults:
    """Counts problems; its memory does not grow with the file."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        """The first thousand."""
        self._by_reason: dict[tuple[str, str], FaultyRows] = {}

    def report(self, problem: Problem) -> None:
        if len(self.problems) < _MOST_KEPT:
            self.problems.append(problem)
        known = self._by_reason.get((problem.file, problem.code))
        if known is None:
            self._by_reason[problem.file, problem.code] = FaultyRows(
                first=problem, lines=[problem.line]
            )
            return
        known.count += 1
        if len(known.lines) < _MOST_LINES:
            known.lines.append(problem.line)

    def by_reason(self) -> list[FaultyRows]:
        """By file and code, in order of occurrence."""
        return list(self._by_reason.values())


class ReplayState(msgspec.Struct, kw_only=True):
    """Progress, findings, and the digest of everything the result depends on."""

    version: int = _VERSION
    digest: str
    events: int
    runner: bytes
    """Empty for an engine that starts anew."""
    detections: list[Detection]
    late: list[Cause]
    undecided: list[Undecided]


def digest_of(
    plans: Sequence[PolicyPlan],
    lateness_ms: int,
    tables_version: str,
    files: Sequence[tuple[str, Path]],
    sources: Mapping[str, PushSource],
) -> str:
    """Digest of policies, lateness, tables, source declarations and file contents; reads the files
    once.
    """
    parts = [f"{plan.policy}={plan.version()}" for plan in plans]
    parts += [f"{name} is {_declaration_of(one)}" for name, one in sorted(sources.items())]
    parts += [f"lateness={lateness_ms}", f"tables={tables_version}"]
    parts += [f"{source}={_digest_file(path)}" for source, path in files]
    return content_id(*parts)


def save_state(directory: Path, state: ReplayState) -> None:
    """Replaces the saved state atomically."""
    try:
        make_private_directory(directory)
        fresh = directory / f"{_FILE}.new"
        with fresh.open("wb") as file:
            file.write(msgspec.msgpack.encode(state))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(directory / _FILE)
        sync_path(directory)
    except OSError as error:
        raise StoreUnavailable(
            f"cannot keep the state of the replay in {directory}: {error.strerror}"
        ) from error


def load_state(directory: Path, digest: str) -> ReplayState:
    """The saved state; raises InvalidInput when there is none, Conflict when the inputs differ."""
    try:
        raw = (directory / _FILE).read_bytes()
    except OSError:
        raise InvalidInput(
            "there is no stopped replay to resume",
            code="replay.nothing_to_resume",
            hint="--stop-after N keeps one",
        ) from None
    try:
        state = msgspec.msgpack.decode(raw, type=ReplayState)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"the state of the replay cannot be read: {error}", code="replay.bad_state"
        ) from None
    if state.version != _VERSION or state.digest != digest:
        raise Conflict(
            "policies, tables, lateness, sources or recorded events are not those of the stopped "
            "replay",
            code="replay.changed",
            hint="put them back, or replay from the beginning",
        )
    return state


def _declaration_of(source: PushSource) -> str:
    """The declaration of a source without the location of its recorded events; their content
    counts.
    """
    return msgspec.json.encode(msgspec.structs.replace(source, events="")).decode()


def _digest_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "blake2b").hexdigest()
    except OSError:
        return "unreadable"  # reading it reports the error


class Recording(msgspec.Struct, frozen=True):
    """A file with recorded events of a source."""

    source: PushSource
    path: Path
    read: ReadFile | None = None
    """Makes readings of the file; None: the file is in canonical form. The site provides the
    mediation of raw events, which this package does not know.
    """
    strict: bool = False
    """Whether the first unusable row raises."""

    def batches(self, ontology: Ontology, batch: int, report: Report) -> Iterator[pa.RecordBatch]:
        """The readings in file order in non-empty batches; unusable rows are reported, or raise
        SiteError if it is strict.
        """
        handler = refuse if self.strict else report
        if self.read is not None:
            return self.read(batch, handler)
        return read_recorded(self.path, self.source, ontology, batch=batch, report=handler)


class EngineResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of another engine."""

    detections: list[Detection]
    late: list[Cause]
    events: int
    undecided: list[Undecided] = []
    suppressed: dict[str, int] = {}
    situations: dict[str, SituationCounts] = {}


ReplayEngine = Callable[[Sequence[PolicyPlan], PullData, Iterable[pa.RecordBatch]], EngineResult]
"""Takes plans, tables and readings in order of arrival; the caller provides it, such as the Spark
engine.
"""


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """All detections in output order, and the unusable rows."""

    detections: list[Detection]
    late: list[Cause]
    problems: list[Problem]
    """The first thousand unusable rows (`faulty` counts all), and failed policies."""
    events: int
    undecided: list[Undecided] = []
    """Matches left undecided by a silent source, without duplicates."""
    stopped: bool = False
    """Whether `stop_after` ended it."""
    faulty: list[FaultyRows] = []
    suppressed: dict[str, int] = {}
    """By policy, the detections suppressed by `at most once per`."""
    situations: dict[str, SituationCounts] = {}
    """By policy, what is open and pending when recorded time ends."""
    first: int | None = None
    last: int | None = None
    """The smallest and the largest time of a reading."""


def recordings_of(
    ontology: Ontology, directory: Path, files: Sequence[str] = ()
) -> list[Recording]:
    """The files to replay: those that the sources name (relative to the site's directory), or
    `files` instead.

    With several sources a file belongs to the one that names it, or write `source=FILE`. Raises
    InvalidInput when there is nothing to replay or the source of a file is unclear.
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
    plans: Sequence[PolicyPlan],
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
    until_ms: int | None = None,
) -> ReplayResult:
    """Runs the plans over the recordings; decides pending matches at their end.

    Args:
        batch: readings per step; the result does not depend on it.
        engine: another engine instead of the local runner; it cannot stop and resume.
        stop_after: stop after this many more events and save the state in `state_directory`.
        resume: continue from the saved state; refused when policies, tables or files differ.
        tables_version: identifies the content of the tables (`Tables.version()`).
        progress: called with the number of events after each step.
        until_ms: for situations recorded time runs on to it, included.
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
            undecided=unique_undecided(made.undecided),
            suppressed=made.suppressed,
            situations=made.situations,
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
            stop_after += state.events  # another engine stopped there: start from the beginning
    run.go(readings, stop_after, until_ms)
    if run.stopped and state_directory is not None:
        save_state(state_directory, run.state(digest))
    return ReplayResult(
        detections=sorted(run.detections, key=detection_order),
        late=run.late,
        problems=[*faults.problems, *runner.failed().values()],
        faulty=faults.by_reason(),
        events=run.events,
        undecided=unique_undecided(run.undecided),
        stopped=run.stopped,
        suppressed=runner.suppressed(),
        situations=runner.situations(),
        first=span.first,
        last=span.last,
    )


class TimeExtent:
    """The time range of readings."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.last: int | None = None
        self.count = 0
        """Number of times given to `note`."""

    def watch(self, readings: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Passes readings through and notes their times."""
        for rows in readings:
            times = rows.column("time").to_numpy()
            self.note([int(times.min()), int(times.max())])
            yield rows

    def note(self, times: Sequence[int]) -> None:
        if times:
            first, last = min(times), max(times)
            self.first = first if self.first is None else min(first, self.first)
            self.last = last if self.last is None else max(last, self.last)
            self.count += len(times)


class _LocalReplay:
    """A replay on the local runner."""

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

    def go(
        self, readings: Iterator[pa.RecordBatch], stop_after: int | None, until_ms: int | None
    ) -> None:
        """Feeds the remaining readings, at most `stop_after`."""
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
        self.detections += self._runner.finish(until_ms)
        self.undecided += self._runner.take_undecided()


def _ignore(events: int) -> None: ...


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
        f"the source of {file} is unclear",
        code="replay.whose_events",
        hint=f"write SOURCE={file} with one of: {', '.join(sorted(sources))}",
    )


class CauseCollector:
    """Collects the readings of some causes; one cause may be several readings of different
    streams.
    """

    def __init__(self, causes: Collection[Cause], ontology: Ontology) -> None:
        self.ids = {id for _time, id in causes}
        self.found: dict[Cause, list[Reading]] = {cause: [] for cause in causes}
        self._ontology = ontology
        self._wanted = pa.array(sorted(self.ids), pa.string())

    def take(self, rows: pa.RecordBatch) -> None:
        """Filters the readings of a batch; cheap if none matches."""
        chosen = rows.filter(pc.is_in(rows.column("id"), self._wanted))
        for reading in readings_of(chosen, self._ontology):
            if reading.cause in self.found:
                self.found[reading.cause].append(reading)


def cause_readings(
    recordings: Sequence[Recording], ontology: Ontology, causes: Collection[Cause]
) -> dict[Cause, list[Reading]]:
    """The readings of these causes; reads all files once more."""
    behind = CauseCollector(causes, ontology)
    if causes:
        for item in recordings:
            for rows in item.batches(ontology, DEFAULT_BATCH, _ignore_problem):
                behind.take(rows)
    return behind.found


def cause_values(
    causes: Iterable[Cause], readings: Mapping[Cause, list[Reading]], streams: Collection[str]
) -> list[Reading]:
    """The last reading of each attribute and identity among the causes, oldest first."""
    last: dict[tuple[str, str], Reading] = {}
    for cause in causes:
        for reading in readings.get(cause, ()):
            if reading.stream in streams:
                last[reading.stream, reading.key] = reading
    return sorted(last.values(), key=lambda one: (one.time, one.id, one.stream))


def cause_streams(plan: PolicyPlan) -> frozenset[str]:
    """The streams whose readings can be causes, without those of absences."""
    if isinstance(plan, SituationPlan):
        present = (node for node in plan_nodes(plan) if isinstance(node, PresentValue))
        return frozenset(node.stream for node in present if node.stream is not None)
    return plan.streams_of(plan.positive_terms())


def _ignore_problem(problem: Problem) -> None: ...


class ReplayDifference(msgspec.Struct, frozen=True):
    """What only one version found."""

    found_by: FoundBy
    detection: Detection
    """Of a situation its beginning."""


class ReplayComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of two versions of a policy."""

    policy: str
    both: int
    differences: list[ReplayDifference]
    """In output order."""

    def only(self, by: FoundBy) -> list[Detection]:
        return [one.detection for one in self.differences if one.found_by == by]


class _DifferenceLine(msgspec.Struct):
    """Field order is the key order of the output."""

    policy: str
    found_by: FoundBy
    time: int
    bindings: dict[str, str]
    causes: list[str]


def renamed_plan(plan: PolicyPlan) -> PolicyPlan:
    """The changed plan under another name, so that both can run together."""
    return msgspec.structs.replace(
        plan, policy=f"{plan.policy} changed {content_id(plan.policy)[:8]}"
    )


def compare_plans(
    site: PolicyPlan, changed: PolicyPlan, found: Iterable[Detection]
) -> ReplayComparison:
    """Compares the findings of both plans; `changed` is the result of `renamed_plan`.

    Detections are the same when time and bindings are, situations when they overlap: a lower limit
    begins earlier, and finds nothing less.
    """
    told = list(found)
    ours, theirs = _lasting(site, told), _lasting(changed, told)
    only_ours = _without_overlap(ours, theirs)
    only_theirs = [
        msgspec.structs.replace(one, policy=site.policy) for one in _without_overlap(theirs, ours)
    ]
    differences = [ReplayDifference("site", one) for one in only_ours]
    differences += [ReplayDifference("changed", one) for one in only_theirs]
    differences.sort(key=lambda one: (detection_order(one.detection), one.found_by))
    return ReplayComparison(
        policy=site.policy, both=len(ours) - len(only_ours), differences=differences
    )


def situation_id(one: Detection) -> tuple[tuple[tuple[str, str], ...], int]:
    """The instances and the beginning, of the beginning or the end of a situation."""
    return tuple(sorted(one.bindings.items())), one.time if one.began is None else one.began


class _Lasting(NamedTuple):
    """A situation from its beginning to its end, infinite while it is open; a detection is over at
    once.
    """

    begin: Detection
    end: float


def _lasting(plan: PolicyPlan, found: Iterable[Detection]) -> list[_Lasting]:
    """The findings of a plan in order, equal ones once."""
    begins: dict[tuple[object, ...], Detection] = {}
    ends: dict[tuple[object, ...], int] = {}
    for one in found:
        if one.policy == plan.policy and one.began is None:
            begins.setdefault(situation_id(one), one)
        elif one.policy == plan.policy:
            ends[situation_id(one)] = one.time
    if not isinstance(plan, SituationPlan):
        return [_Lasting(one, one.time) for one in begins.values()]
    return [_Lasting(one, ends.get(key, math.inf)) for key, one in begins.items()]


def _without_overlap(some: Iterable[_Lasting], others: Iterable[_Lasting]) -> list[Detection]:
    """The beginnings of those that none of the others with the same bindings overlaps. The findings
    of one plan about the same things do not overlap each other.
    """
    rows: dict[tuple[tuple[str, str], ...], list[_Lasting]] = {}
    for other in others:
        rows.setdefault(situation_id(other.begin)[0], []).append(other)

    def is_met(one: _Lasting) -> bool:
        row = rows.get(situation_id(one.begin)[0], [])
        begun = bisect_right(row, one.end, key=lambda other: other.begin.time)
        return begun > 0 and row[begun - 1].end >= one.begin.time

    return [one.begin for one in some if not is_met(one)]


def difference_lines(differences: Sequence[ReplayDifference]) -> bytes:
    """One line of JSON each."""
    lines = [
        _DifferenceLine(
            one.detection.policy,
            one.found_by,
            one.detection.time,
            dict(sorted(one.detection.bindings.items())),
            [id for _time, id in one.detection.causes],
        )
        for one in differences
    ]
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
