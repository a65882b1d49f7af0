"""The units of measured values: what a calculation measures, and constants in its unit. [SI-3]

Raises InvalidInput for what SI-3 refuses, so that no policy is judged that means nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

from rapport.core.errors import InvalidInput
from rapport.policy import measures
from rapport.policy.language.situation_tree import Aggregate, Calculation, InUnit, Value
from rapport.policy.language.tree import AttributeOf, Call, Quantity
from rapport.policy.ontology import Ontology, SiteFunction
from rapport.units.quantities import converter, unit_named

Concepts = Mapping[str, str]
"""The concept of each alias in scope."""
_MILLISECONDS = {"s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class ValueSort(NamedTuple):
    """What a number measures."""

    unit: str = ""
    """Empty for a bare number."""
    weight: Fraction | None = None
    """The sum of the weights of temperatures: 1 for a temperature, 0 for a difference."""
    per_ms: bool = False
    """A rate."""

    def fits(self, other: ValueSort) -> bool:
        """Whether the two may be added and compared, weights aside."""
        return _dimension(self) == _dimension(other) and self.per_ms == other.per_ms


BARE = ValueSort()


def function_unit(function: SiteFunction) -> str:
    """The unit of a function's result; empty for a bare number."""
    if function.unit or not function.measure:
        return function.unit
    return measures.get(function.measure).unit


def sort_of(value: Value, concepts: Concepts, ontology: Ontology) -> ValueSort | None:
    """None for a constant with a unit, which takes the sort of what it stands beside, and for
    texts.
    """
    match value:
        case Quantity(written, unit):
            return BARE if not unit and not isinstance(written, str) else None
        case AttributeOf(attribute, alias):
            return _sort_of_attribute(ontology, concepts[alias], attribute)
        case Call(function):
            return _in_unit(function_unit(ontology.functions[function]))
        case InUnit():
            return BARE
        case Aggregate():
            return _sort_of_aggregate(value, concepts, ontology)
        case Calculation(left, operator, right):
            sides = (sort_of(left, concepts, ontology), sort_of(right, concepts, ontology))
            if operator in ("+", "-"):
                return _sort_of_sum(value, *sides, negative=operator == "-")
            if operator == "*":
                return _sort_of_product(value, *sides)
            return _sort_of_quotient(value, *sides)


def common_sort(sorts: list[ValueSort | None]) -> ValueSort:
    """The sort of everything in one comparison; a weight has to be 0 or 1."""
    found = [sort for sort in sorts if sort is not None]
    for sort in found[1:]:
        if not sort.fits(found[0]) or sort.weight != found[0].weight:
            raise _refused(f"{found[0]} and {sort} cannot be compared")
    chosen = found[0] if found else BARE
    if chosen.weight not in (None, 0, 1):
        raise _refused(f"the weights of temperatures add up to {chosen.weight}")
    return chosen


def constant_in(constant: Quantity, sort: ValueSort, *, in_calculation: bool) -> float:
    """The number of a constant in the unit of a sort.

    Beside a temperature alone, every unit of temperature is one; within a calculation degC and degF
    are temperatures, K is a difference.
    """
    assert not isinstance(constant.value, str)
    number = float(constant.value)
    if sort.per_ms:
        return _rate_in(number, constant.unit, sort)
    if not sort.unit or not constant.unit:
        if sort.unit or constant.unit:
            raise _refused(f"{number} {constant.unit} beside {sort.unit or 'a bare number'}")
        return number
    if sort.weight is None:
        return converter(constant.unit, sort.unit).apply(number)
    offset = bool(unit_named(constant.unit).offset)
    if sort.weight == 0 and offset and not in_calculation:
        raise _refused(f"a difference is compared with K, not with {constant.unit}")
    if offset or not (in_calculation or sort.weight == 0):
        return converter(constant.unit, sort.unit).apply(number)
    return scaled(number, constant.unit, sort.unit)


def scaled(number: float, unit: str, target: str) -> float:
    """A difference in another unit."""
    source, wanted = unit_named(unit), unit_named(target)
    if source.dimension != wanted.dimension:
        raise _refused(f"{unit} is no {target}")
    return float(Fraction(number) * source.scale / wanted.scale)


def weight_of_constant(value: Value) -> Fraction:
    """Of a constant beside temperatures: degC and degF are temperatures, K is a difference."""
    match value:
        case Quantity(_, unit):
            return Fraction(bool(unit) and bool(unit_named(unit).offset))
        case Calculation(left, "+", right):
            return weight_of_constant(left) + weight_of_constant(right)
        case Calculation(left, "-", right):
            return weight_of_constant(left) - weight_of_constant(right)
        case Calculation(left, "*", right) if (factor := bare_constant(left)) is not None:
            return factor * weight_of_constant(right)
        case Calculation(left, "*", right) if (factor := bare_constant(right)) is not None:
            return factor * weight_of_constant(left)
        case Calculation(left, "/", right) if factor := bare_constant(right):
            return weight_of_constant(left) / factor
        case _:
            raise _refused("a constant without a weight")


