"""The memory of an operator: occurrences, events that may become causes, identities; and the
renumbering of event ordinals in restored states. [PO-6, PO-7, PO-8, PO-13]

Bounded by the window and the number of identities, not by the stream.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from rapport.core.detection import Cause
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import PullData
from rapport.policy.operators.columns import (
    NO_EVENT,
    NO_ROWS,
    Array,
    Columns,
    Rows,
    Table,
    different,
    with_blurs,
)
from rapport.policy.operators.correlations import Correlations
from rapport.policy.operators.deferred_terms import DeferredStreams, DeferredTerm, deferred_term
from rapport.policy.operators.identities import Codes, Identities, IdentityFilter, StreamRows
from rapport.policy.operators.occurrences import (
    Predicate,
    QueryTerms,
    StreamOccurrences,
    facts_of_tables,
    query_occurrences,
    reading_occurrences,
    stream_rows,
    unnamed_facts,
)
from rapport.policy.operators.plan_shape import is_of_tables_alone, longest_window_ms, uncertainties
from rapport.policy.operators.shared_cache import (
    IdentityFilters,
    SharedCache,
    SharedTables,
    is_shareable,
    renamed,
)
from rapport.policy.operators.steps import OccurrenceStep, make_step
from rapport.policy.operators.variants import NEED, VariantMask, Varying
from rapport.policy.plan import (
    ConstraintTerm,
    CorrelationTerm,
    LastingTerm,
    Plan,
    QueryTerm,
    ReadingTerm,
    SilentTerm,
    StateTerm,
    TermStep,
    streams_of_term,
)

_MANY_CHUNKS = 512


class EventLog:
    """Time and id of recent events by ordinal; drops chunks that are older than the horizon.
    Ordinals are those of the runner, so batches without the plan's streams leave gaps."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._times: list[Codes] = []
        self._ids: list[pa.Array] = []
        self._ordinals: Codes | None = None
        """Ordinals of the first chunk if it was merged and has gaps; all other chunks count from
        their first."""

    def add(self, first: int, times: Codes, ids: pa.Array) -> None:
        """Adds a batch; `first`: the ordinal of its first event, larger than all before."""
        self._firsts.append(first)
        self._times.append(times)
        self._ids.append(ids)
        if len(self._firsts) > _MANY_CHUNKS:
            self._merge()

    def causes(self, ordinals: Codes) -> dict[int, Cause]:
        """Time and id of events by ordinal; reads each chunk once."""
        found: dict[int, Cause] = {}
        wanted = np.unique(ordinals)
        edges = [*np.searchsorted(wanted, self._firsts).tolist(), len(wanted)]
        for chunk, (low, high) in enumerate(pairwise(edges)):
            if low < high:
                places = self._places(chunk, wanted[low:high])
                times = self._times[chunk][places].tolist()
                ids = self._ids[chunk].take(pa.array(places)).to_pylist()
                causes = zip(times, ids, strict=True)
                found.update(zip(wanted[low:high].tolist(), causes, strict=True))
        return found

    def trim(self, before: int, *, at_once: bool = False) -> None:
        """Drops chunks with only older events; `at_once` also the older part of a chunk."""
        stale = 0
        while stale < len(self._times) and self._times[stale][-1] < before:
            stale += 1
        if stale:
            del self._firsts[:stale], self._times[:stale], self._ids[:stale]
            self._ordinals = None
        if at_once and self._times:
            older = int(np.searchsorted(self._times[0], before))
            if self._ordinals is not None:
                self._ordinals = self._ordinals[older:]
            self._firsts[0] = self._first_left(older)
            self._times[0], self._ids[0] = self._times[0][older:], self._ids[0].slice(older)

    def state(self, next_ordinal: int) -> dict[str, Any]:
        """`next_ordinal`: the ordinal of the runner's next event."""
        self._merge()
        ids = self._ids[0].to_pylist() if self._ids else []
        times = self._times[0] if self._times else NO_ROWS
        first = self._firsts[0] if self._firsts else next_ordinal
        ordinals = first if self._ordinals is None else self._ordinals
        return {"next": next_ordinal, "times": times, "ids": ids, "ordinals": ordinals}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores a state; without ordinals the last event has the one before `next`."""
        self._firsts, self._times, self._ids, self._ordinals = [], [], [], None
        if state["ids"]:
            ordinals = saved_ordinals(state)
            self.add(int(ordinals[0]), state["times"], pa.array(state["ids"], pa.string()))
            self._ordinals = None if _is_whole(ordinals) else ordinals

    def _places(self, chunk: int, ordinals: Codes) -> Codes:
        if chunk or self._ordinals is None:
            return ordinals - self._firsts[chunk]
        return np.searchsorted(self._ordinals, ordinals)

    def _first_left(self, older: int) -> int:
        if self._ordinals is None or not len(self._ordinals):
            return self._firsts[0] + older
        return int(self._ordinals[0])

    def _ordinals_of(self, chunk: int) -> Codes:
        if not chunk and self._ordinals is not None:
            return self._ordinals
        first = self._firsts[chunk]
        return np.arange(first, first + len(self._times[chunk]))

    def _merge(self) -> None:
        if len(self._firsts) > 1:
            ordinals = np.concatenate([self._ordinals_of(each) for each in range(len(self._times))])
            self._firsts = self._firsts[:1]
            self._times = [np.concatenate(self._times)]
            self._ids = [pa.concat_arrays(self._ids)]
            self._ordinals = None if _is_whole(ordinals) else ordinals


def saved_ordinals(state: dict[str, Any]) -> Codes:
    """The event ordinals of a log's state: stored, or from the first one, or (in old snapshots)
    those before the next."""
    events = len(state["ids"])
    known: Codes | int = state.get("ordinals", state["next"] - events)
    return np.arange(known, known + events) if isinstance(known, int) else known


def _is_whole(ordinals: Codes) -> bool:
    """Whether the ordinals are consecutive."""
    return not len(ordinals) or int(ordinals[-1] - ordinals[0]) == len(ordinals) - 1


class CauseSets:
    """Causes of any number and age, under negative numbers in place of an event's ordinal. Grows
    with the occurrences of steps within the windows."""

    def __init__(self) -> None:
        self._next = NO_EVENT - 1
        self._sets: dict[int, tuple[int, tuple[Cause, ...]]] = {}
        """By number, with the end of the occurrence."""

    def add(self, ends: Array, causes: Iterable[tuple[Cause, ...]]) -> Rows:
        """Adds the causes of occurrences, roughly in order of ends; returns their numbers."""
        first = self._next
        for end, own in zip(ends.tolist(), causes, strict=True):
            self._sets[self._next] = (end, tuple(own))
            self._next -= 1
        return np.arange(first, self._next, -1)

    def get(self, number: int) -> tuple[Cause, ...]:
        return self._sets[number][1]

    def trim(self, before: int) -> None:
        """Drops those of occurrences that ended before a time."""
        stale = []
        for number, (end, _) in self._sets.items():
            if end >= before:
                break
            stale.append(number)
        for number in stale:
            del self._sets[number]

    def state(self) -> dict[str, Any]:
        rows = [[number, end, own] for number, (end, own) in self._sets.items()]
        return {"next": self._next, "sets": rows}

    def restore(self, state: dict[str, Any]) -> None:
        self._next = state["next"]
        self._sets = {
            number: (end, tuple((time, id) for time, id in own))
            for number, end, own in state["sets"]
        }


def causes_of_rows(log: EventLog, sets: CauseSets, numbers: Array) -> Iterable[tuple[Cause, ...]]:
    """The causes of each row of (n, columns) of events and sets, each once, by (time, id)."""
    numbers = numbers[:, (numbers != NO_EVENT).any(axis=0)]
    known = log.causes(numbers[numbers >= 0])
    if numbers.shape[1] == 1 and (numbers >= 0).all():
        return [(known[number],) for number in numbers[:, 0].tolist()]
    return _of_several(known, sets, numbers)


def _of_several(
    known: Mapping[int, Cause], sets: CauseSets, numbers: Array
) -> Iterator[tuple[Cause, ...]]:
    has_sets = bool((numbers < NO_EVENT).any())
    for row in numbers.tolist():
        own = {known[number] for number in row if number >= 0}
        if has_sets:
            own.update(cause for number in row if number < NO_EVENT for cause in sets.get(number))
        yield tuple(sorted(own))


def renumbered(state: Any, by: int) -> Any:
    """The state with ordinals increased by `by`. Negative numbers (no event, sets of causes) stay.
    Costs a copy of the columns with events."""
    if not by:
        return state
    window = state["window"]
    correlations = window["correlations"]
    return state | {
        "window": window
        | {
            "events": window["events"]
            | {
                "ordinals": saved_ordinals(window["events"]) + by,
                "next": window["events"]["next"] + by,
            },
            "occurrences": _each(window["occurrences"], by),
            "correlations": {
                "sides": _each(correlations["sides"], by),
                "used": {term: _used(own, by) for term, own in correlations["used"].items()},
            },
        },
        "open": _each(state["open"], by),
        "waiting": None if state["waiting"] is None else _columns(state["waiting"], by),
    }


def _each(tables: Mapping[str, Columns], by: int) -> dict[str, Columns]:
    return {name: _columns(columns, by) for name, columns in tables.items()}


def _columns(columns: Columns, by: int) -> Columns:
    names = [name for name in columns if name.startswith(("event", "other"))]
    shifted = {
        name: np.where(columns[name] >= 0, columns[name] + by, columns[name]) for name in names
    }
    return columns | shifted


def _used(pairs: list[Any], by: int) -> list[Any]:
    """Consumed events by pair of identities; under a mark (below 0) the value is an event."""
    return [
        [
            first,
            second,
            {
                (event + by if event >= 0 else event): (value if event >= 0 else value + by)
                for event, value in used.items()
            },
        ]
        for first, second, used in pairs
    ]


_OCCURRENCE: Columns = {
    name: NO_ROWS for name in ("first", "second", "end", "start", "event", "other")
}

_NO_PAIRS: dict[str, Any] = {"sides": {}, "used": {}}
"""The state of a plan without correlations."""


class Window:
    """Tables of the recent past for one plan."""

    def __init__(
        self,
        plan: Plan,
        positive: frozenset[int],
        pull: PullData,
        sources: Mapping[str, PushSource],
        began: int | None = None,
        varying: Varying | None = None,
        shared: SharedCache | None = None,
        saved: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """`varying`: the constant in which a family differs, None for a single plan; `shared`: the
        cache shared with other operators; `saved`: by concept the identities of the state to
        restore."""
        self.plan, self._pull, self.varying = plan, pull, varying
        self.concepts = {side.alias: side.concept for side in plan.sides()}
        """By alias."""
        self.aliases = [(term.first.alias, term.second.alias) for term in plan.terms]
        """The aliases of both sides of each term."""
        self._shared = shared = shared or SharedCache()
        self.identities = {
            name: shared.identities(name, pull.instances(name), (saved or {}).get(name))
            for name in plan.concepts()
        }
        self.events, self.sets = EventLog(), CauseSets()
        self.occurrences: dict[int, Table] = {}
        self.common = SharedTables(self.occurrences, shared)
        self._blurs, self._longest_ms = uncertainties(plan, sources), longest_window_ms(plan)
        self.uncertainty_ms = max(self._blurs.values(), default=0)
        """The largest clock uncertainty of a source; 0: there is no such column."""
        self._streams = sorted(
            {s for t in plan.terms if not _is_step(t) for s in streams_of_term(t)}
        )
        self._blur_key = tuple(sorted(self._blurs.items()))
        self._id_filters = IdentityFilters(self.identities, shared)
        self._deferred_streams = DeferredStreams(self.identities, self._blur_key, shared)
        self.correlations = Correlations(plan, self._id_filters, self._deferred_streams, shared)
        self._queries = QueryTerms(self.identities, pull, shared)
        self._readings: dict[int, tuple[str, Hashable, IdentityFilter]] = {}
        """Stream, everything the occurrences depend on besides readings, and filter, by term."""
        self._steps: dict[int, OccurrenceStep] = {}
        self._predicates: dict[int, Predicate] = {}
        self.needs = VariantMask(plan, varying, self._predicates, self._identities_of)
        self._deferred: dict[int, DeferredTerm] = {}
        for number, term in enumerate(plan.terms):
            if isinstance(term, LastingTerm | SilentTerm):
                self.occurrences[number] = self._empty(number)
                self._steps[number] = make_step(term, self.identities, pull, sources, began, shared)
            else:
                self._prepare(number, term, positive)

    def _prepare(self, number: int, term: StateTerm, positive: frozenset[int]) -> None:
        predicate = self._predicates[number] = Predicate(term, self.identities, self._pull)
        match term:
            case CorrelationTerm():
                uses_up, around = number in positive, self._around(term)
                self.correlations.add(number, term, predicate, around, uses_up=uses_up)
                if uses_up:
                    self._put_table(number, term, self._empty(number))
            case QueryTerm() | ReadingTerm() if number not in positive and is_of_tables_alone(term):
                # Only absence needs it, and evaluating it later gives the same result.
                self._deferred[number] = deferred_term(
                    number,
                    term,
                    predicate,
                    self._empty(number).columns,
                    self._deferred_streams,
                    self._id_filters,
                    self._queries,
                    self.needs,
                    self._shared,
                )
            case QueryTerm():
                self._add_table(number, term, positive)
                self._queries.add(number, term, self._id_filters.of(term.event_side))
            case ReadingTerm():
                self._add_table(number, term, positive)
                id_filter = self._id_filters.of(term.first)
                evaluated = term.compared if is_of_tables_alone(term) else predicate
                key = (evaluated, term.first.attribute, id_filter)
                self._readings[number] = (term.first.stream or "", key, id_filter)
            case ConstraintTerm():
                self._fill_constraint(number, term)

    def _add_table(self, number: int, term: TermStep, positive: frozenset[int]) -> None:
        self.occurrences[number] = self._empty(number)
        if number in positive:
            self._put_table(number, term, self._empty(number))

    def _around(self, term: TermStep) -> Hashable:
        """Everything the rows of a term depend on besides the term and its events."""
        known = [self.identities[side.concept] for side in (term.first, term.second)]
        return (*known, self._blur_key)

    def _put_table(
        self, number: int, term: TermStep, table: Table, *, is_saved: bool = False
    ) -> None:
        """Stores the table of a term, or the equal shared one."""
        self.occurrences[number] = table
        if self.needs.of_term(number) is None and not _is_step(term) and is_shareable(term):
            key: Hashable = (renamed([term])[0], self._around(term))
            if isinstance(term, CorrelationTerm):
                key = self.correlations.common(number)
            self.common.put(number, key, table, is_saved=is_saved)

    def _empty(self, number: int) -> Table:
        columns: Columns = _OCCURRENCE | ({"blur": NO_ROWS} if self.uncertainty_ms else {})
        if self.needs.of_term(number) is not None:
            columns[NEED] = np.zeros(0)
        return Table(columns)

    def predicate(self, term: int) -> Predicate:
        """The predicate of a term that is no step."""
        return self._predicates[term]

    def still_lasts(self, causes: Collection[Cause]) -> bool:
        """Whether every `for` of the plan has a reported state that still holds and began with
        these causes."""
        known = set(causes)
        return all(
            any(began and known.issuperset(began) for began in self._steps[number].lasted())
            for number, term in enumerate(self.plan.terms)
            if isinstance(term, LastingTerm)
        )

    @property
    def has_steps(self) -> bool:
        """Whether occurrences may arise by time alone."""
        return bool(self._steps)

    def pending_until(self) -> int | None:
        """The earliest time at which one may arise without a reading."""
        times = [step.pending_until() for step in self._steps.values()]
        return min((time for time in times if time is not None), default=None)

    def alias_columns(self, term: int) -> tuple[str, str]:
        """The `@alias` columns of both sides of a term."""
        step = self.plan.terms[term]
        return f"@{step.first.alias}", f"@{step.second.alias}"

    def are_comparable(self, first: str, second: str) -> bool:
        """Whether two aliases have the same concept, so that they may name the same instance."""
        return self.concepts[first] == self.concepts[second]

    def apart(self, frame: Columns) -> Columns:
        """The rows in which aliases declared distinct differ."""
        return different(
            frame,
            (
                (f"@{first}", f"@{second}")
                for first, second in self.plan.distinct
                if f"@{first}" in frame
                and f"@{second}" in frame
                and self.are_comparable(first, second)
            ),
        )

    def _identities_of(self, alias: str) -> Identities:
        return self.identities[self.concepts[alias]]

    def is_constraint(self, term: int) -> bool:
        """Whether the term is a fact of the tables, without events and times."""
        return isinstance(self.plan.terms[term], ConstraintTerm)

    def is_step(self, term: int) -> bool:
        """Whether its occurrences depend on time, and may have any causes."""
        return term in self._steps

    def settle(self) -> None:
        """Marks everything as old."""
        for number, table in self.occurrences.items():
            if number not in self.common:
                table.settle()
        self.common.settle()
        if self.correlations.terms:
            self.correlations.settle()

    def take_in(self, readings: pa.RecordBatch, watermark: int) -> None:
        """Adds the occurrences of a sorted batch, and those that arise by time before the
        watermark, as new."""
        first = self._shared.begin_batch(readings)
        self.settle()
        if len(readings):
            self._take_readings(readings, first)
        for number, step in self._steps.items():
            self._add_step(number, step.take(readings, watermark))

    def _take_readings(self, readings: pa.RecordBatch, first: int) -> None:
        self.events.add(first, readings.column("time").to_numpy(), readings.column("id"))
        compute = self._shared.compute
        for stream in self._streams:
            known = self.identities[stream.partition(".")[0]]
            key = (stream, known, self._blur_key)
            rows = compute(key, stream_rows, readings, stream, known, self._blurs)
            if rows is not None:
                self._take_rows(stream, rows, first)
        if self.correlations.terms:
            for number, completed in self.correlations.completed():
                self._append(number, completed)

    def _take_rows(self, stream: str, rows: StreamRows, first: int) -> None:
        for number, query, pairs in self._queries.find(stream, rows):
            occurred = self._shared.compute_for_rows(
                rows, query, query_occurrences, rows, query, *pairs
            )
            self._add_occurrences(number, rows, occurred, first)
        for number, (own, key, id_filter) in self._readings.items():
            if own == stream:
                predicate = self._predicates[number]
                occurred = self._shared.compute_for_rows(
                    rows, key, reading_occurrences, rows, id_filter, predicate
                )
                self._add_occurrences(number, rows, occurred, first)
        if stream in self._deferred_streams.readers:
            self._deferred_streams.take(stream, rows, first)
        if self.correlations.terms:
            self.correlations.take(stream, rows, first)

    def query(self, number: int, frame: Columns, low: int, high: int) -> Table:
        """At least the occurrences of a term under a NOT with times in [low, high) and the
        identities of the matches; evaluates deferred rows."""
        if number in self._deferred:
            return self._deferred[number].query(frame, low, high)
        return self.occurrences[number]

    def unevaluated(self, number: int, frame: Columns, high: int) -> int:
        """The number of rows to evaluate for that."""
        deferred = self._deferred.get(number)
        return 0 if deferred is None else deferred.unevaluated(frame, high)

    def count_search(self) -> None:
        """Counts a search for counterexamples that is not shared."""
        self._shared.wanted += 1
        self._shared.computed += 1

    def keep_deferred_from(self, time: int) -> None:
        """No match will query absence before a time."""
        if self._deferred_streams.readers:
            self._deferred_streams.release_before(time)

    def trim(self, before: int, *, at_once: bool = False) -> None:
        """Drops what ended before a time; unless `at_once`, only when worth the work."""
        # Causes of an open match ended up to a window before it; pairs began another before.
        earlier = before - 2 * self._longest_ms
        self.events.trim(earlier, at_once=at_once)
        self.sets.trim(earlier)
        for deferred in self._deferred.values():
            deferred.trim(before)
        for number, table in self.occurrences.items():
            if not self.is_constraint(number) and number not in self.common:
                table.trim(before, at_once=at_once)
        self.common.release_before(before)
        self.common.trim(at_once=at_once)
        if self.correlations.terms:
            self.correlations.trim(before, at_once=at_once)

    def advance_to(self, watermark: int) -> None:
        """Time advanced to the watermark without readings."""
        for step in self._steps.values():
            step.advance_to(watermark)

    def release_before(self, time: int) -> None:
        """This operator no longer needs what ended before a time."""
        self.common.release_before(time)
        if self.correlations.terms:
            self.correlations.release_before(time)

    def state(self) -> dict[str, Any]:
        return {
            "identities": {name: known.ids for name, known in self.identities.items()},
            "events": self.events.state(self._shared.next_ordinal),
            "sets": self.sets.state(),
            "steps": {str(number): step.state() for number, step in self._steps.items()},
            "occurrences": {
                str(number): table.columns for number, table in self.occurrences.items()
            }
            | {str(number): deferred.state() for number, deferred in self._deferred.items()},
            "correlations": self.correlations.state() if self.correlations.terms else _NO_PAIRS,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restores a state; instances are looked up in the current tables."""
        changed = [
            (self.identities[name], ids)
            for name, ids in state["identities"].items()
            if not self.identities[name].begins_with(ids)
        ]
        for known, ids in changed:  # never for shared codes, which are created from `saved`
            known.restore(ids)
        if changed:
            self._shared.clear()
            self._id_filters.forget()
            self._queries.renew()
        self._deferred_streams.renew()
        for number, deferred in self._deferred.items():
            saved = state["occurrences"][str(number)]
            deferred.restore(with_blurs(saved, self.uncertainty_ms > 0))
        self.events.restore(state["events"])
        self.sets.restore(state["sets"])
        for number, step in self._steps.items():
            step.restore(state["steps"][str(number)])
        self.correlations.restore(state["correlations"], blurred=self.uncertainty_ms > 0)
        for number, term in enumerate(self.plan.terms):
            if isinstance(term, ConstraintTerm):
                self._fill_constraint(number, term)
            elif number in self.occurrences:
                columns = with_blurs(state["occurrences"][str(number)], self.uncertainty_ms > 0)
                table = self.occurrences[number] = Table(columns)
                if number in self.common:
                    self._put_table(number, term, table, is_saved=True)
        self.settle()

    def _fill_constraint(self, number: int, term: ConstraintTerm) -> None:
        known = self.identities[term.first.concept], self.identities[term.second.concept]
        predicate = self._predicates[number]
        if self.needs.of_term(number) is not None or not is_of_tables_alone(term):
            facts = facts_of_tables(term, *known, predicate)
            codes = facts.columns["first"], facts.columns["second"]
            facts.columns |= self.needs.of_values(number, None, None, *codes)
        else:
            key = (unnamed_facts(term), known)
            facts = self._shared.get_or_make(key, facts_of_tables, term, *known, predicate)
        self.occurrences[number] = facts

    def _add_step(self, number: int, found: Columns) -> None:
        """Adds occurrences of a step with their causes, of any age."""
        rows = len(found["end"])
        if not rows:
            return
        names = ("first", "second", "end", "start")
        columns = {name: found[name] for name in names}
        columns["event"] = self.sets.add(found["end"], found["causes"])
        columns["other"] = np.full(rows, NO_EVENT)
        if self.uncertainty_ms:
            columns["blur"] = found.get("uncertainty", np.zeros(rows, np.int64))
        self.occurrences[number].append(columns)

    def _add_occurrences(
        self, number: int, rows: StreamRows, occurred: StreamOccurrences, first: int
    ) -> None:
        if not len(occurred.places) or self.common.has_taken(number):
            return
        columns = occurred.with_ordinals(first)
        if self.varying is not None:
            columns |= self.needs.of_rows(number, rows, occurred)
        self._append(number, columns)

    def _append(self, number: int, rows: Columns) -> None:
        if number in self.common:
            self.common.append(number, rows)
        else:
            self.occurrences[number].append(rows)


def _is_step(term: TermStep) -> bool:
    return isinstance(term, LastingTerm | SilentTerm)
