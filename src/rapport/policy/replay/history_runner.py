"""Runs plans over the readings of the log in event time, up to the live position; used by log
replay and by the re-evaluation. [PO-7, PO-8]

The log is read twice. `survey` finds the readings behind their time (released, corrected, late,
imported) and the corrections; `feed` runs the plans. Readings behind their time are sorted
separately with bounded memory, so the cost depends on the span that is read.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.detection import Detection, Undecided
from rapport.core.errors import Problem
from rapport.core.event import Event, StoredEvent
from rapport.core.release import CORRECTS, HISTORY, Corrections
from rapport.policy.ontology import Ontology, PushSource
from rapport.policy.operators.base import PullData
from rapport.policy.plan import PolicyPlan
from rapport.policy.readings import split_events
from rapport.policy.runner.local import LocalRunner, in_event_order
from rapport.policy.table_history import PullByTime, SwitchingRunner

_RUN_ROWS = 100_000
"""Readings sorted at once; a run takes some 15 MB."""
_PART_ROWS = 5_000
"""Readings of each run in memory during the merge."""
_ENDLESS_MS = 2**61
"""A lateness with which nothing is late and time advances only by `advance`."""
_LONG_AGO = -(2**61)


class OrderedReadings:
    """External merge sort: takes readings in any order and returns them in order of time.

    Memory holds one run while readings are added, and one part of every run afterwards. `close`
    removes the files.
    """

    def __init__(self, *, run_rows: int = _RUN_ROWS, part_rows: int = _PART_ROWS) -> None:
        self._run_rows, self._part_rows = run_rows, part_rows
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._files = 0
        self._folder: TemporaryDirectory[str] | None = None
        self._runs: list[_SortedRun] = []

    def add(self, readings: pa.RecordBatch) -> None:
        """Adds readings; not allowed after the first `take_before`."""
        if len(readings):
            self._batches.append(readings)
            self._rows += len(readings)
        if self._rows >= self._run_rows:
            self._write_run()

    def end(self) -> None:
        """Ends adding."""
        if self._batches:
            whole = in_event_order(pa.concat_batches(self._batches))
            self._runs.append(_SortedRun(self._parts(whole)))
            self._batches = []
        self._runs += [_SortedRun(_read(self._path(number))) for number in range(self._files)]

    def take_before(self, time_ms: int) -> tuple[pa.RecordBatch, int] | None:
        """The next readings before a time, sorted within each run only, and the time up to which
        they are complete; None when none are left.
        """
        while True:
            self._runs = [run for run in self._runs if run.fill()]
            heads = [run.head for run in self._runs]
            ends = [run.last_ms for run in self._runs if run.goes_on]
            limit = min([time_ms, *ends])
            counts = [_count_before(head, limit) for head in heads]
            if any(counts):
                parts = [run.take(n) for run, n in zip(self._runs, counts, strict=True) if n]
                return pa.concat_batches(parts), limit
            if limit == time_ms:
                return None
            # One time has more readings than a part: load the next part too.
            for run in self._runs:
                if run.goes_on and run.last_ms == limit:
                    run.extend()

    def close(self) -> None:
        """Removes everything; idempotent."""
        self._runs, self._batches = [], []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _write_run(self) -> None:
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="rapport-history-")
        whole = in_event_order(pa.concat_batches(self._batches))
        path = str(self._path(self._files))
        with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, whole.schema) as writer:
            for part in self._parts(whole):
                writer.write_batch(part)
        self._batches, self._rows = [], 0
        self._files += 1

    def _parts(self, whole: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for first in range(0, len(whole), self._part_rows):
            yield whole.slice(first, self._part_rows)

    def _path(self, number: int) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / f"{number}.arrow"


class _SortedRun:
    """One sorted run: the part in memory and the remaining ones."""

    def __init__(self, parts: Iterator[pa.RecordBatch]) -> None:
        self._parts = parts
        self._next = next(parts, None)
        self.head: pa.RecordBatch | None = None

    @property
    def goes_on(self) -> bool:
        return self._next is not None

    @property
    def last_ms(self) -> int:
        """The newest time of the part in memory."""
        assert self.head is not None
        return int(self.head.column("time")[len(self.head) - 1].as_py())

    def fill(self) -> bool:
        """Loads a part if none is in memory; False at the end of the run."""
        if self.head is None or not len(self.head):
            self.head = self._advance()
        return self.head is not None

    def extend(self) -> None:
        """Appends the next part to the one in memory."""
        part = self._advance()
        if part is not None:
            self.head = pa.concat_batches([self.head, part])

    def take(self, count: int) -> pa.RecordBatch:
        assert self.head is not None
        taken, self.head = self.head.slice(0, count), self.head.slice(count)
        return taken

    def _advance(self) -> pa.RecordBatch | None:
        part, self._next = self._next, next(self._parts, None)
        return part


def _read(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(path), "rb") as file, pa.ipc.open_stream(file) as reader:
        yield from reader


def _count_before(head: pa.RecordBatch | None, limit: int) -> int:
    assert head is not None
    return int(np.searchsorted(head.column("time").to_numpy(), limit))


class PlanSpan(msgspec.Struct, frozen=True, kw_only=True):
    """The part of history that a plan is run over, and the times in which its findings count."""

    plan: PolicyPlan
    start: int | None
    """The oldest reading it needs; None: from the first."""
    began: int | None
    """When it was deployed, and so its first reading; None: before the first."""
    judged_from: int
    is_incomplete: bool = False
    """Whether the log no longer holds all needed readings."""
    end: int | None = None
    """Readings from this time on are not needed; None: all up to the live position."""
    judged_until: int | None = None
    """Findings from this time on are dropped; None: none."""
    refutes_from: int | None = None
    """From when a missing finding refutes a detection; None: from `judged_from` on."""
    before_deployment: bool = False
    """It covers the time before the policy was deployed, at `end` or later."""

    def judges(self, time_ms: int) -> bool:
        until = self.judged_until
        return time_ms >= self.judged_from and (until is None or time_ms < until)


class PlanRun:
    """One plan over history; keeps its findings from `judged_from` on."""

    def __init__(
        self,
        span: PlanSpan,
        pull: PullData | PullByTime,
        sources: Mapping[str, PushSource],
        *,
        is_first: bool,
    ) -> None:
        """`is_first`: there is no reading before the span."""
        self.span = span
        # A plan deployed before the first reading must not start with time advanced.
        self._is_deployed = span.began is None
        self._runner = SwitchingRunner(
            [span.plan] if self._is_deployed else [],
            pull,
            lateness_ms=_ENDLESS_MS,
            sources=sources,
            began=None if is_first else span.start,
        )
        self.found: list[Detection] = []
        self.undecided: list[Undecided] = []

    @property
    def runner(self) -> LocalRunner:
        """The current runner; it is replaced when tables change."""
        return self._runner.runner

    def feed(self, readings: pa.RecordBatch) -> None:
        """Adds readings in any order; they are used when time passes them."""
        if self.span.start is not None and len(readings):
            readings = readings.filter(pc.greater_equal(readings.column("time"), self.span.start))
        if self.span.end is not None and len(readings):
            readings = readings.filter(pc.less(readings.column("time"), self.span.end))
        self._runner.feed(readings)

    def advance(self, watermark: int) -> None:
        """Advances time; all readings before it were fed."""
        if not self._is_deployed:
            began = self.span.began
            assert began is not None
            if began > watermark:
                self._runner.advance(watermark + _ENDLESS_MS)
                return
            self._runner.advance(began + _ENDLESS_MS)
            self.runner.deploy(self.span.plan)
            self._is_deployed = True
        found = self._runner.advance(watermark + _ENDLESS_MS)
        undecided = self._runner.take_undecided()
        self.found += [item for item in found if self.span.judges(item.time)]
        self.undecided += [item for item in undecided if self.span.judges(item.time)]

    def waiting(self, until_ms: int) -> list[Detection]:
        """Findings before `until_ms` that are held back because equal ones may be suppressed, as
        far as they are known now.
        """
        if self.span.plan.once_per_ms is None or not self._is_deployed:
            return []
        ahead = self.runner.renewed()
        ahead.restore(self.runner.snapshot())
        found = [item for item in ahead.finish() if item.time < until_ms]
        return [item for item in found if self.span.judges(item.time)]


class HistoryRunner:
    """Several plans over one range of the log: `survey` all of it, `begin`, then `feed` it again;
    `close` at the end.
    """

    def __init__(
        self,
        spans: Sequence[PlanSpan],
        pull: PullData | PullByTime,
        ontology: Ontology,
        *,
        lateness_ms: int,
        skew_ms: int,
        with_imported: bool = False,
    ) -> None:
        """`pull`: tables, or tables by time. `with_imported`: include readings imported as history,
        which live policies do not see.
        """
        self.runs: list[PlanRun] = []
        self._spans, self._pull, self._ontology = spans, pull, ontology
        self._lateness_ms, self._skew_ms = lateness_ms, skew_ms
        self._with_imported = with_imported
        self.last_imported_ms: int | None = None
        """The newest time of an imported reading; None: there is none."""
        self._oldest: int | None = None
        self._streams = ontology.streams().keys()
        self._surveyed_to = self._fed_to = _LONG_AGO
        self._behind = OrderedReadings()
        self._behind_at = _Positions()
        self._corrections = Corrections()

    def survey(self, batch: Sequence[StoredEvent]) -> None:
        """Notes the readings that are behind their time and the corrections, from events in
        log order.
        """
        behind: list[Event] = []
        for stored in self._usable(batch):
            event = stored.event
            if CORRECTS in event.headers:
                self._corrections.note(event.source, event.id, event.headers[CORRECTS])
            if event.time < self._surveyed_to - self._lateness_ms:
                behind.append(event)
                self._behind_at.add(stored.position)
            self._surveyed_to = max(self._surveyed_to, min(event.time, stored.received))
            self._oldest = event.time if self._oldest is None else min(self._oldest, event.time)
        readings, _rejected = split_events(behind, self._ontology)
        self._behind.add(readings)

    def begin(self, spans: Sequence[PlanSpan] | None = None, *, is_whole: bool) -> None:
        """Ends the survey. `is_whole`: it saw every reading there ever was. `spans`: the spans to
        run, if the survey changed them.
        """
        for span in self._spans if spans is None else spans:
            start, oldest = span.start, self._oldest
            is_first = start is None or (is_whole and (oldest is None or oldest >= start))
            run = PlanRun(span, self._pull, self._ontology.sources, is_first=is_first)
            self.runs.append(run)
        self._behind.end()

    def feed(self, batch: Sequence[StoredEvent]) -> None:
        """Runs the plans over the next events; also over later ones that are not behind their
        time.
        """
        usable = self._usable(batch)
        fresh = [item for item in usable if item.position not in self._behind_at]
        readings = self._readings([item.event for item in fresh])
        if not len(readings):
            return
        for run in self.runs:
            run.feed(readings)
        # Only by readings and not beyond their arrival, as live, so that time never advances
        # further than it did live.
        self._fed_to = max(self._fed_to, _reached(readings, fresh))
        self.advance(self._fed_to - self._lateness_ms)

    def advance(self, watermark: int) -> None:
        """Advances time; all readings before it were given to `feed`."""
        while (due := self._behind.take_before(watermark)) is not None:
            readings, limit = due
            readings = self._without_corrected(readings)
            for run in self.runs:
                run.feed(readings)
                run.advance(limit)
        for run in self.runs:
            run.advance(watermark)

    async def run(
        self,
        pages: Callable[[], AsyncIterator[list[StoredEvent]]],
        *,
        is_whole: bool,
        until_ms: int,
        take: Callable[[list[StoredEvent]], None],
    ) -> None:
        """Surveys all pages, then runs the plans over them and advances time; `take` gets each page
        of the run.
        """
        async for page in pages():
            await asyncio.to_thread(self.survey, page)
        self.begin(is_whole=is_whole)
        async for page in pages():
            take(page)
            await asyncio.to_thread(self.feed, page)
        await asyncio.to_thread(self.advance, until_ms)

    def problems(self) -> list[Problem]:
        """Why plans stopped."""
        return [each for run in self.runs for each in run.runner.failed().values()]

    def close(self) -> None:
        """Removes the sorted files."""
        self._behind.close()

    def superseded(self) -> Collection[str]:
        """Ids of readings that a correction replaces."""
        return self._corrections.superseded()

    @property
    def original_of(self) -> Mapping[str, str]:
        """By id of a correction, the id of the corrected reading."""
        return self._corrections.original_of

    def _usable(self, batch: Sequence[StoredEvent]) -> list[StoredEvent]:
        """The readings, without those that live quarantines as ahead of the clock, and without
        imported ones if they do not count.
        """
        found = []
        for stored in batch:
            event = stored.event
            if event.type not in self._streams or event.time > stored.received + self._skew_ms:
                continue
            if HISTORY in event.headers:
                newest = self.last_imported_ms
                self.last_imported_ms = event.time if newest is None else max(newest, event.time)
                if not self._with_imported:
                    continue
            found.append(stored)
        return found

    def _readings(self, events: Sequence[Event]) -> pa.RecordBatch:
        counted = [event for event in events if self._counts(event)]
        readings, _rejected = split_events(counted, self._ontology)
        return readings

    def _without_corrected(self, readings: pa.RecordBatch) -> pa.RecordBatch:
        """Drops corrected readings; costs a lookup each if there are corrections."""
        superseded = self._corrections.superseded()
        if not superseded:
            return readings
        originals, sources = self.original_of, self._corrections.sources()
        names = readings.column("source").to_pylist()
        ids = readings.column("id").to_pylist()
        # Other sources are named by their raw channel; then the id decides.
        stands = [
            id not in superseded
            or (name in sources and self._corrections.stands(name, id, originals.get(id, "")))
            for name, id in zip(names, ids, strict=True)
        ]
        return readings.filter(pa.array(stands, pa.bool_()))

    def _counts(self, event: Event) -> bool:
        return self._corrections.stands(event.source, event.id, event.headers.get(CORRECTS, ""))


class _Positions:
    """Ascending positions as ranges; imported files are contiguous."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def add(self, position: int) -> None:
        if self._lasts and self._lasts[-1] == position - 1:
            self._lasts[-1] = position
        else:
            self._firsts.append(position)
            self._lasts.append(position)

    def __contains__(self, position: int) -> bool:
        place = bisect_right(self._firsts, position) - 1
        return place >= 0 and position <= self._lasts[place]


def _reached(readings: pa.RecordBatch, batch: Sequence[StoredEvent]) -> int:
    """The time that readings advance to; `batch` has their times of arrival."""
    times = readings.column("time").to_numpy()
    ahead = {item.event.id: item.received for item in batch if item.event.time > item.received}
    if not ahead:
        return int(times.max())
    rows: Iterable[tuple[int, str]] = zip(
        times.tolist(), readings.column("id").to_pylist(), strict=True
    )
    return max(min(time, ahead.get(id, time)) for time, id in rows)


def used_times(page: Sequence[StoredEvent], ontology: Ontology, skew_ms: int) -> list[int]:
    """Times of the readings, without those too far ahead of their arrival, as live."""
    streams = ontology.streams()
    return [
        one.event.time
        for one in page
        if one.event.type in streams and one.event.time <= one.received + skew_ms
    ]
