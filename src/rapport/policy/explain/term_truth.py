"""Whether a relationship or comparison holds for given identities and readings, and how near it
came. [PO-3, PO-11]
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from rapport.policy import measures, relations
from rapport.policy.explain.evidence import Evidence, Reading, TimeSpan, Value, complete
from rapport.policy.explain.geometry import distance, distance_outside, distances_outside
from rapport.policy.explain.wording import Wording, approximate, value_text
from rapport.policy.operators.columns import OPERATIONS
from rapport.policy.plan import (
    Constant,
    ConstraintTerm,
    CorrelationTerm,
    LookedUp,
    Measure,
    Operand,
    QueryTerm,
    ReadingTerm,
    Side,
    SideValue,
    StateTerm,
)

Events = Mapping[int, Reading]
"""The reading at each side (0 first, 1 second) that comes as events."""
Bindings = Mapping[str, str]
_MOST_READINGS = 40
_MOST_OTHERS = 12


class Operands(NamedTuple):
    """The compared values: numbers, texts or booleans; None where one is missing."""

    left: Any
    right: Any


def sides_of(term: StateTerm) -> tuple[Side, Side]:
    """Both sides; a comparison of one alias may have the same side twice."""
    return (term.first, term.second)


def event_places(term: StateTerm) -> tuple[int, ...]:
    """The sides that come as events."""
    match term:
        case ReadingTerm():
            return (0,)
        case ConstraintTerm():
            return ()
        case CorrelationTerm():
            return (0, 1)
        case QueryTerm():
            return (0,) if term.first.stream is not None else (1,)


def truth(evidence: Evidence, term: StateTerm, bindings: Bindings, events: Events) -> bool | None:
    """None: unknown, because a compared reading or value is missing. A relationship with a missing
    value does not hold.
    """
    if any(place not in events for place in event_places(term)):
        return None
    if term.compared is None:
        first, second = values(evidence, term, bindings, events)
        if first is None or second is None:
            return False
        return bool(relations.get(term.function).holds(first, second, term.parameter))
    left, right = operands(evidence, term, bindings, events)
    if left is None or right is None:
        return None
    return bool(OPERATIONS[term.compared.operator](*_same_type(left, right)))


def values(
    evidence: Evidence, term: StateTerm, bindings: Bindings, events: Events
) -> tuple[Value | None, Value | None]:
    """The values of both sides of a relationship."""
    first, second = (
        _value(evidence, term, SideValue(place, sides_of(term)[place].attribute), bindings, events)
        for place in (0, 1)
    )
    return first, second


def operands(evidence: Evidence, term: StateTerm, bindings: Bindings, events: Events) -> Operands:
    assert term.compared is not None
    left, right = (
        _operand(evidence, term, each, bindings, events)
        for each in (term.compared.left, term.compared.right)
    )
    return Operands(left, right)


def _operand(
    evidence: Evidence, term: StateTerm, operand: Operand, bindings: Bindings, events: Events
) -> Any:
    match operand:
        case Constant(value):
            return value
        case SideValue():
            found = _value(evidence, term, operand, bindings, events)
            return None if found is None else found[0]
        case Measure(function, of) | LookedUp(function, of):
            given = [_value(evidence, term, each, bindings, events) for each in of]
            known = [value for value in given if value is not None]
            if len(known) < len(given):
                return None
            if isinstance(operand, LookedUp):
                number = evidence.pull.pairs(function).get(tuple(value[0] for value in known))
            else:
                number = float(measures.get(function).one(*known))
            return None if number is None or math.isnan(number) else number


def _value(
    evidence: Evidence, term: StateTerm, value: SideValue, bindings: Bindings, events: Events
) -> Value | None:
    side = sides_of(term)[value.side]
    if side.stream is not None and value.attribute == side.attribute:
        found = events[value.side].value
        return complete(found) if evidence.has_missing_parts else found
    return evidence.in_tables(side.concept, value.attribute, bindings[side.alias])


def _same_type(left: Any, right: Any) -> tuple[Any, Any]:
    """Converts a constant text beside a boolean into a boolean."""
    if isinstance(left, bool) and isinstance(right, str):
        return left, right.lower() == "true"
    if isinstance(right, bool) and isinstance(left, str):
        return left.lower() == "true", right
    return left, right


class Attempt(NamedTuple):
    """Identities and readings that a term is evaluated for."""

    bindings: dict[str, str]
    events: dict[int, Reading]
    truth: bool | None


def attempts(
    evidence: Evidence,
    term: StateTerm,
    bindings: Mapping[str, str],
    span: TimeSpan,
    *,
    most: int = 400,
) -> list[Attempt]:
    """The evaluations of a term for readings in the span, nearest to its middle first."""
    return list(islice(_every(evidence, term, bindings, span), most))


def _every(
    evidence: Evidence, term: StateTerm, bindings: Mapping[str, str], span: TimeSpan
) -> Iterator[Attempt]:
    places = event_places(term)
    if not places:
        yield from _with_instances(evidence, term, dict(bindings), {})
        return
    first = sides_of(term)[places[0]]
    for reading in near_readings(evidence, first, bindings, span):
        known = {**bindings, first.alias: reading.key}
        if len(places) == 1:
            yield from _with_instances(evidence, term, known, {places[0]: reading})
            continue
        second = sides_of(term)[places[1]]
        around = TimeSpan(min(span.start, reading.time), max(span.end, reading.time))
        for other in near_readings(evidence, second, known, around):
            if other != reading:
                merged = {**known, second.alias: other.key}
                events = {places[0]: reading, places[1]: other}
                yield Attempt(merged, events, truth(evidence, term, merged, events))


def near_readings(
    evidence: Evidence, side: Side, bindings: Mapping[str, str], span: TimeSpan
) -> list[Reading]:
    """Readings of the alias's possible identities, nearest to the middle of the span first."""
    assert side.stream is not None
    keys = [bindings[side.alias]] if side.alias in bindings else evidence.keys(side.stream)
    found = [
        reading
        for key in keys
        if evidence.allows(side, key)
        for reading in evidence.between(side.stream, key, span.start, span.end)
    ]
    found.sort(key=lambda one: (span.distance(one.time), one.time, one.id))
    return found[:_MOST_READINGS]


