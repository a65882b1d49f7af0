"""The occurrences of a plan's terms by rule 2: identities, readings and end; including states (`C
for D`) and silences (`no X of S for D`) that were too short. [PO-6, PO-11]
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from rapport.core.errors import InvalidInput
from rapport.policy import relations
from rapport.policy.explain.evidence import Evidence, Reading
from rapport.policy.explain.term_truth import Bindings, event_places, sides_of, truth
from rapport.policy.operators.plan_shape import pair_window_ms
from rapport.policy.plan import (
    ConstraintTerm,
    CorrelationTerm,
    LastingTerm,
    QueryTerm,
    ReadingTerm,
    Side,
    SilentTerm,
    StateAll,
    StateAtom,
    StateExpression,
    state_atoms,
)

End = tuple[str, str]
"""Alias and stream."""
LastReadings = Mapping[End, Reading]
_MOST_TESTS = 3_000_000
"""Pairs of readings that one explanation may test."""


class Occurrence(msgspec.Struct, frozen=True):
    """A term that holds; `until` is its end, None for a fact of the tables."""

    pairs: tuple[tuple[str, str], ...]
    events: tuple[Reading, ...]
    until: int | None
    uncertainty: int = 0
    since: int | None = None
    """When a state became true or a silence began."""

    @property
    def bindings(self) -> dict[str, str]:
        return dict(self.pairs)

    @property
    def is_fact(self) -> bool:
        """Facts take no part in tests of time."""
        return self.until is None

    @property
    def end(self) -> int:
        assert self.until is not None, "a fact has no end"
        return self.until

    @property
    def start(self) -> int:
        """The smallest time of its readings."""
        return min((event.time for event in self.events), default=self.end)

    @property
    def first_moment(self) -> int:
        """The earliest moment at which it can be observed."""
        return min(self.start, self.end if self.since is None else self.since)


class StateSpan(msgspec.Struct, frozen=True):
    """A true state or a silence, from the occurrence's `since` on; `ended` is None when it does not
    end.
    """

    occurrence: Occurrence
    ended: int | None
    ended_by: Reading | None = None
    """None: it did not end, or a value became stale."""

    @property
    def has_lasted(self) -> bool:
        return self.ended is None or self.ended >= self.occurrence.end


def occurrence(
    evidence: Evidence,
    bindings: Mapping[str, str],
    events: Iterable[Reading],
    until: int | None,
    *,
    since: int | None = None,
) -> Occurrence:
    """An occurrence with the uncertainty of its readings."""
    shown = tuple(events)
    pairs = tuple(sorted(bindings.items()))
    return Occurrence(pairs, shown, until, evidence.uncertainty(shown), since)


class StateMoment(NamedTuple):
    """The state of a binding after a step."""

    time: int
    truth: bool | None
    known: dict[End, Reading]
    came: Reading | None
    """None: a value became stale."""


def state_spans(
    evidence: Evidence, term: LastingTerm, bound: Mapping[str, str]
) -> Iterator[StateSpan]:
    """Every span in which the state was true, however short, of every binding."""
    for bindings in bindings_of_state(evidence, term, bound):
        began: Occurrence | None = None
        for moment in state_moments(evidence, term, bindings):
            if moment.truth is True and began is None:
                began = _begun(evidence, term, bindings, moment)
            elif moment.truth is not True and began is not None:
                yield StateSpan(began, moment.time, moment.came)
                began = None
        if began is not None:
            yield StateSpan(began, None)


def bindings_of_state(
    evidence: Evidence, term: LastingTerm, bound: Mapping[str, str]
) -> Iterator[dict[str, str]]:
    """All bindings: identities with readings for aliases with events, instances of the tables for
    the others.
    """
    sides = {term.first.alias: term.first, term.second.alias: term.second}
    streams: dict[str, set[str]] = {alias: set() for alias in sides}
    for alias, stream in ends_of_state(term):
        streams[alias].add(stream)
    candidates = [
        _candidates(evidence, side, streams[alias], bound) for alias, side in sides.items()
    ]
    for identities in itertools.product(*candidates):
        yield dict(zip(sides, identities, strict=True))


def _candidates(
    evidence: Evidence, side: Side, streams: set[str], bound: Mapping[str, str]
) -> list[str]:
    if streams:
        every = sorted({key for stream in streams for key in evidence.keys(stream)})
        found = [key for key in every if evidence.allows(side, key)]
    else:
        found = evidence.instances(side)
    return [one for one in found if bound.get(side.alias, one) == one]


def ends_of_state(term: LastingTerm) -> list[End]:
    """The event streams that the state reads, by alias."""
    ends = [
        (side.alias, side.stream)
        for atom in state_atoms(term.state)
        for side in (sides_of(atom.term)[place] for place in event_places(atom.term))
        if side.stream is not None
    ]
    return list(dict.fromkeys(ends))


def state_moments(
    evidence: Evidence, term: LastingTerm, bindings: Mapping[str, str]
) -> Iterator[StateMoment]:
    """The state after every reading of the binding and every value that became stale."""
    ends = ends_of_state(term)
    aliases = {alias for alias, _ in ends}
    last: dict[tuple[str, str], Reading] = {}
    with_reading: set[str] = set()
    for time, came, stale in _steps(evidence, ends, bindings):
        if came is not None:
            last[came.stream, came.key] = came
            with_reading |= {
                a for a, stream in ends if (stream, bindings[a]) == (came.stream, came.key)
            }
        if stale is not None and last.get((stale.stream, stale.key)) == stale:
            del last[stale.stream, stale.key]
        if with_reading == aliases:
            known = {
                (alias, stream): last[stream, bindings[alias]]
                for alias, stream in ends
                if (stream, bindings[alias]) in last
            }
            yield StateMoment(time, state_truth(evidence, term.state, bindings, known), known, came)


def _steps(
    evidence: Evidence, ends: list[End], bindings: Mapping[str, str]
) -> list[tuple[int, Reading | None, Reading | None]]:
    """Time, new reading, stale reading; a value becomes stale before readings of the same time."""
    places = dict.fromkeys((stream, bindings[alias]) for alias, stream in ends)
    own = [reading for stream, key in places for reading in evidence.of(stream, key)]
    own.sort(key=lambda one: (one.time, one.id, one.stream, one.key))
    steps: list[tuple[int, Reading | None, Reading | None]] = [(one.time, one, None) for one in own]
    for reading in own:
        if after := evidence.stale_after(reading):
            steps.append((reading.time + after, None, reading))
    return sorted(steps, key=lambda step: (step[0], step[1] is not None))


def state_truth(
    evidence: Evidence, state: StateExpression, bindings: Mapping[str, str], known: LastReadings
) -> bool | None:
    """Three-valued logic (Kleene)."""
    if isinstance(state, StateAtom):
        found = atom_truth(evidence, state, bindings, known)
        return found if found is None or not state.negated else not found
    parts = [state_truth(evidence, part, bindings, known) for part in state.parts]
    decisive = not isinstance(state, StateAll)
    if decisive in parts:
        return decisive
    return None if None in parts else not decisive


def atom_truth(
    evidence: Evidence, atom: StateAtom, bindings: Mapping[str, str], known: LastReadings
) -> bool | None:
    """The truth of the term without its NOT; a reading forms no pair with itself."""
    events = atom_events(atom, known)
    if len(events) == 2 and events[0] == events[1]:
        return None
    return truth(evidence, atom.term, bindings, events)


def atom_events(atom: StateAtom, known: LastReadings) -> dict[int, Reading]:
    """The last readings of an atom, by side."""
    found = {}
    for place in event_places(atom.term):
        side = sides_of(atom.term)[place]
        if side.stream is not None and (side.alias, side.stream) in known:
            found[place] = known[side.alias, side.stream]
    return found


def _begun(
    evidence: Evidence, term: LastingTerm, bindings: Mapping[str, str], moment: StateMoment
) -> Occurrence:
    shown: set[Reading] = set()
    for atom in state_atoms(term.state):
        if state_truth(evidence, atom, bindings, moment.known) is True:
            shown.update(atom_events(atom, moment.known).values())
    events = sorted(shown, key=lambda one: (one.time, one.id, one.stream, one.key))
    end = moment.time + term.duration_ms
    return occurrence(evidence, bindings, events, end, since=moment.time)


def silences(evidence: Evidence, term: SilentTerm, bound: Mapping[str, str]) -> Iterator[StateSpan]:
    """Every silence of the alias's identities, however short; in order of time per identity."""
    if evidence.began is None:
        return
    known = set(evidence.instances(term.first))
    for identity in _identities(evidence, term, bound, known):
        own = sorted(
            (reading for stream in term.streams for reading in evidence.of(stream, identity)),
            key=lambda one: (one.time, one.id, one.stream, one.key),
        )
        moments: list[Reading | None] = [*own, None]
        if identity in known:
            yield _silence(evidence, term, identity, None, moments[0])
        for last, following in pairwise(moments):
            yield _silence(evidence, term, identity, last, following)


