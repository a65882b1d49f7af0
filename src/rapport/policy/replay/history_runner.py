"""Readings put in order of time with bounded memory: sorted runs, on disk once there are many.
[PO-7, PO-8]

Plans over what `events` holds, in event time, up to where the live runner stands. [PO-7, PO-8]

The log is read twice: first to learn which readings lie behind their time (released, corrected,
late, imported) and which were corrected, then to run. Readings behind their time are sorted apart,
with bounded memory, so the cost grows with the span that is read and not with what it holds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.corrections import Corrections
from rapport.core.detection import Detection, Undecided
from rapport.core.event import Event, StoredEvent
from rapport.core.release import CORRECTS, HISTORY
from rapport.policy.ontology import Ontology, PushSource
from rapport.policy.plan import Plan
from rapport.policy.readings import split_events
from rapport.policy.runners.base import PullData
from rapport.policy.runners.event_order import in_event_order
from rapport.policy.runners.local import LocalRunner
from rapport.policy.table_history import PullByTime, SwitchingRunner

_RUN_ROWS = 100_000
"""So many readings are sorted at once; a run of them takes some 15 MB."""
_PART_ROWS = 5_000
"""So many readings of each run are in memory while runs are merged."""


class OrderedReadings:
    """Takes readings in any order, then gives them in order of time, some at a time.

    Memory holds one run while readings are added, and one part of every run afterwards. `close`
    removes what is on disk.
    """

    def __init__(self, *, run_rows: int = _RUN_ROWS, part_rows: int = _PART_ROWS) -> None:
        self._run_rows, self._part_rows = run_rows, part_rows
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._files = 0
        self._folder: TemporaryDirectory[str] | None = None
        self._runs: list[_SortedRun] = []

    def add(self, readings: pa.RecordBatch) -> None:
        """Takes readings; not after the first `take_before`."""
        if len(readings):
            self._batches.append(readings)
            self._rows += len(readings)
        if self._rows >= self._run_rows:
            self._write_run()

    def end(self) -> None:
        """Everything was added."""
        if self._batches:
            whole = in_event_order(pa.concat_batches(self._batches))
            self._runs.append(_SortedRun(self._parts(whole)))
            self._batches = []
        self._runs += [_SortedRun(_read(self._path(number))) for number in range(self._files)]

    def take_before(self, time_ms: int) -> tuple[pa.RecordBatch, int] | None:
        """The next readings before a time, and the time up to which they are all; None when there
        are none left. They are sorted within each run only.
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
            # More readings of one time than a part holds: the next part belongs to them.
            for run in self._runs:
                if run.goes_on and run.last_ms == limit:
                    run.extend()

    def close(self) -> None:
        """Forgets everything; a second call is no error."""
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
    """One sorted run: the part in memory, and those to come."""

    def __init__(self, parts: Iterator[pa.RecordBatch]) -> None:
        self._parts = parts
        self._next = next(parts, None)
        self.head: pa.RecordBatch | None = None

    @property
    def goes_on(self) -> bool:
        """Whether there are parts after the one in memory."""
        return self._next is not None

    @property
    def last_ms(self) -> int:
        """The newest time of the part in memory."""
        assert self.head is not None
        return int(self.head.column("time")[len(self.head) - 1].as_py())

    def fill(self) -> bool:
        """Makes sure that there is a part in memory; False at the end of the run."""
        if self.head is None or not len(self.head):
            self.head = self._advance()
        return self.head is not None

    def extend(self) -> None:
        """Takes the next part to the one in memory."""
        part = self._advance()
        if part is not None:
            self.head = pa.concat_batches([self.head, part])

    def take(self, count: int) -> pa.RecordBatch:
        """The first readings of the part."""
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


_ENDLESS_MS = 2**61
"""As lateness: nothing is late, and time moves only when told."""
_LONG_AGO = -(2**61)


