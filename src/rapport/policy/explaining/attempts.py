"""What was nearly an occurrence: readings around a time of whoever a term may be about. [PO-11]"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

import numpy as np

from rapport.policy import relations
from rapport.policy.explaining.geometry import distances_outside
from rapport.policy.explaining.holding import event_places, sides_of, truth
from rapport.policy.explaining.world import Evidence, Reading
from rapport.policy.plan import CorrelationTerm, Side, StateTerm

_MOST_READINGS = 40
_MOST_OTHERS = 12


class TimeSpan(NamedTuple):
    """The time that is looked at, both ends included."""

    start: int
    end: int

    @property
    def middle(self) -> int:
        """Near which readings are preferred."""
        return (self.start + self.end) // 2

    def distance(self, time: int) -> int:
        """How far a time lies from the middle."""
        return abs(time - self.middle)


class Attempt(NamedTuple):
    """Identities and readings of which a term may hold or not."""

    bindings: dict[str, str]
    events: dict[int, Reading]
    truth: bool | None


def attempts(
    world: Evidence,
    term: StateTerm,
    bindings: Mapping[str, str],
    span: TimeSpan,
    *,
    most: int = 400,
) -> list[Attempt]:
    """The readings in the span that a term might have held of, those near its middle first."""
    return list(islice(_every(world, term, bindings, span), most))


def _every(
    world: Evidence, term: StateTerm, bindings: Mapping[str, str], span: TimeSpan
) -> Iterator[Attempt]:
    places = event_places(term)
    if not places:
        yield from _beside(world, term, dict(bindings), {})
        return
    first = sides_of(term)[places[0]]
    for reading in near_readings(world, first, bindings, span):
        known = {**bindings, first.alias: reading.key}
        if len(places) == 1:
            yield from _beside(world, term, known, {places[0]: reading})
            continue
        second = sides_of(term)[places[1]]
        around = TimeSpan(min(span.start, reading.time), max(span.end, reading.time))
        for other in near_readings(world, second, known, around):
            if other != reading:
                merged = {**known, second.alias: other.key}
                events = {places[0]: reading, places[1]: other}
                yield Attempt(merged, events, truth(world, term, merged, events))


def near_readings(
    world: Evidence, side: Side, bindings: Mapping[str, str], span: TimeSpan
) -> list[Reading]:
    """Readings of whoever an alias may be, nearest to the middle of the span first."""
    assert side.stream is not None
    keys = [bindings[side.alias]] if side.alias in bindings else world.keys(side.stream)
    found = [
        reading
        for key in keys
        if world.allows(side, key)
        for reading in world.between(side.stream, key, span.start, span.end)
    ]
    found.sort(key=lambda one: (span.distance(one.time), one.time, one.id))
    return found[:_MOST_READINGS]


def _beside(
    world: Evidence, term: StateTerm, bindings: dict[str, str], events: dict[int, Reading]
) -> Iterator[Attempt]:
    """With every instance that may stand where no event does, the nearest ones first."""
    free = [place for place, side in enumerate(sides_of(term)) if side.alias not in bindings]
    if not free or isinstance(term, CorrelationTerm):
        yield Attempt(bindings, events, truth(world, term, bindings, events))
        return
    side = sides_of(term)[free[0]]
    for identity in _others(world, term, side, free[0], events):
        merged = {**bindings, side.alias: identity}
        if all(each.alias in merged for each in sides_of(term)):
            yield Attempt(merged, events, truth(world, term, merged, events))
        else:
            yield from _beside(world, term, merged, events)


def _others(
    world: Evidence, term: StateTerm, side: Side, place: int, events: Mapping[int, Reading]
) -> list[str]:
    instances = world.pull.instances(side.concept)
    column = instances.columns.get(side.attribute)
    known = world.instances(side)
    own = events.get(1 - place)
    is_area = term.compared is None and relations.get(term.function).shape == "contains"
    if own is None or column is None or not is_area or place != 1 or not len(instances):
        return known[:_MOST_OTHERS]
    order = np.argsort(distances_outside(own.value, column), kind="stable")
    nearest = (instances.ids[row] for row in order.tolist())
    return list(islice((one for one in nearest if world.allows(side, one)), _MOST_OTHERS))
