"""Rows of a stream that only absence may ask about: kept as they came until it does. [PO-6, PO-13]

However small the batches were, who asks finds the rows in one piece: batches that wait are put
behind the others a few at a time. So a question costs one look over the rows of its span, and a
row that nobody asks about costs being copied once, if at all.

The streams whose rows an operator reads only when a match asks about absence. [PO-6, PO-13]

Terms that only absence mentions and that one event shows: decided when a match asks. [PO-6,
PO-13]

The terms of a plan that wait until a match asks about their absence. [PO-6, PO-13]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any

import numpy as np

from rapport.policy.operators.base import END_OF_TIME
from rapport.policy.operators.columns import (
    Array,
    Columns,
    Mask,
    Rows,
    Table,
    concatenate,
    count,
    take,
    with_blurs,
)
from rapport.policy.operators.events import StreamRows
from rapport.policy.operators.identities import Identities, IdentityFilter
from rapport.policy.operators.occurrences import (
    QueryTerms,
    StreamOccurrences,
    TermQuery,
    query_occurrences,
    reading_occurrences,
)
from rapport.policy.operators.predicates import Predicate
from rapport.policy.operators.sharing import Horizons, IdentityFilters, SharedCache
from rapport.policy.operators.variants import VariantMask
from rapport.policy.plan import QueryTerm, ReadingTerm, Side

_MOST_WAITING = 16
_FEW_CODES = 4
"""So many comparisons are cheaper than a look into a mask for each row."""
_FEW_READERS = 8
_LEAST_ROOM = 1_024
_NO_ROWS: Rows = np.zeros(0, np.int64)


class DeferredRows:
    """The recent rows of one stream, in one piece for all operators that read them. Adding is a
    reference per batch, and a copy once some wait; what every reader has done with is forgotten,
    mostly without having been copied. Places of rows are good until the next row comes.
    """

    def __init__(self) -> None:
        self.readers = Horizons()
        self.floor = -END_OF_TIME
        """Nobody asks about what came before this time."""
        self._waiting: deque[tuple[StreamRows, int]] = deque()
        self._columns: Columns = {}
        self._first = self._last = 0
        """Which part of the columns are rows; the rest is room for more."""
        self._batch = -1

    def __len__(self) -> int:
        return self._last - self._first + sum(len(rows.times) for rows, _ in self._waiting)

    def add(self, rows: StreamRows, first: int, batch: int) -> None:
        """Keeps what a batch brings, unless another reader has brought it; `first`: the ordinal of
        the batch's first event.
        """
        if batch != self._batch:
            self._batch = batch
            self.forget()
            self._waiting.append((rows, first))
            if len(self._waiting) > _MOST_WAITING:
                self._put_together()

    def forget(self) -> None:
        """Lets go of what every reader has done with."""
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
        """The places of rows with times in [low, high) and ordinals from `since` on."""
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
        """Of a span the places of rows of some identities; `known`: how many have codes."""
        if not len(codes) or span.start == span.stop:
            return _NO_ROWS
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
        """Of a span the places of rows whose point lies in one of some boxes (lowest corner,
        highest).
        """
        points = self._columns["value"][span]
        mask = np.zeros(len(points), np.bool_)
        for low, high in boxes:
            mask |= _in_box(points, low, high)
        return _places(mask, span)

    def columns_at(self, places: Rows | slice) -> Columns:
        """The rows there, in columns."""
        return {name: column[places] for name, column in self._columns.items()}

    def take(self, places: Rows | slice) -> StreamRows:
        """The rows there; ordinals are those of the runner."""
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
        self._make_room(rows, many)
        for name, column in rows.items():
            self._columns[name][self._last : self._last + many] = column
        self._last += many

    def _make_room(self, rows: Columns, many: int) -> None:
        """Room behind the rows for some more, of a kind that holds both. What is moved is no more
        than what came since the last time.
        """
        kept, size = slice(self._first, self._last), self._last - self._first
        room = len(self._columns["end"]) if self._holds(rows) else 0
        if self._last + many <= room:
            return
        wanted = max(_LEAST_ROOM, 2 * (size + many))
        if wanted > room or wanted * 8 < room:
            self._columns = {
                name: _with_room(self._columns[name][kept] if size else column[:0], column, wanted)
                for name, column in rows.items()
            }
        else:
            for column in self._columns.values():
                column[:size] = column[kept]
        self._first, self._last = 0, size

    def _holds(self, rows: Columns) -> bool:
        """Whether there are columns for values of these kinds."""
        own = self._columns
        return bool(own) and all(
            np.result_type(own[name], column) == own[name].dtype for name, column in rows.items()
        )


def _with_room(kept: Array, more: Array, size: int) -> Array:
    """A column that begins with those kept and holds values like the others too."""
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


_NOT_YET = 1 << 62


class DeferredRowsReader:
    """The rows of one stream as one operator sees them: from the first batch it took on."""

    def __init__(self, stream: str, identities: Identities, key: Hashable) -> None:
        self.stream, self._identities, self._key = stream, identities, key
        self.renew(SharedCache())

    def renew(self, shared: SharedCache) -> None:
        """Begins with the next batch, as if none had come before."""
        self.rows: DeferredRows = shared.keep(self._key, DeferredRows)
        self._horizon = self.rows.readers.add()
        self.since = _NOT_YET
        """The ordinal from which on it sees them."""

    @property
    def reaches_back_to(self) -> int:
        """The time from which on its matches may ask about rows."""
        return self._horizon.before

    def take(self, rows: StreamRows, first: int, batch: int) -> None:
        """Keeps what a batch brings; `first`: the ordinal of its first event."""
        self.since = min(self.since, first)
        self.rows.add(rows, first, batch)

    def done_before(self, time: int) -> None:
        """No match of this operator asks about what came before a time."""
        self.rows.readers.move(self._horizon, time)

    def span(self, low: int, high: int) -> slice:
        """The places of the rows it sees with times in [low, high)."""
        return self.rows.span(low, high, self.since)

    def known(self) -> int:
        """How many identities have codes."""
        return len(self._identities.ids)


class DeferredStreams:
    """The readers of one operator; a stream that nobody asked for is not kept."""

    def __init__(
        self, identities: Mapping[str, Identities], blurs: Hashable, shared: SharedCache
    ) -> None:
        """`blurs`: what tells rows with uncertain times from others."""
        self._identities, self._blurs, self._shared = identities, blurs, shared
        self._readers: dict[str, DeferredRowsReader] = {}

    def of(self, stream: str) -> DeferredRowsReader:
        """The rows of a stream, from now on."""
        if stream not in self._readers:
            known = self._identities[stream.partition(".")[0]]
            key = (DeferredRows, stream, known, self._blurs)
            made = self._readers[stream] = DeferredRowsReader(stream, known, key)
            made.renew(self._shared)
        return self._readers[stream]

    def take(self, stream: str, rows: StreamRows, first: int) -> None:
        """Keeps what a batch brings of a stream, if somebody asked for it."""
        reader = self._readers.get(stream)
        if reader is not None:
            reader.take(rows, first, self._shared.batch)

    def done_before(self, time: int) -> None:
        """No match of this operator asks about what came before a time."""
        for reader in self._readers.values():
            reader.done_before(time)

    def renew(self) -> None:
        """Begins with the next batch, as if none had come before."""
        for reader in self._readers.values():
            reader.renew(self._shared)


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


class DeferredTerms:
    """By number the terms of one operator that only absence mentions and that one event shows."""

    def __init__(
        self,
        streams: DeferredStreams,
        leaves: IdentityFilters,
        queries: QueryTerms,
        needs: VariantMask,
        shared: SharedCache,
    ) -> None:
        self._streams, self._leaves, self._queries = streams, leaves, queries
        self._needs, self._shared = needs, shared
        self._terms: dict[int, DeferredTerm] = {}

    def __contains__(self, number: object) -> bool:
        return number in self._terms

    def put_off(
        self,
        number: int,
        term: QueryTerm | ReadingTerm,
        predicate: Predicate,
        empty: Mapping[str, Array],
    ) -> None:
        """Lets a term wait; `empty`: what its occurrences look like."""
        side = term.first if term.first.stream is not None else term.second
        leaf, reader = self._leaves.of(side), self._streams.of(side.stream or "")
        occurred: Callable[[StreamRows], StreamOccurrences]
        key: Hashable
        if isinstance(term, QueryTerm):
            asking = self._queries.asking(term, leaf)
            occurred, key = partial(_of_query, asking), asking
        else:
            occurred = partial(reading_occurrences, leaf=leaf, predicate=predicate)
            key = (term.compared, side.attribute, leaf)
        varies = self._needs.of_term(number) is not None
        needs = partial(self._needs.of_rows, number) if varies else None
        find = partial(_found, occurred, empty, needs)
        common = partial(_common, self._shared, None if varies else key, find, empty)
        self._terms[number] = DeferredTerm(side, reader, leaf, find, common)

    def unseen(self, number: int, frame: Columns, high: int) -> int:
        """How many rows must be looked up for these matches, which name no identity of its event;
        0 for other terms.
        """
        own = self._terms.get(number)
        return 0 if own is None else own.unseen(frame, high)

    def asked(self, number: int, frame: Columns, low: int, high: int) -> Table:
        """The occurrences with times in [low, high) that these matches ask about, maybe more."""
        return self._terms[number].asked(frame, low, high)

    def trim(self, before: int) -> None:
        """Forgets what was taken over and ended before a time."""
        for term in self._terms.values():
            term.trim(before)

    def state(self) -> dict[str, Columns]:
        """What `restore` takes."""
        return {str(number): term.state() for number, term in self._terms.items()}

    def restore(self, state: Mapping[str, Any], *, blurred: bool) -> None:
        """Takes over what `state` gave; the streams begin anew."""
        for number, term in self._terms.items():
            term.restore(with_blurs(state[str(number)], blurred))


def _of_query(asking: TermQuery, rows: StreamRows) -> StreamOccurrences:
    pairs = asking.question.find_for(rows, asking.leaf)
    return query_occurrences(rows, asking, *pairs)


def _found(
    occurred: Callable[[StreamRows], StreamOccurrences],
    empty: Mapping[str, Array],
    needs: Callable[[StreamRows, StreamOccurrences], Columns] | None,
    rows: StreamRows,
) -> Columns:
    found = occurred(rows)
    if not len(found.places):
        return dict(empty)
    return found.columns if needs is None else found.columns | needs(rows, found)


def _common(
    shared: SharedCache,
    key: Hashable,
    find: Find,
    empty: Mapping[str, Array],
    rows: DeferredRows,
) -> DeferredOccurrences:
    """What is found for all who ask the same; with a key of None for one alone."""
    if key is None:
        return DeferredOccurrences(rows, find, empty)
    return shared.keep((DeferredOccurrences, rows, key), DeferredOccurrences, rows, find, empty)