def _identities(
    evidence: Evidence, term: SilentTerm, bound: Mapping[str, str], known: set[str]
) -> list[str]:
    alias = term.first.alias
    own = [key for stream in term.streams for key in evidence.keys(stream)]
    candidates = [bound[alias]] if alias in bound else dict.fromkeys([*sorted(known), *own])
    return [
        one
        for one in candidates
        if evidence.allows(term.first, one) and (one in known or one in own)
    ]


def _silence(
    evidence: Evidence,
    term: SilentTerm,
    identity: str,
    last: Reading | None,
    following: Reading | None,
) -> StateSpan:
    assert evidence.began is not None
    since = evidence.began if last is None else last.time
    events = () if last is None else (last,)
    bindings = {term.first.alias: identity}
    found = occurrence(evidence, bindings, events, since + term.duration_ms, since=since)
    return StateSpan(found, None if following is None else following.time, following)


class TermOccurrences:
    """Finds occurrences on demand; costs the readings of the bound identities."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self._found: dict[tuple[object, ...], list[Occurrence]] = {}
        self._tests = 0

    def of(self, number: int, bindings: Bindings, *, negated: bool = False) -> list[Occurrence]:
        """The occurrences of a term that agree with the bindings; under a NOT every pair of events
        counts, elsewhere events are consumed.
        """
        term = self.evidence.plan.terms[number]
        aliases = {term.first.alias, term.second.alias}
        bound = {alias: bindings[alias] for alias in sorted(aliases) if alias in bindings}
        every = negated or not isinstance(term, CorrelationTerm)
        key = (number, every, *bound.items())
        if key not in self._found:
            self._found[key] = list(self._every(number, bound, every))
        return self._found[key]

    def _every(self, number: int, bound: Bindings, every: bool) -> Iterator[Occurrence]:
        term = self.evidence.plan.terms[number]
        match term:
            case LastingTerm():
                found = [
                    s.occurrence for s in state_spans(self.evidence, term, bound) if s.has_lasted
                ]
                yield from found
            case SilentTerm():
                yield from (
                    s.occurrence for s in silences(self.evidence, term, bound) if s.has_lasted
                )
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
                yield occurrence(self.evidence, bindings, (reading,), reading.time)

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
            if truth(self.evidence, term, bindings, {place: reading}):
                yield bindings

    def _partners(
        self, term: QueryTerm, place: int, reading: Reading, other: Side, bound: Bindings
    ) -> list[str]:
        """Instances that may stand at the other side; a relationship is evaluated for all at
        once.
        """
        if other.alias in bound:
            return [bound[other.alias]] if self.evidence.knows(other, bound[other.alias]) else []
        instances = self.evidence.pull.instances(other.concept)
        column = instances.columns.get(other.attribute)
        if term.compared is not None or column is None or not len(instances):
            return self.evidence.instances(other)
        wide = column if column.ndim == 2 else column.reshape(-1, 1)
        own: npt.NDArray[Any] = np.empty((len(instances), len(reading.value)), _kind(reading.value))
        own[:] = reading.value
        first, second = (own, wide) if place == 0 else (wide, own)
        mask = relations.get(term.function).holds_many(first, second, term.parameter)
        chosen = (instances.ids[row] for row in np.flatnonzero(mask).tolist())
        return [one for one in chosen if self.evidence.allows(other, one)]

    # Two events.

    def _pairs(self, term: CorrelationTerm, bound: Bindings, every: bool) -> Iterator[Occurrence]:
        first, second = term.first, term.second
        for one in self._identities(first, bound):
            if first.alias == second.alias:
                others = [one] if self.evidence.allows(second, one) else []
            else:
                others = self._identities(second, bound)
            for other in others:
                yield from (self._all if every else self._consumed)(term, one, other)

    def _all(self, term: CorrelationTerm, one: str, other: str) -> Iterator[Occurrence]:
        window = pair_window_ms(self.evidence.plan, term)
        assert term.first.stream is not None
        assert term.second.stream is not None
        relation = None if term.compared is not None else relations.get(term.function)
        if self.evidence.has_missing_parts:
            relation = None
        for reading in self.evidence.of(term.first.stream, one):
            start, end = reading.time - window + 1, reading.time + window - 1
            for partner in self.evidence.between(term.second.stream, other, start, end):
                # Cheap test first: most pairs of readings are far from each other.
                if relation is None or relation.holds(reading.value, partner.value, term.parameter):
                    yield from self._pair(term, {0: reading, 1: partner})
                else:
                    self._count(1)

    def _consumed(self, term: CorrelationTerm, one: str, other: str) -> Iterator[Occurrence]:
        """Each arriving event takes the oldest (or newest) unused one that fits."""
        own = {0: _stream(term.first), 1: _stream(term.second)}
        keys = {0: one, 1: other}
        merged = {*self.evidence.of(own[0], one), *self.evidence.of(own[1], other)}
        waiting: dict[int, list[Reading]] = {0: [], 1: []}
        gone: set[Reading] = set()
        window = pair_window_ms(self.evidence.plan, term)
        recent = self.evidence.plan.consumption == "recent"
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
                if self.evidence.plan.consumption == "recent":
                    gone.update(olds[number:])
                yield found
                return

    def _pair(self, term: CorrelationTerm, events: Mapping[int, Reading]) -> Iterator[Occurrence]:
        self._count(1)
        if events[0] == events[1]:
            return
        bindings = {term.first.alias: events[0].key, term.second.alias: events[1].key}
        if truth(self.evidence, term, bindings, events):
            end = max(events[0].time, events[1].time)
            yield occurrence(self.evidence, bindings, (events[0], events[1]), end)

    # No event.

    def _facts(self, term: ConstraintTerm, bound: Bindings) -> Iterator[Occurrence]:
        first, second = term.first, term.second
        for one in self._known(first, bound):
            others = [one] if first.alias == second.alias else self._known(second, bound)
            self._count(len(others))
            for other in others:
                bindings = {first.alias: one, second.alias: other}
                if truth(self.evidence, term, bindings, {}):
                    yield occurrence(self.evidence, bindings, (), None)

    # Identities.

    def _known(self, side: Side, bound: Bindings) -> list[str]:
        if side.alias not in bound:
            return self.evidence.instances(side)
        return [bound[side.alias]] if self.evidence.knows(side, bound[side.alias]) else []

    def _identities(self, side: Side, bound: Bindings) -> list[str]:
        keys = [bound[side.alias]] if side.alias in bound else self.evidence.keys(_stream(side))
        return [key for key in keys if self.evidence.allows(side, key)]

    def _readings(self, side: Side, bound: Bindings) -> Iterator[Reading]:
        for key in self._identities(side, bound):
            yield from self.evidence.of(_stream(side), key)

    def _count(self, tests: int) -> None:
        self._tests += tests
        if self._tests > _MOST_TESTS:
            raise InvalidInput(
                "too many readings lie around that time to look at all pairs of them",
                code="explain.too_much",
                hint="give an identity, such as A=5, or a smaller --window",
            )


def _stream(side: Side) -> str:
    assert side.stream is not None, side
    return side.stream


def _kind(value: Sequence[object]) -> type:
    return float if all(isinstance(part, float | int) for part in value) else object
