"""The occurrences of every kind of term by rule 2, for identities that may be given. [PO-6,
PO-11]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rapport.core.errors import InvalidInput
from rapport.policy import relations
from rapport.policy.explaining.holding import Bindings, event_places, sides_of, truth
from rapport.policy.explaining.lasting import state_spans
from rapport.policy.explaining.silences import silences
from rapport.policy.explaining.stretch import Occurrence, occurrence
from rapport.policy.explaining.world import Evidence, Reading
from rapport.policy.plan import (
    ConstraintTerm,
    CorrelationTerm,
    LastingTerm,
    QueryTerm,
    ReadingTerm,
    Side,
    SilentTerm,
)
from rapport.policy.runners.operators.reaches import pair_window_ms

_MOST_TESTS = 3_000_000
"""Pairs of readings that one question may look at."""


class TermOccurrences:
    """What occurs in a world, found when asked for; costs the readings of who is asked about."""

    def __init__(self, world: Evidence) -> None:
        self.world = world
        self._found: dict[tuple[object, ...], list[Occurrence]] = {}
        self._tests = 0

    def of(self, number: int, bindings: Bindings, *, negated: bool = False) -> list[Occurrence]:
        """The occurrences of a term that agree with the bindings; under a NOT every pair of events
        counts, elsewhere they are used up.
        """
        term = self.world.plan.terms[number]
        aliases = {term.first.alias, term.second.alias}
        bound = {alias: bindings[alias] for alias in sorted(aliases) if alias in bindings}
        every = negated or not isinstance(term, CorrelationTerm)
        key = (number, every, *bound.items())
        if key not in self._found:
            self._found[key] = list(self._every(number, bound, every))
        return self._found[key]

    def _every(self, number: int, bound: Bindings, every: bool) -> Iterator[Occurrence]:
        term = self.world.plan.terms[number]
        match term:
            case LastingTerm():
                found = [s.occurrence for s in state_spans(self.world, term, bound) if s.has_lasted]
                yield from found
            case SilentTerm():
                yield from (s.occurrence for s in silences(self.world, term, bound) if s.has_lasted)
            case CorrelationTerm():
                yield from self._pairs(term, bound, every)
            case ConstraintTerm():
                yield from self._facts(term, bound)
            case QueryTerm() | ReadingTerm():
                yield from self._queried(term, bound)

    # One event.

    def _queried(self, term: QueryTerm | ReadingTerm, bound: Bindings) -> Iterator[Occurrence]:
        (place,) = event_places(term)
        for reading in self._readings(sides_of(term)[place], bound):
            for bindings in self._beside(term, place, reading, bound):
                yield occurrence(self.world, bindings, (reading,), reading.time)

    def _beside(
        self, term: QueryTerm | ReadingTerm, place: int, reading: Reading, bound: Bindings
    ) -> Iterator[dict[str, str]]:
        own, other = sides_of(term)[place], sides_of(term)[1 - place]
        self._count(1)
        if isinstance(term, ReadingTerm):
            candidates: Sequence[dict[str, str]] = [{own.alias: reading.key}]
        else:
            others = self._partners(term, place, reading, other, bound)
            candidates = [{own.alias: reading.key, other.alias: one} for one in others]
        for bindings in candidates:
            if truth(self.world, term, bindings, {place: reading}):
                yield bindings

    def _partners(
        self, term: QueryTerm, place: int, reading: Reading, other: Side, bound: Bindings
    ) -> list[str]:
        """Instances that may stand at the other side; a relationship is asked of all at once."""
        if other.alias in bound:
            return [bound[other.alias]] if self.world.knows(other, bound[other.alias]) else []
        instances = self.world.pull.instances(other.concept)
        column = instances.columns.get(other.attribute)
        if term.compared is not None or column is None or not len(instances):
            return self.world.instances(other)
        wide = column if column.ndim == 2 else column.reshape(-1, 1)
        own: npt.NDArray[Any] = np.empty((len(instances), len(reading.value)), _kind(reading.value))
        own[:] = reading.value
        first, second = (own, wide) if place == 0 else (wide, own)
        mask = relations.get(term.function).holds_many(first, second, term.parameter)
        chosen = (instances.ids[row] for row in np.flatnonzero(mask).tolist())
        return [one for one in chosen if self.world.allows(other, one)]

    # Two events.

    def _pairs(self, term: CorrelationTerm, bound: Bindings, every: bool) -> Iterator[Occurrence]:
        first, second = term.first, term.second
        for one in self._identities(first, bound):
            if first.alias == second.alias:
                others = [one] if self.world.allows(second, one) else []
            else:
                others = self._identities(second, bound)
            for other in others:
                yield from (self._all if every else self._consumed)(term, one, other)

    def _all(self, term: CorrelationTerm, one: str, other: str) -> Iterator[Occurrence]:
        window = pair_window_ms(self.world.plan, term)
        assert term.first.stream is not None
        assert term.second.stream is not None
        relation = None if term.compared is not None else relations.get(term.function)
        if self.world.has_missing_parts:
            relation = None
        for reading in self.world.of(term.first.stream, one):
            start, end = reading.time - window + 1, reading.time + window - 1
            for partner in self.world.between(term.second.stream, other, start, end):
                # Asked first without ado: most pairs of readings are far from each other.
                if relation is None or relation.holds(reading.value, partner.value, term.parameter):
                    yield from self._pair(term, {0: reading, 1: partner})
                else:
                    self._count(1)

    def _consumed(self, term: CorrelationTerm, one: str, other: str) -> Iterator[Occurrence]:
        """Each arriving event takes the oldest (or newest) unused one that fits."""
        own = {0: _stream(term.first), 1: _stream(term.second)}
        keys = {0: one, 1: other}
        merged = {*self.world.of(own[0], one), *self.world.of(own[1], other)}
        waiting: dict[int, list[Reading]] = {0: [], 1: []}
        gone: set[Reading] = set()
        window = pair_window_ms(self.world.plan, term)
        recent = self.world.plan.consumption == "recent"
        for event in sorted(merged, key=lambda each: (each.time, each.id, each.stream, each.key)):
            for place in (0, 1):
                if (event.stream, event.key) != (own[place], keys[place]) or event in gone:
                    continue
                olds = [
                    old
                    for old in waiting[1 - place]
                    if old not in gone and event.time - old.time < window
                ]
                yield from self._take(term, place, event, olds[::-1] if recent else olds, gone)
            for place in (0, 1):
                if (event.stream, event.key) == (own[place], keys[place]):
                    waiting[place].append(event)

    def _take(
        self,
        term: CorrelationTerm,
        place: int,
        event: Reading,
        olds: list[Reading],
        gone: set[Reading],
    ) -> Iterator[Occurrence]:
        for number, old in enumerate(olds):
            for found in self._pair(term, {place: event, 1 - place: old}):
                gone.update({event, old})
                if self.world.plan.consumption == "recent":
                    gone.update(olds[number:])
                yield found
                return

    def _pair(self, term: CorrelationTerm, events: Mapping[int, Reading]) -> Iterator[Occurrence]:
        self._count(1)
        if events[0] == events[1]:
            return
        bindings = {term.first.alias: events[0].key, term.second.alias: events[1].key}
        if truth(self.world, term, bindings, events):
            end = max(events[0].time, events[1].time)
            yield occurrence(self.world, bindings, (events[0], events[1]), end)

    # No event.

    def _facts(self, term: ConstraintTerm, bound: Bindings) -> Iterator[Occurrence]:
        first, second = term.first, term.second
        for one in self._known(first, bound):
            others = [one] if first.alias == second.alias else self._known(second, bound)
            self._count(len(others))
            for other in others:
                bindings = {first.alias: one, second.alias: other}
                if truth(self.world, term, bindings, {}):
                    yield occurrence(self.world, bindings, (), None)

    # Who.

    def _known(self, side: Side, bound: Bindings) -> list[str]:
        if side.alias not in bound:
            return self.world.instances(side)
        return [bound[side.alias]] if self.world.knows(side, bound[side.alias]) else []

    def _identities(self, side: Side, bound: Bindings) -> list[str]:
        keys = [bound[side.alias]] if side.alias in bound else self.world.keys(_stream(side))
        return [key for key in keys if self.world.allows(side, key)]

    def _readings(self, side: Side, bound: Bindings) -> Iterator[Reading]:
        for key in self._identities(side, bound):
            yield from self.world.of(_stream(side), key)

    def _count(self, tests: int) -> None:
        self._tests += tests
        if self._tests > _MOST_TESTS:
            raise InvalidInput(
                "too many readings lie around that time to look at all pairs of them",
                code="explain.too_much",
                hint="say whom it is about, such as A=5, or a smaller --window",
            )


def _stream(side: Side) -> str:
    assert side.stream is not None, side
    return side.stream


def _kind(value: Sequence[object]) -> type:
    return float if all(isinstance(part, float | int) for part in value) else object
