"""The two Python steps of a run over history, before and after Spark's shuffle. [PI-5, PO-8]

`spread_rows` takes scanned rows in arrival order, judges which are usable and which late, and sends
each to the parts that need it. `run_parts` takes the rows of its parts, puts them in event order
and runs the operators. Rows cross the shuffle as Arrow batches, one row of Spark for each batch and
part: Spark's own rows would be converted four times for every reading.

Both are plain functions over Arrow batches and know nothing of Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rapport.core.detection import Detection
from rapport.core.errors import Problem, RapportError, SiteError
from rapport.pipeline.history.arrival import NEVER, GroupAt, GroupFacts, Late, clocks, is_late
from rapport.pipeline.history.files import Series
from rapport.pipeline.history.interest import Interest, Needs
from rapport.pipeline.history.keys import EVERY
from rapport.pipeline.history.operators import PORTION, Found, PlanRun
from rapport.pipeline.history.partitions import HistoryPart
from rapport.pipeline.history.results import (
    DetectionCount,
    Faulty,
    Report,
    WorkerRefusal,
    detection_rows,
    packed,
    report_rows,
)
from rapport.pipeline.history.rows import (
    ID,
    TIME,
    Codes,
    RowMaker,
    in_event_order,
    packed_rows,
    unpacked_rows,
)
from rapport.pipeline.history.tables import Pull
from rapport.policy.ontology import PushSource
from rapport.policy.plan import decode_plan
from rapport.policy.replay.replay import RowFaults

EXCHANGE_COLUMNS = "part INT, first BIGINT, kind STRING, body BINARY"
"""The columns of the shuffle, as Spark names them."""
EXCHANGE = pa.schema(
    [("part", pa.int32()), ("first", pa.int64()), ("kind", pa.string()), ("body", pa.binary())]
)
"""`first`: the smallest time of the rows. `kind`: ROWS, START, or the name of a report."""
ORDER = ("part", "first")
MOST_FILE_ROWS = 2**31
"""A file has fewer rows: file and row travel as one number."""
ROWS, START = "rows", "start"
_BATCH_ROWS = 1 << 16
_SENT_ROWS = 1 << 14
_MUCH = 1 << 20
"""So many waiting rows are not copied for the sake of a few that are ready."""

Batches = Iterable[pa.RecordBatch]
ExchangeRow = tuple[int, int, str, bytes | None]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]


class ScannedFile(msgspec.Struct, frozen=True):
    """A file of the scan."""

    series: int
    name: str
    columns: tuple[str, ...]
    """All columns of the file; faults are located by their numbers."""
    first_group: int
    """The number of its first row group in the history."""
    starts: tuple[int, ...]
    """The first row of each row group."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that workers need besides tables."""

    plans: list[bytes]
    """Each as JSON."""
    parts: tuple[HistoryPart, ...]
    series: tuple[Series, ...]
    """Without their files."""
    groups: tuple[GroupAt, ...]
    schema: pa.Schema
    """From `rows_schema`."""
    lateness_ms: int
    sources: dict[str, PushSource] = {}
    """Those of the site."""
    began: int | None = None
    """Time of the first reading of any source that is not late."""
    ended: int | None = None
    """When recorded time ends for situations: at the last reading of any source, or later."""
    most_late: int | None = None
    """Each task reports so many late readings (all are counted); None: all of them."""
    window: tuple[int, int] | None = None


def spread_rows(
    job: Job,
    files: Mapping[int, ScannedFile],
    columns: Sequence[str],
    batches: Batches,
    pull: Pull,
    done: Callable[[int], None],
) -> Iterator[pa.RecordBatch]:
    """Rows of EXCHANGE from scanned batches of `place, *columns`, rows of a row group in their
    order. A place is the number of the file in `files` times MOST_FILE_ROWS, plus the row in it;
    `done` is called with the number of rows read.
    """
    try:
        spread = _Spread(job, pull)
        for batch in batches:
            numbers, index = np.divmod(batch.column(0).to_numpy(), MOST_FILE_ROWS)
            rows = pa.RecordBatch.from_arrays(batch.columns[1:], names=list(columns))
            for number, first, end in _runs(numbers):
                spread.take(files[number], rows.slice(first, end - first), index[first:end])
            yield from spread.ready()
            done(len(batch))
        yield from spread.end()
    except RapportError as error:
        yield from _exchanged([(len(job.parts), NEVER, *one) for one in _refused(error)])


