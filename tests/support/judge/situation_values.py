"""Measured values of situations at an instant: calculations, functions and aggregates. [SI-3, SI-6]

Sums are exact fractions, rounded once; everything else is one operation on 64-bit floats for each
sign that is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import NamedTuple

from rapport.core.errors import InvalidInput
from rapport.policy.language.situation_tree import (
    Aggregate,
    Calculation,
    Condition,
    InUnit,
    Value,
)
from rapport.policy.language.tree import AttributeOf, Call, Quantity
from rapport.units.quantities import converter, unit_named
from support.judge.areas import measured
from support.judge.holding import Reading
from support.judge.situation_reads import attributes_read
from support.judge.situation_units import (
    BARE,
    ValueSort,
    constant_in,
    function_unit,
    scaled,
    sort_of,
)
from support.judge.situation_world import KnownRecord, PresentValue, complete


class BoundInstance(NamedTuple):
    """The instance bound to an alias."""

    concept: str
    identity: str


Binding = Mapping[str, BoundInstance]


class NumberRange(NamedTuple):
    """Every number from low to high: a value that rests on the lower bound of a count."""

    low: float
    high: float


Number = float | NumberRange
Counted = Callable[[Condition, Binding, Reading], bool]
"""Whether a condition is true at a reading, with that reading's value."""


class Values:
    """The values of one world. `counted` decides the terms of `count of (TERM)`."""

    def __init__(self, world: KnownRecord, counted: Counted) -> None:
        self.world, self._counted = world, counted
        self._sorts: dict[int, ValueSort | None] = {}
        """By the identity of a value of the tree."""

    def present(
        self, alias: str, attribute: str, binding: Binding, t: int, at: Reading | None = None
    ) -> PresentValue | None:
        """The present value, or that of `at` if it is of this attribute and identity. None:
        unknown.
        """
        concept, identity = binding[alias]
        if at is not None and (at.stream, at.key) == (f"{concept}.{attribute}", identity):
            value = complete(at.value)
            return None if value is None else PresentValue(value, at)
        return self.world.present(concept, attribute, identity, t)

    def plain(
        self, value: Value, binding: Binding, t: int, at: Reading | None = None
    ) -> str | bool | None:
        """A text or a truth value. None: unknown."""
        match value:
            case Quantity(str() as written):
                return written
            case AttributeOf(attribute, alias):
                found = self.present(alias, attribute, binding, t, at)
                return None if found is None else found.value[0]
            case _:
                raise InvalidInput("a text is compared with a text", code="policy.bad_comparison")

    def number(
        self,
        value: Value,
        sort: ValueSort,
        binding: Binding,
        t: int,
        at: Reading | None = None,
        *,
        in_calculation: bool = False,
    ) -> Number | None:
        """The number in the unit of a sort. None: unknown."""
        match value:
            case Quantity():
                return constant_in(value, sort, in_calculation=in_calculation)
            case AttributeOf(attribute, alias):
                found = self.present(alias, attribute, binding, t, at)
                if found is None:
                    return None
                return self._in(sort, float(found.value[0]), self.sort(value, binding))
            case Call():
                result = self._call(value, binding, t, at)
                unit = function_unit(self.world.ontology.functions[value.function])
                return None if result is None else self._in(sort, result, ValueSort(unit))
            case InUnit(inner, unit):
                return self._bare(inner, unit, binding, t, at)
            case Aggregate():
                return self._in(sort, self.aggregate(value, binding, t), self.sort(value, binding))
            case Calculation():
                return self._calculation(value, sort, binding, t, at)

    def aggregate(self, value: Aggregate, binding: Binding, t: int) -> Number | None:
        """Rule 3, in the unit of the attribute. None: unknown."""
        readings = self.readings_of(value, binding, t)
        if value.function == "count":
            is_bound = t - value.window_ms < self.world.start
            return NumberRange(len(readings), math.inf) if is_bound else float(len(readings))
        least = 2 if value.function in ("change", "rate") else 1
        if len(readings) < (least if value.at_least is None else value.at_least):
            return None
        found = [complete(reading.value) for reading in readings]
        numbers = [float(parts[0]) for parts in found if parts is not None]
        if len(numbers) < len(readings):
            return None
        return _aggregated(value, readings, numbers)

    def readings_of(self, value: Aggregate, binding: Binding, t: int) -> list[Reading]:
        """The readings that an aggregate is over; of a count, those counted."""
        if isinstance(value.of, AttributeOf):
            concept, identity = binding[value.of.alias]
            return self.world.window(concept, value.of.attribute, identity, t, value.window_ms)
        places = self._counted_places(value.of, binding)
        found = [
            reading
            for concept, attribute, identity in places
            for reading in self.world.window(concept, attribute, identity, t, value.window_ms)
            if self._counted(value.of, binding, reading)
        ]
        return sorted(found, key=lambda one: (one.time, one.id))

    def _counted_places(self, term: Condition, binding: Binding) -> set[tuple[str, str, str]]:
        concepts = {alias: bound.concept for alias, bound in binding.items()}
        read = attributes_read(term, concepts, self.world.ontology)
        events = {
            (alias, concept, attribute)
            for alias, concept, attribute in read
            if self.world.is_event(concept, attribute)
        }
        if len({alias for alias, _concept, _attribute in events}) != 1:
            message = "a count is of the readings of one identity"
            raise InvalidInput(message, code="policy.bad_aggregate")
        return {
            (concept, attribute, binding[alias].identity) for alias, concept, attribute in events
        }

    def sort(self, value: Value, binding: Binding) -> ValueSort | None:
        if id(value) not in self._sorts:
            concepts = {alias: bound.concept for alias, bound in binding.items()}
            self._sorts[id(value)] = sort_of(value, concepts, self.world.ontology)
        return self._sorts[id(value)]

    def _in(self, sort: ValueSort, number: Number | None, own: ValueSort | None) -> Number | None:
        if number is None or own is None or own.unit == sort.unit:
            return number
        assert not isinstance(number, NumberRange)
        if own.per_ms or own.weight == 0:
            return _finite(scaled(number, own.unit, sort.unit))
        return _finite(converter(own.unit, sort.unit).apply(number))

    def _call(self, call: Call, binding: Binding, t: int, at: Reading | None) -> float | None:
        function = self.world.ontology.functions[call.function]
        values = []
        for alias, (_concept, attribute) in zip(call.aliases, function.of, strict=True):
            found = self.present(alias, attribute, binding, t, at)
            if found is None:
                return None
            values.append(found.value)
        if function.measure:
            return _finite(measured(function.measure, values))
        pairs = self.world.tables_at(t).pull.pairs(function.name)
        number = pairs.get(tuple(value[0] for value in values))
        return None if number is None else _finite(number)

    def _bare(
        self, value: Value, unit: str, binding: Binding, t: int, at: Reading | None
    ) -> Number | None:
        """`temperature of S in degC`."""
        own = self.sort(value, binding)
        is_difference = own is not None and own.weight == 0
        refused = own is None or not own.unit or own.per_ms or own.weight not in (None, 0, 1)
        if own is None or refused or (is_difference and unit_named(unit).offset):
            raise InvalidInput(f"nothing is in {unit} here", code="policy.unit_mismatch")
        number = self.number(value, own, binding, t, at)
        if isinstance(number, NumberRange):
            convert = converter(own.unit, unit)
            low, high = (
                end
                if math.isinf(end)
                else scaled(end, own.unit, unit)
                if is_difference
                else convert.apply(end)
                for end in number
            )
            return NumberRange(low, high)
        if number is None or is_difference:
            return None if number is None else _finite(scaled(number, own.unit, unit))
        return _finite(converter(own.unit, unit).apply(number))

    def _calculation(
        self, value: Calculation, sort: ValueSort, binding: Binding, t: int, at: Reading | None
    ) -> Number | None:
        left_sort, right_sort = sort, sort
        own = self.sort(value.left, binding), self.sort(value.right, binding)
        if value.operator == "*":
            left_sort, right_sort = (BARE, sort) if own[0] == BARE else (sort, BARE)
        elif value.operator == "/" and own[1] == BARE:
            right_sort = BARE
        elif value.operator == "/":
            common = own[0] if own[0] is not None else own[1]
            assert common is not None
            left_sort = right_sort = common
        left = self.number(value.left, left_sort, binding, t, at, in_calculation=True)
        right = self.number(value.right, right_sort, binding, t, at, in_calculation=True)
        if left is None or right is None:
            return None
        if isinstance(left, NumberRange) or isinstance(right, NumberRange):
            return _calculated_spans(_span(left), value.operator, _span(right))
        return _calculated(left, value.operator, right)


