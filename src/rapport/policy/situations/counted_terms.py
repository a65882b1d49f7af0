"""`count of (TERM) in the last D`: the readings at which a term was true."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rapport.core.detection import Cause
from rapport.policy.operators.columns import NO_ROWS, Array, Rows
from rapport.policy.situations.present_values import StreamReadings
from rapport.policy.situations.traces import (
    NEVER,
    TRUE,
    Points,
    RowIndex,
    Source,
    Step,
    Trace,
    TraceScope,
    renumbering,
)
from rapport.policy.situations.truth_traces import running_totals

_MOST_CHUNKS = 256


class TermAtReadings(NamedTuple):
    """A term to evaluate at readings: with the value of each, and the present values of everything
    else at its time."""

    parts: tuple[TermAtReadings, ...]
    function: Callable[..., Any] | None
    source: Source | None
    stream: StreamReadings | None
    """Whose readings give the value, if they are those that are counted."""

    def at(self, counted: StreamReadings, rows: Rows, times: Rows, values: Array) -> Any:
        if self.stream is counted:
            return values
        if self.source is not None:
            return self.source.sample(rows, times)
        assert self.function is not None
        return self.function(*(part.at(counted, rows, times, values) for part in self.parts))


class ReadingColumns(NamedTuple):
    """Readings of one stream."""

    rows: Rows
    times: Rows
    ids: Array
    values: Array

    def take(self, chosen: Any) -> ReadingColumns:
        return ReadingColumns(*(column[chosen] for column in self))


class RecentReadings:
    """The readings of a stream within the history, for rows that are added later."""

    def __init__(self, stream: StreamReadings) -> None:
        self.stream = stream
        self._chunks: list[ReadingColumns] = []

    def of(self, rows: Rows, since: int) -> ReadingColumns | None:
        """Those of some instances since a time; costs a pass over all."""
        if not self._chunks:
            return None
        self._join()
        found = self._chunks[0]
        return found.take((found.times >= since) & np.isin(found.rows, rows))

    def turn(self, since: int) -> None:
        """Adds the readings of the step, and drops those before a time."""
        stream = self.stream
        if len(stream.rows):
            ids = stream.ids(np.arange(len(stream.rows)))
            self._chunks.append(ReadingColumns(stream.rows, stream.times, ids, stream.values))
        if len(self._chunks) > _MOST_CHUNKS:
            self._join()
            [whole] = self._chunks
            self._chunks = [whole.take(whole.times >= since)]
        while self._chunks and self._chunks[0].times.max(initial=NEVER) < since:
            del self._chunks[0]

    def _join(self) -> None:
        if len(self._chunks) > 1:
            columns = zip(*self._chunks, strict=True)
            self._chunks = [ReadingColumns(*(np.concatenate(column) for column in columns))]

    def state(self) -> list[list[Array]]:
        return [list(chunk) for chunk in self._chunks]

    def restore(self, state: Sequence[Sequence[Array]]) -> None:
        self._chunks = [ReadingColumns(*chunk) for chunk in state]


class CountedReadings(Trace):
    """The number of readings in the window at which the term was true."""

    def __init__(
        self,
        scope: TraceScope,
        index: RowIndex | None,
        streams: Sequence[StreamReadings],
        term: TermAtReadings,
        known: Source,
        window_ms: int,
        history_ms: int,
    ) -> None:
        """`index`: the instance whose readings are counted, for each row; None: the row.
        `history_ms`: how long before a step a row that is added in it may begin.
        """
        super().__init__(scope, np.nan, kind=np.float64)
        self._index, self._streams, self._term = index, streams, term
        self._known, self._window = known, window_ms
        self._rows: Rows = NO_ROWS
        self._times: Rows = NO_ROWS
        self._ids: Array = np.zeros(0, object)
        """The counted readings of the window, by (time, id)."""
        self._recent = [] if index is None else [RecentReadings(each) for each in streams]
        self._recent_ms = history_ms

    def compute(self, step: Step) -> Points:
        new = [self._counted(stream) for stream in self._streams]
        past_rows, past_times, past_ids = self._counted_before(step)
        for recent in self._recent:
            recent.turn(step.end - self._recent_ms)
        rows, times, ids = (np.concatenate(column) for column in zip(*new, strict=True))
        order = np.lexsort((ids.astype(str), times)) if len(ids) else NO_ROWS
        self._rows = np.concatenate([self._rows, rows[order]])
        self._times = np.concatenate([self._times, times[order]])
        self._ids = np.concatenate([self._ids, ids[order]])
        low, high = np.searchsorted(
            self._times, [step.begin - self._window, step.end - self._window]
        )
        left = slice(int(low), int(high))
        ended = past_times + self._window < step.end
        all_rows = np.concatenate([rows[order], past_rows, self._rows[left], past_rows[ended]])
        entered = np.concatenate([times[order], past_times])
        instants = np.concatenate([self._times[left], past_times[ended]]) + self._window
        signs = np.repeat(np.array([1, -1], np.int64), [len(entered), len(instants)])
        instants = np.concatenate([entered, instants])
        if len(past_rows):
            self._merge_counted(past_rows, past_times, past_ids)
        known = self._known.fresh
        begun = known.take(known.values == TRUE)
        all_rows = np.concatenate([all_rows, begun.rows, self.scope.new_rows])
        instants = np.concatenate([instants, begun.times, self.scope.new_since])
        more = len(begun.rows) + len(self.scope.new_rows)
        signs = np.concatenate([signs, np.zeros(more, np.int64)])
        if not len(all_rows):
            return self._none
        order = np.argsort(step.keys(all_rows, instants), kind="stable")
        all_rows, instants, signs = all_rows[order], instants[order], signs[order]
        before = np.where(np.isnan(self.now), 0, self.now).astype(np.int64)
        totals = running_totals(all_rows, signs, before).astype(np.float64)
        last = np.ones(len(all_rows), np.bool_)
        last[:-1] = (all_rows[1:] != all_rows[:-1]) | (instants[1:] != instants[:-1])
        found = Points(all_rows[last], instants[last], totals[last])
        found.values[self._known.sample(found.rows, found.times) != TRUE] = np.nan
        return found

    def _merge_counted(self, rows: Rows, times: Rows, ids: Array) -> None:
        """Adds readings from before the step."""
        rows = np.concatenate([rows, self._rows])
        times, ids = np.concatenate([times, self._times]), np.concatenate([ids, self._ids])
        order = np.lexsort((ids.astype(str), times))
        self._rows, self._times, self._ids = rows[order], times[order], ids[order]

    def _counted_before(self, step: Step) -> tuple[Rows, Rows, Array]:
        """The readings from before the step that count for rows that it adds."""
        nothing = NO_ROWS, NO_ROWS, np.zeros(0, object)
        new = self.scope.new_rows
        if self._index is None or not len(new):
            return nothing
        begun = np.full(self.scope.size, step.end, np.int64)
        begun[new] = self.scope.new_since
        found = [nothing]
        for recent in self._recent:
            own = recent.of(self._index.targets(new), int(self.scope.new_since.min()))
            if own is None:
                continue
            places, rows = self._index.find(own.rows)
            chosen = own.times[places] >= begun[rows]
            places, rows = places[chosen], rows[chosen]
            times = own.times[places]
            if len(rows):
                holds = self._term.at(recent.stream, rows, times, own.values[places]) == TRUE
                found.append((rows[holds], times[holds], own.ids[places[holds]]))
        rows, times, ids = (np.concatenate(column) for column in zip(*found, strict=True))
        return rows, times, ids

    def _counted(self, stream: StreamReadings) -> tuple[Rows, Rows, Array]:
        """The readings of the step that count: rows, times and ids."""
        rows, times, values = stream.rows, stream.times, stream.values
        places = np.arange(len(rows))
        if self._index is not None:
            places, rows = self._index.find(rows)
            times, values = times[places], values[places]
        if not len(rows):
            return NO_ROWS, NO_ROWS, np.zeros(0, object)
        holds = self._term.at(stream, rows, times, values) == TRUE
        chosen = np.flatnonzero(holds)
        return rows[chosen], times[chosen], stream.ids(places[chosen])

    def commit(self, step: Step) -> None:
        gone = int(np.searchsorted(self._times, step.end - self._window))
        if gone:
            self._rows, self._times = self._rows[gone:], self._times[gone:]
            self._ids = self._ids[gone:]
        super().commit(step)

    def due(self) -> int | None:
        step = self._step
        assert step is not None
        place = int(np.searchsorted(self._times, step.end - self._window))
        return int(self._times[place]) + self._window if place < len(self._times) else None

    def causes(self, rows: Rows, times: Rows) -> list[Cause | None]:
        """The newest reading counted of each row at a time."""
        found: list[Cause | None] = []
        for row, time in zip(rows.tolist(), times.tolist(), strict=True):
            low, high = np.searchsorted(self._times, [time - self._window + 1, time + 1])
            own = np.flatnonzero(self._rows[low:high] == row)
            place = int(low) + int(own[-1]) if len(own) else -1
            found.append((int(self._times[place]), self._ids[place]) if len(own) else None)
        return found

    def keep_rows(self, kept: Rows) -> None:
        rows = renumbering(kept, self.scope.size)[self._rows]
        chosen = rows >= 0
        self._rows, self._times = rows[chosen], self._times[chosen]
        self._ids = self._ids[chosen]
        super().keep_rows(kept)

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = {"rows": self._rows, "times": self._times, "ids": self._ids}
        if self._recent:
            found["recent"] = [recent.state() for recent in self._recent]
        return super().state() | found

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._rows, self._times, self._ids = state["rows"], state["times"], state["ids"]
        for recent, saved in zip(self._recent, state.get("recent", ()), strict=False):
            recent.restore(saved)
