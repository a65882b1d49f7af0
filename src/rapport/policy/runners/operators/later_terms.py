"""Terms that only absence mentions and that one event shows: decided when a match asks. [PO-6,
PO-13]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from rapport.policy.plan import Side
from rapport.policy.runners.base import END_OF_TIME
from rapport.policy.runners.operators.identities import IdentityFilter
from rapport.policy.runners.operators.intake import StreamRows
from rapport.policy.runners.operators.later_rows import DeferredRows
from rapport.policy.runners.operators.later_streams import DeferredRowsReader
from rapport.policy.runners.operators.table import Array, Columns, Rows, Table, concatenate, take

Find = Callable[[StreamRows], Columns]
"""The occurrences that rows are, in order of time."""


class DeferredOccurrences:
    """What all rows of a term showed, as far as somebody asked about all of them; one for all
    operators that ask the same. Each row is looked up once, and none that came before any match
    that asks.
    """

    def __init__(self, rows: DeferredRows, find: Find, empty: Mapping[str, Array]) -> None:
        self._rows, self._find = rows, find
        self._table = Table(empty)
        self._next = 0
        """The ordinal up to which rows were looked up, or passed over."""

    def unseen(self, high: int) -> int:
        """How many rows before a time are yet to be looked up."""
        span = self._unseen(high)
        return int(span.stop - span.start)

    def before(self, high: int) -> Table:
        """The occurrences of all rows before a time that somebody may ask about."""
        unseen = self._unseen(high)
        if unseen.start < unseen.stop:
            rows = self._rows.take(unseen)
            self._next = int(rows.ordinals[-1]) + 1
            self._table.trim(self._rows.floor)
            self._table.append(self._find(rows))
        return self._table

    def _unseen(self, high: int) -> slice:
        self._rows.forget()
        return self._rows.span(self._rows.floor, high, self._next)


class DeferredTerm:
    """One such term of one operator. Where a match names the identity of the event, only its rows
    are looked up, unless fewer are left of all; never more than the match asks about.
    """

    def __init__(
        self,
        side: Side,
        reader: DeferredRowsReader,
        leaf: IdentityFilter,
        find: Find,
        common: Callable[[DeferredRows], DeferredOccurrences],
    ) -> None:
        """`side`: the one that events bring; `find`: what makes occurrences of rows; `common`: what
        all rows of a stream showed, for all who ask the same.
        """
        self._alias, self._reader, self._leaf, self._find = f"@{side.alias}", reader, leaf, find
        self._common, self._found = common, common(reader.rows)
        self._old: Columns | None = None
        """Of the state that was taken over, until none of it matters any more."""

    def unseen(self, frame: Mapping[str, Array], high: int) -> int:
        """How many rows must be looked up for matches that name no identity of its event."""
        return 0 if self._alias in frame else self._found.unseen(high)

    def asked(self, frame: Mapping[str, Array], low: int, high: int) -> Table:
        """Occurrences in order of time, among them all with times in [low, high) and the identities
        that matches have.
        """
        codes = frame.get(self._alias)
        if codes is not None:
            places = self._places(codes, low, high)
            if len(places) < self._found.unseen(high):  # so there are rows
                return self._with_old(self._find(self._reader.rows.take(places)), low)
        return self._seen(self._found.before(high), low)

    def _places(self, codes: Rows, low: int, high: int) -> Rows:
        reader = self._reader
        return reader.rows.of(self._leaf.among(codes), reader.known(), reader.span(low, high))

    def _seen(self, table: Table, low: int) -> Table:
        """Without what came before this operator, and with what it took over."""
        events, since = table.columns["event"], self._reader.since
        if self._old is None and (not len(events) or events[0] >= since):
            return table
        start = int(np.searchsorted(events, since))
        return self._with_old(take(table.columns, slice(start, None)), low)

    def _with_old(self, columns: Columns, low: int) -> Table:
        old = self._old_from(low)
        return Table(columns if old is None else concatenate([old, columns]))

    def _old_from(self, low: int) -> Columns | None:
        old = self._old
        if old is None:
            return None
        stale = int(np.searchsorted(old["end"], low))
        return take(old, slice(stale, None)) if stale < len(old["end"]) else None

    def trim(self, before: int) -> None:
        """Forgets what was taken over and ended before a time."""
        self._old = self._old_from(before)

    def state(self) -> Columns:
        """The occurrences of all rows that a match may yet ask about, which are looked up now: who
        takes them over may have other tables.
        """
        floor = self._reader.reaches_back_to
        found = self.asked({}, floor, END_OF_TIME).columns
        return take(found, slice(int(np.searchsorted(found["end"], floor)), None))

    def restore(self, columns: Columns) -> None:
        """Takes over what `state` gave; its stream begins anew."""
        self._found = self._common(self._reader.rows)
        self._old = columns if len(columns["end"]) else None
