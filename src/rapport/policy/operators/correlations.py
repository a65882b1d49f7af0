"""Correlation terms: pairs of events of two sides. [PO-6, PO-7, PO-13]

A positive correlation consumes events: each is used once per pair of identities. Consumption
depends on the whole past, so plans share it only if their terms are equal up to names and both have
the same past: neither has seen an event of the streams, or both restored the same state. Under a
NOT, pairs are computed on demand (`absence.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from rapport.policy.language.tree import Consumption
from rapport.policy.operators.base import END_OF_TIME
from rapport.policy.operators.columns import (
    NO_ROWS,
    Array,
    Columns,
    Rows,
    Table,
    concatenate,
    rows_from,
    spread,
    take,
    with_blurs,
)
from rapport.policy.operators.deferred_terms import DeferredRowsReader, DeferredStreams
from rapport.policy.operators.identities import IdentityFilter, StreamRows
from rapport.policy.operators.occurrences import Predicate, side_rows
from rapport.policy.operators.plan_shape import is_of_tables_alone, pair_window_ms
from rapport.policy.operators.shared_cache import Horizons, IdentityFilters, SharedCache, renamed
from rapport.policy.operators.spatial import Reach, partner_rows
from rapport.policy.plan import CorrelationTerm, Plan, Side

_MOST_BOXES = 16
# A little wider than the reach: differences of points just the reach apart may be rounded apart.
_MARGIN = 1.001
_FIRST_SIDE = -1
_SECOND_SIDE = -2
_MANY_USED = 10_000


class EventQuery(NamedTuple):
    """Events that may be part of a counterexample."""

    low: int
    high: int
    """Times in [low, high)."""
    codes: Rows | None = None
    """Identities; None: any."""
    around: Table | None = None
    """For terms that hold only for near events: events to be near to; None: anywhere."""


class DeferredSide:
    """One side of a correlation under a NOT. Evaluates events only when a match queries their
    identity or area."""

    def __init__(
        self, reader: DeferredRowsReader, id_filter: IdentityFilter, reach: Reach | None
    ) -> None:
        self._reader, self._id_filter, self._reach = reader, id_filter, reach
        self._old: Columns | None = None
        """Events of a restored state, until they are out of date."""

    def query(self, query: EventQuery) -> Table | None:
        """At least the queried events in order of time, without cells; None if there are none."""
        span = self._reader.span(query.low, query.high)
        columns = self._made(query, span) if span.start < span.stop else None
        old = rows_from(self._old, query.low)
        parts = [one for one in (old, columns) if one is not None]
        return Table(concatenate(parts)) if parts else None

    def _boxes(self, around: Table) -> list[tuple[Array, Array]]:
        """The extended bounding box of each identity's events; empty if there are many
        identities, or no plane."""
        codes, points = around.columns["code"], around.columns["value"]
        distinct = np.unique(codes)
        if len(distinct) > _MOST_BOXES or self._reach is None or self._reach.space is not None:
            return []
        reach = self._reach.metres * _MARGIN
        own = [points[codes == code] for code in distinct]
        # Missing points are near nothing.
        return [(np.fmin.reduce(each) - reach, np.fmax.reduce(each) + reach) for each in own]

    def _made(self, query: EventQuery, span: slice) -> Columns | None:
        rows = self._reader.rows
        if query.codes is not None:
            places = rows.of(self._id_filter.among(query.codes), self._reader.known(), span)
            return rows.columns_at(places) if len(places) else None
        boxes = [] if query.around is None else self._boxes(query.around)
        some = rows.columns_at(rows.in_boxes(boxes, span) if boxes else span)
        allowed = self._id_filter.allowed()[some["code"]]
        return take(some, allowed) if allowed.any() else None

    def trim(self, before: int) -> None:
        """Drops restored events that ended before a time."""
        self._old = rows_from(self._old, before)

    def state(self) -> Columns | None:
        """All events that a match may still query; None if there are none."""
        floor = self._reader.earliest_time
        found = self.query(EventQuery(floor, END_OF_TIME))
        if found is None or self._reach is None:
            return None if found is None else found.columns
        return found.columns | {"cell": self._reach.cells(found.columns["value"])}

    def restore(self, columns: Columns | None) -> None:
        self._old = None
        if columns is not None:
            self._old = {name: column for name, column in columns.items() if name != "cell"}


class SideEvents:
    """The events of one side of a positive correlation, with grid cells if the term holds only for
    near events."""

    def __init__(
        self, side: Side, id_filter: IdentityFilter, reach: Reach | None, shared: SharedCache
    ) -> None:
        self.stream, self._id_filter, self._reach = side.stream or "", id_filter, reach
        self._shared = shared
        self.table: Table | None = None

    def add(self, rows: StreamRows, first: int) -> None:
        """Adds the rows that satisfy the side's constraints; `first`: the ordinal of the batch's
        first event."""
        key = (self._id_filter, self._reach)
        columns = self._shared.compute_for_rows(
            rows, key, side_rows, rows, self._id_filter, self._reach
        )
        if columns is None:
            return
        if self.table is None:
            self.table = Table({name: column[:0] for name, column in columns.items()})
        self.table.append(columns | {"event": columns["event"] + first})

    def trim(self, before: int, *, at_once: bool) -> None:
        """Drops events before a time; unless `at_once`, only when worth the work."""
        if self.table is not None:
            self.table.trim(before, at_once=at_once)


class Correlator:
    """Finds the pairs of one term. In (time, id) order each event takes an unused fitting one.

    Candidates are found in bulk; fitting pairs are processed one by one because consumption is
    sequential.
    """

    def __init__(
        self,
        term: CorrelationTerm,
        predicate: Predicate,
        window_ms: int,
        consumption: Consumption,
    ) -> None:
        self._predicate = predicate
        self._window, self._recent = window_ms, consumption == "recent"
        self._one_alias = term.first.alias == term.second.alias
        self._one_stream = term.first.stream == term.second.stream
        self._used: dict[tuple[int, int], dict[int, int]] = {}
        """By pair of identities the ordinals (with times) of consumed or skipped events."""

    def pairs(self, first: Table, second: Table) -> Columns:
        """Occurrences completed by new events, in order."""
        fits = concatenate([self._fits(first, second, True), self._fits(second, first, False)])
        newest_first = -fits["old"] if self._recent else fits["old"]
        fits = take(fits, np.lexsort((newest_first, fits["role"], fits["new"])))
        chosen = take(fits, self._take(fits))
        by_role = chosen["role"] == 0
        blurs = {"blur": chosen["blur"]} if "blur" in chosen else {}
        return blurs | {
            "first": chosen["first"],
            "second": chosen["second"],
            "end": chosen["new_time"],
            "start": chosen["old_time"],
            "event": np.where(by_role, chosen["new"], chosen["old"]),
            "other": np.where(by_role, chosen["old"], chosen["new"]),
        }

    def _fits(self, mine: Table, theirs: Table, is_first: bool) -> Columns:
        """Pairs of a new event of one side and an earlier one of the other for which the function
        holds."""
        new = {name: column[mine.first_new :] for name, column in mine.columns.items()}
        low = theirs.rows_from(new["end"] - self._window + 1)
        high = np.searchsorted(theirs.columns["event"], new["event"]).astype(np.int64)
        parts = [(NO_ROWS, NO_ROWS)]
        for owners, rows in self._candidates(theirs, new, low, high):
            sides = (new, owners), (theirs.columns, rows)
            first, second = sides if is_first else sides[::-1]
            mask = self._predicate.holds_of(*first, *second)
            parts.append((owners[mask], rows[mask]))
        owners = np.concatenate([part[0] for part in parts])
        rows = np.concatenate([part[1] for part in parts])
        codes = new["code"][owners], theirs.columns["code"][rows]
        blurs = {}
        if "blur" in new:
            blurs["blur"] = np.maximum(new["blur"][owners], theirs.columns["blur"][rows])
        return blurs | {
            "first": codes[0] if is_first else codes[1],
            "second": codes[1] if is_first else codes[0],
            "new": new["event"][owners],
            "old": theirs.columns["event"][rows],
            "new_time": new["end"][owners],
            "old_time": theirs.columns["end"][rows],
            "role": np.full(len(owners), 0 if is_first else 1),
        }

    def _candidates(
        self, theirs: Table, new: Columns, low: Rows, high: Rows
    ) -> Iterator[tuple[Rows, Rows]]:
        if not self._one_alias:
            return partner_rows(theirs, new.get("cell"), self._predicate.reach, low, high)
        owners, places = spread(*theirs.find("code", new["code"], low, high))
        return iter([(owners, theirs.rows_at("code", places))])

    def _take(self, fits: Columns) -> Rows:
        """Consumes fitting pairs in order of arrival, oldest (or newest) partner first."""
        taken = []
        names = ("first", "second", "role", "new", "old", "new_time", "old_time")
        rows = zip(*(fits[name].tolist() for name in names), strict=True)
        for number, (first, second, role, new, old, new_time, old_time) in enumerate(rows):
            used = self._used.setdefault((first, second), {})
            if new in used or old in used:
                continue
            if self._recent:
                # One mark means: this and all older events of that side are consumed.
                same = self._one_stream and first == second
                mark = _FIRST_SIDE if same or role == 1 else _SECOND_SIDE  # the side of `old`
                if old <= used.get(mark, -1):
                    continue
                used[mark] = old
            used[new], used[old] = new_time, old_time
            taken.append(number)
        return np.array(taken, np.int64)

    def trim(self, before: int) -> None:
        """Drops events consumed before a time: they are out of every window."""
        for pair, used in list(self._used.items()):
            kept = {event: time for event, time in used.items() if event < 0 or time >= before}
            if any(event >= 0 for event in kept):
                self._used[pair] = kept
            else:
                del self._used[pair]

    def size(self) -> int:
        """Remembered entries."""
        return sum(map(len, self._used.values()))

    def state(self) -> list[Any]:
        return [[first, second, used] for (first, second), used in self._used.items()]

    def restore(self, state: list[Any]) -> None:
        self._used = {(first, second): dict(used) for first, second, used in state}


class SharedPairs:
    """The recent events of both sides of a correlation and their consumption, shared by readers.
    Costs one pass per batch, independent of the number of readers."""

    def __init__(self, first: SideEvents, second: SideEvents, correlator: Correlator) -> None:
        self.sides, self.correlator = (first, second), correlator
        self.readers = Horizons()
        self.is_unused = True
        """True until an event arrives after creation or restore."""
        self._batch = -1
        self._taken: set[str] = set()
        self._found: Columns | None = None
        self._is_walked = False
        self._error: Exception | None = None
        self._marked = 0

    def begin_batch(self, batch: int) -> None:
        """Moves to a batch unless another reader has."""
        if batch != self._batch:
            self._batch, self._found, self._is_walked = batch, None, False
            self._taken.clear()
            for side in self.sides:
                if side.table is not None:
                    side.table.settle()

    def take(self, stream: str, rows: StreamRows, first: int, shared: SharedCache) -> None:
        """Adds the batch's events of a stream unless another reader has."""
        sides = [side for side in self.sides if side.stream == stream]
        if stream in self._taken:
            shared.wanted += len(sides)
        elif sides:
            self._taken.add(stream)
            self.is_unused = False
            for side in sides:
                side.add(rows, first)

    def completed(self, shared: SharedCache) -> Columns | None:
        """The occurrences that the batch completes by consuming events; None if the batch has none.
        An error is raised for every reader."""
        if self._error is not None:
            raise self._error
        first, second = self.sides[0].table, self.sides[1].table
        if first is None or second is None:
            return None
        if first.first_new == len(first) and second.first_new == len(second):
            return None
        shared.wanted += 1
        if not self._is_walked:
            self._is_walked = True
            shared.computed += 1
            self._walk(first, second)
        return self._found

    def trim(self, *, at_once: bool) -> None:
        """Drops what no reader needs; unless `at_once`, only when worth it."""
        before = self.readers.passed(at_once=at_once)
        if before is None:
            return
        for side in self.sides:
            side.trim(before, at_once=at_once)
        if at_once or self.correlator.size() > 2 * self._marked + _MANY_USED:
            self.correlator.trim(before)
            self._marked = max(self.correlator.size(), self._marked)

    def state(self) -> dict[str, Any]:
        tables = [side.table for side in self.sides]
        return {
            "sides": [None if table is None else table.columns for table in tables],
            "used": self.correlator.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        for side, saved in zip(self.sides, state["sides"], strict=True):
            side.table = None if saved is None else Table(saved)
        self.correlator.restore(state["used"])

    def _walk(self, first: Table, second: Table) -> None:
        try:
            self._found = self.correlator.pairs(first, second)
        except Exception as error:
            self._error = error
            raise
        for column in self._found.values():
            column.flags.writeable = False


class SharedPairsReader:
    """One operator's view of shared pairs."""

    def __init__(self, key: Hashable, make: Callable[[], SharedPairs], shared: SharedCache) -> None:
        """`key`: everything the pairs depend on besides readings; None: not shared."""
        self._key, self._make, self._shared = key, make, shared
        self.restore(None)

    def restore(self, state: dict[str, Any] | None) -> None:
        """Restores a state, shared with other operators that restore the same."""
        self.common = self._shared.join(self._key, self._make, state)
        self._horizon = self.common.readers.add()

    def release_before(self, time: int) -> None:
        """This operator no longer needs events before a time."""
        self.common.readers.move(self._horizon, time)


class Correlations:
    """The correlation terms of one plan, by term and side."""

    def __init__(
        self, plan: Plan, id_filters: IdentityFilters, streams: DeferredStreams, shared: SharedCache
    ) -> None:
        self._plan, self._id_filters = plan, id_filters
        self._streams, self._shared = streams, shared
        self.terms: dict[int, int] = {}
        """The maximal distance of the events of a pair, by term."""
        self._deferred: dict[tuple[int, int], DeferredSide] = {}
        """Terms that occur only under a NOT."""
        self._pairs: dict[int, SharedPairsReader] = {}
        """Positive terms."""

    def add(
        self,
        number: int,
        term: CorrelationTerm,
        predicate: Predicate,
        around: Hashable,
        *,
        uses_up: bool,
    ) -> None:
        """Keeps the events of a term; `around`: identifies its rows among plans."""
        window_ms = self.terms[number] = pair_window_ms(self._plan, term)
        if not uses_up:
            for place, side in enumerate((term.first, term.second)):
                reader, id_filter = self._streams.of(side.stream or ""), self._id_filters.of(side)
                self._deferred[number, place] = DeferredSide(reader, id_filter, predicate.reach)
            return
        key: Hashable = None
        if is_of_tables_alone(term):
            [blank], _ = renamed([replace(term, window_ms=window_ms)])
            key = (SharedPairs, blank, self._plan.consumption, around)
        make = partial(self._make_pairs, term, predicate, window_ms)
        self._pairs[number] = SharedPairsReader(key, make, self._shared)

    def _side(self, term: CorrelationTerm, place: int, predicate: Predicate) -> SideEvents:
        side = (term.first, term.second)[place]
        return SideEvents(side, self._id_filters.of(side), predicate.reach, self._shared)

    def _make_pairs(
        self, term: CorrelationTerm, predicate: Predicate, window_ms: int
    ) -> SharedPairs:
        correlator = Correlator(term, predicate, window_ms, self._plan.consumption)
        first, second = (self._side(term, place, predicate) for place in (0, 1))
        return SharedPairs(first, second, correlator)

    def common(self, term: int) -> SharedPairs:
        """The shared pairs of a positive term."""
        return self._pairs[term].common

    def window_ms(self, term: int) -> int:
        """The maximal distance of the events of a pair."""
        return self.terms[term]

    def query_side(self, term: int, place: int, query: EventQuery) -> Table | None:
        """At least the queried events of the first (0) or second (1) side of a term under a NOT;
        None if there are none."""
        pairs = self._pairs.get(term)
        if pairs is None:
            return self._deferred[term, place].query(query)
        return pairs.common.sides[place].table

    def settle(self) -> None:
        """Marks all events as old."""
        for pairs in self._pairs.values():
            pairs.common.begin_batch(self._shared.batch)

    def take(self, stream: str, rows: StreamRows, first: int) -> None:
        """Adds the events of a stream; `first`: the ordinal of the batch's first event."""
        for pairs in self._pairs.values():
            pairs.common.take(stream, rows, first, self._shared)

    def completed(self) -> Iterator[tuple[int, Columns]]:
        """Terms with the occurrences that new events complete."""
        for number, pairs in self._pairs.items():
            found = pairs.common.completed(self._shared)
            if found is not None:
                yield number, found

    def release_before(self, time: int) -> None:
        """This plan no longer needs events before a time."""
        for pairs in self._pairs.values():
            pairs.release_before(time)

    def trim(self, before: int, *, at_once: bool) -> None:
        """Drops events before a time; unless `at_once`, only when worth the work."""
        for deferred in self._deferred.values():
            deferred.trim(before)
        for pairs in self._pairs.values():
            pairs.release_before(before)
            pairs.common.trim(at_once=at_once)

    def state(self) -> dict[str, Any]:
        """The full state, so that each plan can continue without the others."""
        pairs = {number: pairs.common.state() for number, pairs in self._pairs.items()}
        sides = {f"{term}.{place}": side.state() for (term, place), side in self._deferred.items()}
        for number, own in pairs.items():
            sides |= {f"{number}.{place}": own["sides"][place] for place in (0, 1)}
        return {
            "sides": {name: columns for name, columns in sides.items() if columns is not None},
            "used": {str(number): own["used"] for number, own in pairs.items()},
        }

    def restore(self, state: dict[str, Any], *, blurred: bool) -> None:

        def saved(number: int, place: int) -> Columns | None:
            columns = state["sides"].get(f"{number}.{place}")
            return None if columns is None else with_blurs(columns, blurred)

        for (number, place), deferred in self._deferred.items():
            deferred.restore(saved(number, place))
        for number, pairs in self._pairs.items():
            sides = [saved(number, place) for place in (0, 1)]
            pairs.restore({"sides": sides, "used": state["used"][str(number)]})
