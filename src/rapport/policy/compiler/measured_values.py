"""Checks the measured values of situations and turns them into values of the plan: types, units,
weights of temperatures, exact constants. [SI-3, SI-6]

A value is checked first without knowing what it is compared with (`ValueChecker.type_of`), and made
then in the unit that both sides share (`ValueChecker.planned`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import msgspec

from rapport.core.errors import InvalidInput
from rapport.policy.compiler.check import (
    ComparedType,
    ComparisonCheck,
    ComparisonFault,
    OperandType,
    canonical_constant,
    comparable,
    function_unit,
    plan_value,
)
from rapport.policy.compiler.scope import IDENTITY, Scope, event_names
from rapport.policy.language.diagnostics import did_you_mean
from rapport.policy.language.printer import print_value
from rapport.policy.language.situation_printer import print_situation_value
from rapport.policy.language.situation_tree import Aggregate, Calculation, InUnit, Value
from rapport.policy.language.situation_values import is_constant
from rapport.policy.language.tree import AttributeOf, Call, Quantity, SourceSpan
from rapport.policy.situation_plan import (
    AggregateValue,
    Arithmetic,
    ConvertedValue,
    CountedTerm,
    FixedValue,
    FunctionValue,
    PresentValue,
)
from rapport.policy.situation_plan import Value as PlanValue
from rapport.units.quantities import Affine, converter, unit_named

TIME_UNITS_MS = {"s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
"""What may stand after the slash of a rate's unit."""
_NUMBERS = ("", "1")
"""Units of bare numbers: none declared, and declared as without dimension."""
_OF_NUMBERS = ("mean", "min", "max", "sum", "median", "percentile", "change", "rate")
_TEMPERATURE = "temperature"
_FREE = None
"""The weight of a constant in kelvin: alone it is whatever it is compared with."""


class ValueType(msgspec.Struct, frozen=True, kw_only=True):
    """What a value is, before it is known what it is compared with."""

    type: ComparedType
    unit: str
    """Canonical, of a constant as written; empty for a bare number and for text."""
    shown: str
    place: SourceSpan
    weight: Fraction | None = Fraction(1)
    """Of a temperature: 1 is a temperature, 0 a difference; None fits both."""
    is_rate: bool = False
    """The unit is per time."""
    is_constant: bool = False
    is_count: bool = False

    @property
    def is_number(self) -> bool:
        """A number without unit."""
        return self.type == "number" and self.unit in _NUMBERS and not self.is_rate

    @property
    def is_temperature(self) -> bool:
        return bool(self.unit) and unit_named(_plain(self.unit)).dimension == _TEMPERATURE

    @property
    def own_weight(self) -> Fraction:
        """The weight within a calculation, where a constant in kelvin is a difference."""
        return Fraction(0) if self.weight is None else self.weight

    @property
    def unit_shown(self) -> str:
        return f"{self.unit} per time" if self.is_rate and not self.is_constant else self.unit


class ValueUnit(msgspec.Struct, frozen=True):
    """The unit in which a value is made for the plan; of a rate per millisecond."""

    unit: str = ""
    is_rate: bool = False


