"""Whether a relationship or comparison holds for given identities and readings, and how near it
came. [PO-3, PO-11]
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rapport.policy import measures, relations
from rapport.policy.explain.evidence import Evidence, Reading, TimeSpan, Value, complete
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
Point = tuple[float, float]
_INWARD = 1e-12
"""Relative margin, so that rounding cannot put a moved point on the wrong side of a border."""
_LEAST = 1e-9
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


def distance(first: Sequence[float], second: Sequence[float]) -> float:
    return math.hypot(first[0] - second[0], first[1] - second[1])


def nearest_inside(point: Sequence[float], area: Sequence[float]) -> Point:
    """The nearest point of a closed rectangle."""
    x1, y1, x2, y2 = area
    return (min(max(point[0], x1), x2), min(max(point[1], y1), y2))


def nearest_outside(point: Sequence[float], area: Sequence[float]) -> Point:
    """The nearest point just outside a closed rectangle."""
    x, y = point[0], point[1]
    x1, y1, x2, y2 = area
    ways = [
        (math.nextafter(x1, -math.inf), y),
        (math.nextafter(x2, math.inf), y),
        (x, math.nextafter(y1, -math.inf)),
        (x, math.nextafter(y2, math.inf)),
    ]
    return min(ways, key=lambda way: distance(way, point))


def at_distance(point: Sequence[float], other: Sequence[float], wanted: float, side: int) -> Point:
    """Moves a point on the line to the other until their distance is `wanted`: surely not more
    (`side` -1) or surely more (1).
    """
    apart = distance(point, other)
    reach = wanted * (1 + side * _INWARD) if wanted else max(side, 0) * _LEAST
    if apart == 0:
        return (other[0] + reach, other[1])
    factor = reach / apart
    return (
        other[0] + (point[0] - other[0]) * factor,
        other[1] + (point[1] - other[1]) * factor,
    )


def longest_side(area: Sequence[float]) -> float:
    return max(abs(area[2] - area[0]), abs(area[3] - area[1]))


def distances_outside(point: Sequence[float], areas: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The distance of a point from each rectangle; 0 inside, infinite where one is missing."""
    x, y = point[0], point[1]
    dx = np.maximum(np.maximum(areas[:, 0] - x, x - areas[:, 2]), 0.0)
    dy = np.maximum(np.maximum(areas[:, 1] - y, y - areas[:, 3]), 0.0)
    found = np.hypot(dx, dy)
    return np.asarray(np.where(np.isnan(found), np.inf, found), np.float64)


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
    is_area = term.compared is None and relations.get(term.function).shape == "contains"
    if own is None or column is None or not is_area or place != 1 or not len(instances):
        return known[:_MOST_OTHERS]
    order = np.argsort(distances_outside(own.value, column), kind="stable")
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
        shape = relations.get(term.function).shape
        if shape == "distance":
            return f"{names[0]} and {names[1]} were {approximate(distance(first, second))} m apart"
        if shape == "contains":
            out = float(distances_outside(first, np.array([second]))[0])
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
        shape = relations.get(term.function).shape
        if shape == "distance":
            return distance(first, second)
        if shape == "contains":
            return float(distances_outside(first, np.array([second]))[0])
        return 0.0