def _with_instances(
    evidence: Evidence, term: StateTerm, bindings: dict[str, str], events: dict[int, Reading]
) -> Iterator[Attempt]:
    """Completes an attempt with instances for the sides without events, nearest first."""
    free = [place for place, side in enumerate(sides_of(term)) if side.alias not in bindings]
    if not free or isinstance(term, CorrelationTerm):
        yield Attempt(bindings, events, truth(evidence, term, bindings, events))
        return
    side = sides_of(term)[free[0]]
    for identity in _others(evidence, term, side, free[0], events):
        merged = {**bindings, side.alias: identity}
        if all(each.alias in merged for each in sides_of(term)):
            yield Attempt(merged, events, truth(evidence, term, merged, events))
        else:
            yield from _with_instances(evidence, term, merged, events)


def _others(
    evidence: Evidence, term: StateTerm, side: Side, place: int, events: Mapping[int, Reading]
) -> list[str]:
    instances = evidence.pull.instances(side.concept)
    column = instances.columns.get(side.attribute)
    known = evidence.instances(side)
    own = events.get(1 - place)
    relation = None if term.compared is not None else relations.get(term.function)
    is_area = relation is not None and relation.shape == "contains"
    if own is None or column is None or not is_area or place != 1 or not len(instances):
        return known[:_MOST_OTHERS]
    assert relation is not None
    order = np.argsort(distances_outside(relation, own.value, column), kind="stable")
    nearest = (instances.ids[row] for row in order.tolist())
    return list(islice((one for one in nearest if evidence.allows(side, one)), _MOST_OTHERS))


class Proximity:
    """Measures how near the terms of one policy came to holding."""

    def __init__(self, evidence: Evidence, wording: Wording) -> None:
        self.evidence, self.wording = evidence, wording

    def measured(self, term: StateTerm, attempt: Attempt) -> str:
        """The measured values of a relationship or comparison as text."""
        bindings = attempt.bindings
        if term.compared is not None:
            left, right = operands(self.evidence, term, bindings, attempt.events)
            unit = self.wording.unit(term)
            if self.wording.is_truth(term):
                left, right = (one if one is None else bool(one) for one in (left, right))
            texts = [f"{value_text(one)} {unit}".rstrip() for one in (left, right)]
            if left is None or right is None:
                return f"{texts[0]} and {texts[1]} cannot be compared"
            word = "is" if attempt.truth else "is not"
            return f"{texts[0]} {word} {term.compared.operator} {texts[1]}"
        first, second = values(self.evidence, term, bindings, attempt.events)
        names = bindings[term.first.alias], bindings[term.second.alias]
        if first is None or second is None:
            side = term.first if first is None else term.second
            return f"{side.attribute} of {bindings[side.alias]} is missing"
        relation = relations.get(term.function)
        if relation.shape == "distance":
            apart = approximate(distance(first, second, relation.space))
            return f"{names[0]} and {names[1]} were {apart} m apart"
        if relation.shape == "contains":
            out = distance_outside(relation, first, second)
            where = "inside" if out == 0 else f"{approximate(out)} m outside"
            return f"{names[0]} was {where} {names[1]}"
        holds = "holds" if attempt.truth else "does not hold"
        return f"it {holds} of {names[0]} and {names[1]}"

    def nearest(
        self, term: StateTerm, bindings: Mapping[str, str], span: TimeSpan, most: int
    ) -> list[dict[str, str]]:
        """The distinct bindings that came nearest to a term, nearest first."""
        tried = attempts(self.evidence, term, bindings, span)
        tried.sort(key=lambda one: self.rank(term, one, span))
        found: list[dict[str, str]] = []
        for one in tried:
            if one.bindings not in found and len(found) < most:
                found.append(one.bindings)
        return found

    def rank(self, term: StateTerm, attempt: Attempt, span: TimeSpan) -> tuple[float, int]:
        """Sort key: nearest to holding, then nearest in time."""
        time = min((span.distance(one.time) for one in attempt.events.values()), default=0)
        return (self._margin(term, attempt), time)

    def _margin(self, term: StateTerm, attempt: Attempt) -> float:
        if term.compared is not None:
            left, right = operands(self.evidence, term, attempt.bindings, attempt.events)
            if isinstance(left, float | int) and isinstance(right, float | int):
                return abs(left - right)
            return 0.0
        first, second = values(self.evidence, term, attempt.bindings, attempt.events)
        if first is None or second is None:
            return float("inf")
        relation = relations.get(term.function)
        if relation.shape == "distance":
            return distance(first, second, relation.space)
        if relation.shape == "contains":
            return distance_outside(relation, first, second)
        return 0.0