class ValueChecker:
    """The values of one policy, with the aliases in scope."""

    def __init__(
        self,
        scope: Scope,
        names: ComparisonCheck,
        term: Callable[[Aggregate], CountedTerm],
    ) -> None:
        """`term` plans `count of (TERM)`; it raises ComparisonFault."""
        self.scope, self.names, self._term = scope, names, term

    # --- types ---

    def type_of(self, value: Value) -> ValueType:
        """Checks a value; raises ComparisonFault at its place."""
        match value:
            case Quantity():
                return self._constant_type(value)
            case AttributeOf():
                return self._attribute_type(value)
            case Call():
                return self._call_type(value)
            case InUnit():
                return self._in_unit_type(value)
            case Aggregate():
                return self._aggregate_type(value)
            case Calculation():
                return self._calculation_type(value)

    def _constant_type(self, constant: Quantity) -> ValueType:
        if isinstance(constant.value, str):
            shown = repr(constant.value)
            return ValueType(
                type="text", unit="", shown=shown, place=constant.place, is_constant=True
            )
        unit = constant.unit
        plain, per = _unit_and_time(unit, constant.place)
        weight: Fraction | None = Fraction(1)
        if per and unit_named(plain or "1").offset:
            message = f"a change of temperature is in K, not in {plain}"
            raise ComparisonFault(
                "policy.temperature_difference",
                message,
                f"write: {print_value(constant.value)} K/{unit.rpartition('/')[2]}",
                constant.place,
            )
        if plain and unit_named(plain).dimension == _TEMPERATURE:
            weight = Fraction(0) if per else Fraction(1) if unit_named(plain).offset else _FREE
        return ValueType(
            type="number",
            unit=unit,
            shown=f"{print_value(constant.value)} {unit}".rstrip(),
            place=constant.place,
            weight=weight,
            is_rate=per != 0,
            is_constant=True,
        )

    def _attribute_type(self, value: AttributeOf) -> ValueType:
        concept = self.scope.concepts[value.alias]
        attributes = self.scope.attributes_of(value.alias)
        name = value.attribute
        if name not in attributes and name != IDENTITY:
            message = f"the concept {concept!r} has no attribute {name!r}"
            hint = did_you_mean(name, attributes)
            raise ComparisonFault("policy.unknown_attribute", message, hint, value.place)
        shown = f"{name!r} of {value.alias!r}"
        sort = comparable(attributes.get(name, "text"), shown, value.place)
        unit = self.scope.ontology.units.get(concept, {}).get(name, "")
        return ValueType(type=sort, unit=unit, shown=shown, place=value.place)

    def _call_type(self, call: Call) -> ValueType:
        before = self.names.faults.count
        if not self.names.known_call(call):
            assert self.names.faults.count > before, "the fault was added"
            raise ReportedFault
        unit = function_unit(self.scope.ontology.functions[call.function], call.place)
        shown = f"{call.function}({', '.join(call.aliases)})"
        return ValueType(type="number", unit=unit, shown=shown, place=call.place)

    def _in_unit_type(self, value: InUnit) -> ValueType:
        inner = self.type_of(value.value)
        shown = print_situation_value(value)
        if inner.type != "number" or (inner.is_number and inner.unit == "") or inner.is_count:
            message = f"{inner.shown} has no unit, so it cannot be given in {value.unit}"
            hint = f"leave 'in {value.unit}' out"
            if inner.type == "number" and not inner.is_count:
                hint += ", or declare its unit under [concepts.*.units]"
            raise ComparisonFault("policy.needless_unit", message, hint, value.place)
        target, per = _unit_and_time(value.unit, value.place, is_rate=inner.is_rate)
        _check_dimension(inner, target, per, value.unit, value.place)
        _check_weight(inner, value.unit)
        if inner.is_temperature and not inner.is_rate and inner.weight == 0:
            _check_difference_unit(inner, value.unit, value.place)
        return ValueType(
            type="number",
            unit="",
            shown=shown,
            place=value.place,
            is_constant=inner.is_constant,
        )

    def _aggregate_type(self, value: Aggregate) -> ValueType:
        shown = print_situation_value(value)
        if not isinstance(value.of, AttributeOf):
            return ValueType(type="number", unit="", shown=shown, place=value.place, is_count=True)
        of = value.of
        self._check_readings(of)
        if value.function == "count":
            return ValueType(type="number", unit="", shown=shown, place=value.place, is_count=True)
        inner = self._attribute_type(of)
        if inner.type != "number":
            what = "text" if inner.type == "text" else "true or false"
            message = f"{inner.shown} is {what}, so it has no {value.function}"
            hint = "only 'count' is of any attribute"
            raise ComparisonFault("policy.wrong_type", message, hint, of.place)
        is_difference = value.function in ("change", "rate")
        if value.function == "sum" and inner.is_temperature:
            message = "a sum of temperatures means nothing"
            hint = f"did you mean: {shown.replace('sum', 'mean', 1)}"
            raise ComparisonFault("policy.wrong_units", message, hint, value.place)
        return ValueType(
            type="number",
            unit=inner.unit,
            shown=shown,
            place=value.place,
            weight=Fraction(0) if is_difference else Fraction(1),
            is_rate=value.function == "rate",
        )

    def _check_readings(self, of: AttributeOf) -> None:
        """Raises ComparisonFault unless a source gives the attribute."""
        if of.attribute not in self.scope.attributes_of(of.alias):
            if of.attribute == IDENTITY:
                message, hint = "an identity has no readings", self._readings_hint(of)
                raise ComparisonFault("policy.no_readings", message, hint, of.place)
            self._attribute_type(of)
        if not self.scope.end(of.alias, of.attribute).from_events:
            concept = self.scope.concepts[of.alias]
            message = f"no source gives {of.attribute!r} of {concept!r}, so it has no readings"
            hint = self._readings_hint(of)
            raise ComparisonFault("policy.no_readings", message, hint, of.place)

    def _readings_hint(self, of: AttributeOf) -> str:
        given = self.scope.event_attributes(of.alias)
        return f"what comes as events: {', '.join(given) or event_names(self.scope.ontology)}"

    def _calculation_type(self, value: Calculation) -> ValueType:
        left, right = self.type_of(value.left), self.type_of(value.right)
        for each in (left, right):
            if each.type != "number":
                what = "text" if each.type == "text" else "true or false"
                message = f"{each.shown} is {what} and cannot be calculated with"
                hint = "numbers stand without quotes" if each.is_constant else "compare it alone"
                raise ComparisonFault("policy.wrong_type", message, hint, each.place)
        if value.operator in ("+", "-"):
            found = _sum_type(value, left, right)
        elif value.operator == "*":
            found = _product_type(value, left, right)
        else:
            found = _quotient_type(value, left, right)
        if found.is_constant:
            _check_finite(value, found)
        return found

    # --- values of the plan ---

    def planned(self, value: Value, unit: ValueUnit, weight: Fraction = Fraction(0)) -> PlanValue:
        """The checked value in a unit of its dimension.

        `weight` is that of a constant in kelvin: in a calculation it is a difference.
        """
        match value:
            case Quantity():
                return FixedValue(self._number(value, unit, weight))
            case AttributeOf() | Call():
                found = (
                    self._present(value) if isinstance(value, AttributeOf) else self._call(value)
                )
                return self._converted(found, self.type_of(value), unit)
            case InUnit():
                return self._in_unit(value)
            case Aggregate():
                if value.function == "count":
                    return self._count(value)
                return self._converted(self._aggregate(value), self.type_of(value), unit)
            case Calculation():
                return self._calculation(value, unit)

    def _present(self, value: AttributeOf) -> PresentValue:
        end = self.scope.end(value.alias, value.attribute)
        return PresentValue(end.alias, end.concept, end.attribute, end.stream)

    def _call(self, call: Call) -> FunctionValue:
        declared = self.scope.ontology.functions[call.function]
        ends = self.scope.ends_of_operand(call)
        of = tuple(PresentValue(e.alias, e.concept, e.attribute, e.stream) for e in ends)
        if declared.measure:
            return FunctionValue(declared.measure, of)
        return FunctionValue(call.function, of, looked_up=True)

    def _number(self, constant: Quantity, unit: ValueUnit, weight: Fraction) -> float:
        """The number of a constant in the unit."""
        written = f"{print_value(constant.value)} {constant.unit}".rstrip()
        number = float(constant.value)
        if not constant.unit:
            return number
        plain, per_ms = _unit_and_time(constant.unit, constant.place, is_rate=unit.is_rate)
        conversion = converter(plain, unit.unit or "1")
        absolute = unit_named(plain).offset != 0 or weight == 1
        if unit.is_rate:
            number = _rescaled(number, conversion) / per_ms
        elif absolute:
            number = conversion.apply(number)
        else:
            number = _rescaled(number, conversion)
        if not math.isfinite(number):
            message = f"{written} is too large a number in {unit.unit}"
            raise ComparisonFault(
                "policy.bad_number", message, "write a smaller one", constant.place
            )
        return number

    def _converted(self, found: PlanValue, sort: ValueType, unit: ValueUnit) -> PlanValue:
        """The value in another unit of its dimension; rates are per millisecond in both."""
        if sort.unit == unit.unit or (sort.unit in _NUMBERS and unit.unit in _NUMBERS):
            return found
        return _conversion(found, sort.unit or "1", unit.unit or "1", sort.own_weight)

    def _in_unit(self, value: InUnit) -> PlanValue:
        sort = self.type_of(value.value)
        own = unit_of(sort)
        target, per_ms = _unit_and_time(value.unit, value.place, is_rate=sort.is_rate)
        weight = Fraction(1) if sort.weight is None else sort.weight
        inner = self.planned(value.value, own, weight)
        if sort.is_rate:
            conversion = converter(own.unit or "1", target)
            return ConvertedValue(inner, conversion.multiply * per_ms / conversion.divide)
        return _conversion(inner, own.unit, target, weight)

    def _aggregate(self, value: Aggregate) -> AggregateValue:
        assert isinstance(value.of, AttributeOf)
        least = 2 if value.function in ("change", "rate") else 1
        at_least = 0 if value.function == "count" else value.at_least or least
        return AggregateValue(
            value.function, self._present(value.of), value.window_ms, at_least, value.percentile
        )

    def _count(self, value: Aggregate) -> PlanValue:
        return self._aggregate(value) if isinstance(value.of, AttributeOf) else self._term(value)

    def _calculation(self, value: Calculation, unit: ValueUnit) -> Arithmetic:
        left, right = self.type_of(value.left), self.type_of(value.right)
        units = (unit, unit)
        if value.operator in ("*", "/") and right.is_number:
            units = (unit, ValueUnit())
        elif value.operator == "*":
            units = (ValueUnit(), unit)
        elif value.operator == "/":
            shared = shared_unit(left, right)
            units = (shared, shared)
        return Arithmetic(
            self.planned(value.left, units[0]),
            value.operator,
            self.planned(value.right, units[1]),
        )


