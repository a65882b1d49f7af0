"""Concepts of the site as types of the canonical model, and readings as values of them. [ME-1,
ME-5]

A concept with its attributes is one complex type: `station` with `key`, `time` and `temperature`.
Every attribute is optional, since a reading has one of them and a message may have several.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rapport.core.errors import Problem
from rapport.core.schema import AREAS, PART_UNITS, PARTS, AttributeType
from rapport.mediation.interpretations.model import CANONICAL, Interpretation
from rapport.mediation.rejections import RejectedValue
from rapport.mediation.types import BUILT_IN, Attribute, ComplexType, PrimitiveType, Type
from rapport.units.quantities import unit_named

KEY, TIME = "key", "time"
TIME_TYPE = PrimitiveType("Time", "integer")
"""Milliseconds since 1970, UTC."""

_PLACES: dict[AttributeType, str] = {
    "point": "Point",
    "rectangle": "Rectangle",
    "geo_point": "GeoPoint",
}
_ALWAYS: frozenset[AttributeType] = frozenset(("point", "rectangle"))
PLACE_TYPES = frozenset(_PLACES.values())
"""Types for positions; the canonical model has those in metres always."""


class ConceptAttribute(msgspec.Struct, frozen=True):
    """An attribute in the canonical model; an empty `unit` means a number without a unit or no
    number.
    """

    type: AttributeType
    unit: str = ""

    @property
    def type_name(self) -> str:
        """Its type in the canonical model; each unit is a type of its own."""
        if self.type in _PLACES:
            return _PLACES[self.type]
        if self.type in AREAS:
            return "text"
        return unit_named(self.unit).symbol if self.unit else self.type


Concepts = Mapping[str, Mapping[str, ConceptAttribute]]


def unit_type(unit: str) -> PrimitiveType:
    """The type of numbers in a unit; raises InvalidInput for an unknown unit. It is not a
    subtype of `number`, so numbers with and without a unit are never mixed up.
    """
    return PrimitiveType(unit_named(unit).symbol, "number")


def canonical_model(concepts: Concepts) -> tuple[Interpretation, list[Problem]]:
    """Builds the canonical model from the ontology; concepts with reserved names are left out."""
    problems = [found for each in concepts.items() if (found := _taken_name(*each))]
    shown = {name: each for name, each in concepts.items() if not _taken_name(name, each)}
    units = {
        attribute.unit
        for attributes in shown.values()
        for attribute in attributes.values()
        if attribute.unit
    }
    used = {one.type for attributes in shown.values() for one in attributes.values()}
    places = [kind for kind in _PLACES if kind in used or kind in _ALWAYS]
    units |= {PART_UNITS[kind] for kind in places}
    named = {each.name: each for each in map(unit_type, sorted(units))}
    types: list[Type] = [TIME_TYPE, *named.values(), *map(_place_type, places)]
    types += [_concept_type(name, attributes) for name, attributes in shown.items()]
    return Interpretation(name=CANONICAL, parent="", types=tuple(types)), problems


def canonical_value(attribute: str, kind: AttributeType, data: Any, time: int) -> Any:
    """Converts the reading `{"key", "value": [parts]}` to a value of the concept's type. >>>
    canonical_value("temperature", "number", {"key": "s1", "value": [21.5]}, 0) {'key': 's1',
    'time': 0, 'temperature': 21.5}
    """
    parts = data["value"]
    whole = dict(zip(PARTS[kind], parts, strict=True)) if kind in _PLACES else parts[0]
    return {KEY: data["key"], TIME: time, attribute: whole}


def reading_parts(value: Any, kind: AttributeType, place: str) -> list[Any]:
    """The parts of one attribute as a reading stores them; raises Rejected for a value of
    another kind, which a site function may have returned.
    """
    if kind not in _PLACES:
        if _is_of(value, kind):
            return [value]
        raise RejectedValue("value.wrong_kind", f"{place} is not a {kind}")
    if value.__class__ is dict:
        parts = [value.get(name) for name in PARTS[kind]]
        if all(_is_of(part, "number") for part in parts):
            return parts
    names = ", ".join(PARTS[kind])
    raise RejectedValue("value.wrong_kind", f"{place} is not a {kind} of the numbers {names}")


def _is_of(value: Any, kind: AttributeType) -> bool:
    if kind == "number":
        return value.__class__ in (int, float)
    return value.__class__ is (bool if kind == "boolean" else str)


def _place_type(kind: AttributeType) -> ComplexType:
    unit = unit_named(PART_UNITS[kind]).symbol
    return ComplexType(_PLACES[kind], tuple(Attribute(part, unit) for part in PARTS[kind]))


def _concept_type(name: str, attributes: Mapping[str, ConceptAttribute]) -> ComplexType:
    own = [Attribute(each, one.type_name, optional=True) for each, one in attributes.items()]
    return ComplexType(name, (Attribute(KEY, "text"), Attribute(TIME, "Time", optional=True), *own))


_TAKEN = {each.name for each in BUILT_IN} | {TIME_TYPE.name, *_PLACES.values()}


def _taken_name(concept: str, attributes: Mapping[str, ConceptAttribute]) -> Problem | None:
    message = ""
    if concept in _TAKEN:
        message = f"the concept {concept!r} has the name of a canonical type"
    for attribute in (KEY, TIME):
        if attribute in attributes:
            message = f"the attribute {concept}.{attribute} has a name that is taken"
    if not message:
        return None
    hint = "typed interpretations do not know the concept until that has another name"
    return Problem(code="concept.reserved", message=message, hint=hint, severity="warning")
