"""Deferred terms: terms that only absence mentions and that a single event satisfies. They are
evaluated when a match queries them. [PO-6, PO-13]

Rows are kept as they came. Waiting batches are merged a few at a time, so a query scans one
contiguous range and a row that is never queried is copied at most once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping

import numpy as np

from rapport.policy.operators.base import BEGIN_OF_TIME, END_OF_TIME
from rapport.policy.operators.columns import (
    NO_ROWS,
    Array,
    Columns,
    Mask,
    Rows,
    Table,
    concatenate,
    count,
    rows_from,
    take,
)
from rapport.policy.operators.identities import Identities, IdentityFilter, StreamRows
from rapport.policy.operators.occurrences import (
    Predicate,
    QueryTerms,
    query_occurrences,
    reading_occurrences,
)
from rapport.policy.operators.shared_cache import Horizons, IdentityFilters, SharedCache
from rapport.policy.operators.variants import VariantMask
from rapport.policy.plan import QueryTerm, ReadingTerm, Side

_MOST_WAITING = 16
_FEW_CODES = 4
"""Up to this many comparisons are cheaper than a mask lookup per row."""
_FEW_READERS = 8
_LEAST_CAPACITY = 1_024
_NOT_YET = 1 << 62


class DeferredRows:
    """The recent rows of one stream, contiguous, for all operators that read them. Adding stores a
    reference per batch and copies when several wait; rows that no reader needs are dropped, mostly
    without having been copied. Positions are valid until the next row is added."""

    def __init__(self) -> None:
        self.readers = Horizons()
        self.floor = BEGIN_OF_TIME
        """No reader needs rows before this time."""
        self._waiting: deque[tuple[StreamRows, int]] = deque()
        self._columns: Columns = {}
        self._first = self._last = 0
        """The used range of the columns; the rest is capacity."""
        self._batch = -1

    def __len__(self) -> int:
        return self._last - self._first + sum(len(rows.times) for rows, _ in self._waiting)

    def add(self, rows: StreamRows, first: int, batch: int) -> None:
        """Keeps a batch unless another reader added it; `first`: the ordinal of its first event."""
        if batch != self._batch:
            self._batch = batch
            self.forget()
            self._waiting.append((rows, first))
            if len(self._waiting) > _MOST_WAITING:
                self._put_together()

    def forget(self) -> None:
        """Drops rows that no reader needs."""
        passed = self.readers.passed(at_once=len(self.readers) <= _FEW_READERS)
        if passed is None:
            return
        self.floor = passed
        while self._waiting and self._waiting[0][0].times[-1] < passed:
            self._waiting.popleft()
        if self._first < self._last:
            times = self._columns["end"][self._first : self._last]
            self._first += int(np.searchsorted(times, passed))

    def span(self, low: int, high: int, since: int = 0) -> slice:
        """The positions of rows with times in [low, high) and ordinals from `since` on."""
        self._put_together()
        if self._first == self._last:
            return slice(0, 0)
        rows = slice(self._first, self._last)
        times, events = self._columns["end"][rows], self._columns["event"][rows]
        start = int(np.searchsorted(times, low))
        if since > events[0]:
            start = max(start, int(np.searchsorted(events, since)))
        stop = int(np.searchsorted(times, high))
        return slice(self._first + start, self._first + max(start, stop))

    def of(self, codes: Rows, known: int, span: slice) -> Rows:
        """The positions within a range of rows of some identities; `known`: the number of codes."""
        if not len(codes) or span.start == span.stop:
            return NO_ROWS
        column = self._columns["code"][span]
        if len(codes) <= _FEW_CODES:
            mask = np.zeros(len(column), np.bool_)
            for code in codes.tolist():
                mask |= column == code
        else:
            wanted = np.zeros(known, np.bool_)
            wanted[codes] = True
            mask = wanted[column]
        return _places(mask, span)

    def in_boxes(self, boxes: list[tuple[Array, Array]], span: slice) -> Rows:
        """The positions within a range of rows whose point lies in one of the boxes (lowest corner,
        highest corner)."""
        points = self._columns["value"][span]
        mask = np.zeros(len(points), np.bool_)
        for low, high in boxes:
            mask |= _in_box(points, low, high)
        return _places(mask, span)

    def columns_at(self, places: Rows | slice) -> Columns:
        return {name: column[places] for name, column in self._columns.items()}

    def take(self, places: Rows | slice) -> StreamRows:
        """The rows at positions, with ordinals of the runner."""
        own = self._columns
        names = ("code", "end", "event", "value")
        taken = StreamRows(*(own[name][places] for name in names))
        if "blur" in own:
            taken.blurs = own["blur"][places]
        return taken

    def _put_together(self) -> None:
        if not self._waiting:
            return
        rows = concatenate([_columns_of(*each) for each in self._waiting])
        self._waiting.clear()
        many = count(rows)
        self._ensure_capacity(rows, many)
        for name, column in rows.items():
            self._columns[name][self._last : self._last + many] = column
        self._last += many

    def _ensure_capacity(self, rows: Columns, many: int) -> None:
        """Ensures capacity and a fitting type. Moves no more rows than were added since the last
        time."""
        kept, size = slice(self._first, self._last), self._last - self._first
        capacity = len(self._columns["end"]) if self._holds(rows) else 0
        if self._last + many <= capacity:
            return
        wanted = max(_LEAST_CAPACITY, 2 * (size + many))
        if wanted > capacity or wanted * 8 < capacity:
            self._columns = {
                name: _with_capacity(
                    self._columns[name][kept] if size else column[:0], column, wanted
                )
                for name, column in rows.items()
            }
        else:
            for column in self._columns.values():
                column[:size] = column[kept]
        self._first, self._last = 0, size

    def _holds(self, rows: Columns) -> bool:
        """Whether the columns can store values of these types."""
        own = self._columns
        return bool(own) and all(
            np.result_type(own[name], column) == own[name].dtype for name, column in rows.items()
        )


def _with_capacity(kept: Array, more: Array, size: int) -> Array:
    """A column with capacity that begins with `kept` and fits values like `more`."""
    made = np.empty((size, *more.shape[1:]), np.result_type(kept, more))
    made[: len(kept)] = kept
    return made


def _columns_of(rows: StreamRows, first: int) -> Columns:
    columns: Columns = {
        "code": rows.codes,
        "end": rows.times,
        "event": rows.ordinals + first,
        "value": rows.values,
    }
    return columns if rows.blurs is None else columns | {"blur": rows.blurs}


def _places(mask: Mask, span: slice) -> Rows:
    places: Rows = np.flatnonzero(mask) + span.start
    return places


def _in_box(points: Array, low: Array, high: Array) -> Mask:
    x, y = points[:, 0], points[:, 1]
    return np.asarray((x >= low[0]) & (x <= high[0]) & (y >= low[1]) & (y <= high[1]), np.bool_)


class DeferredRowsReader:
    """One operator's view of the rows of a stream, from its first batch on."""

    def __init__(self, identities: Identities, key: Hashable, shared: SharedCache) -> None:
        self._identities, self._key = identities, key
        self.renew(shared)

    def renew(self, shared: SharedCache) -> None:
        """Restarts with the next batch."""
        self.rows: DeferredRows = shared.get_or_make(self._key, DeferredRows)
        self._horizon = self.rows.readers.add()
        self.since = _NOT_YET
        """The first visible ordinal."""

    @property
    def earliest_time(self) -> int:
        """The earliest time that matches may query."""
        return self._horizon.before

    def take(self, rows: StreamRows, first: int, batch: int) -> None:
        """Keeps a batch; `first`: the ordinal of its first event."""
        self.since = min(self.since, first)
        self.rows.add(rows, first, batch)

    def release_before(self, time: int) -> None:
        """This operator no longer needs rows before a time."""
        self.rows.readers.move(self._horizon, time)

    def span(self, low: int, high: int) -> slice:
        """The positions of visible rows with times in [low, high)."""
        return self.rows.span(low, high, self.since)

    def known(self) -> int:
        """The number of identity codes."""
        return len(self._identities.ids)


