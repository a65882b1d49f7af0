"""Traces: the truth or value of a node over event time, piecewise constant for each row.

A row stands for an identity or a binding. In a step, time goes from the previous watermark to the
next, and every node turns the points at which its inputs change into its own. A point is valid from
its time on.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple, Protocol

import numpy as np

from rapport.policy.operators.columns import NO_ROWS, Array, Mask, Rows, spread, widened

FALSE, UNKNOWN, TRUE = 0, 1, 2
"""NOT is 2 - x, AND is the minimum, OR is the maximum."""
NEVER = -(2**62)
"""Before every event."""
_RADIX = 65_536


class Points(NamedTuple):
    """Changes, sorted by (row, time); at most one for each."""

    rows: Rows
    times: Rows
    values: Array

    def take(self, chosen: Any) -> Points:
        return Points(self.rows[chosen], self.times[chosen], self.values[chosen])


class Step:
    """The event times [begin, end) that are processed at once."""

    def __init__(self, begin: int, end: int, start: int, history_ms: int) -> None:
        """`history_ms`: how far back a trace may be sampled."""
        self.begin, self.end, self.start = begin, end, start
        self._base = begin - history_ms
        self.width = end - self._base + 2

    def keys(self, rows: Rows, times: Rows) -> Rows:
        """Integers in the order of (row, time); earlier times than the history count as its
        begin."""
        found: Rows = np.maximum(times - self._base + 1, 0)
        return rows * self.width + found

    def split(self, keys: Rows) -> tuple[Rows, Rows]:
        """The rows and times of keys."""
        rows = keys // self.width
        return rows, keys - rows * self.width + (self._base - 1)


class TraceScope(Protocol):
    """A set of rows; `size` is larger than every row number."""

    is_passing: bool
    """Whether all rows are of this step only; they then end at `new_until`."""

    @property
    def size(self) -> int: ...

    @property
    def new_rows(self) -> Rows:
        """The rows that were added in this step, sorted."""

    @property
    def new_until(self) -> Rows:
        """Until when each of them is evaluated, if rows are passing."""

    @property
    def new_since(self) -> Rows:
        """From when on each of them is evaluated, which may be before the step."""


class Source(Protocol):
    """What a node reads: points of a step and values at times, for the rows of its scope."""

    @property
    def fresh(self) -> Points:
        """The changes of this step; for new rows those since they are evaluated."""

    def sample(self, rows: Rows, times: Rows) -> Array:
        """The values at times within the step or the history."""


class Trace:
    """A node with its value over time. Subclasses give `compute`.

    `now` is the value of each row at the end of the previous step, `fresh` has the changes of this
    step. Points of the last `history_ms` are kept for rows that are added later.
    """

    def __init__(self, scope: TraceScope, fill: Any, parts: int = 1, kind: Any = np.int8) -> None:
        """`fill`: the value before anything is known."""
        self.scope, self.fill = scope, fill
        shape = (0,) if parts == 1 else (0, parts)
        self.now: Array = np.zeros(shape, kind)
        self.history_ms = 0
        self._none = Points(NO_ROWS, NO_ROWS, self.now[:0])
        self.fresh = self.points = self._none
        self._base: Array = self.now
        self._keys: Rows | None = None
        self._step: Step | None = None

    # --- a step ---

    def run(self, step: Step) -> None:
        """Computes the points of the step; inputs have run before."""
        self._step = step
        if self.scope.is_passing:
            self.now = self._base = self.now[:0]
        self._grow()
        self.fresh = self.compute(step)
        self._merge(step)

    def compute(self, step: Step) -> Points:
        raise NotImplementedError

    def commit(self, step: Step) -> None:
        """Ends the step: `now` is the value at its end."""
        rows, _times, values = self.fresh
        if len(rows):
            last = last_of_runs(rows)
            self.now[rows[last]] = values[last]
        self._fold(step)
        self.fresh, self._step, self._keys = self._none, None, None

    def sample(self, rows: Rows, times: Rows) -> Array:
        points = self.points
        if not len(points.rows):
            return self._base[rows]
        assert self._step is not None
        return sampled(points, self.keys(), self._base, rows, self._step.keys(rows, times))

    def keys(self) -> Rows:
        """Those of the points, within a step."""
        if self._keys is None:
            assert self._step is not None
            self._keys = self._step.keys(self.points.rows, self.points.times)
        return self._keys

    def keep_history(self, history_ms: int) -> None:
        """Keeps the points of the last `history_ms`; before the first step."""
        self.history_ms = max(self.history_ms, history_ms)
        self._base = self.now.copy() if self.history_ms else self.now

    def due(self) -> int | None:
        """The next time at which something changes without a reading; may be too early."""
        return None

    # --- rows and state ---

    def keep_rows(self, kept: Rows) -> None:
        """Renumbers the rows: the kept ones get the numbers 0, 1, 2, ..."""
        self.now = self.now[kept]
        renumbered = renumbering(kept, self.scope.size)
        rows = renumbered[self.points.rows]
        chosen = rows >= 0
        self.points = Points(rows[chosen], self.points.times[chosen], self.points.values[chosen])
        self._base = self._base[kept] if self.history_ms else self.now
        self.fresh = self._none

    def state(self) -> dict[str, Any]:
        """What a snapshot holds; after `commit`."""
        state: dict[str, Any] = {"now": self.now}
        if self.history_ms:
            state |= {"base": self._base, "points": list(self.points)}
        return state

    def restore(self, state: dict[str, Any]) -> None:
        self.now = state["now"]
        self._base = self.now
        if self.history_ms:
            self._base = state["base"]
            self.points = Points(*state["points"])

    def _grow(self) -> None:
        missing = self.scope.size - len(self.now)
        if missing > 0:
            had = len(self.now)
            size = max(self.scope.size, had + had // 2)
            self.now = widened(self.now, size)
            self.now[had:] = self.fill
            if self.history_ms:
                self._base = widened(self._base, size)
                self._base[had:] = self.fill
            else:
                self._base = self.now

    def _merge(self, step: Step) -> None:
        self._keys = None
        if not len(self.points.rows):
            self.points = self.fresh
        elif len(self.fresh.rows):
            self.points = merged_points(step, [self.points, self.fresh])

    def _fold(self, step: Step) -> None:
        """Drops the points before the history."""
        if not self.history_ms:
            self.points = self._none
            return
        old = self.points.times < step.end - self.history_ms
        if old.any():
            gone = self.points.take(old)
            last = last_of_runs(gone.rows)
            self._base[gone.rows[last]] = gone.values[last]
            self.points = self.points.take(~old)


def sampled(points: Points, keys: Rows, base: Array, rows: Rows, wanted: Rows) -> Array:
    """The value of each row at the wanted key: that of the last point before it, or the base's."""
    places = np.searchsorted(keys, wanted, "right") - 1
    own = points.rows.take(places) == rows  # the place -1 is the last row, whose key is larger
    own &= places >= 0
    if own.all():
        return points.values.take(places, axis=0)  # faster than an index, most of all for points
    found = base.take(rows, axis=0)
    found[own] = points.values[places[own]]
    return found


