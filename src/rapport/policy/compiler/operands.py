"""What an operand of a comparison is: its type, its unit in root, and constants as root says them.
[PO-3]"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import msgspec

from rapport.core.errors import InvalidInput, RapportError
from rapport.core.schema import AttributeType
from rapport.policy import measures
from rapport.policy.compiler.scope import Scope
from rapport.policy.language.printer import print_value
from rapport.policy.language.tree import AttributeOf, Call, Measured, Quantity, SourceSpan
from rapport.policy.ontology import SiteFunction
from rapport.units.quantities import converter, unit_named

ComparedType = Literal["number", "text", "boolean"]
TRUTHS = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}
"""What may be said of what is true or false, and what plans have instead."""
_NO_UNIT = ("", "1")


class OperandType(NamedTuple):
    """What a measured operand gives, and how messages name it."""

    type: ComparedType
    unit: str
    shown: str
    place: SourceSpan


class ComparisonFault(Exception):
    """A comparison that cannot be made; `place` is None for that of the whole."""

    def __init__(self, code: str, message: str, hint: str, place: SourceSpan | None = None) -> None:
        super().__init__(message)
        self.code, self.hint, self.place = code, hint, place


def operand_type(operand: Measured, scope: Scope) -> OperandType | None:
    """Type and unit of what is measured, None for a constant; raises Wrong."""
    match operand:
        case Quantity():
            return None
        case AttributeOf(attribute, alias):
            shown = f"{attribute!r} of {alias!r}"
            concept = scope.concepts[alias]
            kind = scope.attributes_of(alias).get(attribute, "text")
            unit = scope.ontology.units.get(concept, {}).get(attribute, "")
            return OperandType(comparable(kind, shown, operand.place), unit, shown, operand.place)
        case Call(function):
            shown = f"{function}({', '.join(operand.aliases)})"
            unit = function_unit(scope.ontology.functions[function], operand.place)
            return OperandType("number", unit, shown, operand.place)


def function_unit(function: SiteFunction, place: SourceSpan | None = None) -> str:
    """The unit of what a function of the site gives; raises Wrong when its measure is not there."""
    if function.unit or not function.measure:
        return function.unit
    try:
        return measures.get(function.measure).unit
    except RapportError as error:
        raise ComparisonFault(error.code, error.message, error.hint, place) from error


def canonical_constant(constant: Quantity, measured: OperandType) -> Quantity:
    """The constant as root says it beside what is measured; raises Wrong."""
    match measured.type:
        case "text":
            return _text(constant, measured)
        case "boolean":
            return _truth(constant, measured)
        case "number":
            return _number(constant, measured)


def plan_value(constant: Quantity, kind: ComparedType) -> str | float:
    """A constant of a checked comparison as plans have it: truths are 1.0 and 0.0."""
    return TRUTHS[str(constant.value)] if kind == "boolean" else constant.value


def comparable(kind: AttributeType, shown: str, place: SourceSpan) -> ComparedType:
    """The type when its values can be compared with constants; raises Wrong for all others."""
    if kind in ("number", "text", "boolean"):
        return kind
    message = f"{shown} is a {kind}, not a number or a text"
    hint = "use a relationship, or a function of the site such as distance(A, B)"
    raise ComparisonFault("policy.wrong_type", message, hint, place)


def _text(constant: Quantity, measured: OperandType) -> Quantity:
    if isinstance(constant.value, str):
        return constant
    number = print_value(constant.value)
    message = f"{measured.shown} is text, but {number} is a number"
    raise ComparisonFault(
        "policy.wrong_type", message, f"put it in quotes: '{number}'", constant.place
    )


def _truth(constant: Quantity, measured: OperandType) -> Quantity:
    truth = TRUTHS.get(constant.value.lower()) if isinstance(constant.value, str) else None
    if truth is None:
        message = f"{measured.shown} is either true or false"
        hint = "write true or false, without quotes"
        raise ComparisonFault("policy.wrong_type", message, hint, constant.place)
    return msgspec.structs.replace(constant, value="true" if truth else "false")


def _number(constant: Quantity, measured: OperandType) -> Quantity:
    if isinstance(constant.value, str):
        message = f"{measured.shown} is a number, but {constant.value!r} is text"
        hint = "write a number without quotes" + (f", in {measured.unit}" if measured.unit else "")
        raise ComparisonFault("policy.wrong_type", message, hint, constant.place)
    written = f"{print_value(constant.value)} {constant.unit}".rstrip()
    if not constant.unit and measured.unit not in _NO_UNIT:
        message = f"{measured.shown} is in {measured.unit}, but {written} has no unit"
        hint = f"write: {written} {measured.unit}"
        raise ComparisonFault("policy.missing_unit", message, hint, constant.place)
    if constant.unit and not measured.unit:
        message = f"{measured.shown} has no unit in this site, but {written} has one"
        hint = f"write {print_value(constant.value)}, or declare its unit under [concepts.*.units]"
        raise ComparisonFault("policy.needless_unit", message, hint, constant.place)
    if not constant.unit:
        return constant
    return _converted(constant, measured, written)


def _converted(constant: Quantity, measured: OperandType, written: str) -> Quantity:
    assert not isinstance(constant.value, str)
    try:
        value = converter(constant.unit, measured.unit).apply(float(constant.value))
    except InvalidInput as error:
        code = "policy.unknown_unit" if error.code == "unit.unknown" else "policy.wrong_units"
        message = error.message
        if code == "policy.wrong_units":
            dimension = unit_named(constant.unit).dimension
            message = f"{measured.shown} is in {measured.unit}, but {written} is a {dimension}"
        raise ComparisonFault(code, message, error.hint, constant.place) from error
    if not math.isfinite(value):
        message = f"{written} is too large a number in {measured.unit}"
        raise ComparisonFault("policy.bad_number", message, "write a smaller one", constant.place)
    return msgspec.structs.replace(constant, value=value, unit=measured.unit)