def rank(percentile: float, number: int) -> int:
    """`ceil(P n / 100)` of the decimal number that is written.

    >>> rank(90.0, 10), rank(0.1, 1000)
    (9, 1)
    """
    return math.ceil(Fraction(repr(percentile)) * number / 100)


def exact_sum(numbers: list[float]) -> float | None:
    """Rounded once; None where that is not finite."""
    try:
        return float(sum(map(Fraction, numbers), Fraction(0)))
    except OverflowError:
        return None


def _aggregated(value: Aggregate, readings: list[Reading], numbers: list[float]) -> float | None:
    ordered = sorted(numbers)
    count = len(numbers)
    match value.function:
        case "min":
            return ordered[0]
        case "max":
            return ordered[-1]
        case "sum":
            return exact_sum(numbers)
        case "mean":
            total = exact_sum(numbers)
            return None if total is None else total / count
        case "median" if count % 2:
            return ordered[count // 2]
        case "median":
            total = exact_sum(ordered[count // 2 - 1 : count // 2 + 1])
            return None if total is None else total / 2
        case "percentile":
            assert value.percentile is not None
            return ordered[rank(value.percentile, count) - 1]
        case "change":
            return _finite(numbers[-1] - numbers[0])
        case "rate":
            milliseconds = readings[-1].time - readings[0].time
            change = _finite(numbers[-1] - numbers[0])
            return None if change is None or not milliseconds else change / milliseconds
        case _:
            raise AssertionError(value.function)


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _calculated(left: float, operator: str, right: float) -> float | None:
    match operator:
        case "+":
            return _finite(left + right)
        case "-":
            return _finite(left - right)
        case "*":
            return _finite(left * right)
        case _:
            return _finite(left / right) if right else None


def _span(number: Number) -> NumberRange:
    return number if isinstance(number, NumberRange) else NumberRange(number, number)


def _calculated_spans(left: NumberRange, operator: str, right: NumberRange) -> NumberRange | None:
    """Every number that the calculation may give. None: unknown, whatever the counts are."""
    if operator == "/" and right.low <= 0 <= right.high:
        return None
    corners = [_corner(one, operator, other) for one in left for other in right]
    if any(math.isnan(corner) for corner in corners):
        return NumberRange(-math.inf, math.inf)
    return NumberRange(min(corners), max(corners))


def _corner(left: float, operator: str, right: float) -> float:
    if operator in "*/" and left == 0:
        return 0.0
    if operator == "*" and right == 0:
        return 0.0
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case _:
            return left / right
