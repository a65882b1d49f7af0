"""Units alone: `units = { "station.temperature" = "degF" }` becomes a type of one's own, which is
root's with these units, and mappings both ways. [ME-10, ME-11]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from rapport.core.errors import Problem
from rapport.kernel.config_fields import suggest
from rapport.mediation.concepts import unit_type
from rapport.mediation.declaring.interpretation_form import UnitWish
from rapport.mediation.model.interpretation import Interpretation, Mapping
from rapport.mediation.model.types import (
    Attribute,
    ComplexType,
    PrimitiveType,
    Type,
    TypeRef,
    Types,
    innermost,
)
from rapport.units.catalogue import BY_NAME

Found = tuple[Interpretation, list[tuple[str, Problem]]]


def with_wishes(given: Interpretation, types: Types, wishes: Sequence[UnitWish]) -> Found:
    """The interpretation with what the wishes mean among root's `types`; problems come with the
    attribute they are about.
    """
    wisher = _Wisher(given.name, types)
    for wish in wishes:
        wisher.take(wish)
    known = {each.name for each in given.types}
    added = [each for each in wisher.made() if each.name not in known]
    mappings = [
        mapping
        for name in wisher.changed
        for mapping in (
            Mapping(derived_name(given.name, name), name, "in"),
            Mapping(name, derived_name(given.name, name), "out"),
        )
        if mapping not in given.mappings
    ]
    return msgspec.structs.replace(
        given, types=(*given.types, *added), mappings=(*given.mappings, *mappings)
    ), wisher.problems


def derived_name(interpretation: str, type_name: str) -> str:
    """The type that an interpretation with units alone speaks.

    >>> derived_name("us", "station")
    'us station'
    """
    return f"{interpretation} {type_name}"


class _Wisher:
    """Gathers the wishes for each type of root."""

    def __init__(self, name: str, types: Types) -> None:
        self._name, self._types = name, types
        self.problems: list[tuple[str, Problem]] = []
        self.changed: dict[str, dict[str, TypeRef]] = {}
        self._inner: dict[str, Type] = {}

    def take(self, wish: UnitWish) -> None:
        """Notes one wish, or why it cannot be."""
        concept, _, attribute = wish.attribute.rpartition(".")
        if not self._types.is_complex(concept):
            known = self._types.complex_names
            self._fault(wish, "type.unknown", f"root has no type {concept!r}", known, concept)
            return
        attributes = self._types.attributes(concept)
        if attribute not in attributes:
            message = f"{concept} has no attribute {attribute!r}"
            self._fault(wish, "mapping.no_place", message, attributes, attribute)
        elif wish.unit not in BY_NAME:
            message = f"there is no unit named {wish.unit[:40]!r}"
            self._fault(wish, "unit.unknown", message, BY_NAME, wish.unit)
        else:
            changed = self._in_unit(wish, attributes[attribute].type)
            if changed is not None:
                self.changed.setdefault(concept, {})[attribute] = changed

    def made(self) -> list[Type]:
        """Unit types first, then inner ones, then the types themselves."""
        types: list[Type] = [self._inner[name] for name in sorted(self._inner)]
        types.sort(key=lambda each: isinstance(each, ComplexType))
        for concept, units in self.changed.items():
            attributes = tuple(
                Attribute(each.name, units.get(each.name, each.type), each.optional)
                for each in self._types.attributes(concept).values()
            )
            types.append(ComplexType(derived_name(self._name, concept), attributes))
        return types

    def _in_unit(self, wish: UnitWish, reference: TypeRef) -> TypeRef | None:
        inner = innermost(reference)
        if self._types.is_complex(inner):
            changed = self._complex_in_unit(wish, inner)
        else:
            changed = self._number_in_unit(wish, inner)
        return reference.replace(inner, changed) if changed is not None else None

    def _number_in_unit(self, wish: UnitWish, inner: str) -> str | None:
        if inner not in BY_NAME:
            message = f"{wish.attribute} is {inner} in root, without a unit"
            hint = "say the unit of root first: the attribute of the concept needs one"
            self.problems.append(
                (wish.attribute, Problem(code="unit.no_target", message=message, hint=hint))
            )
            return None
        if BY_NAME[wish.unit].dimension != BY_NAME[inner].dimension:
            message = f"{wish.attribute} is in {inner}, never in {wish.unit}"
            same = [u for u in BY_NAME if BY_NAME[u].dimension == BY_NAME[inner].dimension]
            self._fault(wish, "unit.mismatch", message, same[:12], "")
            return None
        return self._add(unit_type(wish.unit))

    def _complex_in_unit(self, wish: UnitWish, inner: str) -> str | None:
        """A point in feet: every number of that dimension in it is."""
        dimension = BY_NAME[wish.unit].dimension
        given = self._types.attributes(inner).values()
        fitting = [
            each.name
            for each in given
            if each.type in BY_NAME and BY_NAME[each.type].dimension == dimension
        ]
        if not fitting:
            message = f"{inner} of {wish.attribute} has no {dimension}"
            self._fault(wish, "unit.mismatch", message, (), "")
            return None
        unit = self._add(unit_type(wish.unit))
        attributes = tuple(
            Attribute(each.name, unit if each.name in fitting else each.type, each.optional)
            for each in given
        )
        return self._add(ComplexType(f"{inner} in {unit}", attributes))

    def _add(self, made: PrimitiveType | ComplexType) -> str:
        if made.name not in self._types or made != self._types.named(made.name):
            self._inner[made.name] = made
        return made.name

    def _fault(
        self, wish: UnitWish, code: str, message: str, known: Iterable[str], name: str
    ) -> None:
        problem = Problem(code=code, message=message, hint=suggest(name, known))
        self.problems.append((wish.attribute, problem))
