"""Truths and values made of others: comparisons, relationships, AND, OR, NOT, durations, silences
and quantifiers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rapport.policy.language.tree import Operator
from rapport.policy.measures import MeasuringFunction
from rapport.policy.operators.columns import (
    NO_ROWS,
    Array,
    Mask,
    Rows,
    compare,
    widened,
)
from rapport.policy.relations import Relation
from rapport.policy.situations.present_values import (
    KnownRows,
    StreamReadings,
    in_parts,
    is_present,
)
from rapport.policy.situations.traces import (
    FALSE,
    NEVER,
    TRUE,
    UNKNOWN,
    DueTimes,
    Points,
    RowIndex,
    Source,
    Step,
    Trace,
    TraceScope,
    changes_only,
    distinct,
    first_of_runs,
    last_of_runs,
    union,
)

_NEVER_FALSE = 2 * NEVER
"""So long ago that no duration after it reaches `NEVER`."""
Function = Callable[..., Array]
"""Takes the values of all inputs at the same rows and times."""


class Combined(Trace):
    """A function of the values of its inputs at every instant."""

    def __init__(
        self,
        scope: TraceScope,
        inputs: Sequence[Source],
        function: Function,
        *,
        is_truth: bool = True,
    ) -> None:
        fill: Any = UNKNOWN if is_truth else np.nan
        super().__init__(scope, fill, kind=np.int8 if is_truth else np.float64)
        self.inputs, self.function, self._is_truth = inputs, function, is_truth

    def compute(self, step: Step) -> Points:
        changed = [one.fresh for one in self.inputs]
        new = self.scope.new_rows
        parts = [(one.rows, one.times) for one in changed]
        if len(new):
            parts.append((new, self.scope.new_since))
        rows, times = union(step, parts)
        if not len(rows):
            return self._none
        values = [
            points.values if points.rows is rows else one.sample(rows, times)
            for one, points in zip(self.inputs, changed, strict=True)
        ]
        found = Points(rows, times, self.function(*values))
        return changes_only(found, self.now) if self._is_truth else found

    def evaluate(self, values: Sequence[Array]) -> Array:
        """The result for other values of its inputs."""
        return self.function(*values)


def all_of(*parts: Array) -> Array:
    found = parts[0]
    for part in parts[1:]:
        found = np.minimum(found, part)
    return found


def any_of(*parts: Array) -> Array:
    found = parts[0]
    for part in parts[1:]:
        found = np.maximum(found, part)
    return found


def negated(part: Array) -> Array:
    return (2 - part).astype(np.int8)


def truths(holds: Mask, known: Mask) -> Array:
    return np.where(known, 2 * holds.astype(np.int8), np.int8(UNKNOWN)).astype(np.int8)


def comparison(operator: Operator) -> Function:
    """Compares two values; a missing one is unknown."""

    def compared(left: Array, right: Array) -> Array:
        known = is_present(left) & is_present(right)
        return truths(compare(left, operator, right), known)

    return compared


def comparison_with(operator: Operator, constant: str | float, *, turned: bool) -> Function:
    """Compares a value with a constant; `turned`: the constant is at the left."""

    def compared(values: Array) -> Array:
        sides = (constant, values) if turned else (values, constant)
        if not len(values):
            return np.zeros(0, np.int8)
        return truths(compare(sides[0], operator, sides[1]), is_present(values))

    return compared


_AT_LEAST_TRUE = (">", ">=", "!=")
_TURNED: dict[Operator, Operator] = {
    "<": ">",
    "<=": ">=",
    ">": "<",
    ">=": "<=",
    "=": "=",
    "!=": "!=",
}


def count_comparison(operator: Operator, *, turned: bool) -> Function:
    """Compares a count, which is a lower bound until the window is complete."""
    own: Operator = _TURNED[operator] if turned else operator

    def compared(counts: Array, other: Array, complete: Array) -> Array:
        known = is_present(counts) & is_present(other)
        found = truths(compare(counts, own, other), known)
        open_ended = complete != TRUE
        if not open_ended.any():
            return found
        # A comparison with a lower bound is decided if it is so for every larger number too.
        if own in ("=", "!="):
            passed = known & compare(counts, ">", other)
            decided = passed
        else:
            decided = found == (TRUE if own in _AT_LEAST_TRUE else FALSE)
        return np.where(open_ended & ~decided, UNKNOWN, found).astype(np.int8)

    return compared


def bounds_comparison(operator: Operator) -> Function:
    """Compares two values by their bounds: true or false if it is so for all between, else
    unknown.
    """

    def compared(*bounds: Array) -> Array:
        low, high, other_low, other_high = map(as_numbers, bounds)
        known = is_present(low) & is_present(other_low)
        if operator in (">", ">="):
            low, high, other_low, other_high = other_low, other_high, low, high
        if operator in ("<", ">"):
            holds, fails = high < other_low, low >= other_high
        elif operator in ("<=", ">="):
            holds, fails = high <= other_low, low > other_high
        else:
            holds = (low == high) & (other_low == other_high) & (low == other_low)
            fails = (high < other_low) | (other_high < low)
            if operator == "!=":
                holds, fails = fails, holds
        return truths(holds, known & (holds | fails))

    return compared


def upper_bound(counts: Array, complete: Array) -> Array:
    """Of a count, which is a lower bound until the window is complete."""
    return np.where((complete == TRUE) | np.isnan(counts), counts, np.inf)


def bound_of(operator: str, *, is_upper: bool) -> Function:
    """A bound of a calculation from the bounds of both sides; missing if it divides by what may be
    zero.
    """
    exact = arithmetic(operator)

    def computed(*bounds: Array) -> Array:
        low, high, other_low, other_high = map(as_numbers, bounds)
        is_exact = (low == high) & (other_low == other_high)
        found = exact(low, other_low)
        if is_exact.all():
            return found
        missing = np.isnan(low) | np.isnan(other_low)
        if operator == "/":
            missing |= (other_low <= 0) & (other_high >= 0)
        corners = np.array(
            [
                _corner(operator, one, other)
                for one in (low, high)
                for other in (other_low, other_high)
            ]
        )
        unbounded = np.inf if is_upper else -np.inf
        ends = corners.max(axis=0) if is_upper else corners.min(axis=0)
        ends = np.where(np.isnan(corners).any(axis=0), unbounded, ends)
        return np.where(is_exact, found, np.where(missing, np.nan, ends))

    return computed


def bound_conversion(factor: float, offset: float) -> Function:
    """Of a bound, which may be infinite."""
    exact = conversion(factor, offset)

    def converted(values: Array) -> Array:
        return np.where(np.isinf(values), values, exact(values))

    return converted


def _corner(operator: str, left: Array, right: Array) -> Array:
    """Of bounds that may be infinite; nothing of anything is nothing."""
    with np.errstate(all="ignore"):
        match operator:
            case "+":
                return left + right
            case "-":
                return left - right
            case "*":
                return np.where((left == 0) | (right == 0), 0.0, left * right)
            case _:
                return np.where(left == 0, 0.0, left / right)


def relationship(relation: Relation, parameter: float | None) -> Function:
    def related(first: Array, second: Array) -> Array:
        first, second = in_parts(first), in_parts(second)
        known = is_present(first) & is_present(second)
        holds = np.zeros(len(first), np.bool_)
        if known.any():
            chosen = slice(None) if known.all() else known
            holds[chosen] = relation.holds_many(first[chosen], second[chosen], parameter)
        return truths(holds, known)

    return related


def measurement(measure: MeasuringFunction) -> Function:
    def measured(*values: Array) -> Array:
        parts = [in_parts(one) for one in values]
        known = np.logical_and.reduce([is_present(one) for one in parts])
        found = np.full(len(known), np.nan)
        if known.any():
            found[known] = finite(measure.many(*(one[known] for one in parts)))
        return found

    return measured


def looked_up(pairs: Any) -> Function:
    """The number that a table of the site has for one or two texts."""

    def found(*values: Array) -> Array:
        keys = zip(*(one.tolist() for one in values), strict=True)
        return np.array([pairs.get(key, np.nan) for key in keys], np.float64)

    return found


def arithmetic(operator: str) -> Function:
    def computed(left: Array, right: Array) -> Array:
        left, right = as_numbers(left), as_numbers(right)
        with np.errstate(all="ignore"):
            if operator == "+":
                found = left + right
            elif operator == "-":
                found = left - right
            elif operator == "*":
                found = left * right
            else:
                found = np.where(right == 0, np.nan, left / right)
        return finite(found)

    return computed


def arithmetic_with(operator: str, constant: float, *, turned: bool) -> Function:
    whole = arithmetic(operator)

    def computed(values: Array) -> Array:
        other = np.full(len(values), constant)
        return whole(other, values) if turned else whole(values, other)

    return computed


def conversion(factor: float, offset: float) -> Function:
    def converted(values: Array) -> Array:
        with np.errstate(all="ignore"):
            return finite(as_numbers(values) * factor + offset)

    return converted


def presence(values: Array) -> Array:
    """True where a value is known, else unknown."""
    return np.where(is_present(values), TRUE, UNKNOWN).astype(np.int8)


def as_numbers(values: Array) -> Array:
    """The values as floats; a column that no table has is missing everywhere."""
    if values.dtype != object:
        return values
    return np.array([np.nan if value is None else value for value in values], np.float64)


def finite(values: Array) -> Array:
    return np.where(np.isfinite(values), values, np.nan)


class WhileKnown(Trace):
    """A trace that is unknown while a table has lost its instance; else the trace itself."""

    def __init__(self, inner: Trace, known: KnownRows) -> None:
        self._inner, self._known = inner, known
        super().__init__(inner.scope, inner.fill, kind=inner.now.dtype)
        self._is_masking = False

    def run(self, step: Step) -> None:
        if not self._is_masking and self._known.may_be_lost:
            self._is_masking = True
            self._follow()
            self.now, self._base = self.now.copy(), self._base.copy()
            if not self.history_ms:
                self._base = self.now
        if self._is_masking:
            self._fit()
            super().run(step)
        else:
            self._follow()
            self.fresh, self._step, self._keys = self._inner.fresh, step, self._inner._keys

    def _follow(self) -> None:
        inner = self._inner
        self.fill, self._none = inner.fill, inner._none
        self.now, self._base, self.points = inner.now, inner._base, inner.points

    def _fit(self) -> None:
        """Takes over the form of values, known from the first reading on."""
        inner = self._inner.now
        if self.now.dtype == inner.dtype and self.now.shape[1:] == inner.shape[1:]:
            return
        self.fill, self._none = self._inner.fill, self._inner._none
        self.fresh = self.points = self._none
        self.now = np.full((len(self.now), *inner.shape[1:]), self.fill, inner.dtype)
        self._base = self.now.copy() if self.history_ms else self.now

    def keep_history(self, history_ms: int) -> None:
        super().keep_history(history_ms)
        self._inner.keep_history(history_ms)

    def compute(self, step: Step) -> Points:
        fresh, known = self._inner.fresh, self._known.fresh
        rows, times = union(step, [(fresh.rows, fresh.times), (known.rows, known.times)])
        values = self._inner.sample(rows, times).copy()
        values[self._known.sample(rows, times) != TRUE] = self.fill
        return Points(rows, times, values)

    def commit(self, step: Step) -> None:
        if self._is_masking:
            super().commit(step)
        else:
            self.fresh, self._step, self._keys = self._none, None, None
            self.points = self._none

    def state(self) -> dict[str, Any]:
        if not self._is_masking:
            return {}
        return super().state() | {"masking": True}

    def restore(self, state: dict[str, Any]) -> None:
        self._is_masking = bool(state)
        if state:
            super().restore(state)
            self.fill = None if self.now.dtype == object else self.fill


class SustainedTrace(Trace):
    """`X for D`: true if X was true at every instant of the last D, else false if it was false at
    some instant of it, else unknown."""

    def __init__(self, scope: TraceScope, part: Source, duration_ms: int) -> None:
        super().__init__(scope, UNKNOWN)
        self._part, self._duration = part, duration_ms
        self._current: Rows = np.zeros(0, np.int8)
        self._since: Rows = NO_ROWS
        self._false_until: Rows = NO_ROWS
        self._dues = DueTimes()

    def compute(self, step: Step) -> Points:
        self._grow_state()
        fresh, duration = self._part.fresh, self._duration
        begun = last_of_runs(fresh.rows)
        changed = fresh.rows[begun]
        active = distinct(np.concatenate((changed, self._dues.take_before(step.end))))
        if not len(active):
            return self._none
        # The stretches of each active row: the current one, then one for each point.
        rows = np.concatenate([active, fresh.rows])
        begins = np.concatenate([self._since[active], fresh.times])
        values = np.concatenate([self._current[active], fresh.values])
        order = np.argsort(rows, kind="stable")
        rows, begins, values = rows[order], begins[order], values[order]
        is_first, is_last = first_of_runs(rows), last_of_runs(rows)
        ends = np.full(len(rows), step.end, np.int64)
        ends[:-1] = np.where(is_last[:-1], step.end, begins[1:])
        false_until = self._false_ends(rows, values, ends, is_first)
        doubt_ends = false_until + duration
        holds_from = begins + duration
        # FALSE from the begin on, or until the last false instant is long enough ago.
        is_false = (values == FALSE) | (begins < doubt_ends)
        starts = np.where(is_false, FALSE, UNKNOWN)
        cleared = (values != FALSE) & (doubt_ends < ends) & is_false
        holds = (values == TRUE) & (holds_from < ends)
        cleared &= ~(holds & (holds_from <= doubt_ends))
        found_rows = np.concatenate([rows, rows[cleared], rows[holds]])
        times = np.concatenate([begins, doubt_ends[cleared], holds_from[holds]])
        found_values = np.concatenate(
            [starts, np.full(int(cleared.sum()), UNKNOWN), np.full(int(holds.sum()), TRUE)]
        ).astype(np.int8)
        is_now = times >= step.begin
        if len(self.scope.new_rows):
            is_new = np.zeros(self.scope.size, np.bool_)
            is_new[self.scope.new_rows] = True
            is_now |= is_new[found_rows] & (times > NEVER)
        chosen = np.flatnonzero(is_now)
        chosen = chosen[np.argsort(step.keys(found_rows[chosen], times[chosen]), kind="stable")]
        self._remember(step, rows, begins, values, ends, false_until, is_last)
        found = Points(found_rows[chosen], times[chosen], found_values[chosen])
        return changes_only(found, self.now)

    def _false_ends(self, rows: Rows, values: Array, ends: Rows, is_first: Mask) -> Rows:
        """For each stretch the end of the last false one before it."""
        places = np.arange(len(rows))
        last = np.maximum.accumulate(np.where(values == FALSE, places, -1))
        before = np.full(len(rows), -1, np.int64)
        before[1:] = last[:-1]
        begin_of_row = np.maximum.accumulate(np.where(is_first, places, 0))
        own = before >= begin_of_row
        return np.where(own, ends[before], self._false_until[rows])

    def _remember(
        self,
        step: Step,
        rows: Rows,
        begins: Rows,
        values: Array,
        ends: Rows,
        false_until: Rows,
        is_last: Mask,
    ) -> None:
        own, current = rows[is_last], values[is_last]
        self._current[own], self._since[own] = current, begins[is_last]
        until = np.where(current == FALSE, step.end, false_until[is_last])
        self._false_until[own] = until
        self._add_dues(own, step.end)

    def _add_dues(self, rows: Rows, end: int) -> None:
        current = self._current[rows]
        holds_from = self._since[rows] + self._duration
        later = (current == TRUE) & (holds_from >= end)
        self._dues.add(rows[later], holds_from[later])
        doubt_ends = self._false_until[rows] + self._duration
        later = (current != FALSE) & (doubt_ends >= end)
        self._dues.add(rows[later], doubt_ends[later])

    def due(self) -> int | None:
        return self._dues.first()

    def keep_rows(self, kept: Rows) -> None:
        self._grow_state()
        super().keep_rows(kept)
        self._current, self._since = self._current[kept], self._since[kept]
        self._false_until = self._false_until[kept]
        self._dues.clear()
        self._add_dues(np.arange(len(kept)), NEVER)

    def state(self) -> dict[str, Any]:
        self._grow_state()
        return super().state() | {
            "current": self._current,
            "since": self._since,
            "false_until": self._false_until,
        }

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._current, self._since = state["current"], state["since"]
        self._false_until = state["false_until"]
        self._dues.clear()
        self._add_dues(np.arange(len(self._current)), NEVER)

    def _grow_state(self) -> None:
        had, size = len(self._current), self.scope.size
        if had < size:
            size = max(size, had + had // 2)
            self._current = widened(self._current, size)
            self._current[had:] = UNKNOWN
            self._since = widened(self._since, size)
            self._false_until = widened(self._false_until, size)
            self._since[had:], self._false_until[had:] = NEVER, _NEVER_FALSE


class SilenceTrace(Trace):
    """`no a of x for D`: true from D after the last reading on; without one, after the instance
    became known."""

    def __init__(
        self,
        scope: TraceScope,
        streams: Sequence[StreamReadings],
        known: KnownRows,
        duration_ms: int,
    ) -> None:
        super().__init__(scope, UNKNOWN)
        self._streams, self._known, self._duration = streams, known, duration_ms
        self._last: Rows = NO_ROWS
        self._was_heard: Mask = np.zeros(0, np.bool_)
        self._dues = DueTimes()

    def compute(self, step: Step) -> Points:
        self._grow_state()
        rows, times = union(step, [one.instants() for one in self._streams])
        heard = rows
        known = self._known.fresh
        begun = known.values == TRUE
        if begun.any():
            own = known.take(begun)
            first_read = np.full(self.scope.size, step.end, np.int64)
            first = first_of_runs(rows)
            first_read[rows[first]] = times[first]
            # One that has readings is silent since the last of them.
            silent = ~self._was_heard[own.rows] & (own.times < first_read[own.rows])
            rows, times = union(step, [(rows, times), (own.rows[silent], own.times[silent])])
        self._was_heard[heard] = True
        active = distinct(np.concatenate((rows, self._dues.take_before(step.end))))
        if not len(active):
            return self._none
        last = self._last[active]
        before = active[last > NEVER]
        all_rows = np.concatenate([before, rows])
        begins = np.concatenate([self._last[before], times])
        order = np.argsort(all_rows, kind="stable")
        all_rows, begins = all_rows[order], begins[order]
        is_last = last_of_runs(all_rows)
        ends = np.full(len(all_rows), step.end, np.int64)
        ends[:-1] = np.where(is_last[:-1], step.end, begins[1:])
        dues = begins + self._duration
        silent = (dues < ends) & (dues >= step.begin)
        is_new = begins >= step.begin
        found_rows = np.concatenate([all_rows[is_new], all_rows[silent]])
        found_times = np.concatenate([begins[is_new], dues[silent]])
        values = np.concatenate(
            [np.full(int(is_new.sum()), FALSE), np.full(int(silent.sum()), TRUE)]
        ).astype(np.int8)
        order = np.argsort(step.keys(found_rows, found_times), kind="stable")
        newest = all_rows[is_last]
        self._last[newest] = begins[is_last]
        later = dues[is_last] >= step.end
        self._dues.add(newest[later], dues[is_last][later])
        found = Points(found_rows[order], found_times[order], values[order])
        return changes_only(found, self.now)

    def due(self) -> int | None:
        return self._dues.first()

    def state(self) -> dict[str, Any]:
        self._grow_state()
        return super().state() | {"last": self._last, "heard": self._was_heard}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._last, self._was_heard = state["last"], state["heard"]
        self._dues.clear()
        rows = np.flatnonzero(self._last > NEVER)
        self._dues.add(rows, self._last[rows] + self._duration)

    def _grow_state(self) -> None:
        had, size = len(self._last), self.scope.size
        if had < size:
            size = max(size, had + had // 2)
            self._last = widened(self._last, size)
            self._last[had:] = NEVER
            self._was_heard = widened(self._was_heard, size)


class CountingRows(Trace):
    """For each row of the outer scope, how many rows of the inner scope stand for it and are
    true."""

    def __init__(
        self, outer: TraceScope, inner: TraceScope, truth: Trace, parents: RowIndex
    ) -> None:
        super().__init__(outer, 0, kind=np.int64)
        self.inner, self.truth, self._parents = inner, truth, parents

    def compute(self, step: Step) -> Points:
        rows, times, values = self.truth.fresh
        if not len(rows) and not self.inner.is_passing:
            return self._none
        first = first_of_runs(rows)
        before = np.empty_like(values)
        before[1:] = values[:-1]
        before[first] = self.truth.now[rows[first]]
        deltas = (values == TRUE).astype(np.int64) - (before == TRUE)
        chosen = deltas != 0
        owners, times, deltas = self._parents.targets(rows[chosen]), times[chosen], deltas[chosen]
        before_step = self.now
        if self.inner.is_passing:  # what goes on is counted anew
            counted = np.flatnonzero(self.now)
            owners = np.concatenate([owners, counted])
            times = np.concatenate([times, np.full(len(counted), step.begin, np.int64)])
            deltas = np.concatenate([deltas, np.zeros(len(counted), np.int64)])
            before_step = np.zeros_like(self.now)
        if not len(owners):
            return self._none
        order = np.argsort(step.keys(owners, times), kind="stable")
        owners, times, deltas = owners[order], times[order], deltas[order]
        totals = running_totals(owners, deltas, before_step)
        last = np.ones(len(owners), np.bool_)
        last[:-1] = (owners[1:] != owners[:-1]) | (times[1:] != times[:-1])
        return changes_only(Points(owners[last], times[last], totals[last]), self.now)


class FromTheFind(Trace):
    """A truth of rows that are added when they can be true: false before they were found."""

    def __init__(self, scope: Any, inputs: Sequence[Source]) -> None:
        super().__init__(scope, FALSE)
        self._scope, self._inputs = scope, inputs

    def compute(self, step: Step) -> Points:
        new, found_at = self._scope.new_rows, self._scope.found_at
        parts = [(one.fresh.rows, one.fresh.times) for one in self._inputs]
        if len(new):
            parts.append((new, found_at))
        if self._scope.is_passing:
            parts.append((new, np.minimum(self._scope.new_until, step.end - 1)))
        rows, times = union(step, parts)
        if not len(rows):
            return self._none
        values = all_of(*(one.sample(rows, times) for one in self._inputs))
        values = np.where(values == TRUE, TRUE, FALSE).astype(np.int8)
        if len(new):
            since = np.full(self._scope.size, NEVER, np.int64)
            since[new] = found_at
            chosen = times >= since[rows]
            rows, times, values = rows[chosen], times[chosen], values[chosen]
        if self._scope.is_passing:
            values[times >= self._scope.new_until[rows]] = FALSE
        return changes_only(Points(rows, times, values), self.now)


def running_totals(rows: Rows, deltas: Array, before: Array) -> Array:
    """The sums of the deltas so far of each row, which are sorted, added to those before."""
    sums = np.cumsum(deltas)
    first = first_of_runs(rows)
    starts = np.flatnonzero(first)
    offset = sums[starts] - deltas[starts] - before[rows[starts]]
    lengths = np.diff(np.append(starts, len(rows)))
    return np.asarray(sums - np.repeat(offset, lengths))


def quantified(quantifier: str, number: int) -> Function:
    """`presences`: of what the expression reads of aliases bound outside."""

    def counted(counts: Array, *presences: Array) -> Array:
        holds = counts >= number if quantifier == "at least" else counts <= number
        known = np.ones(len(counts), np.bool_)
        for one in presences:
            known &= one == TRUE
        return truths(holds, known)

    return counted
