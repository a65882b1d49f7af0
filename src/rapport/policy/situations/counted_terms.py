"""`count of (TERM) in the last D`: the readings at which a term was true."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rapport.core.detection import Cause
from rapport.policy.operators.columns import NO_ROWS, Array, Rows
from rapport.policy.situations.present_values import StreamReadings
from rapport.policy.situations.traces import (
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
    ) -> None:
        """`index`: the instance whose readings are counted, for each row; None: the row."""
        super().__init__(scope, np.nan, kind=np.float64)
        self._index, self._streams, self._term = index, streams, term
        self._known, self._window = known, window_ms
        self._rows: Rows = NO_ROWS
        self._times: Rows = NO_ROWS
        self._ids: Array = np.zeros(0, object)
        """The counted readings of the window, by (time, id)."""

    def compute(self, step: Step) -> Points:
        new = [self._counted(step, stream) for stream in self._streams]
        rows, times, ids = (np.concatenate(column) for column in zip(*new, strict=True))
        order = np.lexsort((ids.astype(str), times)) if len(ids) else NO_ROWS
        self._rows = np.concatenate([self._rows, rows[order]])
        self._times = np.concatenate([self._times, times[order]])
        self._ids = np.concatenate([self._ids, ids[order]])
        low, high = np.searchsorted(
            self._times, [step.begin - self._window, step.end - self._window]
        )
        left = slice(int(low), int(high))
        all_rows = np.concatenate([rows[order], self._rows[left]])
        instants = np.concatenate([times[order], self._times[left] + self._window])
        signs = np.concatenate(
            [np.ones(len(order), np.int64), np.full(int(high - low), -1, np.int64)]
        )
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

    def _counted(self, step: Step, stream: StreamReadings) -> tuple[Rows, Rows, Array]:
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
        return super().state() | {"rows": self._rows, "times": self._times, "ids": self._ids}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._rows, self._times, self._ids = state["rows"], state["times"], state["ids"]
