"""What one reading would have had to say, or when, for a term to hold or not to hold. [PO-11]

The relative size of a change is |needed - actual| / max(|actual|, scale). The scale is the needed
value for numbers, the reach for distances, the longest side for areas, and the window or duration
for times. A change to another text or truth has the size 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec

from rapport.policy import measures, relations
from rapport.policy.explaining.attempts import Attempt
from rapport.policy.explaining.geometry import (
    at_distance,
    distance,
    longest_side,
    nearest_inside,
    nearest_outside,
)
from rapport.policy.explaining.holding import event_places, operands, sides_of, values
from rapport.policy.explaining.wording import Wording, approximate, duration, value_text
from rapport.policy.explaining.world import Evidence, Reading, Value
from rapport.policy.plan import Measure, SideValue, StateTerm

_CONTRARY = {"=": "!=", "!=": "=", "<": ">=", ">": "<=", "<=": ">", ">=": "<"}
_TURNED = {"=": "=", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_SLIGHT_METRES = 0.001
_MORE = {">": "more than ", "<": "less than ", ">=": "at least ", "<=": "at most "}


class ReadingChange(msgspec.Struct, frozen=True):
    """Another value or another time of one reading."""

    reading: Reading
    changed: Reading
    relative: float
    text: str

    @property
    def is_in_time(self) -> bool:
        """Whether the value stays and the time changes."""
        return self.reading.value == self.changed.value


def moved_reading(reading: Reading, time: int, scale_ms: int) -> ReadingChange:
    """The same reading earlier or later."""
    shift = time - reading.time
    attribute = reading.stream.partition(".")[2]
    direction = "later" if shift > 0 else "earlier"
    text = f"the {attribute} of {reading.key} {duration(abs(shift))} {direction}"
    relative = abs(shift) / max(scale_ms, 1)
    return ReadingChange(reading, msgspec.structs.replace(reading, time=time), relative, text)


class ValueChanges:
    """Changes of values, in the words of one site."""

    def __init__(self, world: Evidence, wording: Wording) -> None:
        self._world, self._wording = world, wording

    def of(self, term: StateTerm, attempt: Attempt, *, wanted: bool) -> Iterator[ReadingChange]:
        """The smallest change of each reading that makes the term hold, or not hold; none where
        nobody can say how a function comes to its answer.
        """
        if term.compared is not None:
            yield from self._compared(term, attempt, wanted)
            return
        shape = relations.get(term.function).shape
        first, second = values(self._world, term, attempt.bindings, attempt.events)
        if first is None or second is None:
            return
        if shape == "contains" and 0 in attempt.events:
            yield self._area(term, attempt, first, second, wanted)
        elif shape == "distance":
            reach = float(term.parameter or 0.0)
            operator = "<=" if wanted else ">"
            yield from self._distance(attempt, (first, second), reach, operator)
        elif term.function == "same" and wanted:
            for place, reading in attempt.events.items():
                yield self._other(reading, (second if place == 0 else first,)[0])

    def _area(
        self, term: StateTerm, attempt: Attempt, point: Value, area: Value, wanted: bool
    ) -> ReadingChange:
        reading = attempt.events[0]
        target = nearest_inside(point, area) if wanted else nearest_outside(point, area)
        move = distance(target, point)
        name = attempt.bindings[term.second.alias]
        where = f"inside {name}" if wanted else f"outside {name}"
        text = f"{reading.key} {_moved_by(move)} away from there, {where}"
        size = move / max(longest_side(area), move, 1e-9)
        return ReadingChange(reading, msgspec.structs.replace(reading, value=target), size, text)

    def _distance(
        self, attempt: Attempt, points: tuple[Value, Value], reach: float, operator: str
    ) -> Iterator[ReadingChange]:
        apart, nearer = distance(*points), operator in ("<", "<=")
        for place, reading in attempt.events.items():
            other = points[1 - place]
            target = at_distance(points[place], other, reach, -1 if nearer else 1)
            how = "nearer" if nearer else "further away"
            text = (
                f"{reading.key} {_moved_by(abs(apart - reach))} {how}: "
                f"{_MORE[operator]}{value_text(reach)} m apart instead of {_unlike(apart, reach)} m"
            )
            size = abs(apart - reach) / max(apart, reach, 1e-9)
            yield ReadingChange(reading, msgspec.structs.replace(reading, value=target), size, text)

    def _other(self, reading: Reading, value: Value) -> ReadingChange:
        said = self._said(reading, self._wording.value(reading.stream, value))
        return ReadingChange(reading, msgspec.structs.replace(reading, value=value), 1.0, said)

    # Comparisons.

    def _compared(self, term: StateTerm, attempt: Attempt, wanted: bool) -> Iterator[ReadingChange]:
        assert term.compared is not None
        found = operands(self._world, term, attempt.bindings, attempt.events)
        if found.left is None or found.right is None:
            return
        operator = term.compared.operator if wanted else _CONTRARY[term.compared.operator]
        ways = (
            (term.compared.left, operator, found.right),
            (term.compared.right, _TURNED[operator], found.left),
        )
        for operand, needed_operator, bound in ways:
            if isinstance(operand, SideValue):
                yield from self._plain_value(term, attempt, operand, needed_operator, bound)
            elif isinstance(operand, Measure):
                yield from self._measured(term, attempt, operand, needed_operator, bound)

    def _plain_value(
        self, term: StateTerm, attempt: Attempt, operand: SideValue, operator: str, bound: Any
    ) -> Iterator[ReadingChange]:
        side = sides_of(term)[operand.side]
        if operand.side not in attempt.events or operand.attribute != side.attribute:
            return
        reading = attempt.events[operand.side]
        actual = reading.value[0]
        if isinstance(actual, bool):
            yield self._other(reading, (not actual,))
        elif isinstance(actual, str):
            if operator == "=":
                yield self._other(reading, (bound,))
        else:
            needed = _beyond(operator, float(bound))
            said = self._wording.value(reading.stream, (float(bound),))
            size = abs(needed - actual) / max(abs(actual), abs(needed), 1e-9)
            text = self._said(reading, _MORE.get(operator, "") + said)
            if said == self._wording.value(reading.stream, reading.value) and actual != bound:
                text = self._said(reading, _MORE.get(operator, "") + said, exact=actual)
            changed = msgspec.structs.replace(reading, value=(needed,))
            yield ReadingChange(reading, changed, size, text)

    def _measured(
        self, term: StateTerm, attempt: Attempt, operand: Measure, operator: str, bound: Any
    ) -> Iterator[ReadingChange]:
        """Only the straight distance of two points can be turned round."""
        if measures.get(operand.function).shape != "distance" or operator in ("=", "!="):
            return
        places = event_places(term)
        if len(places) != 2 or {one.side for one in operand.of} != {0, 1}:
            return
        points = (attempt.events[0].value, attempt.events[1].value)
        yield from self._distance(attempt, points, float(bound), operator)

    def _said(self, reading: Reading, needed: str, exact: float | None = None) -> str:
        """`exact`: the value, where it must be written in full not to read like what is needed."""
        attribute = reading.stream.partition(".")[2]
        actual = self._wording.value(reading.stream, reading.value)
        if exact is not None:
            actual = actual.replace(value_text(exact), repr(float(exact)), 1)
        return f"{attribute} of {reading.key} {needed} instead of {actual}"


def _moved_by(metres: float) -> str:
    """A move in words; one that people would read as nothing is called slight."""
    return "slightly" if metres < _SLIGHT_METRES else f"{approximate(metres)} m"


def _unlike(number: float, bound: float) -> str:
    """A number that was worked out, with as many digits as tell it from a bound.

    >>> _unlike(5.00004, 5), _unlike(10.63, 5), _unlike(5.0, 5)
    ('5.00004', '10.6', '5')
    """
    for digits in (3, 5, 7, 10):
        text = f"{number:.{digits}g}"
        if float(text) != bound:
            return approximate(number) if digits == 3 else text
    return value_text(number)


def _beyond(operator: str, bound: float) -> float:
    """The value nearest to the bound that satisfies the operator."""
    if operator in (">", "!="):
        return math.nextafter(bound, math.inf)
    return math.nextafter(bound, -math.inf) if operator == "<" else bound
