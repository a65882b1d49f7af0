"""Reads types from their tables and resolves type names: declared, built in, or a unit. [ME-1,
ME-10]
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any, cast, get_args

from rapport.kernel.config_fields import Fields, suggest
from rapport.mediation.concepts import unit_type
from rapport.mediation.declarations.placed_values import strict_fields
from rapport.mediation.types import (
    BUILT_IN,
    Attribute,
    ComplexType,
    Kind,
    PrimitiveType,
    Type,
    TypeRef,
    is_type_name,
)
from rapport.units.catalogue import BY_NAME

_REFERENCE = re.compile(r"(\[*)([^\[\]]*)(\]*)")
_BUILT_IN = frozenset(each.name for each in BUILT_IN)
_KINDS: tuple[str, ...] = get_args(Kind)
_OWN_KEYS = ("extends", "kind", "attributes")
"""Keys of a type's table that are not attributes."""


class TypeNames:
    """Resolves type names in one interpretation and collects the types that units imply.
    `declared`: here or in a parent of the same files. `known`: types of the canonical model and
    others; None if unknown yet, so that unresolved names are left to later checks.
    """

    def __init__(self, declared: Collection[str], known: Collection[str] | None) -> None:
        self._declared, self._known = frozenset(declared), known
        self._units: dict[str, Type] = {}

    def reference(self, fields: Fields, key: str, written: str) -> TypeRef:
        """Resolves `[fahrenheit]` to `[degF]`; an invalid reference is a fault at `key`."""
        found = _REFERENCE.fullmatch(written.strip())
        if found is None or len(found[1]) != len(found[3]) or not is_type_name(found[2]):
            hint = "write Name, or [Name] for a list"
            fields.fault(key, "type.bad_reference", f"{written[:60]!r} names no type", hint=hint)
            return "json"
        return f"{found[1]}{self._name(fields, key, written.strip(), found[2])}{found[3]}"

    def event_type(self, fields: Fields, key: str, name: str) -> str:
        """Resolves a complex type of a mapping; never a unit."""
        if self._known is not None and name not in self._declared and name not in self._known:
            message = f"there is no type {name[:60]!r}"
            hint = suggest(name, {*self._declared, *self._known})
            fields.fault(key, "type.unknown", message, hint=hint)
        return name

    def in_unit(self, fields: Fields, key: str, reference: TypeRef, unit: str) -> TypeRef:
        """A type in a unit: numbers become the unit's type, `Money` becomes `Money in USD`."""
        inner = reference.strip("[]")
        if inner in ("number", "integer", ""):
            if unit not in BY_NAME:
                message = f"there is no unit named {unit[:40]!r}"
                fields.fault(key, "unit.unknown", message, hint=suggest(unit, BY_NAME))
                return "number"
            return reference.replace(inner, self.add_unit(unit)) if inner else self.add_unit(unit)
        if inner in _BUILT_IN or inner in self._units:
            message = f"{inner} has no unit besides"
            fields.fault(key, "unit.mismatch", message, hint="say the type or the unit, not both")
            return reference
        return reference.replace(inner, self.add_variant(inner, unit))

    def add_unit(self, unit: str) -> str:
        """The name of a unit's type, which will be declared."""
        found = unit_type(unit)
        if found.name not in self._declared:
            self._units[found.name] = found
        return found.name

    def add_variant(self, name: str, unit: str) -> str:
        """The name of a complex type in a unit, which will be declared."""
        variant = unit_variant(name, unit)
        self._units[variant.name] = variant
        return variant.name

    def types_of_units(self) -> tuple[Type, ...]:
        """The types that units imply, sorted by name."""
        return tuple(self._units[name] for name in sorted(self._units))

    def _name(self, fields: Fields, key: str, written: str, name: str) -> str:
        if name in self._declared or name in _BUILT_IN or name in (self._known or ()):
            return name
        if name in BY_NAME:
            return self.add_unit(name)
        if written in BY_NAME:
            message = f"{written!r} is a list here, of {name!r}, which is no type"
            fields.fault(key, "type.unknown", message, hint=f'write {{ unit = "{written}" }}')
        elif self._known is not None:
            known = {*self._declared, *_BUILT_IN, *self._known, *BY_NAME}
            message = f"there is no type and no unit {name[:60]!r}"
            fields.fault(key, "type.unknown", message, hint=suggest(name, known))
        return name


def unit_variant(name: str, unit: str) -> ComplexType:
    """A complex type in a unit, as a subtype without further attributes."""
    return ComplexType(f"{name} in {unit}", (), (name,))


def declared_names(values: Any) -> tuple[str, ...]:
    """The names in a `types` table, faulty or not."""
    return tuple(values) if isinstance(values, dict) else ()


def read_types(fields: Fields, names: TypeNames) -> tuple[Type, ...]:
    """All of `types`, in the order of the file."""
    table = fields.table("types", None, "{ Order = { lines = ... } }")
    return tuple(_read_types(table, names)) if table is not None else ()


def _read_types(table: Fields, names: TypeNames) -> Iterator[Type]:
    for name, value in table.section.values.items():
        if not is_type_name(name):
            message = f"{name[:60]!r} cannot name a type"
            hint = "use at most 100 printable characters without [ ] ( ) and quotes"
            table.fault(name, "type.bad_name", message, hint=hint)
        elif name in _BUILT_IN:
            message = f"{name!r} is known everywhere"
            table.fault(name, "type.duplicate", message, hint="give it another name")
        if not isinstance(value, dict):
            table.wrong(name, "a table of attributes", f'{name} = {{ station = "text" }}')
            continue
        yield _read_type(
            name, strict_fields(table.section.section(name), table.problems, None), names
        )


def _read_type(name: str, fields: Fields, names: TypeNames) -> Type:
    above = tuple(
        names.reference(fields, "extends", each)
        for each in fields.texts("extends", (), example='["Report"]')
    )
    own = [key for key in fields.section.values if key not in _OWN_KEYS]
    if fields.has("kind"):
        if own or fields.has("attributes"):
            message = f"{name[:60]!r} has a kind and attributes"
            hint = 'an attribute named kind is written attributes = { kind = "text" }'
            fields.fault("kind", "interpretation.bad_value", message, hint=hint)
        kind = fields.choice("kind", _KINDS, "json")
        return PrimitiveType(name, cast("Kind", kind), above)
    attributes = [_read_attribute(fields, key, names) for key in own]
    further = fields.table("attributes", None, '{ kind = "text" }')
    if further is not None:
        attributes += [_read_attribute(further, key, names) for key in further.section.values]
    return ComplexType(name, tuple(attributes), above)


def _read_attribute(fields: Fields, key: str, names: TypeNames) -> Attribute:
    value = fields.section.values[key]
    if isinstance(value, str):
        return Attribute(key, names.reference(fields, key, value))
    example = '{ type = "%", optional = true }'
    if not isinstance(value, dict):
        fields.wrong(key, "a type", f'{key} = "text", or {key} = {example}')
        return Attribute(key, "json")
    table = strict_fields(
        fields.section.section(key), fields.problems, ("type", "unit", "optional")
    )
    unit = table.filled_text("unit", "")
    written = table.filled_text("type", "" if unit else None, example='"text"')
    reference = names.reference(table, "type", written) if written else ""
    if unit:
        reference = names.in_unit(table, "unit", reference, unit)
    return Attribute(key, reference or "json", table.flag("optional"))
