"""`C for D` read literally: the state of every binding, reading by reading. [PO-6, PO-7]"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from support.judge.holding import End, Reading
from support.judge.keys import AllOf, LastingKey, State, Stated, stated_in
from support.judge.known_world import KnownWorld, Occurrence

Last = dict[tuple[str, str], Reading]
"""The last reading of each (stream, key)."""


class _Step(NamedTuple):
    """A reading that came at `time`, or ran out then."""

    time: int
    came: bool
    reading: Reading


def stretches(world: KnownWorld, key: LastingKey) -> Iterator[Occurrence]:
    """One occurrence per stretch that lasted, of every binding."""
    for bindings in _bindings(world, key):
        yield from _Binding(world, key, bindings).stretches()


def _bindings(world: KnownWorld, key: LastingKey) -> Iterator[dict[str, str]]:
    """Whoever has readings, for aliases with events; the instances of the tables for others."""
    candidates: dict[str, list[str]] = {}
    for end in _ends(world, key):
        if world.holding.stream(end) is None:
            candidates.setdefault(end.alias, [])
        else:
            keys = [one.key for one in world.readings if world.is_at(end, one)]
            candidates[end.alias] = sorted({*candidates.get(end.alias, []), *keys})
    timed = {end.alias for end in _ends(world, key) if world.holding.stream(end) is not None}
    for alias in candidates.keys() - timed:
        candidates[alias] = world.holding.instances(alias)
    for identities in itertools.product(*candidates.values()):
        yield dict(zip(candidates, identities, strict=True))


def _ends(world: KnownWorld, key: LastingKey) -> list[End]:
    ends = [end for stated in stated_in(key.state) for end in world.holding.ends(stated.key)]
    return list(dict.fromkeys(ends))


class _Binding:
    """The state of one binding through time."""

    def __init__(self, world: KnownWorld, key: LastingKey, bindings: dict[str, str]) -> None:
        self._world, self._key, self._bindings = world, key, bindings
        self._ends = [end for end in _ends(world, key) if world.holding.stream(end) is not None]

    def stretches(self) -> Iterator[Occurrence]:
        began: Occurrence | None = None
        for time, true in self._states():
            if began is None and true is not None:
                began = self._occurrence(time, true)
            elif began is not None and true is None:
                if time >= began.end:
                    yield began
                began = None
        if began is not None:  # time runs on
            yield began

    def _occurrence(self, time: int, true: dict[End, Reading]) -> Occurrence:
        events = sorted(set(true.values()), key=lambda one: (one.time, one.id, one.stream, one.key))
        return self._world.occurrence(self._bindings, events, time + self._key.duration)

    def _states(self) -> Iterator[tuple[int, dict[End, Reading] | None]]:
        """After each step: the readings that show the state where it is true, else None."""
        last: Last = {}
        heard: set[str] = set()
        aliases = {end.alias for end in self._ends}
        for step in self._steps():
            reading = step.reading
            place = (reading.stream, reading.key)
            if step.came:
                last[place] = reading
                heard |= {end.alias for end in self._ends if self._is_of(end, reading)}
            elif last.get(place) == reading:
                del last[place]
            if heard == aliases:
                known = self._known(last)
                true = self._truth(self._key.state, known) is True
                yield step.time, self._showing(known) if true else None

    def _steps(self) -> list[_Step]:
        """Readings of this binding and when they run out; that comes before readings of its
        time.
        """
        own = [
            reading
            for reading in self._world.readings
            if any(self._is_of(end, reading) for end in self._ends)
        ]
        came = [_Step(reading.time, True, reading) for reading in own]
        gone = [
            _Step(reading.time + after, False, reading)
            for reading in own
            if (after := self._world.stale_after(reading))
        ]
        return sorted([*came, *gone], key=lambda step: (step.time, step.came))

    def _is_of(self, end: End, reading: Reading) -> bool:
        return reading.key == self._bindings[end.alias] and self._world.is_at(end, reading)

    def _known(self, last: Last) -> dict[End, Reading]:
        known = {}
        for end in self._ends:
            stream = self._world.holding.stream(end)
            assert stream is not None
            if found := last.get((stream, self._bindings[end.alias])):
                known[end] = found
        return known

    def _truth(self, state: State, known: Mapping[End, Reading]) -> bool | None:
        """Three-valued, by Kleene."""
        if isinstance(state, Stated):
            truth = self._holds(state, known)
            return truth if truth is None or not state.negated else not truth
        parts = [self._truth(part, known) for part in state.parts]
        decisive = not isinstance(state, AllOf)
        if decisive in parts:
            return decisive
        return None if None in parts else not decisive

    def _holds(self, stated: Stated, known: Mapping[End, Reading]) -> bool | None:
        ends = self._world.holding.event_ends(stated.key)
        readings = [known[end] for end in ends if end in known]
        if len(readings) == 2 and readings[0] == readings[1]:
            return None  # a reading makes no pair with itself
        return self._world.holding.truth(stated.key, self._bindings, known)

    def _showing(self, known: dict[End, Reading]) -> dict[End, Reading]:
        """The readings of the literals that are true, as written."""
        true = [one for one in stated_in(self._key.state) if self._truth(one, known) is True]
        ends = {end for one in true for end in self._world.holding.event_ends(one.key)}
        return {end: reading for end, reading in known.items() if end in ends}