def _rescaled(number: float, conversion: Affine) -> float:
    """Without the offset. Equal scales leave a number as it is: 1.71 * 20 / 20 is another one."""
    if conversion.multiply == conversion.divide:
        return number
    return number * conversion.multiply / conversion.divide


class ReportedFault(Exception):
    """The fault was added to the diagnostics already."""


def unit_of(sort: ValueType) -> ValueUnit:
    """The unit in which a value is made: its own, of a constant rate that before the slash."""
    unit, is_rate = sort.unit, sort.is_rate
    if sort.is_constant and is_rate:
        unit = _unit_and_time(unit, sort.place, is_rate=True)[0]
    return ValueUnit(unit, is_rate)


def shared_unit(left: ValueType, right: ValueType) -> ValueUnit:
    """The unit in which two values are compared: that of the first that is no constant."""
    if left.is_number or right.is_number:
        return ValueUnit()
    return unit_of(right if left.is_constant and not right.is_constant else left)


def check_comparable(left: ValueType, right: ValueType, place: SourceSpan) -> Fraction:
    """Raises ComparisonFault if two numbers cannot be compared; returns their weight."""
    for each in (left, right):
        if not (each.is_temperature and each.weight is None):
            _check_weight(each, "")
    _check_units(left, right, place)
    if not left.is_temperature or left.is_rate or right.is_rate:
        return Fraction(1)
    weights = {each.weight for each in (left, right) if each.weight is not None}
    if len(weights) == 2:
        difference, temperature = (left, right) if left.weight == 0 else (right, left)
        message = f"{difference.shown} is a difference of temperatures, "
        message += f"but {temperature.shown} is a temperature"
        hint = "a difference is compared with K"
        if temperature.is_constant:
            number = temperature.shown.split(" ", maxsplit=1)[0]
            hint = f"write: {number} K"
            if unit_named(temperature.unit).scale != 1:
                hint = "a difference is in K; 9 degF are 5 K"
        raise ComparisonFault("policy.temperature_difference", message, hint, temperature.place)
    return weights.pop() if weights else Fraction(1)


