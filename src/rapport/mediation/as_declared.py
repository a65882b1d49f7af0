"""A document as its type declares it: numbers out of texts, in the declared unit. [ME-11, ME-13]

SenML, NGSI and Home Assistant send the unit with the number. It counts more than what somebody
declared once: the number is turned into the declared unit before anything else looks at it. Where a
device of SenML or Home Assistant does not say it, nobody knows what it meant, whatever others of
its kind mean. CSV, XML and single values are only texts; where a number is declared, the text is
read as one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rapport.core.errors import InvalidInput
from rapport.mediation.formats.base import Document
from rapport.mediation.interpretation import FormatChoice
from rapport.mediation.model.types import TAG, TypeRef, Types, element_of
from rapport.mediation.plausibility import plausible_unit
from rapport.mediation.rejection import Rejected
from rapport.units.catalogue import BY_NAME
from rapport.units.quantities import Affine, DecimalMark, converter, parse_number

_OF_TEXTS = ("csv", "xml", "value")
_SAY_UNITS = ("senml", "homeassistant")
"""Here the unit belongs to the data; NGSI leaves it to the agreed data model as well."""
_NO_UNIT = "1"
TRUTHS = {"true": True, "false": False, "1": True, "0": False, "on": True, "off": False}
"""How texts say that something is so, in small letters."""


def decimal_mark(choice: FormatChoice) -> DecimalMark | None:
    """How numbers are written in a format that knows only texts; None for the others."""
    if choice.name not in _OF_TEXTS:
        return None
    return "comma" if choice.options.get("decimal") == "comma" else "point"


def as_declared(document: Document, types: Types, type_name: str, choice: FormatChoice) -> Any:
    """The document's value as the type has it; raises Rejected for a text that is no number where
    one is declared, a unit of another dimension, an unknown one, or none where the format says
    them. Other faults are left to the transformer, which names their path.
    """
    value: Any = document.value
    decimal = decimal_mark(choice)
    if decimal is not None:
        value = _read(value, types, type_name, decimal, type_name)
    if document.units or choice.name in _SAY_UNITS:
        value = _in_declared_units(value, document, types, type_name, choice)
    return value


def without_undeclared(value: Any, types: Types, type_name: str, names: Iterable[str]) -> Any:
    """The value without those of `names` that its type does not declare.

    Types are open, attributes of a concept are not: a field that nobody declared would become the
    attribute of its name as it stands, and nobody said its unit.
    """
    actual = value.get(TAG, type_name)
    if not types.is_complex(actual):
        return value
    declared = types.attributes(actual)
    strange = [name for name in names if name in value and name not in declared]
    return {name: value[name] for name in value if name not in strange} if strange else value


def _in_declared_units(
    value: Any, document: Document, types: Types, type_name: str, choice: FormatChoice
) -> Any:
    changed = dict(value)
    for name, declared in types.attributes(type_name).items():
        if declared.type not in BY_NAME or changed.get(name).__class__ not in (int, float):
            continue
        unit = document.units.get(name)
        if unit is not None:
            changed[name] = _arithmetic(name, unit, declared.type).apply(float(changed[name]))
        elif choice.name in _SAY_UNITS and declared.type != _NO_UNIT:
            raise Rejected(
                "unit.undeclared",
                f"the data do not say the unit of {name}",
                plausible_unit(name, changed[name]) or "let the device say it",
            )
    return changed


def _arithmetic(name: str, unit: str, declared: str) -> Affine:
    try:
        return converter(unit, declared)
    except InvalidInput as error:
        raise Rejected(error.code, f"{name}: {error.message}", error.hint) from None


def _read(value: Any, types: Types, reference: TypeRef, decimal: DecimalMark, path: str) -> Any:
    element = element_of(reference)
    if element is not None:
        # An XML element that occurs once is no list yet.
        several = value if value.__class__ is list else [value]
        return [_read(each, types, element, decimal, path) for each in several]
    if value.__class__ is dict and types.is_complex(reference):
        return {
            name: _read_part(name, each, types, reference, decimal, path)
            for name, each in value.items()
        }
    return _scalar(value, types.kind(reference), decimal, path) if value.__class__ is str else value


def _read_part(
    name: str, value: Any, types: Types, owner: str, decimal: DecimalMark, path: str
) -> Any:
    declared = types.attributes(owner).get(name)
    if declared is None or value is None:
        return value
    return _read(value, types, declared.type, decimal, f"{path}.{name}")


def _scalar(text: str, kind: str, decimal: DecimalMark, path: str) -> Any:
    if kind == "boolean":
        return TRUTHS.get(text.strip().lower(), text)
    if kind not in ("number", "integer"):
        return text
    try:
        found = parse_number(text, decimal)
    except InvalidInput as error:
        raise Rejected(error.code, f"{path}: {error.message}", error.hint) from None
    return int(found) if kind == "integer" and found == found // 1 else found