def merged_points(step: Step, parts: Sequence[Points]) -> Points:
    """All points of the parts, which have no (row, time) in common, in order."""
    parts = [part for part in parts if len(part.rows)] or list(parts[:1])
    if len(parts) == 1:
        return parts[0]
    rows = np.concatenate([part.rows for part in parts])
    times = np.concatenate([part.times for part in parts])
    values = np.concatenate([part.values for part in parts])
    order = np.argsort(step.keys(rows, times), kind="stable")
    return Points(rows[order], times[order], values[order])


def union(step: Step, parts: Sequence[tuple[Rows, Rows]]) -> tuple[Rows, Rows]:
    """Every (row, time) of the parts once, in order. A single part must be in order."""
    parts = [part for part in parts if len(part[0])]
    if not parts:
        return NO_ROWS, NO_ROWS
    if len(parts) == 1:
        return parts[0]
    keys = [step.keys(rows, times) for rows, times in parts]
    return step.split(distinct(np.concatenate(keys)))


def distinct(values: Rows) -> Rows:
    """The distinct values, sorted. Hashing, as `np.unique` does, is slow for such keys."""
    found = np.sort(values)
    first = np.ones(len(found), np.bool_)
    first[1:] = found[1:] != found[:-1]
    return found[first]


def last_of_runs(rows: Rows) -> Mask:
    """Which entries are the last of their run of equal rows."""
    found = np.ones(len(rows), np.bool_)
    found[:-1] = rows[1:] != rows[:-1]
    return found