def constant_for(constant: Quantity, sort: ValueType) -> str | float:
    """The constant of the plan beside text, true or false, or a number without calculation; raises
    ComparisonFault."""
    operand = OperandType(sort.type, sort.unit, sort.shown, sort.place)
    return plan_value(canonical_constant(constant, operand), sort.type)


def _sum_type(value: Calculation, left: ValueType, right: ValueType) -> ValueType:
    _check_units(left, right, value.place)
    measured = right if left.is_constant and not right.is_constant else left
    unit = measured.unit
    if left.is_number or right.is_number:
        unit = "" if left.unit == right.unit == "" else "1"
    sign = 1 if value.operator == "+" else -1
    return ValueType(
        type="number",
        unit=unit,
        shown=print_situation_value(value),
        place=value.place,
        weight=left.own_weight + sign * right.own_weight,
        is_rate=measured.is_rate,
        is_constant=left.is_constant and right.is_constant,
    )


def _product_type(value: Calculation, left: ValueType, right: ValueType) -> ValueType:
    number, other = (right, left) if right.is_number else (left, right)
    if not number.is_number:
        raise _not_multiplied(value, left, right)
    by = value.right if number is right else value.left
    return _scaled(value, other, number, by, "*")


def _quotient_type(value: Calculation, left: ValueType, right: ValueType) -> ValueType:
    if right.is_constant and constant_number(value.right) == 0:
        message = "this divides by zero, so it is never known"
        raise ComparisonFault(
            "policy.division_by_zero", message, "divide by another number", right.place
        )
    if right.is_number:
        return _scaled(value, left, right, value.right, "/")
    if left.is_number:
        raise _not_multiplied(value, left, right)
    _check_units(left, right, value.place)
    for each in (left, right):
        if each.is_temperature and not each.is_rate and each.own_weight != 0:
            message = f"{each.shown} is a temperature, and the ratio of two depends on their unit"
            hint = f"say in which unit: {_print_in(each, 'K')}"
            raise ComparisonFault("policy.wrong_units", message, hint, each.place)
    return ValueType(
        type="number",
        unit="1",
        shown=print_situation_value(value),
        place=value.place,
        is_constant=left.is_constant and right.is_constant,
    )