class PlanSpan(msgspec.Struct, frozen=True, kw_only=True):
    """What of history a plan is run over, and from when on its findings are judged."""

    plan: Plan
    start: int | None
    """The oldest reading it needs; None: from the first one there ever was."""
    began: int | None
    """When it was deployed: it sees no reading before; None: before the first."""
    judged_from: int
    is_incomplete: bool = False
    """Whether the log no longer holds all it needs."""
    end: int | None = None
    """No reading from this time on is needed; None: all up to where live stands."""
    judged_until: int | None = None
    """Findings from this time on are left out; None: none are."""
    refutes_from: int | None = None
    """From when on what is not found does not hold; None: from `judged_from` on."""
    before_deployment: bool = False
    """It judges the time before the policy was deployed, at `end` or later."""

    def judges(self, time_ms: int) -> bool:
        """Whether findings of a time count."""
        until = self.judged_until
        return time_ms >= self.judged_from and (until is None or time_ms < until)


class PlanRun:
    """One plan over history; keeps what it found from `judged_from` on."""

    def __init__(
        self,
        span: PlanSpan,
        pull: PullData | PullByTime,
        sources: Mapping[str, PushSource],
        *,
        is_first: bool,
    ) -> None:
        """`is_first`: there never was a reading before the span."""
        self.span = span
        # One that was there before the first reading must not find time moving on already.
        self._is_deployed = span.began is None
        self._then = SwitchingRunner(
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
        """What runs the plan now; another one after tables changed."""
        return self._then.runner

    def feed(self, readings: pa.RecordBatch) -> None:
        """Takes readings in any order; none is used before time moves past it."""
        if self.span.start is not None and len(readings):
            readings = readings.filter(pc.greater_equal(readings.column("time"), self.span.start))
        if self.span.end is not None and len(readings):
            readings = readings.filter(pc.less(readings.column("time"), self.span.end))
        self._then.feed(readings)

    def advance(self, watermark: int) -> None:
        """All readings before this time have been fed."""
        if not self._is_deployed:
            began = self.span.began
            assert began is not None
            if began > watermark:
                self._then.advance(watermark + _ENDLESS_MS)
                return
            self._then.advance(began + _ENDLESS_MS)
            self.runner.deploy(self.span.plan)
            self._is_deployed = True
        found = self._then.advance(watermark + _ENDLESS_MS)
        undecided = self._then.take_undecided()
        self.found += [item for item in found if self.span.judges(item.time)]
        self.undecided += [item for item in undecided if self.span.judges(item.time)]

    def waiting(self, until_ms: int) -> list[Detection]:
        """What is found already and waits for its turn, because equal ones may be left out: before
        this time, as far as can be told now.
        """
        if self.span.plan.once_per_ms is None or not self._is_deployed:
            return []
        ahead = self.runner.renewed()
        ahead.restore(self.runner.snapshot())
        found = [item for item in ahead.finish() if item.time < until_ms]
        return [item for item in found if self.span.judges(item.time)]


class HistoryRunner:
    """Several plans over the same stretch of the log: `survey` all of it, `begin`, then `feed` it
    again; `close` at the end.
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
        """`pull`: tables, or what they were at each time. `with_imported`: readings that were
        imported as history count as well, which live policies do not see.
        """
        self.runs: list[PlanRun] = []
        self._spans, self._pull, self._ontology = spans, pull, ontology
        self._lateness_ms, self._skew_ms = lateness_ms, skew_ms
        self._with_imported = with_imported
        self.last_imported_ms: int | None = None
        """The newest time of a reading that was imported; None: there is none."""
        self._oldest: int | None = None
        self._streams = ontology.streams().keys()
        self._surveyed_to = self._fed_to = _LONG_AGO
        self._behind = OrderedReadings()
        self._behind_at = _Positions()
        self._corrections = Corrections()

    def survey(self, batch: Sequence[StoredEvent]) -> None:
        """Learns from events in log order what is behind its time and what was corrected."""
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
        """Ends the survey; `is_whole`: it saw every reading there ever was. `spans`: those to run,
        where the survey changed them.
        """
        for span in self._spans if spans is None else spans:
            start, oldest = span.start, self._oldest
            is_first = start is None or (is_whole and (oldest is None or oldest >= start))
            run = PlanRun(span, self._pull, self._ontology.sources, is_first=is_first)
            self.runs.append(run)
        self._behind.end()

    def feed(self, batch: Sequence[StoredEvent]) -> None:
        """Runs the plans over the next events; also such as came after the survey ended, as far as
        they are not behind their time.
        """
        usable = self._usable(batch)
        fresh = [item for item in usable if item.position not in self._behind_at]
        readings = self._readings([item.event for item in fresh])
        if not len(readings):
            return
        for run in self.runs:
            run.feed(readings)
        # By what are readings only, and not beyond their arrival, as live: time never moves
        # further here than it did there.
        self._fed_to = max(self._fed_to, _reached(readings, fresh))
        self.advance(self._fed_to - self._lateness_ms)

    def advance(self, watermark: int) -> None:
        """Moves time on: everything before it that there is has been given to `feed`."""
        while (due := self._behind.take_before(watermark)) is not None:
            readings, limit = due
            readings = self._standing(readings)
            for run in self.runs:
                run.feed(readings)
                run.advance(limit)
        for run in self.runs:
            run.advance(watermark)

    def close(self) -> None:
        """Removes what was sorted on disk."""
        self._behind.close()

    def superseded(self) -> Collection[str]:
        """Ids of readings that another one stands in for."""
        return self._corrections.superseded()

    @property
    def original_of(self) -> Mapping[str, str]:
        """Of each correction's id the id of the reading it corrects."""
        return self._corrections.original_of

    def _usable(self, batch: Sequence[StoredEvent]) -> list[StoredEvent]:
        """Readings, without those that the live runner puts aside as ahead of the clock, and
        without imported ones where these do not count.
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

    def _standing(self, readings: pa.RecordBatch) -> pa.RecordBatch:
        """Without readings that another one stands in for: costs a look-up each where there are
        corrections at all.
        """
        superseded = self._corrections.superseded()
        if not superseded:
            return readings
        originals, sources = self.original_of, self._corrections.sources()
        names = readings.column("source").to_pylist()
        ids = readings.column("id").to_pylist()
        # A source that is not among them goes by the name of its raw channel: its id decides.
        stands = [
            id not in superseded
            or (name in sources and self._corrections.stands(name, id, originals.get(id, "")))
            for name, id in zip(names, ids, strict=True)
        ]
        return readings.filter(pa.array(stands, pa.bool_()))

    def _counts(self, event: Event) -> bool:
        return self._corrections.stands(event.source, event.id, event.headers.get(CORRECTS, ""))


class _Positions:
    """Positions in ascending order, as ranges: files that were imported stand in one piece."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def add(self, position: int) -> None:
        """Takes a position after all others."""
        if self._lasts and self._lasts[-1] == position - 1:
            self._lasts[-1] = position
        else:
            self._firsts.append(position)
            self._lasts.append(position)

    def __contains__(self, position: int) -> bool:
        place = bisect_right(self._firsts, position) - 1
        return place >= 0 and position <= self._lasts[place]


def _reached(readings: pa.RecordBatch, batch: Sequence[StoredEvent]) -> int:
    """How far readings move time; `batch` has their times of arrival."""
    times = readings.column("time").to_numpy()
    ahead = {item.event.id: item.received for item in batch if item.event.time > item.received}
    if not ahead:
        return int(times.max())
    rows: Iterable[tuple[int, str]] = zip(
        times.tolist(), readings.column("id").to_pylist(), strict=True
    )
    return max(min(time, ahead.get(id, time)) for time, id in rows)
