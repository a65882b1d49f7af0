"""The rows of a task in event order, from row groups that are read one after the other. [PI-5]

A series is read in arrival order; what it will still bring is no older than its clock minus the
lateness, and no older than the row groups to come say. Rows wait only until no series can bring an
older one, so memory follows the lateness and the overlap of row groups, not the length of history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rapport.core.errors import Problem
from rapport.pipeline.history.footers import RowGroup
from rapport.pipeline.history.lateness import NEVER, GroupAt, Late, is_late
from rapport.pipeline.history.reading import Reader
from rapport.pipeline.history.rows import CLOCK, ID, TIME, Codes, in_event_order
from rapport.policy.operators.base import END_OF_TIME
from rapport.policy.recordings.formats import Report

_MUCH = 1 << 20
"""So many rows that wait are not copied for the sake of a few that need not."""

Rows = npt.NDArray[np.int64]
Chosen = Callable[[pa.RecordBatch], npt.NDArray[np.bool_] | None]
"""Which rows a task wants; None: all of them."""


class GroupFacts(msgspec.Struct, frozen=True, array_like=True):
    """What reading a row group showed."""

    number: int
    """Of the group in the history."""
    usable: int
    """How many of its rows are readings."""
    facts: RowGroup
    late: int = 0
    """How many of these are late."""
    faulty: int = 0
    """How many rows could not be used."""


class Judge:
    """Keeps what the row groups that a task answers for showed: facts, late readings, faults."""

    def __init__(self, report: Report, most_late: int | None) -> None:
        self.report = report
        self.facts: list[GroupFacts] = []
        self.late: list[Late] = []
        self.late_count = 0
        self._most_late = most_late

    def note_late(self, rows: pa.RecordBatch, places: Rows, series: int, first: int) -> None:
        """Takes the late of some rows, `first` being the position before them."""
        self.late_count += len(places)
        if self._most_late is not None:
            places = places[: max(self._most_late - len(self.late), 0)]
        chosen = rows.take(pa.array(places))
        columns = (chosen.column(column).to_pylist() for column in (CLOCK, TIME, ID))
        self.late += [
            Late(clock, series, first + place, time, id)
            for place, clock, time, id in zip(places.tolist(), *columns, strict=True)
        ]


class JudgedGroup:
    """One row group that a task answers for, while it is read."""

    def __init__(self, judge: Judge, number: int, at: GroupAt) -> None:
        self._judge, self._number, self._at = judge, number, at
        self._usable, self._first, self._last = 0, END_OF_TIME, NEVER
        self._late = self._faulty = 0

    def report(self, problem: Problem) -> None:
        """A row that cannot be used."""
        self._faulty += 1
        self._judge.report(problem)

    def take(self, rows: pa.RecordBatch, late: npt.NDArray[np.bool_] | None) -> None:
        """A batch of usable rows."""
        times = rows.column(TIME).to_numpy()
        self._first = min(self._first, int(times.min()))
        self._last = max(self._last, int(times.max()))
        if late is not None:
            first = self._at.position + self._usable
            places = np.flatnonzero(late)
            self._late += len(places)
            self._judge.note_late(rows, places, self._at.series, first)
        self._usable += len(rows)

    def end(self) -> None:
        """All batches of the group were taken."""
        facts = RowGroup(self._at.facts.rows, self._first, self._last, True)
        if not self._usable:
            facts = RowGroup(self._at.facts.rows, None, None, True)
        shown = GroupFacts(self._number, self._usable, facts, self._late, self._faulty)
        self._judge.facts.append(shown)


class Feed:
    """The rows that one series gives to a task; `frontier` is a time that all to come reach."""

    def __init__(
        self,
        reader: Reader,
        groups: Sequence[tuple[int, GroupAt]],
        *,
        lateness_ms: int | None,
        span: tuple[int, int],
        chosen: Chosen,
        judge: Judge,
        own: frozenset[int],
    ) -> None:
        """
        Args:
            groups: with their numbers, in the order to be read.
            lateness_ms: None: nothing is late.
            span: rows outside of it are not wanted.
            own: numbers of the groups that the task answers for.
        """
        self._reader, self._groups = reader, list(groups)
        self._lateness, self._span, self._chosen = lateness_ms, span, chosen
        self._judge, self._own = judge, own
        firsts = [at.first for _, at in self._groups]
        self._least: list[int] = np.minimum.accumulate(firsts[::-1])[::-1].tolist()
        self._clock = NEVER
        self._place = 0
        self._batches = self._read()

    @property
    def frontier(self) -> int:
        """No row to come is older; END_OF_TIME when none is to come."""
        if self._place >= len(self._groups):
            return END_OF_TIME
        least = self._least[self._place]
        if self._lateness is None:
            return least
        clock = max(self._clock, self._groups[self._place][1].before)
        return max(least, clock - self._lateness)

    def next(self) -> pa.RecordBatch | None:
        """The next rows in arrival order, perhaps none of them wanted; None at the end."""
        return next(self._batches, None)

    def _read(self) -> Iterator[pa.RecordBatch]:
        while self._place < len(self._groups):
            number, at = self._groups[self._place]
            judged = JudgedGroup(self._judge, number, at) if number in self._own else None
            for rows in self._reader.read(at, judged.report if judged else _ignore):
                yield self._wanted(rows, judged)
            if judged is not None:
                judged.end()
            self._place += 1
        yield self._nothing()

    def _wanted(self, rows: pa.RecordBatch, judged: JudgedGroup | None) -> pa.RecordBatch:
        times = rows.column(TIME).to_numpy()
        late = None
        if self._lateness is not None:
            clock = rows.column(CLOCK).to_numpy()
            late = is_late(times, clock, self._lateness)
            late = late if late.any() else None
            self._clock = int(clock[-1])
        if judged is not None:
            judged.take(rows, late)
        kept = np.ones(len(rows), np.bool_) if late is None else ~late
        first, until = self._span
        kept &= (times >= first) & (times < until)
        if kept.any():
            chosen = self._chosen(rows)
            if chosen is not None:
                kept &= chosen
        return rows if kept.all() else rows.filter(pa.array(kept))

    def _nothing(self) -> pa.RecordBatch:
        return self._reader.nothing()


def in_order(
    feeds: Sequence[Feed], codes: Codes, until: int
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Rows in event order with a watermark: none to come is older. Ends with `until`."""
    waiting = Waiting(codes)
    running = list(feeds)
    reached = NEVER
    while running:
        feed = min(running, key=lambda one: one.frontier)
        rows = feed.next()
        if rows is None:
            running.remove(feed)
        elif len(rows):
            waiting.add(rows, reached)
        frontier = min((one.frontier for one in running), default=END_OF_TIME)
        frontier = min(frontier, until)
        if frontier > reached and (not running or waiting.is_worth(frontier)):
            reached = frontier
            ready = waiting.take(frontier)
            if ready is not None:
                yield ready, frontier