def _scaled(
    value: Calculation, other: ValueType, number: ValueType, by: Value, operator: str
) -> ValueType:
    """A value times or divided by a bare number."""
    weight: Fraction | None = other.own_weight
    if other.is_temperature and not other.is_rate and weight != 0:
        factor = constant_number(by) if number.is_constant else None
        if factor is None or not math.isfinite(factor):
            message = f"{other.shown} is a temperature, so it is multiplied by constants only"
            hint = f"say in which unit: {_print_in(other, 'degC')}"
            raise ComparisonFault("policy.wrong_units", message, hint, value.place)
        exact = Fraction(str(factor))
        weight = other.own_weight * exact if operator == "*" else other.own_weight / exact
    return ValueType(
        type="number",
        unit=other.unit,
        shown=print_situation_value(value),
        place=value.place,
        weight=weight,
        is_rate=other.is_rate,
        is_constant=other.is_constant and number.is_constant,
    )


def _print_in(sort: ValueType, unit: str) -> str:
    shown = sort.shown.replace("'", "")
    return (
        f"({shown}) in {unit}"
        if any(f" {sign} " in shown for sign in "+-*/")
        else (f"{shown} in {unit}")
    )


def _not_multiplied(value: Calculation, left: ValueType, right: ValueType) -> ComparisonFault:
    word = "multiplied with" if value.operator == "*" else "divided by"
    message = f"{left.shown} in {left.unit_shown or '1'} cannot be {word} {right.shown} in "
    message = message.replace(" in 1 ", " ") + (right.unit_shown or "1")
    hint = (
        f"say in which units: {_print_in(left, left.unit)} {value.operator} "
        if left.unit
        else (f"say in which unit: {left.shown} {value.operator} ")
    )
    return ComparisonFault(
        "policy.wrong_units", message, hint + _print_in(right, right.unit), value.place
    )