class DeferredStreams:
    """The deferred streams of one operator; other streams are not kept."""

    def __init__(
        self, identities: Mapping[str, Identities], blurs: Hashable, shared: SharedCache
    ) -> None:
        """`blurs`: identifies the clock uncertainty of the rows."""
        self._identities, self._blurs, self._shared = identities, blurs, shared
        self.readers: dict[str, DeferredRowsReader] = {}

    def of(self, stream: str) -> DeferredRowsReader:
        """The rows of a stream, from now on."""
        if stream not in self.readers:
            known = self._identities[stream.partition(".")[0]]
            key = (DeferredRows, stream, known, self._blurs)
            self.readers[stream] = DeferredRowsReader(known, key, self._shared)
        return self.readers[stream]

    def take(self, stream: str, rows: StreamRows, first: int) -> None:
        """Keeps a batch of a deferred stream."""
        self.readers[stream].take(rows, first, self._shared.batch)

    def release_before(self, time: int) -> None:
        """This operator no longer needs rows before a time."""
        for reader in self.readers.values():
            reader.release_before(time)

    def renew(self) -> None:
        """Restarts with the next batch."""
        for reader in self.readers.values():
            reader.renew(self._shared)


Find = Callable[[StreamRows], Columns]
"""Computes the occurrences of rows, in order of time."""