class _Spread:
    """Judges rows and sends them to parts; holds at most one batch of rows."""

    def __init__(self, job: Job, pull: Pull) -> None:
        self._job, self._codes = job, Codes.none()
        self._maker = RowMaker(job.schema, self._codes)
        self._faults = RowFaults()
        self._late: list[Late] = []
        self._facts: list[GroupFacts] = []
        self._group: _JudgedGroup | None = None
        self._waiting: list[pa.RecordBatch] = []
        plans = [decode_plan(plan) for plan in job.plans]
        self._needs = Needs.of(plans, job.sources)
        alike: dict[HistoryPart, list[int]] = {}
        for number, part in enumerate(job.parts):
            whole = HistoryPart(plans=part.plans, keys=part.keys, buckets=part.buckets)
            alike.setdefault(whole, []).append(number)
        self._readers = [
            _Readers(
                Interest(
                    [plans[index] for index in part.plans],
                    part.keys,
                    part.buckets,
                    pull,
                    job.sources,
                    self._codes,
                ),
                [(number, job.parts[number]) for number in numbers],
            )
            for part, numbers in alike.items()
        ]

    def take(self, file: ScannedFile, rows: pa.RecordBatch, index: Numbers) -> None:
        """The next rows of a file, `index` being their places in it."""
        places = np.searchsorted(file.starts, index, side="right") - 1
        for place, first, end in _runs(places):
            number = file.first_group + place
            if self._group is None or self._group.number != number:
                self._close_group()
                self._group = _JudgedGroup(self._job, number)
            self._judge(self._group, file, rows.slice(first, end - first), index[first:end])

    def ready(self) -> Iterator[pa.RecordBatch]:
        """The rows so far, if they are many."""
        if sum(map(len, self._waiting)) >= _BATCH_ROWS:
            yield from self._sent()

    def end(self) -> Iterator[pa.RecordBatch]:
        """All other rows, and the reports."""
        yield from self._sent()
        self._close_group()
        reports: list[Sequence[Report]] = [self._facts, self._late]
        if self._faults.problems:
            reports.append([Faulty(self._faults.problems, self._faults.by_reason())])
        parts = len(self._job.parts)
        yield from _exchanged([(parts, NEVER, *one) for some in reports for one in packed(some)])

    def _judge(
        self, group: _JudgedGroup, file: ScannedFile, rows: pa.RecordBatch, index: Numbers
    ) -> None:
        series = self._job.series[file.series]
        columns, index_kept = self._maker.usable(
            series, file.name, list(file.columns), rows, index, self._faults.report
        )
        times = columns[TIME].to_numpy()
        clock, late, inside = group.judge(times, len(rows))
        if not len(times):
            return
        at = group.at
        position = at.position + index_kept - at.row
        late_here = np.flatnonzero(late & inside)
        if len(late_here):
            self._note_late(columns[ID], late_here, times, clock, at.series, position)
        kept = inside & ~late
        if kept.any() and self._needs.wants(series):
            made = self._maker.complete(columns, clock, at.series, position)
            self._waiting.append(made if kept.all() else made.filter(pa.array(kept)))

    def _note_late(
        self,
        ids: pa.Array,
        places: Numbers,
        times: Numbers,
        clock: Numbers,
        series: int,
        position: Numbers,
    ) -> None:
        most = self._job.most_late
        if most is not None:
            places = places[: max(most - len(self._late), 0)]
        self._late += [
            Late(int(clock[at]), series, int(position[at]), int(times[at]), ids[at].as_py())
            for at in places.tolist()
        ]

    def _close_group(self) -> None:
        if self._group is not None:
            self._facts.append(self._group.facts())
            self._group = None

    def _sent(self) -> Iterator[pa.RecordBatch]:
        if not self._waiting:
            return
        rows = pa.concat_batches(self._waiting)
        self._waiting = []
        for readers in self._readers:
            for number, own in readers.rows_of(rows):
                for start in range(0, len(own), _SENT_ROWS):
                    yield self._batch(number, own.slice(start, _SENT_ROWS))

    def _batch(self, number: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        body = packed_rows(rows, self._codes)
        ends = pa.array([0, body.size], pa.int32()).buffers()[1]
        return pa.RecordBatch.from_arrays(
            [
                pa.array([number], pa.int32()),
                pa.array([int(_times(rows).min())], pa.int64()),
                pa.array([ROWS]),
                pa.BinaryArray.from_buffers(pa.binary(), 1, [None, ends, body]),
            ],
            schema=EXCHANGE,
        )


class _Readers:
    """Parts whose plans need the same rows, of other times or identities."""

    def __init__(self, interest: Interest, parts: Sequence[tuple[int, HistoryPart]]) -> None:
        self._interest, self._parts = interest, parts
        self._from = np.array([part.read_from for _, part in parts])
        self._until = np.array([part.read_until for _, part in parts])

    def rows_of(self, rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows that each part needs."""
        wanted = self._interest.wanted(rows)
        if not wanted.any():
            return
        rows = rows if wanted.all() else rows.filter(pa.array(wanted))
        times = rows.column(TIME).to_numpy()
        in_time = (self._from <= times.max()) & (self._until > times.min())
        buckets = self._interest.buckets(rows)
        for place in np.flatnonzero(in_time).tolist():
            number, part = self._parts[place]
            own: Mask = (times >= part.read_from) & (times < part.read_until)
            if part.keys:
                own &= (buckets == part.bucket) | (buckets == EVERY)
            if own.any():
                yield number, rows if own.all() else rows.filter(pa.array(own))


class _JudgedGroup:
    """A row group while it is read: the clock of its series, and what reading shows."""

    def __init__(self, job: Job, number: int) -> None:
        self.number, self.at = number, job.groups[number]
        is_judged = job.series[self.at.series].is_judged
        self._lateness = None if is_judged else job.lateness_ms
        self._window = job.window
        self._newest = self.at.before
        self._seen = self._usable = self._late = 0
        self._all, self._inside, self._in_time = _Span(), _Span(), _Span()

    def judge(self, times: Numbers, seen: int) -> tuple[Numbers, Mask, Mask]:
        """The clock of each usable row, whether it is late, and whether it lies in the window."""
        self._seen += seen
        clock = clocks(times, self._newest) if len(times) else times
        late = np.zeros(len(times), np.bool_)
        if self._lateness is not None and len(times):
            self._newest = int(clock[-1])
            late = is_late(times, clock, self._lateness)
        inside = np.ones(len(times), np.bool_)
        if self._window is not None:
            inside = np.asarray((times >= self._window[0]) & (times < self._window[1]), np.bool_)
        self._usable += int(np.count_nonzero(inside))
        self._late += int(np.count_nonzero(late & inside))
        self._all.add(times)
        self._inside.add(times[inside])
        self._in_time.add(times[~late])
        return clock, late, inside

    def facts(self) -> GroupFacts:
        """What reading showed."""
        return GroupFacts(
            self.number,
            self._seen,
            self._usable,
            self._all.first,
            self._all.last,
            self._inside.first,
            self._inside.last,
            self._in_time.first,
            self._late,
        )


class _Span:
    """The smallest and the largest of some times."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.last: int | None = None

    def add(self, times: Numbers) -> None:
        if len(times):
            first, last = int(times.min()), int(times.max())
            self.first = first if self.first is None else min(self.first, first)
            self.last = last if self.last is None else max(self.last, last)


def start_rows(job: Job) -> pa.RecordBatch:
    """A row of EXCHANGE for each part, before all others: a part without rows runs too, for
    silence counts from the first reading of any source.
    """
    return _exchange_batch([(number, -(2**63), START, None) for number in range(len(job.parts))])


def run_parts(job: Job, batches: Batches, pull: Pull) -> Iterator[pa.RecordBatch]:
    """Rows of OUTPUT from rows of EXCHANGE, sorted by ORDER."""
    running: _PartRun | None = None
    for batch in batches:
        columns = (batch.column(place).to_pylist() for place in range(3))
        for place, (number, first, kind) in enumerate(zip(*columns, strict=True)):
            body = batch.column(3)[place].as_buffer()
            if kind not in (ROWS, START):
                yield report_rows([(kind, bytes(body))])
                continue
            if running is None or running.number != number:
                if running is not None:
                    yield from running.end()
                try:
                    running = _PartRun(job, number, pull)
                except RapportError as error:
                    yield report_rows(_refused(error))
                    return
            if kind == ROWS:
                yield from running.take(body, first)
    if running is not None:
        yield from running.end()


class _PartRun:
    """A part whose batches of rows come by their smallest times; holds rows that older ones may
    still precede.
    """

    def __init__(self, job: Job, number: int, pull: Pull) -> None:
        self.number, self._schema = number, job.schema
        part = job.parts[number]
        plans = [decode_plan(job.plans[index]) for index in part.plans]
        self._found: Counter[str] = Counter()
        self._policies = [plan.policy for plan in plans]
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0
        self._run = PlanRun(plans, pull, part, job.sources, job.began, job.ended)

    def take(self, body: pa.Buffer, first: int) -> Iterator[pa.RecordBatch]:
        """What rows before `first` decide; then takes the next rows, none of which is older."""
        if self._is_worth(first):
            yield from self._run_before(first)
        rows = unpacked_rows(body, self._schema, self._run.codes)
        self._waiting.append(rows)
        self._rows += len(rows)

    def end(self) -> Iterator[pa.RecordBatch]:
        """Everything else, and the reports of the part."""
        yield from self._run_before(self._run.read_until)
        yield from self._rows_of(self._run.finish())
        suppressed, situations = self._run.suppressed(), self._run.situations()
        counted = [
            DetectionCount(
                name, self._found[name], suppressed.get(name, 0), *situations.get(name, ())
            )
            for name in self._policies
        ]
        reports = [*packed(counted), *packed(list(self._run.failed.values()))]
        if reports:
            yield report_rows(reports)

    def _is_worth(self, first: int) -> bool:
        """Whether enough rows are ready to copy the others."""
        if self._rows < _MUCH:
            return self._rows >= PORTION
        ready = sum(int(np.count_nonzero(_times(rows) < first)) for rows in self._waiting)
        return ready * 4 > self._rows

    def _run_before(self, time: int) -> Iterator[pa.RecordBatch]:
        if not self._waiting:
            return
        whole = self._waiting[0] if len(self._waiting) == 1 else pa.concat_batches(self._waiting)
        ready = _times(whole) < time
        if ready.all():
            self._waiting, now = [], whole
        else:
            self._waiting, now = [whole.filter(pa.array(~ready))], whole.filter(pa.array(ready))
        self._rows = sum(map(len, self._waiting))
        if len(now):
            rows = in_event_order(now, self._run.codes)
            yield from self._rows_of(self._run.take(rows, time))

    def _rows_of(self, found: Sequence[Found]) -> Iterator[pa.RecordBatch]:
        self._found.update(item.policy for item in found if isinstance(item, Detection))
        return detection_rows(found)


def _refused(error: RapportError) -> list[tuple[str, bytes]]:
    """Why a worker cannot do its work. The driver could run the plans: unless a file is damaged,
    this worker lacks something.
    """
    problems = [
        Problem(
            code="history.not_on_workers",
            message=f"Spark's workers cannot run it: {error.message}",
            hint="install what it names where the workers run, or put it on their PYTHONPATH "
            "before Spark is started; or use --engine local",
        )
    ]
    if isinstance(error, SiteError):
        problems = list(error.problems)
    return list(packed([WorkerRefusal(problem) for problem in problems]))


def _times(rows: pa.RecordBatch) -> Numbers:
    times: Numbers = rows.column(TIME).to_numpy()
    return times


def _exchanged(rows: Sequence[ExchangeRow]) -> Iterator[pa.RecordBatch]:
    if rows:
        yield _exchange_batch(rows)


def _exchange_batch(rows: Sequence[ExchangeRow]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [()] * len(EXCHANGE)
    arrays = [pa.array(own, field.type) for own, field in zip(columns, EXCHANGE, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=EXCHANGE)


def _runs(values: npt.NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Stretches of equal values: the value, the first place, the end."""
    if not len(values):
        return []
    starts = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist()]
    ends = [*starts[1:], len(values)]
    return [(int(values[start]), start, end) for start, end in zip(starts, ends, strict=True)]
