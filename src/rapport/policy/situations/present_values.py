"""Which instances are known, and their present values: the last readings and the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.detection import Cause
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import PullData
from rapport.policy.operators.columns import NO_ROWS, Array, Mask, Rows, complete_rows, widened
from rapport.policy.operators.identities import Identities, satisfies
from rapport.policy.plan import Constraint
from rapport.policy.situations.traces import (
    FALSE,
    NEVER,
    TRUE,
    DueTimes,
    Points,
    Step,
    Trace,
    changes_only,
    distinct,
    first_of_runs,
    last_of_runs,
    merged_points,
    order_of_rows,
    union,
)


class ConceptRows:
    """The identities of a concept seen so far as rows; those of tables come first."""

    is_passing = False

    def __init__(self, concept: str, pull: PullData) -> None:
        self.concept = concept
        self.identities = Identities(pull.instances(concept))
        self.new_rows = self.new_since = self.new_until = NO_ROWS
        self._seen = 0
        self.tables_changed = True
        """Whether this is the first step with these tables."""

    @property
    def size(self) -> int:
        return len(self.identities.ids)

    def begin(self, step: Step, history_ms: int) -> None:
        """Called when the readings of the step have been numbered."""
        self.new_rows = np.arange(self._seen, self.size)
        since = max(step.start, step.begin - history_ms)
        self.new_since = np.full(len(self.new_rows), since, np.int64)

    def commit(self) -> None:
        self._seen, self.tables_changed = self.size, False
        self.new_rows = self.new_since = NO_ROWS

    def state(self) -> dict[str, Any]:
        return {"ids": list(self.identities.ids), "seen": self._seen}

    def restore(self, state: dict[str, Any]) -> None:
        self.identities.restore(list(state["ids"]))
        self._seen, self.tables_changed = state["seen"], True


class StreamReadings(Trace):
    """The present value of a stream: its last reading of each identity, until it is stale."""

    def __init__(self, rows: ConceptRows, stream: str, sources: Mapping[str, PushSource]) -> None:
        super().__init__(rows, np.nan, kind=np.float64)
        self._rows, self.stream = rows, stream
        attribute = stream.removeprefix(f"{rows.concept}.")
        self._stale_ms = {
            one.name: one.stale_after_ms
            for one in sources.values()
            if one.concept == rows.concept and attribute in one.attributes and one.stale_after_ms
        }
        self._columns: list[str] | None = None
        self._dues = DueTimes()
        self._last_times: Rows = NO_ROWS
        self._last_stale: Rows = NO_ROWS
        self._last_ids: Array = np.zeros(0, object)
        self._begin_step()

    def _begin_step(self) -> None:
        self.rows = self.times = self._places = NO_ROWS
        self.values: Array = self.now[:0]
        """The readings of the step in order of (row, time, id)."""
        self._stale: Rows = NO_ROWS
        self._ids: pa.Array | None = None
        self.in_order: tuple[Rows, Rows, Array] = (NO_ROWS, NO_ROWS, self.values)
        """The same in order of (time, id): rows, times, values."""
        self._is_newest: Mask = np.zeros(0, np.bool_)

    def load(self, readings: pa.RecordBatch) -> None:
        """Takes the readings of the step that are of this stream, in order of (time, id)."""
        if self._columns is None:
            self._note_kind(readings)
        is_own = pc.equal(readings.column("stream"), self.stream)
        if not is_own.true_count:
            return
        if is_own.true_count < len(readings):
            readings = readings.filter(is_own)
        codes = self._rows.identities.encode(readings.column("key"))
        order = order_of_rows(codes, self._rows.size)
        self.rows, self._places = codes[order], order
        times, values = readings.column("time").to_numpy(), self._values(readings)
        self.in_order = codes, times, values
        self.times, self.values = times[order], values[order]
        self._ids = readings.column("id")
        if self._stale_ms:
            encoded = readings.column("source").dictionary_encode()
            names = encoded.dictionary.to_pylist()
            durations = np.array([self._stale_ms.get(name, 0) for name in names], np.int64)
            self._stale = durations[encoded.indices.to_numpy()][order]

    def compute(self, step: Step) -> Points:
        self._grow_last()
        self._is_newest = last_of_runs(self.rows)
        if len(self.rows):
            self._is_newest[:-1] |= self.times[1:] != self.times[:-1]
        newest = self._is_newest
        if not newest.all():
            shown = Points(self.rows[newest], self.times[newest], self.values[newest])
        else:
            shown = Points(self.rows, self.times, self.values)
        if not self._stale_ms:
            return shown
        return merged_points(step, [shown, self._expired(step, shown.rows, shown.times)])

    def _expired(self, step: Step, rows: Rows, times: Rows) -> Points:
        """The points at which a value becomes stale."""
        stale = self._stale[self._is_newest]
        ends = np.where(stale > 0, times + stale, step.end)
        nexts = np.full(len(rows), step.end, np.int64)
        is_last = last_of_runs(rows)
        nexts[:-1] = np.where(is_last[:-1], step.end, times[1:])
        later = is_last & (stale > 0) & (ends >= step.end)
        self._dues.add(rows[later], ends[later])
        gone = ends < nexts
        found = [(rows[gone], ends[gone])]
        before = distinct(np.concatenate((rows, self._dues.take_before(step.end))))
        durations = self._last_stale[before]
        before = before[durations > 0]
        ends = self._last_times[before] + self._last_stale[before]
        nexts = np.full(len(before), step.end, np.int64)
        if len(rows):
            first = first_of_runs(rows)
            places = np.searchsorted(rows[first], before)
            own = places < int(first.sum())
            own[own] = rows[first][places[own]] == before[own]
            nexts[own] = times[first][places[own]]
        gone = (ends < nexts) & (ends >= step.begin)
        found.append((before[gone], ends[gone]))
        rows, times = union(step, found)
        return Points(rows, times, self._missing(len(rows)))

    def commit(self, step: Step) -> None:
        if len(self.rows):
            last = last_of_runs(self.rows)
            rows = self.rows[last]
            assert self._ids is not None
            self._last_times[rows] = self.times[last]
            self._last_ids[rows] = self._ids.take(pa.array(self._places[last])).to_pylist()
            if self._stale_ms:
                self._last_stale[rows] = self._stale[last]
        super().commit(step)
        self._begin_step()

    def due(self) -> int | None:
        return self._dues.first()

    def causes(self, rows: Rows, times: Rows) -> list[Cause | None]:
        """The last reading of each row at a time within the step."""
        found: list[Cause | None] = []
        step = self._step
        assert step is not None
        keys = step.keys(self.rows, self.times)
        places = np.searchsorted(keys, step.keys(rows, times), "right") - 1
        for row, place in zip(rows.tolist(), places.tolist(), strict=True):
            if place >= 0 and self.rows[place] == row:
                assert self._ids is not None
                id = self._ids[int(self._places[place])].as_py()
                found.append((int(self.times[place]), id))
            elif self._last_ids[row] is not None:
                found.append((int(self._last_times[row]), self._last_ids[row]))
            else:
                found.append(None)
        return found

    def ids(self, places: Rows) -> Array:
        """The ids of readings of the step, by their place in `rows`."""
        found = np.empty(len(places), object)
        if len(places):
            assert self._ids is not None
            found[:] = self._ids.take(pa.array(self._places[places])).to_pylist()
        return found

    def instants(self) -> tuple[Rows, Rows]:
        """The distinct (row, time) of the readings of the step."""
        return self.rows[self._is_newest], self.times[self._is_newest]

    def state(self) -> dict[str, Any]:
        used = self._rows.size
        self._grow_last()
        return super().state() | {
            "times": self._last_times[:used],
            "ids": self._last_ids[:used],
            "stale": self._last_stale[:used],
        }

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._last_times, self._last_ids = state["times"], state["ids"]
        self._last_stale = state["stale"]
        if self.now.dtype == object:
            self.fill = None
        rows = np.flatnonzero(self._last_stale > 0)
        self._dues.clear()
        self._dues.add(rows, self._last_times[rows] + self._last_stale[rows])
        self._none = Points(NO_ROWS, NO_ROWS, self.now[:0])
        self._begin_step()

    def _grow_last(self) -> None:
        had, size = len(self._last_times), self._rows.size
        if had < size:
            size = max(size, had + had // 2)
            self._last_times = widened(self._last_times, size)
            self._last_times[had:] = NEVER
            self._last_ids = widened(self._last_ids, size)
            self._last_stale = widened(self._last_stale, size)

    def _note_kind(self, readings: pa.RecordBatch) -> None:
        prefix = f"{self.stream}."
        names = [name for name in readings.schema.names if name.startswith(prefix)]
        self._columns = [name for name in names if "." not in name[len(prefix) :]]
        kinds = [readings.schema.field(name).type for name in self._columns]
        kind = np.float64 if kinds and all(pa.types.is_floating(one) for one in kinds) else object
        shape = (len(self.now),) if len(kinds) < 2 else (len(self.now), len(kinds))
        if self.now.dtype != kind or self.now.shape != shape:
            self.fill = np.nan if kind is np.float64 else None
            self.now = np.full(shape, self.fill, kind)
            self._base = self.now.copy() if self.history_ms else self.now
            self._none = Points(NO_ROWS, NO_ROWS, self.now[:0])
            self.points = self.fresh = self._none
            self.values = self.now[:0]

    def _values(self, readings: pa.RecordBatch) -> Array:
        assert self._columns is not None
        parts = [readings.column(name).to_numpy(zero_copy_only=False) for name in self._columns]
        found = parts[0] if len(parts) == 1 else np.column_stack(parts)
        return found if self.now.dtype != object else found.astype(object)

    def _missing(self, count: int) -> Array:
        return np.full((count, *self.now.shape[1:]), self.fill, self.now.dtype)


class IdentityTexts(Trace):
    """`id of X`: the identity of a known instance."""

    def __init__(self, rows: ConceptRows, known: KnownRows) -> None:
        super().__init__(rows, None, kind=object)
        self._rows, self._known = rows, known

    def compute(self, step: Step) -> Points:
        rows, times, values = self._known.fresh
        texts = self._rows.identities.texts(rows)
        texts[values != TRUE] = None
        return Points(rows, times, texts)


class TableValues(Trace):
    """The value of an attribute that tables give; `id` is the identity."""

    def __init__(self, rows: ConceptRows, attribute: str) -> None:
        self._rows, self._attribute = rows, attribute
        super().__init__(rows, None, kind=object)
        self._fit(rows.identities.values(attribute, NO_ROWS))

    def compute(self, step: Step) -> Points:
        new = self._rows.new_rows
        rows = np.arange(self._rows.size) if self._rows.tables_changed else new
        if not len(rows):
            return self._none
        values = self._rows.identities.values(self._attribute, rows)
        values = values[:, 0] if values.shape[1] == 1 else values
        self._fit(values)
        differ = ~same_values(values, self.now[rows])
        rows, values = rows[differ], values[differ]
        return Points(rows, np.full(len(rows), step.begin, np.int64), values)

    def _fit(self, values: Array) -> None:
        """Takes the type of the column, which other tables may change."""
        values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
        if values.dtype == self.now.dtype and values.shape[1:] == self.now.shape[1:]:
            return
        self.fill = None if values.dtype == object else np.nan
        shape = (len(self.now), *values.shape[1:])
        known = self.now if shape == self.now.shape and values.dtype == object else None
        self.now = np.full(shape, self.fill, values.dtype)
        if known is not None:
            self.now[:] = known
        self._base = self.now.copy() if self.history_ms else self.now
        self._none = Points(NO_ROWS, NO_ROWS, self.now[:0])
        self.points = self.fresh = self._none

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.fill = None if self.now.dtype == object else np.nan
        self._none = Points(NO_ROWS, NO_ROWS, self.now[:0])


def same_values(left: Array, right: Array) -> Mask:
    """Which rows are equal; missing values are equal."""
    equal = np.asarray(left == right)
    if left.dtype.kind == "f" and right.dtype.kind == "f":
        equal |= np.isnan(left) & np.isnan(right)
    found: Mask = equal if equal.ndim == 1 else np.asarray(equal.all(axis=1))
    return found


class KnownRows(Trace):
    """Since when an instance is known: while a table has it; one that no table ever had, from its
    first reading of any attribute."""

    def __init__(self, rows: ConceptRows, streams: Sequence[StreamReadings]) -> None:
        super().__init__(rows, FALSE)
        self._rows, self._streams = rows, streams
        self._had_table: Mask = np.zeros(0, np.bool_)
        self._has_table: Mask = np.zeros(0, np.bool_)

    @property
    def may_be_lost(self) -> bool:
        """Whether a table lost an instance."""
        return bool((self._had_table & ~self._has_table).any())

    def compute(self, step: Step) -> Points:
        size = self._rows.size
        if len(self._had_table) < size:
            self._had_table = widened(self._had_table, size)
            self._has_table = widened(self._has_table, size)
        found = []
        if self._rows.tables_changed:
            identities = self._rows.identities
            self._has_table = identities.instances.rows(identities.ids) >= 0
            self._had_table |= self._has_table
            rows = np.flatnonzero(self._had_table)
            values = np.where(self._has_table[rows], TRUE, FALSE).astype(np.int8)
            found.append(Points(rows, np.full(len(rows), step.begin, np.int64), values))
        first = []
        for stream in self._streams:
            rows = stream.rows
            if len(rows):
                chosen = (self.now[rows] == FALSE) & ~self._had_table[rows] & first_of_runs(rows)
                first.append((rows[chosen], stream.times[chosen]))
        rows, times = union(step, first)
        chosen = first_of_runs(rows)
        rows, times = rows[chosen], times[chosen]
        found.append(Points(rows, times, np.full(len(rows), TRUE, np.int8)))
        return changes_only(merged_points(step, found), self.now)

    def state(self) -> dict[str, Any]:
        return super().state() | {"had": self._had_table, "has": self._has_table}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._had_table, self._has_table = state["had"], state["has"]


class AllowedInstances(Trace):
    """The known instances that satisfy constraints."""

    def __init__(
        self, rows: ConceptRows, known: KnownRows, constraints: tuple[Constraint, ...]
    ) -> None:
        super().__init__(rows, FALSE)
        self._rows, self._known, self._constraints = rows, known, constraints
        self._satisfied: Mask = np.zeros(0, np.bool_)

    def compute(self, step: Step) -> Points:
        rows, times, values = self._known.fresh
        if self._rows.tables_changed:
            self._satisfied = np.zeros(0, np.bool_)
        if len(self._satisfied) < self._rows.size:
            self._judge()
        if self._rows.tables_changed:
            own = np.arange(self._rows.size)
            rows, times = union(step, [(rows, times), (own, np.full(len(own), step.begin))])
            values = self._known.sample(rows, times)
        found = np.where(self._satisfied[rows], values, FALSE).astype(np.int8)
        return changes_only(Points(rows, times, found), self.now)

    @property
    def tables_changed(self) -> bool:
        return self._rows.tables_changed

    def could_hold(self) -> Mask:
        """Which rows are allowed at some time of the step, after `run`."""
        found: Mask = self.now[: self._rows.size] == TRUE
        found[self.fresh.rows[self.fresh.values == TRUE]] = True
        return found

    def _judge(self) -> None:
        identities = self._rows.identities
        had = len(self._satisfied)
        ids = identities.ids[had:]
        if not self._constraints:
            found = np.ones(len(ids), np.bool_)
        else:
            holds = satisfies(identities.instances, self._constraints)
            rows = identities.instances.rows(ids)
            found = np.zeros(len(ids), np.bool_)
            found[rows >= 0] = holds[rows[rows >= 0]]
        self._satisfied = np.concatenate((self._satisfied, found))


def is_present(values: Array) -> Mask:
    """Which rows have no missing part."""
    return complete_rows(in_parts(values))


def in_parts(values: Array) -> Array:
    """The values as (n, parts)."""
    return values if values.ndim == 2 else values[:, None]