class Waiting:
    """Rows that older ones may yet come before."""

    def __init__(self, codes: Codes) -> None:
        self._codes = codes
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0

    def add(self, rows: pa.RecordBatch, reached: int) -> None:
        """Takes rows. Those before `reached` contradict a footer: whoever answers for their group
        tells of it, and all is done again.
        """
        times = rows.column(TIME).to_numpy()
        if times.min() < reached:
            rows = rows.filter(pa.array(times >= reached))
        if len(rows):
            self._batches.append(rows)
            self._rows += len(rows)

    def is_worth(self, frontier: int) -> bool:
        """Whether enough rows are ready to copy the others aside."""
        if self._rows < _MUCH:
            return self._rows > 0
        ready = sum(np.count_nonzero(self._times(batch) < frontier) for batch in self._batches)
        return bool(ready * 4 > self._rows)

    def take(self, frontier: int) -> pa.RecordBatch | None:
        """The rows before a time in event order; None when there are none."""
        if not self._batches:
            return None
        whole = self._batches[0] if len(self._batches) == 1 else pa.concat_batches(self._batches)
        ready = self._times(whole) < frontier
        count = int(np.count_nonzero(ready))
        self._rows = len(whole) - count
        if self._rows == 0:
            self._batches = []
            return in_event_order(whole, self._codes)
        if not count:
            self._batches = [whole]
            return None
        if ready[:count].all():  # in order, as most often: no copying
            self._batches = [whole.slice(count)]
            return in_event_order(whole.slice(0, count), self._codes)
        self._batches = [whole.filter(pa.array(~ready))]
        return in_event_order(whole.filter(pa.array(ready)), self._codes)

    def _times(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        times: npt.NDArray[np.int64] = rows.column(TIME).to_numpy()
        return times


def _ignore(problem: object) -> None:
    """Somebody else answers for the group."""