class DeferredOccurrences:
    """The occurrences of all rows of a term, computed when all are queried; shared by operators
    with equal terms. Each row is evaluated once, and none that no match can query."""

    def __init__(self, rows: DeferredRows, find: Find, empty: Mapping[str, Array]) -> None:
        self._rows, self._find = rows, find
        self._table = Table(empty)
        self._next = 0
        """The ordinal up to which rows were evaluated or skipped."""

    def unevaluated(self, high: int) -> int:
        """The number of unevaluated rows before a time."""
        span = self._unevaluated(high)
        return int(span.stop - span.start)

    def before(self, high: int) -> Table:
        """The occurrences of all rows before a time that a match may query."""
        unevaluated = self._unevaluated(high)
        if unevaluated.start < unevaluated.stop:
            rows = self._rows.take(unevaluated)
            self._next = int(rows.ordinals[-1]) + 1
            self._table.trim(self._rows.floor)
            self._table.append(self._find(rows))
        return self._table

    def _unevaluated(self, high: int) -> slice:
        self._rows.forget()
        return self._rows.span(self._rows.floor, high, self._next)


class DeferredTerm:
    """One deferred term of one operator. If a match binds the identity of the event, only its rows
    are evaluated, unless fewer rows are left in total."""

    def __init__(
        self,
        side: Side,
        reader: DeferredRowsReader,
        id_filter: IdentityFilter,
        find: Find,
        common: Callable[[DeferredRows], DeferredOccurrences],
    ) -> None:
        """`side`: the one that events bring; `find`: computes occurrences; `common`: returns the
        shared occurrences of all rows."""
        self._alias, self._reader, self._id_filter, self._find = (
            f"@{side.alias}",
            reader,
            id_filter,
            find,
        )
        self._common, self._found = common, common(reader.rows)
        self._old: Columns | None = None
        """Occurrences of a restored state, until they are out of date."""

    def unevaluated(self, frame: Mapping[str, Array], high: int) -> int:
        """The rows to evaluate for matches that do not bind the identity of the event."""
        return 0 if self._alias in frame else self._found.unevaluated(high)

    def query(self, frame: Mapping[str, Array], low: int, high: int) -> Table:
        """At least the occurrences with times in [low, high) and the identities of the matches, in
        order of time."""
        codes = frame.get(self._alias)
        if codes is not None:
            places = self._places(codes, low, high)
            if len(places) < self._found.unevaluated(high):
                return self._with_old(self._find(self._reader.rows.take(places)), low)
        return self._seen(self._found.before(high), low)

    def _places(self, codes: Rows, low: int, high: int) -> Rows:
        reader = self._reader
        return reader.rows.of(self._id_filter.among(codes), reader.known(), reader.span(low, high))

    def _seen(self, table: Table, low: int) -> Table:
        """Without rows before this operator, and with restored occurrences."""
        events, since = table.columns["event"], self._reader.since
        if self._old is None and (not len(events) or events[0] >= since):
            return table
        start = int(np.searchsorted(events, since))
        return self._with_old(take(table.columns, slice(start, None)), low)

    def _with_old(self, columns: Columns, low: int) -> Table:
        old = rows_from(self._old, low)
        return Table(columns if old is None else concatenate([old, columns]))

    def trim(self, before: int) -> None:
        """Drops restored occurrences that ended before a time."""
        self._old = rows_from(self._old, before)

    def state(self) -> Columns:
        """The occurrences of all rows that a match may still query, evaluated now: tables may
        differ after a restore."""
        floor = self._reader.earliest_time
        found = self.query({}, floor, END_OF_TIME).columns
        return take(found, slice(int(np.searchsorted(found["end"], floor)), None))

    def restore(self, columns: Columns) -> None:
        """Restores occurrences; the stream restarts."""
        self._found = self._common(self._reader.rows)
        self._old = columns if len(columns["end"]) else None


def deferred_term(
    number: int,
    term: QueryTerm | ReadingTerm,
    predicate: Predicate,
    empty: Mapping[str, Array],
    streams: DeferredStreams,
    id_filters: IdentityFilters,
    queries: QueryTerms,
    needs: VariantMask,
    shared: SharedCache,
) -> DeferredTerm:
    """Defers a term; `empty`: the columns of its occurrences."""
    side = term.first if isinstance(term, ReadingTerm) else term.event_side
    id_filter, reader = id_filters.of(side), streams.of(side.stream or "")
    query = queries.query(term, id_filter) if isinstance(term, QueryTerm) else None
    key: Hashable = query or (term.compared, side.attribute, id_filter)
    # Shared occurrences must not keep the operator that created them.
    own_needs = needs if needs.of_term(number) is not None else None

    def find(rows: StreamRows) -> Columns:
        if query is None:
            found = reading_occurrences(rows, id_filter, predicate)
        else:
            pairs = query.lookup.find_filtered(rows, id_filter)
            found = query_occurrences(rows, query, *pairs)
        if not len(found.places):
            return dict(empty)
        return found.columns | (own_needs.of_rows(number, rows, found) if own_needs else {})

    def common(rows: DeferredRows) -> DeferredOccurrences:
        if own_needs is not None:
            return DeferredOccurrences(rows, find, empty)
        return shared.get_or_make(
            (DeferredOccurrences, rows, key), DeferredOccurrences, rows, find, empty
        )

    return DeferredTerm(side, reader, id_filter, find, common)
