"""All that an operator remembers of the stream: occurrences, events of correlated sides,
identities. [PO-6, PO-7]

Bounded by the window and the number of identities, never by the length of the stream.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from rapport.policy import relations
from rapport.policy.plan import ConstraintTerm, CorrelationTerm, Plan, QueryTerm, Side
from rapport.policy.runners.base import PullData
from rapport.policy.runners.operators.consume import Correlator
from rapport.policy.runners.operators.identities import Identities, Leaf
from rapport.policy.runners.operators.intake import EventLog, StreamRows, rows_of_stream
from rapport.policy.runners.operators.lookup import Lookup, constraint_pairs
from rapport.policy.runners.operators.near import cells_of
from rapport.policy.runners.operators.table import Columns, Table

_NONE = np.zeros(0, np.int64)
_OCCURRENCE = {name: _NONE for name in ("first", "second", "end", "start", "event", "other")}


class SideEvents:
    """The events of one side of a correlation, with the cell they lie in when the function is a
    distance.
    """

    def __init__(self, term: CorrelationTerm, side: Side, leaf: Leaf) -> None:
        self.stream, self._leaf = side.stream or "", leaf
        is_distance = relations.get(term.function).shape == "distance"
        self._reach = float(term.parameter or 0.0) if is_distance else None
        self.table: Table | None = None

    def add(self, rows: StreamRows) -> None:
        """Takes the rows that satisfy the side's constraints."""
        chosen = np.flatnonzero(self._leaf.allowed()[rows.codes])
        if not len(chosen) and self.table is not None:
            return
        values = rows.values[chosen]
        columns: Columns = {
            "code": rows.codes[chosen],
            "end": rows.times[chosen],
            "event": rows.ordinals[chosen],
            "value": values,
        }
        if self._reach is not None:
            columns["cell"] = cells_of(values, self._reach)
        if self.table is None:
            self.table = Table({name: column[:0] for name, column in columns.items()})
        self.table.append(columns)


