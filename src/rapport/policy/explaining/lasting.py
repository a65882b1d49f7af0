"""`C for D`, one binding at a time: when the state was true, for how long, and what ended it.
[PO-6, PO-11]
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rapport.policy.explaining.holding import event_places, sides_of, truth
from rapport.policy.explaining.stretch import Occurrence, StateSpan, occurrence
from rapport.policy.explaining.world import Evidence, Reading
from rapport.policy.plan import (
    LastingTerm,
    Side,
    StateAll,
    StateAtom,
    StateExpression,
    state_atoms,
)

End = tuple[str, str]
"""Alias and stream."""
LastReadings = Mapping[End, Reading]


class StateMoment(NamedTuple):
    """The state of a binding after a step."""

    time: int
    truth: bool | None
    known: dict[End, Reading]
    came: Reading | None
    """None: a value grew stale."""


def state_spans(
    world: Evidence, term: LastingTerm, bound: Mapping[str, str]
) -> Iterator[StateSpan]:
    """Every stretch in which the state was true, however short, of every binding."""
    for bindings in bindings_of_state(world, term, bound):
        began: Occurrence | None = None
        for moment in state_moments(world, term, bindings):
            if moment.truth is True and began is None:
                began = _begun(world, term, bindings, moment)
            elif moment.truth is not True and began is not None:
                yield StateSpan(began, moment.time, moment.came)
                began = None
        if began is not None:
            yield StateSpan(began, None)


def bindings_of_state(
    world: Evidence, term: LastingTerm, bound: Mapping[str, str]
) -> Iterator[dict[str, str]]:
    """Whoever has readings, for aliases with events; instances of the tables for the others."""
    sides = {term.first.alias: term.first, term.second.alias: term.second}
    streams: dict[str, set[str]] = {alias: set() for alias in sides}
    for alias, stream in ends_of_state(term):
        streams[alias].add(stream)
    candidates = [_candidates(world, side, streams[alias], bound) for alias, side in sides.items()]
    for identities in itertools.product(*candidates):
        yield dict(zip(sides, identities, strict=True))


def _candidates(
    world: Evidence, side: Side, streams: set[str], bound: Mapping[str, str]
) -> list[str]:
    if streams:
        every = sorted({key for stream in streams for key in world.keys(stream)})
        found = [key for key in every if world.allows(side, key)]
    else:
        found = world.instances(side)
    return [one for one in found if bound.get(side.alias, one) == one]


def ends_of_state(term: LastingTerm) -> list[End]:
    """What the state reads of events, each once."""
    ends = [
        (side.alias, side.stream)
        for atom in state_atoms(term.state)
        for side in (sides_of(atom.term)[place] for place in event_places(atom.term))
        if side.stream is not None
    ]
    return list(dict.fromkeys(ends))


def state_moments(
    world: Evidence, term: LastingTerm, bindings: Mapping[str, str]
) -> Iterator[StateMoment]:
    """The state after every reading of the binding and every value that grew stale."""
    ends = ends_of_state(term)
    aliases = {alias for alias, _ in ends}
    last: dict[tuple[str, str], Reading] = {}
    heard: set[str] = set()
    for time, came, stale in _steps(world, ends, bindings):
        if came is not None:
            last[came.stream, came.key] = came
            heard |= {a for a, stream in ends if (stream, bindings[a]) == (came.stream, came.key)}
        if stale is not None and last.get((stale.stream, stale.key)) == stale:
            del last[stale.stream, stale.key]
        if heard == aliases:
            known = {
                (alias, stream): last[stream, bindings[alias]]
                for alias, stream in ends
                if (stream, bindings[alias]) in last
            }
            yield StateMoment(time, state_truth(world, term.state, bindings, known), known, came)


def _steps(
    world: Evidence, ends: list[End], bindings: Mapping[str, str]
) -> list[tuple[int, Reading | None, Reading | None]]:
    """Time, what came, what grew stale; what grows stale comes before readings of its time."""
    places = dict.fromkeys((stream, bindings[alias]) for alias, stream in ends)
    own = [reading for stream, key in places for reading in world.of(stream, key)]
    own.sort(key=lambda one: (one.time, one.id, one.stream, one.key))
    steps: list[tuple[int, Reading | None, Reading | None]] = [(one.time, one, None) for one in own]
    for reading in own:
        if after := world.stale_after(reading):
            steps.append((reading.time + after, None, reading))
    return sorted(steps, key=lambda step: (step[0], step[1] is not None))


def state_truth(
    world: Evidence, state: StateExpression, bindings: Mapping[str, str], known: LastReadings
) -> bool | None:
    """Three-valued, by Kleene."""
    if isinstance(state, StateAtom):
        found = atom_truth(world, state, bindings, known)
        return found if found is None or not state.negated else not found
    parts = [state_truth(world, part, bindings, known) for part in state.parts]
    decisive = not isinstance(state, StateAll)
    if decisive in parts:
        return decisive
    return None if None in parts else not decisive


def atom_truth(
    world: Evidence, atom: StateAtom, bindings: Mapping[str, str], known: LastReadings
) -> bool | None:
    """Of the term without its NOT; a reading makes no pair with itself."""
    events = atom_events(atom, known)
    if len(events) == 2 and events[0] == events[1]:
        return None
    return truth(world, atom.term, bindings, events)


def atom_events(atom: StateAtom, known: LastReadings) -> dict[int, Reading]:
    """The last readings that an atom reads, by side."""
    found = {}
    for place in event_places(atom.term):
        side = sides_of(atom.term)[place]
        if side.stream is not None and (side.alias, side.stream) in known:
            found[place] = known[side.alias, side.stream]
    return found


def _begun(
    world: Evidence, term: LastingTerm, bindings: Mapping[str, str], moment: StateMoment
) -> Occurrence:
    shown: set[Reading] = set()
    for atom in state_atoms(term.state):
        if state_truth(world, atom, bindings, moment.known) is True:
            shown.update(atom_events(atom, moment.known).values())
    events = sorted(shown, key=lambda one: (one.time, one.id, one.stream, one.key))
    end = moment.time + term.duration_ms
    return occurrence(world, bindings, events, end, since=moment.time)