def first_of_runs(rows: Rows) -> Mask:
    found = np.ones(len(rows), np.bool_)
    found[1:] = rows[1:] != rows[:-1]
    return found


def changes_only(points: Points, now: Array) -> Points:
    """Without points that repeat the value before; `now`: the values before the first point."""
    rows, _times, values = points
    if not len(rows):
        return points
    before = np.empty_like(values)
    before[1:] = values[:-1]
    first = first_of_runs(rows)
    before[first] = now[rows[first]]
    changed = values != before
    return points if changed.all() else points.take(changed)


def order_of_rows(rows: Rows, size: int) -> Rows:
    """A stable order by row; a radix sort for few rows."""
    narrow = rows.astype(np.uint16) if size <= _RADIX else rows
    order: Rows = np.argsort(narrow, kind="stable")
    return order


def renumbering(kept: Rows, size: int) -> Rows:
    """The new number of each row, -1 for those that are dropped."""
    found = np.full(size, -1, np.int64)
    found[kept] = np.arange(len(kept))
    return found


class DueTimes:
    """Rows by the time at which to look at them again. Taking due ones costs their number and the
    logarithm of the batches, independent of the pending ones. A row may be due in vain."""

    def __init__(self) -> None:
        self._chunks: list[tuple[int, int, Rows, Rows]] = []
        """A heap of (first time, tie-breaker, times in order, rows)."""
        self._numbers = count()

    def add(self, rows: Rows, times: Rows) -> None:
        if len(rows):
            order = np.argsort(times, kind="stable")
            self._push(times[order], rows[order])

    def take_before(self, end: int) -> Rows:
        """Removes and returns the distinct rows that are due before a time, sorted."""
        found = []
        while self._chunks and self._chunks[0][0] < end:
            _, _, times, rows = heapq.heappop(self._chunks)
            edge = int(np.searchsorted(times, end))
            found.append(rows[:edge])
            if edge < len(rows):
                self._push(times[edge:], rows[edge:])
        return distinct(np.concatenate(found)) if found else NO_ROWS

    def first(self) -> int | None:
        return self._chunks[0][0] if self._chunks else None

    def clear(self) -> None:
        self._chunks = []

    def _push(self, times: Rows, rows: Rows) -> None:
        heapq.heappush(self._chunks, (int(times[0]), next(self._numbers), times, rows))


class ConstantScope:
    """One row, for what depends on no identity."""

    is_passing = False

    def __init__(self) -> None:
        self.size = 1
        self.new_rows = self.new_since = self.new_until = NO_ROWS
        self.is_begun = False

    def begin(self, step: Step) -> None:
        if not self.is_begun:
            self.new_rows, self.new_since = np.zeros(1, np.int64), np.array([step.begin])
            self.is_begun = True

    def commit(self) -> None:
        self.new_rows = self.new_since = NO_ROWS