class Window:
    """Tables of the recent past for one plan; the only mutable memory besides matches under way."""

    def __init__(self, plan: Plan, positive: frozenset[int], pull: PullData) -> None:
        self.plan = plan
        self.identities = {name: Identities(pull.instances(name)) for name in plan.concepts()}
        self.events = EventLog()
        self.occurrences: dict[int, Table] = {}
        self._leaves: dict[tuple[str, Any], Leaf] = {}
        self._sides: dict[tuple[int, int], SideEvents] = {}
        self._correlators: dict[int, Correlator] = {}
        self._lookups: dict[QueryTerm, tuple[Lookup, list[int]]] = {}
        self._marked = 0
        for number, term in enumerate(plan.terms):
            self._prepare(number, term, positive)

    def _prepare(self, number: int, term: Any, positive: frozenset[int]) -> None:
        if isinstance(term, CorrelationTerm):
            for place, side in enumerate((term.first, term.second)):
                self._sides[number, place] = SideEvents(term, side, self._leaf(side))
            if number in positive:
                self._correlators[number] = Correlator(
                    term, self.plan.window_ms, self.plan.consumption
                )
                self.occurrences[number] = Table(_OCCURRENCE)
        elif isinstance(term, QueryTerm):
            self.occurrences[number] = Table(_OCCURRENCE)
            self._lookups.setdefault(_question(term), (self._lookup(term), []))[1].append(number)
        else:
            self._fill_constraint(number, term)

    def side(self, term: int, place: int) -> Table | None:
        """Events of the first (0) or second (1) side of a correlation; None before the first
        one.
        """
        return self._sides[term, place].table

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

    def settle(self) -> None:
        """What came so far is old."""
        for table in self._tables():
            table.settle()

    def take_in(self, readings: pa.RecordBatch) -> None:
        """Adds the occurrences of a sorted batch; after it, they are the new ones."""
        self.settle()
        first = self.events.add(readings.column("time").to_numpy(), readings.column("id"))
        for stream in self.plan.streams():
            concept = stream.partition(".")[0]
            rows = rows_of_stream(readings, stream, self.identities[concept], first)
            if rows is not None:
                self._add_queries(stream, rows)
                for side in self._sides.values():
                    if side.stream == stream:
                        side.add(rows)
        for number, correlator in self._correlators.items():
            self._correlate(number, correlator)

    def trim(self, before: int, *, at_once: bool = False) -> None:
        """Forgets what ended before a time; unless `at_once`, only where it is worth the work."""
        # An open match names causes that ended up to a window before it, pairs began another
        # before.
        self.events.trim(before - 2 * self.plan.window_ms, at_once=at_once)
        for number, table in self.occurrences.items():
            if not self.is_constraint(number):
                table.trim(before, at_once=at_once)
        for side in self._sides.values():
            if side.table is not None:
                side.table.trim(before, at_once=at_once)
        for correlator in self._correlators.values():
            if at_once or correlator.size() > 2 * self._marked + 10_000:
                correlator.trim(before)
                self._marked = max(correlator.size(), self._marked)

    def state(self) -> dict[str, Any]:
        """What `restore` takes: plain values and arrays."""
        return {
            "identities": {name: known.ids for name, known in self.identities.items()},
            "events": self.events.state(),
            "occurrences": {
                str(number): table.columns for number, table in self.occurrences.items()
            },
            "sides": {
                f"{term}.{place}": side.table.columns
                for (term, place), side in self._sides.items()
                if side.table is not None
            },
            "correlators": {
                str(number): correlator.state() for number, correlator in self._correlators.items()
            },
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what `state` gave; instances are looked up again in the tables of today."""
        for name, ids in state["identities"].items():
            self.identities[name].restore(ids)
        for leaf in self._leaves.values():
            leaf.forget()
        self._lookups = {
            question: (self._lookup(question), numbers)
            for question, (_, numbers) in self._lookups.items()
        }
        self.events.restore(state["events"])
        for number, term in enumerate(self.plan.terms):
            if isinstance(term, ConstraintTerm):
                self._fill_constraint(number, term)
            elif number in self.occurrences:
                self.occurrences[number] = Table(state["occurrences"][str(number)])
        for (number, place), side in self._sides.items():
            columns = state["sides"].get(f"{number}.{place}")
            side.table = None if columns is None else Table(columns)
        for key, used in state["correlators"].items():
            self._correlators[int(key)].restore(used)
        self.settle()

    def _tables(self) -> list[Table]:
        sides = [side.table for side in self._sides.values() if side.table is not None]
        return [*self.occurrences.values(), *sides]

    def _leaf(self, side: Side) -> Leaf:
        key = (side.concept, side.constraints)
        if key not in self._leaves:
            self._leaves[key] = Leaf(side, self.identities[side.concept])
        return self._leaves[key]

    def _lookup(self, term: QueryTerm) -> Lookup:
        side = term.second if term.first.stream is not None else term.first
        return Lookup(term, self.identities[side.concept])

    def _fill_constraint(self, number: int, term: ConstraintTerm) -> None:
        first, second = constraint_pairs(
            term, self.identities[term.first.concept], self.identities[term.second.concept]
        )
        if term.first.alias == term.second.alias:
            first, second = first[first == second], second[first == second]
        zeros, none = np.zeros(len(first), np.int64), np.full(len(first), -1)
        self.occurrences[number] = Table(
            {
                "first": first,
                "second": second,
                "end": zeros,
                "start": zeros,
                "event": none,
                "other": none,
            }
        )

    def _add_queries(self, stream: str, rows: StreamRows) -> None:
        """One look-up serves all terms that ask the same of different people."""
        for question, (lookup, numbers) in self._lookups.items():
            event_side = question.first if question.first.stream is not None else question.second
            if event_side.stream != stream:
                continue
            allowed = [self._event_leaf(number).allowed()[rows.codes] for number in numbers]
            chosen = np.flatnonzero(np.logical_or.reduce(allowed))
            if not len(chosen):
                continue
            places, instances = lookup.find(rows.values[chosen])
            places = chosen[places]
            for number, mask in zip(numbers, allowed, strict=True):
                fits = mask[places]
                self._add_occurrences(number, rows, places[fits], instances[fits])

    def _event_leaf(self, number: int) -> Leaf:
        term = self.plan.terms[number]
        return self._leaf(term.first if term.first.stream is not None else term.second)

    def _add_occurrences(self, number: int, rows: StreamRows, places: Any, instances: Any) -> None:
        if not len(places):
            return
        term = self.plan.terms[number]
        keys, times = rows.codes[places], rows.times[places]
        first, second = (keys, instances) if term.first.stream is not None else (instances, keys)
        columns = {
            "first": first,
            "second": second,
            "end": times,
            "start": times,
            "event": rows.ordinals[places],
            "other": np.full(len(places), -1),
        }
        if term.first.alias == term.second.alias:
            columns = {name: column[first == second] for name, column in columns.items()}
        self.occurrences[number].append(columns)

    def _correlate(self, number: int, correlator: Correlator) -> None:
        first, second = self.side(number, 0), self.side(number, 1)
        if first is None or second is None:
            return
        if first.first_new < len(first) or second.first_new < len(second):
            self.occurrences[number].append(correlator.pairs(first, second))


def _question(term: QueryTerm) -> QueryTerm:
    """The term without what only concerns whose events are asked about."""
    first, second = (
        _anyone(side) if side.stream else _unnamed(side) for side in (term.first, term.second)
    )
    return QueryTerm(first, second, term.function, term.parameter)


def _anyone(side: Side) -> Side:
    return Side("", side.concept, side.attribute, (), side.stream)


def _unnamed(side: Side) -> Side:
    return Side("", side.concept, side.attribute, side.constraints, None)
