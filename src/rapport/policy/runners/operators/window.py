"""All that an operator remembers of the stream: occurrences, events of correlated sides,
identities. [PO-6, PO-7]

Bounded by the window and the number of identities, never by the length of the stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rapport.policy.ontology import PushSource
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
from rapport.policy.runners.base import END_OF_TIME, PullData
from rapport.policy.runners.operators.causes import NO_EVENT, CauseSets
from rapport.policy.runners.operators.correlations import Correlations
from rapport.policy.runners.operators.facts import facts_of_tables, unnamed_facts
from rapport.policy.runners.operators.intake import EventLog, StreamRows
from rapport.policy.runners.operators.later_rows import LaterRows
from rapport.policy.runners.operators.leaves import Leaves
from rapport.policy.runners.operators.predicate import Predicate, is_of_tables_alone
from rapport.policy.runners.operators.queries import Asking, Pairs, Queries
from rapport.policy.runners.operators.reaches import (
    longest_window_ms,
    uncertainties,
)
from rapport.policy.runners.operators.shared_steps import SharedSteps
from rapport.policy.runners.operators.step import OccurrenceStep
from rapport.policy.runners.operators.steps import make_step
from rapport.policy.runners.operators.stream_steps import (
    Occurred,
    query_occurrences,
    reading_occurrences,
    stream_rows,
)
from rapport.policy.runners.operators.table import Columns, Rows, Table, with_blurs
from rapport.policy.runners.operators.varying import NEED, Varying, VaryingProperty, VaryingTerm

_NONE = np.zeros(0, np.int64)
_OCCURRENCE: Columns = {
    name: _NONE for name in ("first", "second", "end", "start", "event", "other")
}


class Window:
    """Tables of the recent past for one plan; the only mutable memory besides matches under way."""

    def __init__(
        self,
        plan: Plan,
        positive: frozenset[int],
        pull: PullData,
        sources: Mapping[str, PushSource],
        began: int | None = None,
        varying: Varying | None = None,
        shared: SharedSteps | None = None,
        saved: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """`varying`: what a family of plans differs in, of which this is the one that lets most
        through; None: it is no family. `shared`: with whom steps are shared; None: with nobody.
        `saved`: by concept the identities of the state that will be restored.
        """
        self.plan, self._pull, self.varying = plan, pull, varying
        self._shared = shared = shared or SharedSteps()
        self.identities = {
            name: shared.identities(name, pull.instances(name), (saved or {}).get(name))
            for name in plan.concepts()
        }
        self.events, self.sets = EventLog(), CauseSets()
        self.occurrences: dict[int, Table] = {}
        self._blurs = uncertainties(plan, sources)
        self.uncertainty_ms = max(self._blurs.values(), default=0)
        """How far the clock of any source may be wrong; 0: no column says it."""
        self._streams = sorted(
            {s for t in plan.terms if not _is_step(t) for s in streams_of_term(t)}
        )
        self._blur_key = tuple(sorted(self._blurs.items()))
        self._leaves = Leaves(self.identities, shared)
        self.correlations = Correlations(plan, self._leaves, shared)
        self._queries = Queries(self.identities, pull, shared)
        self._readings: dict[int, ReadingTerm] = {}
        self._later: dict[int, LaterRows] = {}
        self._steps: dict[int, OccurrenceStep] = {}
        self._predicates: dict[int, Predicate] = {}
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
                self.correlations.add(number, term, predicate, uses_up=number in positive)
                if number in positive:
                    self.occurrences[number] = self._empty(number)
            case QueryTerm():
                self.occurrences[number] = self._empty(number)
                side = term.first if term.first.stream is not None else term.second
                later = self._is_later(number, term, positive)
                self._queries.add(number, term, self._leaves.of(side), later=later)
            case ReadingTerm():
                self.occurrences[number] = self._empty(number)
                self._readings[number] = term
                self._is_later(number, term, positive)
            case ConstraintTerm():
                self._fill_constraint(number, term)

    def _is_later(self, number: int, term: StateTerm, positive: frozenset[int]) -> bool:
        """Whether a term waits until a match asks about it: where only absence does, and where the
        answer is the same later.
        """
        if number in positive or not is_of_tables_alone(term):
            return False
        [stream] = streams_of_term(term)
        self._later[number] = LaterRows(stream)
        return True

    def _empty(self, number: int) -> Table:
        columns: Columns = _OCCURRENCE | ({"blur": _NONE} if self.uncertainty_ms else {})
        if self._varies(number) is not None:
            columns[NEED] = np.zeros(0)
        return Table(columns)

    def _varies(self, number: int) -> VaryingTerm | None:
        """What says of the term's rows for whom of a family they count."""
        varying = self.varying
        return varying if isinstance(varying, VaryingTerm) and varying.term == number else None

    def pair_needs(
        self, number: int, first: Columns, here: Rows, second: Columns, there: Rows
    ) -> Columns:
        """For whom of a family pairs of events count, if that depends on the term."""
        varies = self._varies(number)
        if varies is None:
            return {}
        ends = first["value"][here], second["value"][there]
        codes = first["code"][here], second["code"][there]
        return {NEED: varies.needs(self._predicates[number], *ends, *codes)}

    def with_needs(self, frame: Columns) -> Columns:
        """The frame with the needs of the alias that a family differs in, once it has that and
        only absence mentions it.
        """
        varying = self.varying
        if not isinstance(varying, VaryingProperty) or not varying.absent or NEED in frame:
            return frame
        return self.with_alias_needs(varying, frame) if varying.alias in frame else frame

    def with_alias_needs(self, varying: VaryingProperty, frame: Columns) -> Columns:
        """The frame with the needs of an alias that it has."""
        identities = self.identities[self.alias_concept(varying.alias[1:])]
        return frame | {NEED: varying.needs(identities, frame[varying.alias])}

    def predicate(self, term: int) -> Predicate:
        """What decides of a term that is no step."""
        return self._predicates[term]

    @property
    def has_steps(self) -> bool:
        """Whether occurrences may arise by time alone."""
        return bool(self._steps)

    def pending_until(self) -> int | None:
        """The earliest time at which one may arise without a reading."""
        times = [step.pending_until() for step in self._steps.values()]
        return min((time for time in times if time is not None), default=None)

    def alias_concept(self, alias: str) -> str:
        """The concept an alias stands for."""
        for term in self.plan.terms:
            for side in (term.first, term.second):
                if side.alias == alias:
                    return side.concept
        raise KeyError(alias)

    def is_constraint(self, term: int) -> bool:
        """Whether the term is a fact of the tables, without events and times."""
        return isinstance(self.plan.terms[term], ConstraintTerm)

    def is_step(self, term: int) -> bool:
        """Whether its occurrences depend on time too, and may have any causes."""
        return term in self._steps

    def settle(self) -> None:
        """What came so far is old."""
        for table in (*self.occurrences.values(), *self.correlations.tables()):
            table.settle()

    def take_in(self, readings: pa.RecordBatch, watermark: int) -> None:
        """Adds the occurrences of a sorted batch, and those that time alone brings before the
        watermark; after it, they are the new ones.
        """
        self.settle()
        if len(readings):
            self._take_readings(readings)
        for number, step in self._steps.items():
            self._add_step(number, step.take(readings, watermark))

    def _take_readings(self, readings: pa.RecordBatch) -> None:
        first = self.events.add(readings.column("time").to_numpy(), readings.column("id"))
        once = self._shared.once
        self._shared.turn_to(readings)
        for stream in self._streams:
            known = self.identities[stream.partition(".")[0]]
            key = (stream, known, self._blur_key)
            rows = once(key, stream_rows, readings, stream, known, self._blurs)
            if rows is not None:
                self._take_rows(stream, rows, first)
        for number, completed in self.correlations.completed():
            self.occurrences[number].append(completed)

    def _take_rows(self, stream: str, rows: StreamRows, first: int) -> None:
        for number, asking, pairs in self._queries.find(stream, rows):
            self._add_query(number, rows, asking, pairs, first)
        for number, term in self._readings.items():
            if term.first.stream == stream and number not in self._later:
                self._add_reading(number, term, rows, first)
        for number, later in self._later.items():
            if later.stream == stream:
                self._put_off(number, later, rows, first)
        self.correlations.take(stream, rows, first)

    def _put_off(self, number: int, later: LaterRows, rows: StreamRows, first: int) -> None:
        was_busy = later.is_busy
        later.add(rows, first)
        if later.is_full:
            self.asked(number, END_OF_TIME)
        elif was_busy and not later.is_busy:
            self._queries.expect(number, soon=False)

    def asked(self, number: int, before: int) -> Table:
        """The occurrences of a term under a NOT, all that end before a time; those of events that
        no match asked about before are found now.
        """
        later, term = self._later.get(number), self.plan.terms[number]
        if later is None:
            return self.occurrences[number]
        was_busy, taken = later.is_busy, later.take(before)
        if later.is_busy != was_busy:
            self._queries.expect(number, soon=later.is_busy)
        for rows, first in taken:
            if isinstance(term, ReadingTerm):
                self._add_reading(number, term, rows, first)
            else:
                asking, pairs = self._queries.find_later(number, rows)
                self._add_query(number, rows, asking, pairs, first)
        return self.occurrences[number]

    def trim(self, before: int, *, at_once: bool = False) -> None:
        """Forgets what ended before a time; unless `at_once`, only where it is worth the work."""
        # An open match names causes that ended up to a window before it, pairs began another
        # before.
        earlier = before - 2 * longest_window_ms(self.plan)
        self.events.trim(earlier, at_once=at_once)
        self.sets.trim(earlier)
        for number, later in self._later.items():
            later.trim(before)
            if at_once:
                self.asked(number, END_OF_TIME)
        for number, table in self.occurrences.items():
            if not self.is_constraint(number):
                table.trim(before, at_once=at_once)
        self.correlations.trim(before, at_once=at_once)

    def state(self) -> dict[str, Any]:
        """What `restore` takes: plain values and arrays."""
        for number in self._later:
            self.asked(number, END_OF_TIME)
        return {
            "identities": {name: known.ids for name, known in self.identities.items()},
            "events": self.events.state(),
            "sets": self.sets.state(),
            "steps": {str(number): step.state() for number, step in self._steps.items()},
            "occurrences": {
                str(number): table.columns for number, table in self.occurrences.items()
            },
            "correlations": self.correlations.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what `state` gave; instances are looked up again in the tables of today."""
        changed = [
            (self.identities[name], ids)
            for name, ids in state["identities"].items()
            if not self.identities[name].begins_with(ids)
        ]
        for known, ids in changed:  # never where they are shared: `saved` was given then
            known.restore(ids)
        if changed:
            self._shared.forget_kept()
            self._leaves.forget()
            self._queries.renew()
        self._later = {number: LaterRows(own.stream) for number, own in self._later.items()}
        self.events.restore(state["events"])
        self.sets.restore(state["sets"])
        for number, step in self._steps.items():
            step.restore(state["steps"][str(number)])
        for number, term in enumerate(self.plan.terms):
            if isinstance(term, ConstraintTerm):
                self._fill_constraint(number, term)
            elif number in self.occurrences:
                columns = with_blurs(state["occurrences"][str(number)], self.uncertainty_ms > 0)
                self.occurrences[number] = Table(columns)
        self.correlations.restore(state["correlations"], blurred=self.uncertainty_ms > 0)
        self.settle()

    def _fill_constraint(self, number: int, term: ConstraintTerm) -> None:
        known = self.identities[term.first.concept], self.identities[term.second.concept]
        predicate = self._predicates[number]
        if self._varies(number) is not None or not is_of_tables_alone(term):
            facts = facts_of_tables(term, *known, predicate)
            codes = facts.columns["first"], facts.columns["second"]
            facts.columns |= self._needs_of(number, None, None, *codes)
        else:
            key = (unnamed_facts(term), known)
            facts = self._shared.keep(key, facts_of_tables, term, *known, predicate)
        self.occurrences[number] = facts

    def _needs_of(
        self, number: int, first: Any, second: Any, first_codes: Rows, second_codes: Rows
    ) -> Columns:
        varies = self._varies(number)
        if varies is None:
            return {}
        predicate = self._predicates[number]
        return {NEED: varies.needs(predicate, first, second, first_codes, second_codes)}

    def _add_query(
        self, number: int, rows: StreamRows, asking: Asking, pairs: Pairs, first: int
    ) -> None:
        """What instances say of the values that events bring."""
        occurred = self._shared.once_of(rows, asking, query_occurrences, rows, asking, *pairs)
        self._add_occurrences(number, rows, occurred, first)

    def _add_reading(self, number: int, term: ReadingTerm, rows: StreamRows, first: int) -> None:
        """Comparisons of what one event brings with what is known of its instance."""
        predicate, leaf = self._predicates[number], self._leaves.of(term.first)
        asked = term.compared if is_of_tables_alone(term) else predicate
        key = (asked, term.first.attribute, leaf)
        occurred = self._shared.once_of(rows, key, reading_occurrences, rows, leaf, predicate)
        self._add_occurrences(number, rows, occurred, first)

    def _add_step(self, number: int, found: Columns) -> None:
        """Occurrences of a step; their causes are kept with them, however old they are."""
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
        self, number: int, rows: StreamRows, occurred: Occurred, first: int
    ) -> None:
        if not len(occurred.places):
            return
        columns = occurred.numbered_from(first)
        if self._varies(number) is not None:
            term = self.plan.terms[number]
            first_value, second_value = (
                rows.values[occurred.places] if side.stream is not None else None
                for side in (term.first, term.second)
            )
            codes = columns["first"], columns["second"]
            columns |= self._needs_of(number, first_value, second_value, *codes)
        self.occurrences[number].append(columns)


def _is_step(term: TermStep) -> bool:
    return isinstance(term, LastingTerm | SilentTerm)