class SpreadTrace:
    """A trace of one scope as a source for another, whose rows stand for rows of it."""

    def __init__(self, trace: Trace, scope: TraceScope, index: RowIndex) -> None:
        """`index`: for each row of the scope the row of the trace."""
        self.trace, self._scope, self._index = trace, scope, index
        self._made: tuple[Points, Step | None, int, Points] | None = None

    @property
    def fresh(self) -> Points:
        fresh, step, version = self.trace.fresh, self.trace._step, self._index.version
        made = self._made
        if made is None or made[0] is not fresh or made[1] is not step or made[2] != version:
            made = self._made = (fresh, step, version, self._spread())
        return made[3]

    def sample(self, rows: Rows, times: Rows) -> Array:
        return self.trace.sample(self._index.targets(rows), times)

    def _spread(self) -> Points:
        """The fresh points of the trace for old rows, all points since `new_since` for new ones."""
        new, step = self._scope.new_rows, self.trace._step
        if step is None:
            return self.trace.fresh.take(slice(0, 0))
        if not len(new):
            return self._of_old_rows(step)
        points = self._of_new_rows(step, new)
        if len(new) == self._scope.size:
            return points
        is_old = np.ones(self._scope.size, np.bool_)
        is_old[new] = False
        old = self._of_old_rows(step)
        return merged_points(step, [old.take(is_old[old.rows]), points])

    def _of_old_rows(self, step: Step) -> Points:
        fresh = self.trace.fresh
        owners, rows = self._index.find(fresh.rows)
        times = fresh.times[owners]
        order = np.argsort(step.keys(rows, times), kind="stable")
        return Points(rows[order], times[order], fresh.values[owners[order]])

    def _of_new_rows(self, step: Step, new: Rows) -> Points:
        points, keys = self.trace.points, self.trace.keys()
        targets = self._index.targets(new)
        until = np.full(len(new), step.end, np.int64)
        if self._scope.is_passing:
            until = self._scope.new_until
        begins = np.searchsorted(keys, step.keys(targets, self._scope.new_since), "right")
        ends = np.searchsorted(keys, step.keys(targets, until))
        owners, places = spread(begins.astype(np.int64), ends.astype(np.int64))
        return Points(new[owners], points.times[places], points.values[places])


class RowIndex:
    """For each row of a scope a row of another one, and back."""

    def __init__(self) -> None:
        self._targets: Rows = NO_ROWS
        self._size = 0
        self._order: Rows | None = None
        self._sorted: Rows = NO_ROWS
        self.version = 0

    def __len__(self) -> int:
        return self._size

    def targets(self, rows: Rows) -> Rows:
        found: Rows = self._targets[rows]
        return found

    def all(self) -> Rows:
        return self._targets[: self._size]

    def add(self, targets: Rows) -> None:
        """Adds rows at the end."""
        size = self._size + len(targets)
        if size > len(self._targets):
            self._targets = widened(self._targets, 2 * size)
        self._targets[self._size : size] = targets
        self._size, self._order = size, None
        self.version += 1

    def keep(self, kept: Rows, renumbered: Rows | None = None) -> None:
        targets = self._targets[kept]
        self._targets = targets if renumbered is None else renumbered[targets]
        self._size, self._order = len(kept), None
        self.version += 1

    def find(self, targets: Rows) -> tuple[Rows, Rows]:
        """Pairs (place in `targets`, row) of the rows that stand for each target."""
        if not len(targets) or not self._size:
            return NO_ROWS, NO_ROWS
        if self._order is None:
            self._order = np.argsort(self.all(), kind="stable")
            self._sorted = self.all()[self._order]
        begins = np.searchsorted(self._sorted, targets).astype(np.int64)
        ends = np.searchsorted(self._sorted, targets, "right").astype(np.int64)
        owners, places = spread(begins, ends)
        return owners, self._order[places]


class FixedTarget(RowIndex):
    """Every row of a scope stands for the row 0 of the constant scope."""

    def __init__(self, scope: TraceScope) -> None:
        super().__init__()
        self._scope = scope

    def targets(self, rows: Rows) -> Rows:
        return np.zeros(len(rows), np.int64)

    def find(self, targets: Rows) -> tuple[Rows, Rows]:
        count = self._scope.size
        owners = np.repeat(np.arange(len(targets)), count)
        return owners, np.tile(np.arange(count), len(targets))