def _check_units(left: ValueType, right: ValueType, place: SourceSpan) -> None:
    """Raises ComparisonFault unless two numbers are of one dimension."""
    if left.is_number and right.is_number:
        return
    if left.is_number or right.is_number:
        bare, other = (left, right) if left.is_number else (right, left)
        _check_bare(bare, other)
        return
    if left.is_constant and not right.is_constant:
        left, right = right, left
    target, per = right.unit, right.is_rate
    if right.is_constant:
        unit, per_ms = _unit_and_time(right.unit, right.place, is_rate=left.is_rate)
        target, per = unit, per_ms != 0
    elif left.is_rate != right.is_rate:
        raise _unlike(left, right, place)
    _check_dimension(left, target, int(per), right.unit, right.place, shown=right.shown)


def _check_bare(bare: ValueType, other: ValueType) -> None:
    """Raises ComparisonFault for a bare number beside a unit, unless both are without dimension."""
    if bare.unit == "1" and not other.is_rate:
        if unit_named(other.unit).dimension == unit_named("1").dimension:
            return
    elif bare.is_constant:
        unit = other.unit or "1"
        if other.is_temperature and other.weight == 0:
            unit = "K"
        if other.is_rate and not other.is_constant:
            unit = f"{unit}/min"
        message = f"{other.shown} is in {other.unit_shown}, but {bare.shown} has no unit"
        raise ComparisonFault(
            "policy.missing_unit", message, f"write: {bare.shown} {unit}", bare.place
        )
    if other.is_constant:
        message = f"{bare.shown} has no unit in this site, but {other.shown} has one"
        hint = f"write {other.shown.split(' ', maxsplit=1)[0]}"
        if " in " not in bare.shown:
            hint += ", or declare its unit under [concepts.*.units]"
        raise ComparisonFault("policy.needless_unit", message, hint, other.place)
    raise _unlike(bare, other, other.place)


def _unlike(left: ValueType, right: ValueType, place: SourceSpan) -> ComparisonFault:
    units = [each.unit_shown or "" for each in (left, right)]
    shown = [f"in {unit}" if unit else "without a unit" for unit in units]
    message = f"{left.shown} is {shown[0]}, but {right.shown} is {shown[1]}"
    hint = "compare each with a constant, or say in which unit: x of S in m"
    return ComparisonFault("policy.wrong_units", message, hint, place)


def _check_dimension(
    left: ValueType,
    target: str,
    per: int,
    written: str,
    place: SourceSpan,
    *,
    shown: str = "",
) -> None:
    """Raises ComparisonFault unless `target`, perhaps per time, fits the value's unit."""
    own = unit_of(left)
    own_dimension = unit_named(own.unit or "1").dimension
    dimension = unit_named(target or "1").dimension
    if own_dimension == dimension and own.is_rate == bool(per):
        return
    if own.is_rate and not per:
        message = f"{left.shown} is a change per time, but {shown or written} is not"
        unit = "K" if own_dimension == _TEMPERATURE else own.unit
        hint = f"write a unit per s, min, h or d, such as {unit or '1'}/min"
        raise ComparisonFault("policy.wrong_units", message, hint, place)
    what = f"{dimension} per time" if per else dimension
    if shown:
        message = f"{left.shown} is in {left.unit_shown or '1'}, but {shown} is a {what}"
    else:
        message = f"{left.shown} is in {left.unit_shown or '1'}, but {written} is a unit of {what}"
    try:
        converter(target or "1", own.unit or "1")
        hint = f"leave out what is after the slash: {target}"
    except InvalidInput as error:
        hint = error.hint
    raise ComparisonFault("policy.wrong_units", message, hint, place)