def bare_constant(value: Value) -> Fraction | None:
    """The number of a calculation of bare constants; None for everything else."""
    match value:
        case Quantity(float() | int() as number, ""):
            return Fraction(number)
        case Calculation(left, operator, right):
            first, second = bare_constant(left), bare_constant(right)
            if first is None or second is None or (operator == "/" and not second):
                return None
            match operator:
                case "+":
                    return first + second
                case "-":
                    return first - second
                case "*":
                    return first * second
                case "/":
                    return first / second
        case _:
            return None


def _rate_in(number: float, unit: str, sort: ValueSort) -> float:
    """`2 K/min` per millisecond: the constant divided by its unit of time in milliseconds."""
    amount, _slash, time = unit.rpartition("/")
    if not amount or time not in _MILLISECONDS:
        raise _refused(f"{unit} is no unit per s, min, h or d")
    if sort.weight is not None and unit_named(amount).offset:
        raise _refused(f"a rate of temperature is in K per time, not in {unit}")
    return scaled(number, amount, sort.unit or "1") / _MILLISECONDS[time]


def _in_unit(unit: str) -> ValueSort:
    if unit == "1":
        return BARE
    if unit and unit_named(unit).dimension == "temperature":
        return ValueSort(unit, Fraction(1))
    return ValueSort(unit)


def _sort_of_attribute(ontology: Ontology, concept: str, attribute: str) -> ValueSort | None:
    if attribute == "id" or ontology.concepts[concept][attribute] != "number":
        return None
    return _in_unit(ontology.units.get(concept, {}).get(attribute, ""))


def _sort_of_aggregate(value: Aggregate, concepts: Concepts, ontology: Ontology) -> ValueSort:
    if value.function == "count" or not isinstance(value.of, AttributeOf):
        return BARE
    sort = _sort_of_attribute(ontology, concepts[value.of.alias], value.of.attribute)
    if sort is None:
        raise _refused(f"there is no {value.function} of {value.of.attribute}")
    if value.function in ("change", "rate"):
        weight = None if sort.weight is None else Fraction(0)
        return sort._replace(weight=weight, per_ms=value.function == "rate")
    if value.function == "sum" and sort.weight is not None:
        raise _refused("the weights of a sum of temperatures do not add up to 1")
    return sort


def _sort_of_sum(
    value: Calculation, left: ValueSort | None, right: ValueSort | None, *, negative: bool
) -> ValueSort | None:
    if left is None and right is None:
        return None
    if left is not None and right is not None and not left.fits(right):
        raise _refused(f"{left} and {right} cannot be added")
    chosen = left if left is not None else right
    assert chosen is not None
    if chosen.weight is None:
        return chosen
    first = weight_of_constant(value.left) if left is None else left.weight
    second = weight_of_constant(value.right) if right is None else right.weight
    assert first is not None
    assert second is not None
    return chosen._replace(weight=first - second if negative else first + second)


def _sort_of_product(
    value: Calculation, left: ValueSort | None, right: ValueSort | None
) -> ValueSort | None:
    if left == BARE:
        return _times(right, bare_constant(value.left))
    if right == BARE:
        return _times(left, bare_constant(value.right))
    raise _refused("only a bare number multiplies a value with a unit")


def _sort_of_quotient(
    value: Calculation, left: ValueSort | None, right: ValueSort | None
) -> ValueSort | None:
    if right == BARE:
        factor = bare_constant(value.right)
        return _times(left, 1 / factor if factor else None)
    sides = [side for side in (left, right) if side is not None]
    if not sides or not sides[0].unit or not sides[-1].fits(sides[0]):
        raise _refused(f"{left} divided by {right}")
    if any(side.weight for side in sides):
        raise _refused("temperatures have no ratio")
    return BARE


def _times(sort: ValueSort | None, factor: Fraction | None) -> ValueSort | None:
    if sort is None or not sort.weight:
        return sort
    if factor is None:
        raise _refused("a temperature times something that is not constant")
    return sort._replace(weight=sort.weight * factor)


def _dimension(sort: ValueSort) -> str:
    return unit_named(sort.unit).dimension if sort.unit else ""


def _refused(message: str) -> InvalidInput:
    return InvalidInput(message, code="policy.unit_mismatch")
