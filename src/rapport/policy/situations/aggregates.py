"""Aggregates over the readings of a window, kept incrementally and exactly."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from rapport.core.detection import Cause
from rapport.policy.operators.columns import NO_ROWS, Array, Mask, Rows, widened
from rapport.policy.situation_plan import AggregateFunction
from rapport.policy.situations.present_values import KnownRows, StreamReadings
from rapport.policy.situations.traces import (
    NEVER,
    TRUE,
    Points,
    Step,
    Trace,
    TraceScope,
    first_of_runs,
    last_of_runs,
    order_of_rows,
)
from rapport.policy.situations.truth_traces import finite, running_totals

_WORTH_TRIMMING = 65_536


class WindowLog:
    """The readings of a stream that are in some window, in order of (time, id). Readings have
    numbers that ascend for ever."""

    def __init__(self, stream: StreamReadings) -> None:
        self.stream = stream
        self.span_ms = 0
        """The longest window."""
        self.first = 0
        """The number of the first reading in memory."""
        self._count = self._head = 0
        self._rows: Rows = NO_ROWS
        self._times: Rows = NO_ROWS
        self._values: Array = np.zeros(0, np.float64)
        self._nexts: Rows = NO_ROWS
        self._newest: Rows = NO_ROWS
        self.new_from = 0

    def run(self, step: Step) -> None:
        """Adds the readings of the step."""
        rows, times, values = self.stream.in_order
        self.new_from = self.first + self._count
        self._grow_newest()
        if len(rows):
            is_number = values.ndim == 1 and values.dtype.kind == "f"
            # Only their number counts where they are no numbers.
            self._append(rows, times, values if is_number else np.zeros(len(rows)))

    def commit(self, step: Step) -> None:
        """Drops what has left every window."""
        gone = int(np.searchsorted(self._times[: self._count], step.end - self.span_ms))
        if gone > _WORTH_TRIMMING and gone * 2 > self._count:
            self._drop(gone)

    def due(self) -> int | None:
        return None

    @property
    def end(self) -> int:
        """The number of the next reading."""
        return self.first + self._count

    def numbers_between(self, begin: int, end: int) -> Rows:
        """The numbers of the readings with begin <= time < end."""
        times = self._times[: self._count]
        low, high = np.searchsorted(times, [begin, end])
        return np.arange(self.first + int(low), self.first + int(high))

    def first_since(self, begin: int) -> int | None:
        """The time of the first reading at or after a time."""
        place = int(np.searchsorted(self._times[: self._count], begin))
        return int(self._times[place]) if place < self._count else None

    def rows(self, numbers: Rows) -> Rows:
        return self._rows[numbers - self.first]

    def times(self, numbers: Rows) -> Rows:
        return self._times[numbers - self.first]

    def values(self, numbers: Rows) -> Array:
        return self._values[numbers - self.first]

    def nexts(self, numbers: Rows) -> Rows:
        """The next reading of the same row, -1 without one."""
        return self._nexts[numbers - self.first]

    def state(self) -> dict[str, Any]:
        used = slice(0, self._count)
        return {
            "first": self.first,
            "rows": self._rows[used],
            "times": self._times[used],
            "values": self._values[used],
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.first, self._count = state["first"], 0
        self._newest = NO_ROWS
        self._rows = self._times = self._nexts = NO_ROWS
        self._values = np.zeros(0, np.float64)
        self._grow_newest()
        self._append(state["rows"], state["times"], state["values"])

    def _append(self, rows: Rows, times: Rows, values: Array) -> None:
        count = self._count + len(rows)
        if count > len(self._rows):
            size = max(count, 2 * len(self._rows))
            self._rows, self._times = widened(self._rows, size), widened(self._times, size)
            self._values, self._nexts = widened(self._values, size), widened(self._nexts, size)
        own = slice(self._count, count)
        self._rows[own], self._times[own], self._values[own] = rows, times, values
        self._nexts[own] = -1
        order = order_of_rows(rows, len(self._newest))
        sorted_rows = rows[order]
        numbers = order + self.first + self._count
        first = first_of_runs(sorted_rows)
        earlier = np.empty_like(numbers)
        earlier[1:] = numbers[:-1]
        earlier[first] = self._newest[sorted_rows[first]]
        linked = earlier >= self.first
        self._nexts[earlier[linked] - self.first] = numbers[linked]
        last = last_of_runs(sorted_rows)
        self._newest[sorted_rows[last]] = numbers[last]
        self._count = count

    def _drop(self, gone: int) -> None:
        kept = slice(gone, self._count)
        self._rows, self._times = self._rows[kept].copy(), self._times[kept].copy()
        self._values, self._nexts = self._values[kept].copy(), self._nexts[kept].copy()
        self.first, self._count = self.first + gone, self._count - gone

    def _grow_newest(self) -> None:
        had, size = len(self._newest), self.stream.scope.size
        if had < size:
            self._newest = widened(self._newest, max(size, had + had // 2))
            self._newest[had:] = -1


class WindowEvents:
    """The readings that enter and leave a window in a step, by (row, time)."""

    def __init__(self, log: WindowLog, step: Step, window_ms: int) -> None:
        enters = np.arange(log.new_from, log.end)
        leaves = log.numbers_between(step.begin - window_ms, step.end - window_ms)
        numbers = np.concatenate([enters, leaves])
        rows = log.rows(numbers)
        times = log.times(numbers)
        times[len(enters) :] += window_ms
        order = np.argsort(step.keys(rows, times), kind="stable")
        self.rows, self.times, self.numbers = rows[order], times[order], numbers[order]
        self.is_entry = order < len(enters)
        self.signs = np.where(self.is_entry, 1, -1)
        rows, times = self.rows, self.times
        self.is_last = np.ones(len(rows), np.bool_)
        self.is_last[:-1] = (rows[1:] != rows[:-1]) | (times[1:] != times[:-1])

    def __len__(self) -> int:
        return len(self.rows)

    def points(self, values: Array) -> Points:
        last = self.is_last
        return Points(self.rows[last], self.times[last], values[last])

    def latest(self, chosen: Mask, values: Rows, before: Rows) -> Rows:
        """For each event the value of the last chosen one of its row so far, else that before."""
        places = np.arange(len(self.rows))
        last = np.maximum.accumulate(np.where(chosen, places, -1))
        begin = np.maximum.accumulate(np.where(first_of_runs(self.rows), places, 0))
        own = last >= begin
        return np.where(own, values[last], before[self.rows])


class WindowAggregate(Trace):
    """An aggregate of a stream in the last `window_ms`; unknown with fewer than `at_least`
    readings. Subclasses give `_changes`."""

    def __init__(self, log: WindowLog, window_ms: int, at_least: int) -> None:
        super().__init__(log.stream.scope, np.nan, kind=np.float64)
        self._log, self._window, self._at_least = log, window_ms, at_least
        log.span_ms = max(log.span_ms, window_ms)
        self._counts: Rows = NO_ROWS
        self._is_restored = False

    def compute(self, step: Step) -> Points:
        self._grow_state()
        if self._is_restored:
            self._is_restored = False
            self._recount(self._log.numbers_between(step.begin - self._window, step.begin))
        events = WindowEvents(self._log, step, self._window)
        if not len(events):
            return self._none
        counts = running_totals(events.rows, events.signs, self._counts)
        values = self._changes(step, events, counts)
        last = last_of_runs(events.rows)
        self._counts[events.rows[last]] = counts[last]
        return events.points(np.where(counts >= self._at_least, values, np.nan))

    def due(self) -> int | None:
        step = self._step
        assert step is not None
        first = self._log.first_since(step.end - self._window)
        return None if first is None else first + self._window

    def causes(self, rows: Rows, times: Rows) -> list[Cause | None]:
        """The newest reading in the window of each row at a time."""
        found = self._log.stream.causes(rows, times)
        window = self._window
        return [
            cause if cause is not None and cause[0] > time - window else None
            for cause, time in zip(found, times.tolist(), strict=True)
        ]

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._is_restored = True

    def _changes(self, step: Step, events: WindowEvents, counts: Rows) -> Array:
        """The value after each event, where there are enough readings."""
        raise NotImplementedError

    def _recount(self, numbers: Rows) -> None:
        """Takes over what is in the window; the log has everything."""
        rows = self._log.rows(numbers)
        self._counts[:] = np.bincount(rows, minlength=len(self._counts))

    def _grow_state(self) -> None:
        size = len(self.now)
        if len(self._counts) < size:
            self._counts = widened(self._counts, size)


class Count(WindowAggregate):
    """The number of readings; 0 for a known instance without one."""

    def __init__(self, log: WindowLog, window_ms: int, known: KnownRows) -> None:
        super().__init__(log, window_ms, 0)
        self._known = known

    def compute(self, step: Step) -> Points:
        found, known = super().compute(step), self._known.fresh
        begun = known.take((known.values == TRUE) & np.isnan(self.now[known.rows]))
        if not len(begun.rows):
            return found
        if len(found.rows):
            keys = step.keys(found.rows, found.times)
            begun = begun.take(~np.isin(step.keys(begun.rows, begun.times), keys))
        rows = np.concatenate([found.rows, begun.rows])
        times = np.concatenate([found.times, begun.times])
        values = np.concatenate([found.values, np.zeros(len(begun.rows))])
        order = np.argsort(step.keys(rows, times), kind="stable")
        return Points(rows[order], times[order], values[order])

    def _changes(self, step: Step, events: WindowEvents, counts: Rows) -> Array:
        return counts.astype(np.float64)


class Change(WindowAggregate):
    """The newest value minus the oldest; `is_rate`: per millisecond."""

    def __init__(self, log: WindowLog, window_ms: int, at_least: int, *, is_rate: bool) -> None:
        super().__init__(log, window_ms, at_least)
        self._is_rate = is_rate
        self._newest: Rows = NO_ROWS
        self._oldest: Rows = NO_ROWS

    def _changes(self, step: Step, events: WindowEvents, counts: Rows) -> Array:
        log, numbers, entry = self._log, events.numbers, events.is_entry
        newest = events.latest(entry, numbers, self._newest)
        follows = np.where(entry, numbers, log.nexts(numbers))
        oldest = events.latest(~entry | (counts == 1), follows, self._oldest)
        last = last_of_runs(events.rows)
        rows = events.rows[last]
        self._newest[rows], self._oldest[rows] = newest[last], oldest[last]
        enough = counts > 0
        newest, oldest = newest[enough], oldest[enough]
        found = np.full(len(events), np.nan)
        change = log.values(newest) - log.values(oldest)
        if self._is_rate:
            between = (log.times(newest) - log.times(oldest)).astype(np.float64)
            with np.errstate(all="ignore"):
                change = np.where(between > 0, change / between, np.nan)
        found[enough] = np.where(np.isfinite(change), change, np.nan)
        return found

    def _recount(self, numbers: Rows) -> None:
        super()._recount(numbers)
        rows = self._log.rows(numbers)
        self._newest[rows] = numbers
        self._oldest[rows[::-1]] = numbers[::-1]

    def _grow_state(self) -> None:
        had = len(self._newest)
        super()._grow_state()
        if had < len(self._counts):
            self._newest = widened(self._newest, len(self._counts))
            self._oldest = widened(self._oldest, len(self._counts))


class Extreme(WindowAggregate):
    """The largest value of the window, or the smallest.

    A row whose extreme value leaves the window is looked at reading by reading; this is rare. All
    others are updated at once.
    """

    def __init__(self, log: WindowLog, window_ms: int, at_least: int, *, is_max: bool) -> None:
        super().__init__(log, window_ms, at_least)
        self._sign = 1.0 if is_max else -1.0
        self._largest: Array = np.zeros(0, np.float64)
        """The largest value in the window of each row, times the sign; minus infinity: none."""

    def _changes(self, step: Step, events: WindowEvents, counts: Rows) -> Array:
        values = self._sign * self._log.values(events.numbers)
        rows, entry = events.rows, events.is_entry
        starts = np.flatnonzero(first_of_runs(rows))
        before = self._largest[rows]
        # A reading that leaves in the step in which it came is looked at closely, too.
        is_close = ~entry & ((values >= before) | (events.numbers >= self._log.new_from))
        found = np.maximum(before, self._largest_so_far(events, values))
        is_looked_at = np.logical_or.reduceat(is_close, starts)
        if is_looked_at.any():
            own = np.repeat(is_looked_at, np.diff(np.append(starts, len(rows))))
            found[own] = self._over_windows(rows[own], events.numbers[own], entry[own])
        last = last_of_runs(rows)
        self._largest[rows[last]] = np.where(counts[last] > 0, found[last], -np.inf)
        return self._sign * found

    def _largest_so_far(self, events: WindowEvents, values: Array) -> Array:
        """Of what entered in this step."""
        entered = np.where(events.is_entry, values, -np.inf)
        order = np.argsort(entered, kind="stable")
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        earlier = np.cumsum(first_of_runs(events.rows)) * len(order)
        found: Array = entered[order[np.maximum.accumulate(earlier + ranks) - earlier]]
        return found

    def _over_windows(self, rows: Rows, numbers: Rows, entry: Mask) -> Array:
        """The largest value after each event of rows of which some reading leaves: the first that
        does is the oldest."""
        starts = np.flatnonzero(first_of_runs(rows))
        owners = np.cumsum(first_of_runs(rows)) - 1
        leaves = np.flatnonzero(~entry)
        oldest = leaves[first_of_runs(owners[leaves])]
        chains, chain = self._chains(numbers[oldest])
        begins = np.searchsorted(chains, np.arange(len(starts)))
        had = np.bincount(chains[chain < self._log.new_from], minlength=len(starts))
        left: Rows = np.cumsum(~entry, dtype=np.int64)
        entered: Rows = np.cumsum(entry, dtype=np.int64)
        left -= (left[starts] - ~entry[starts])[owners]
        entered -= (entered[starts] - entry[starts])[owners]
        first = begins[owners] + left
        end = begins[owners] + had[owners] + entered
        return largest_between(self._sign * self._log.values(chain), first, end)

    def _chains(self, oldest: Rows) -> tuple[Rows, Rows]:
        """(place in `oldest`, number) of each of these readings and of all after it, in order."""
        found, places = [(np.arange(len(oldest)), oldest)], np.arange(len(oldest))
        while len(places):
            after = self._log.nexts(found[-1][1])
            places, after = places[after >= 0], after[after >= 0]
            found.append((places, after))
        owners, numbers = (np.concatenate(part) for part in zip(*found, strict=True))
        order = np.argsort(owners, kind="stable")
        return owners[order], numbers[order]

    def _recount(self, numbers: Rows) -> None:
        super()._recount(numbers)
        self._largest[:] = -np.inf
        values = self._sign * self._log.values(numbers)
        np.maximum.at(self._largest, self._log.rows(numbers), values)

    def _grow_state(self) -> None:
        had = len(self._largest)
        super()._grow_state()
        if had < len(self._counts):
            self._largest = widened(self._largest, len(self._counts))
            self._largest[had:] = -np.inf


def largest_between(values: Array, begins: Rows, ends: Rows) -> Array:
    """The largest of the values in each of the stretches, nan where one is empty. Costs the values
    times the logarithm of the longest stretch."""
    found = np.full(len(begins), np.nan)
    spans = ends - begins
    reach, table = 1, values
    while (own := np.flatnonzero(spans >= reach)).size:
        own = own[spans[own] < 2 * reach]
        found[own] = np.maximum(table[begins[own]], table[ends[own] - reach])
        table = np.maximum(table[:-reach], table[reach:])
        reach *= 2
    return found


Pick = Callable[[list[float]], float]


class Ranked(WindowAggregate):
    """What is chosen from the sorted values of the window: median or percentile."""

    def __init__(self, log: WindowLog, window_ms: int, at_least: int, pick: Pick) -> None:
        super().__init__(log, window_ms, at_least)
        self._pick = pick
        self._sorted: dict[int, list[float]] = {}

    def _changes(self, step: Step, events: WindowEvents, counts: Rows) -> Array:
        values = self._log.values(events.numbers).tolist()
        found = [math.nan] * len(values)
        pick, windows = self._pick, self._sorted
        rows, entries = events.rows.tolist(), events.is_entry.tolist()
        lasts, row, own = events.is_last.tolist(), -1, list[float]()
        for place, value in enumerate(values):
            if rows[place] != row:
                row = rows[place]
                own = windows.setdefault(row, [])
            if entries[place]:
                insort(own, value)
            else:
                del own[bisect_left(own, value)]
            if lasts[place] and own:
                found[place] = pick(own)
        return finite(np.array(found))

    def _recount(self, numbers: Rows) -> None:
        super()._recount(numbers)
        self._sorted = {}
        rows, values = self._log.rows(numbers).tolist(), self._log.values(numbers).tolist()
        for row, value in zip(rows, values, strict=True):
            self._sorted.setdefault(row, []).append(value)
        for own in self._sorted.values():
            own.sort()


def median(values: list[float]) -> float:
    """The mean of the middle two of an even number."""
    middle = len(values) // 2
    if len(values) % 2:
        return values[middle]
    return (values[middle - 1] + values[middle]) / 2


def percentile(rank: float) -> Pick:
    """The value of rank ceil(P n / 100), computed exactly."""
    share = Fraction(repr(rank)) / 100

    def pick(values: list[float]) -> float:
        return values[math.ceil(share * len(values)) - 1]

    return pick


_UNITS = (2.0**8, 2.0**48, 2.0**88)
_LARGEST = 2.0**36
_DIGIT = 2**40
_NEAR = 2.0**-30


class Sum(WindowAggregate):
    """The exact sum rounded once, as by `math.fsum`; `is_mean`: divided by the number.

    A value is split into three integers in units of 2^-8, 2^-48 and 2^-88, which are added without
    rounding. Rows with values that need more are added as large integers.
    """

    def __init__(self, log: WindowLog, window_ms: int, at_least: int, *, is_mean: bool) -> None:
        super().__init__(log, window_ms, at_least)
        self._is_mean = is_mean
        self._limbs: tuple[Rows, ...] = (NO_ROWS, NO_ROWS, NO_ROWS)
        self._wide: dict[int, int] = {}
        """The exact sums, in units of 2^-1074, of rows with values that need more."""

    def _changes(self, step: Step, events: WindowEvents, counts: Rows) -> Array:
        values = self._log.values(events.numbers)
        limbs, fits = exact_limbs(values)
        self._widen(events, fits)
        signs, rows = events.signs, events.rows
        totals = [
            running_totals(rows, limb * signs, before)
            for limb, before in zip(limbs, self._limbs, strict=True)
        ]
        last = last_of_runs(rows)
        for before, total in zip(self._limbs, totals, strict=True):
            before[rows[last]] = total[last]
        shown = events.is_last
        sums = np.full(len(rows), np.nan)
        sums[shown] = nearest_sums(*(total[shown] for total in totals))
        if self._wide:
            self._add_wide(events, values, sums)
        if not self._is_mean:
            return sums
        with np.errstate(all="ignore"):
            return sums / counts

    def _widen(self, events: WindowEvents, fits: Mask) -> None:
        """Turns to large integers for the rows of values that do not fit."""
        for row in set(events.rows[~fits].tolist()) - self._wide.keys():
            high, middle, low = (int(limb[row]) for limb in self._limbs)
            units = (high * _DIGIT + middle) * _DIGIT + low
            self._wide[row] = units << (1074 - 88)

    def _add_wide(self, events: WindowEvents, values: Array, sums: Array) -> None:
        chosen = np.flatnonzero(np.isin(events.rows, list(self._wide)))
        for place in chosen.tolist():
            row = int(events.rows[place])
            total = self._wide[row] + int(events.signs[place]) * _in_smallest(values[place])
            self._wide[row] = total
            sums[place] = _nearest(total)

    def _recount(self, numbers: Rows) -> None:
        super()._recount(numbers)
        rows, values = self._log.rows(numbers), self._log.values(numbers)
        limbs, fits = exact_limbs(values)
        self._wide = dict.fromkeys(rows[~fits].tolist(), 0)
        for limb, total in zip(limbs, self._limbs, strict=True):
            total[:] = 0
            np.add.at(total, rows, limb)
        if self._wide:
            for row, value in zip(rows.tolist(), values.tolist(), strict=True):
                if row in self._wide:
                    self._wide[row] += _in_smallest(value)

    def _grow_state(self) -> None:
        super()._grow_state()
        if len(self._limbs[0]) < len(self._counts):
            self._limbs = tuple(widened(limb, len(self._counts)) for limb in self._limbs)


def exact_limbs(values: Array) -> tuple[list[Rows], Mask]:
    """The three integers of each value, and whether they are exact."""
    fits = np.abs(values) < _LARGEST
    rest = np.where(fits, values, 0.0)
    limbs = []
    for unit in _UNITS:
        limb = np.rint(rest * unit)
        rest = rest - limb / unit  # exact: the digits of both are within 53 bits
        limbs.append(limb.astype(np.int64))
    return limbs, fits & (rest == 0)


def nearest_sums(high: Rows, middle: Rows, low: Rows) -> Array:
    """The nearest 64-bit floats of sums of three integers."""
    middle = middle + (low >> 40)
    low = low & (_DIGIT - 1)
    high = high + (middle >> 40)
    middle = middle & (_DIGIT - 1)
    parts = [
        (high >> 32).astype(np.float64) * 2.0**24,
        (high & 0xFFFFFFFF).astype(np.float64) * 2.0**-8,
        middle.astype(np.float64) * 2.0**-48,
        low.astype(np.float64) * 2.0**-88,
    ]
    found, rest, largest = parts[0], np.zeros(len(high)), np.zeros(len(high))
    for part in parts[1:]:
        found, error = _two_sum(found, part)
        rest = rest + error
        largest = np.maximum(largest, np.abs(error))
    found, rest = _two_sum(found, rest)
    # Where the rest is about half a unit of the last place (a quarter below a power of two), its
    # own rounding may decide.
    unit = np.spacing(np.abs(found))
    share = np.abs(rest) / unit
    doubtful = (np.abs(share - 0.5) < _NEAR) | (np.abs(share - 0.25) < _NEAR)
    doubtful |= largest * _NEAR > unit
    for place in np.flatnonzero(doubtful).tolist():
        found[place] = math.fsum(float(part[place]) for part in parts)
    return found


def _two_sum(left: Array, right: Array) -> tuple[Array, Array]:
    """The rounded sum, and the exact error."""
    total = left + right
    shadow = total - left
    return total, (left - (total - shadow)) + (right - shadow)


def _in_smallest(value: float) -> int:
    """A value in units of 2^-1074."""
    numerator, denominator = float(value).as_integer_ratio()
    return numerator << (1075 - denominator.bit_length())


def _nearest(units: int) -> float:
    try:
        return units / (1 << 1074)
    except OverflowError:
        return math.nan


def make_aggregate(
    function: AggregateFunction,
    log: WindowLog,
    known: KnownRows,
    window_ms: int,
    at_least: int,
    rank: float | None,
) -> WindowAggregate:
    match function:
        case "count":
            return Count(log, window_ms, known)
        case "mean" | "sum":
            return Sum(log, window_ms, at_least, is_mean=function == "mean")
        case "change" | "rate":
            return Change(log, window_ms, at_least, is_rate=function == "rate")
        case "min":
            return Extreme(log, window_ms, at_least, is_max=False)
        case "max":
            return Extreme(log, window_ms, at_least, is_max=True)
        case "median":
            return Ranked(log, window_ms, at_least, median)
        case _:
            assert rank is not None
            return Ranked(log, window_ms, at_least, percentile(rank))


class LongEnough(Trace):
    """True once a window no longer reaches before the start; one row."""

    def __init__(self, scope: TraceScope, window_ms: int) -> None:
        super().__init__(scope, 0)
        self._window = window_ms
        self._at = NEVER

    def compute(self, step: Step) -> Points:
        self._at = step.start + self._window
        if not step.begin <= self._at < step.end:
            return self._none
        return Points(np.zeros(1, np.int64), np.array([self._at]), np.array([TRUE], np.int8))

    def due(self) -> int | None:
        return self._at if self.now[0] != TRUE else None