def _check_weight(sort: ValueType, unit: str) -> None:
    """Raises ComparisonFault for temperatures whose weights add up to neither 1 nor 0."""
    if not sort.is_temperature or sort.is_rate or sort.weight in (0, 1, None):
        return
    total = print_value(float(sort.own_weight))
    message = f"{sort.shown} is neither a temperature nor a difference: its weights add up to "
    message += total
    example = unit or "degC"
    hint = (
        f"divide a sum by its number, or say in which unit each is: temperature of S in {example}"
    )
    if sort.is_constant or " K" in sort.shown:
        hint += "; within a calculation K is a difference"
    elif sort.weight == 2:
        hint = f"a mean is half of it: ({sort.shown.strip()}) / 2; a difference is in K"
    raise ComparisonFault("policy.temperature_weights", message, hint, sort.place)


def _check_difference_unit(sort: ValueType, unit: str, place: SourceSpan) -> None:
    if unit_named(unit).offset != 0:
        message = f"{sort.shown} is a difference of temperatures, so it is not in {unit}"
        raise ComparisonFault("policy.temperature_difference", message, "write: in K", place)


def _check_finite(value: Calculation, sort: ValueType) -> None:
    number = constant_number(value)
    if number is not None and not math.isfinite(number):
        message = f"{sort.shown} is too large a number"
        raise ComparisonFault("policy.bad_number", message, "write smaller numbers", sort.place)


def constant_number(value: Value) -> float | None:
    """The number of a constant calculation with its numbers as written; None without one."""
    match value:
        case Quantity():
            return None if isinstance(value.value, str) else float(value.value)
        case InUnit():
            return constant_number(value.value)
        case Calculation() if is_constant(value):
            left, right = constant_number(value.left), constant_number(value.right)
            if left is None or right is None:
                return None
            return _calculated(left, value.operator, right)
        case _:
            return None


def _calculated(left: float, operator: str, right: float) -> float:
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case _:
            return left / right if right else math.nan


def _unit_and_time(written: str, place: SourceSpan, *, is_rate: bool = False) -> tuple[str, int]:
    """A unit and the milliseconds of the time after its slash, 0 without one.

    `is_rate`: whether `mm/h` means millimetres per hour, or if there is one the unit of that name.
    Raises ComparisonFault for an unknown unit.
    """
    if not written:
        return "", 0
    before, slash, after = written.rpartition("/")
    per_ms = TIME_UNITS_MS.get(after, 0) if slash else 0
    try:
        if is_rate and per_ms:
            unit_named(before or "1")
            return before or "1", per_ms
        if not per_ms or _is_unit(written):
            unit_named(written)
            return written, 0
        unit_named(before)
        return before, per_ms
    except InvalidInput as error:
        hint = error.hint
        if slash and not per_ms and _is_unit(before):
            hint = f"a rate is per s, min, h or d, such as {before}/min"
        raise ComparisonFault("policy.unknown_unit", error.message, hint, place) from error


def _is_unit(name: str) -> bool:
    try:
        unit_named(name)
    except InvalidInput:
        return False
    return True


def _plain(unit: str) -> str:
    """The unit before the slash of a rate that is no unit of its own."""
    if _is_unit(unit):
        return unit
    return unit.rpartition("/")[0]


def _conversion(value: PlanValue, source: str, target: str, weight: Fraction) -> PlanValue:
    """The value in another unit; of a difference without the offset."""
    conversion = converter(source, target)
    factor = conversion.scale
    offset = float(Fraction(conversion.add) * weight / Fraction(conversion.divide))
    if factor == 1.0 and offset == 0.0:
        return value
    return ConvertedValue(value, factor, offset)
