"""One side of a correlation under a NOT: of the events kept, those a match asks about. [PO-6]"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rapport.policy.runners.base import END_OF_TIME
from rapport.policy.runners.operators.identities import IdentityFilter
from rapport.policy.runners.operators.later_streams import DeferredRowsReader
from rapport.policy.runners.operators.near import cells_of
from rapport.policy.runners.operators.table import Array, Columns, Rows, Table, concatenate, take

_MOST_BOXES = 16
# A little wider than the reach: differences of points just the reach apart may be rounded apart.
_MARGIN = 1.001


class EventQuery(NamedTuple):
    """Events that may be part of a counterexample."""

    low: int
    high: int
    """With times in [low, high)."""
    codes: Rows | None = None
    """Of these identities; None: of any."""
    around: Table | None = None
    """Where the term holds of near events only: near one of these; None: anywhere."""


class DeferredSide:
    """Nothing is made of an event before a match asks for its identity, or for what is near."""

    def __init__(
        self, reader: DeferredRowsReader, leaf: IdentityFilter, reach: float | None
    ) -> None:
        self._reader, self._leaf, self._reach = reader, leaf, reach
        self._old: Columns | None = None
        """Of the state that was taken over, until none of it matters any more."""

    def asked(self, asked: EventQuery) -> Table | None:
        """Events in order of time, among them all that are asked for, without the cells they lie
        in; None when there is none.
        """
        span = self._reader.span(asked.low, asked.high)
        columns = self._made(asked, span) if span.start < span.stop else None
        old = self._old_from(asked.low)
        parts = [one for one in (old, columns) if one is not None]
        return Table(concatenate(parts)) if parts else None

    def _boxes(self, around: Table) -> list[tuple[Array, Array]]:
        """By identity where its events lie, and what is near them; none where these are many."""
        codes, points = around.columns["code"], around.columns["value"]
        distinct = np.unique(codes)
        if len(distinct) > _MOST_BOXES:
            return []
        reach = float(self._reach or 0.0) * _MARGIN
        own = [points[codes == code] for code in distinct]
        # Points that are missing are near nothing.
        return [(np.fmin.reduce(each) - reach, np.fmax.reduce(each) + reach) for each in own]

    def _made(self, asked: EventQuery, span: slice) -> Columns | None:
        rows = self._reader.rows
        if asked.codes is not None:
            places = rows.of(self._leaf.among(asked.codes), self._reader.known(), span)
            return rows.columns_at(places) if len(places) else None
        boxes = [] if asked.around is None or self._reach is None else self._boxes(asked.around)
        some = rows.columns_at(rows.in_boxes(boxes, span) if boxes else span)
        allowed = self._leaf.allowed()[some["code"]]
        return take(some, allowed) if allowed.any() else None

    def _old_from(self, low: int) -> Columns | None:
        old = self._old
        if old is None:
            return None
        stale = int(np.searchsorted(old["end"], low))
        return take(old, slice(stale, None)) if stale < len(old["end"]) else None

    def trim(self, before: int) -> None:
        """Forgets what was taken over and ended before a time."""
        self._old = self._old_from(before)

    def state(self) -> Columns | None:
        """All events that a match may yet ask for; None when there is none."""
        floor = self._reader.reaches_back_to
        found = self.asked(EventQuery(floor, END_OF_TIME))
        if found is None or self._reach is None:
            return None if found is None else found.columns
        return found.columns | {"cell": cells_of(found.columns["value"], self._reach)}

    def restore(self, columns: Columns | None) -> None:
        """Takes over what `state` gave."""
        self._old = None
        if columns is not None:
            self._old = {name: column for name, column in columns.items() if name != "cell"}
