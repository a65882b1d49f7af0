"""The memory of an operator: occurrences, events of correlations, identities. [PO-6, PO-7]

Bounded by the window and the number of identities, not by the stream.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rapport.core.detection import Cause
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import PullData
from rapport.policy.operators.columns import NO_ROWS, Columns, Table, with_blurs
from rapport.policy.operators.correlations import Correlations
from rapport.policy.operators.deferred_terms import DeferredStreams, DeferredTerms
from rapport.policy.operators.events import NO_EVENT, CauseSets, EventLog, StreamRows
from rapport.policy.operators.identities import Identities
from rapport.policy.operators.occurrences import (
    Pairs,
    QueryTerms,
    StreamOccurrences,
    TermQuery,
    facts_of_tables,
    query_occurrences,
    reading_occurrences,
    stream_rows,
    unnamed_facts,
)
from rapport.policy.operators.plan_shape import longest_window_ms, uncertainties
from rapport.policy.operators.predicates import Predicate, is_of_tables_alone
from rapport.policy.operators.sharing import (
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

_OCCURRENCE: Columns = {
    name: NO_ROWS for name in ("first", "second", "end", "start", "event", "other")
}


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
        self._shared = shared = shared or SharedCache()
        self.identities = {
            name: shared.identities(name, pull.instances(name), (saved or {}).get(name))
            for name in plan.concepts()
        }
        self.events, self.sets = EventLog(), CauseSets()
        self.occurrences: dict[int, Table] = {}
        self.common = SharedTables(self.occurrences, shared)
        self._blurs = uncertainties(plan, sources)
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
        self._readings: dict[int, ReadingTerm] = {}
        self._steps: dict[int, OccurrenceStep] = {}
        self._predicates: dict[int, Predicate] = {}
        self.needs = VariantMask(plan, varying, self._predicates, self._identities_of)
        self._deferred = DeferredTerms(
            self._deferred_streams, self._id_filters, self._queries, self.needs, shared
        )
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
                self._deferred.defer(number, term, predicate, self._empty(number).columns)
            case QueryTerm():
                self.occurrences[number] = self._empty(number)
                if number in positive:
                    self._put_table(number, term, self._empty(number))
                side = term.first if term.first.stream is not None else term.second
                self._queries.add(number, term, self._id_filters.of(side))
            case ReadingTerm():
                self.occurrences[number] = self._empty(number)
                if number in positive:
                    self._put_table(number, term, self._empty(number))
                self._readings[number] = term
            case ConstraintTerm():
                self._fill_constraint(number, term)

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

    def alias_concept(self, alias: str) -> str:
        for term in self.plan.terms:
            for side in (term.first, term.second):
                if side.alias == alias:
                    return side.concept
        raise KeyError(alias)

    def _identities_of(self, alias: str) -> Identities:
        return self.identities[self.alias_concept(alias)]

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
        for number, completed in self.correlations.completed():
            self._append(number, completed)

    def _take_rows(self, stream: str, rows: StreamRows, first: int) -> None:
        for number, query, pairs in self._queries.find(stream, rows):
            self._add_query(number, rows, query, pairs, first)
        for number, term in self._readings.items():
            if term.first.stream == stream:
                self._add_reading(number, term, rows, first)
        self._deferred_streams.take(stream, rows, first)
        self.correlations.take(stream, rows, first)

    def query(self, number: int, frame: Columns, low: int, high: int) -> Table:
        """At least the occurrences of a term under a NOT with times in [low, high) and the
        identities of the matches; evaluates deferred rows."""
        if number in self._deferred:
            return self._deferred.query(number, frame, low, high)
        return self.occurrences[number]

    def unevaluated(self, number: int, frame: Columns, high: int) -> int:
        """The number of rows to evaluate for that."""
        return self._deferred.unevaluated(number, frame, high)

    def count_search(self) -> None:
        """Counts a search for counterexamples that is not shared."""
        self._shared.wanted += 1
        self._shared.computed += 1

    def keep_deferred_from(self, time: int) -> None:
        """No match will query absence before a time."""
        self._deferred_streams.release_before(time)

    def trim(self, before: int, *, at_once: bool = False) -> None:
        """Drops what ended before a time; unless `at_once`, only when worth the work."""
        # Causes of an open match ended up to a window before it; pairs began another before.
        earlier = before - 2 * longest_window_ms(self.plan)
        self.events.trim(earlier, at_once=at_once)
        self.sets.trim(earlier)
        self._deferred.trim(before)
        for number, table in self.occurrences.items():
            if not self.is_constraint(number) and number not in self.common:
                table.trim(before, at_once=at_once)
        self.common.release_before(before)
        self.common.trim(at_once=at_once)
        self.correlations.trim(before, at_once=at_once)

    def advance_to(self, watermark: int) -> None:
        """Time advanced to the watermark without readings."""
        for step in self._steps.values():
            step.advance_to(watermark)

    def release_before(self, time: int) -> None:
        """This operator no longer needs what ended before a time."""
        self.common.release_before(time)
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
            | self._deferred.state(),
            "correlations": self.correlations.state(),
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
        self._deferred.restore(state["occurrences"], blurred=self.uncertainty_ms > 0)
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

    def _add_query(
        self, number: int, rows: StreamRows, query: TermQuery, pairs: Pairs, first: int
    ) -> None:
        occurred = self._shared.compute_for_rows(
            rows, query, query_occurrences, rows, query, *pairs
        )
        self._add_occurrences(number, rows, occurred, first)

    def _add_reading(self, number: int, term: ReadingTerm, rows: StreamRows, first: int) -> None:
        predicate, id_filter = self._predicates[number], self._id_filters.of(term.first)
        evaluated = term.compared if is_of_tables_alone(term) else predicate
        key = (evaluated, term.first.attribute, id_filter)
        occurred = self._shared.compute_for_rows(
            rows, key, reading_occurrences, rows, id_filter, predicate
        )
        self._add_occurrences(number, rows, occurred, first)

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
        if self.needs.of_term(number) is not None:
            columns |= self.needs.of_rows(number, rows, occurred)
        self._append(number, columns)

    def _append(self, number: int, rows: Columns) -> None:
        if number in self.common:
            self.common.append(number, rows)
        else:
            self.occurrences[number].append(rows)


def _is_step(term: TermStep) -> bool:
    return isinstance(term, LastingTerm | SilentTerm)
