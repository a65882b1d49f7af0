"""Types of values: primitive, complex with super-types, and lists of a type. [ME-1]

A reference to a type is text: `Position`, or `[Position]` for a list of them, to any depth. Values
are plain decoded JSON. A value of a complex type may say that it is of a subtype of what its
attribute declares, by the attribute `@type`; without it, it is of the declared type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Literal

import msgspec

from rapport.core.errors import UnknownName

TypeRef = str
"""`Name`, `[Name]`, `[[Name]]`, ..."""

TAG = "@type"
"""The attribute by which a value names its dynamic type."""

Kind = Literal["text", "number", "integer", "boolean", "json"]
"""How a primitive stands in JSON; `json` is any value, never looked into."""


class Attribute(msgspec.Struct, frozen=True):
    """A named part of a complex type; an optional one may be absent or null."""

    name: str
    type: TypeRef
    optional: bool = False


class PrimitiveType(msgspec.Struct, frozen=True, tag="primitive"):
    """A scalar with a meaning of its own: `Celsius` is a number, but no `Fahrenheit`."""

    name: str
    kind: Kind
    super_types: tuple[str, ...] = ()


class ComplexType(msgspec.Struct, frozen=True, tag="complex"):
    """A record of attributes; has those of all its super-types, whose order counts (P4)."""

    name: str
    attributes: tuple[Attribute, ...] = ()
    super_types: tuple[str, ...] = ()


Type = PrimitiveType | ComplexType

BUILT_IN: tuple[PrimitiveType, ...] = (
    PrimitiveType("text", "text"),
    PrimitiveType("number", "number"),
    PrimitiveType("integer", "integer", ("number",)),
    PrimitiveType("boolean", "boolean"),
    PrimitiveType("json", "json"),
)
"""Known everywhere without being declared."""


def element_of(reference: TypeRef) -> TypeRef | None:
    """What a list holds; None for what is no list.

    >>> element_of("[[Line]]"), element_of("Line")
    ('[Line]', None)
    """
    return reference[1:-1] if reference.startswith("[") else None


def innermost(reference: TypeRef) -> str:
    """The type's name without the brackets of lists."""
    return reference.strip("[]")


class Types:
    """The types visible in one interpretation, with what follows from them; never changes.

    Expects types that passed `check_types`. Questions are answered from tables made at the first
    question; memory is a few words per pair of type and super-type.
    """

    def __init__(self, types: Iterable[Type]) -> None:
        self._types: dict[str, Type] = {each.name: each for each in (*BUILT_IN, *types)}
        self._levels: dict[str, dict[str, int]] = {}
        self._attributes: dict[str, dict[str, Attribute]] = {}
        self._reach: dict[str, frozenset[str]] = {}

    def __contains__(self, reference: TypeRef) -> bool:
        return innermost(reference) in self._types

    @property
    def names(self) -> tuple[str, ...]:
        """All names, built-in ones first."""
        return tuple(self._types)

    @property
    def complex_names(self) -> tuple[str, ...]:
        """Those an event may be of."""
        return tuple(name for name in self._types if self.is_complex(name))

    def named(self, name: str) -> Type:
        """The type; raises UnknownName `type.unknown`."""
        found = self._types.get(name)
        if found is None:
            raise UnknownName("type", name, self.names, code="type.unknown")
        return found

    def is_complex(self, reference: TypeRef) -> bool:
        """It has attributes."""
        return isinstance(self._types.get(reference), ComplexType)

    def kind(self, reference: TypeRef) -> str:
        """`object`, `list`, or the kind of the primitive."""
        if reference.startswith("["):
            return "list"
        found = self.named(reference)
        return found.kind if isinstance(found, PrimitiveType) else "object"

    def attributes(self, name: str) -> Mapping[str, Attribute]:
        """Those of all super-types in declared order, then its own; empty for primitives.

        A type may declare an inherited attribute again with a narrower type.
        """
        if name not in self._attributes:
            found: dict[str, Attribute] = {}
            declared = self.named(name)
            for super_type in declared.super_types:
                found |= self.attributes(super_type)
            if isinstance(declared, ComplexType):
                found |= {attribute.name: attribute for attribute in declared.attributes}
            self._attributes[name] = found
        return self._attributes[name]

    def is_subtype(self, reference: TypeRef, other: TypeRef) -> bool:
        """`reference` may stand where `other` is expected; every type is its own subtype.

        A list is a subtype of another if its elements are.
        """
        if reference == other:
            return True
        inner, other_inner = element_of(reference), element_of(other)
        if inner is not None and other_inner is not None:
            return self.is_subtype(inner, other_inner)
        if inner is not None or other_inner is not None:
            return False
        return other in self.levels(reference)

    def is_strict_subtype(self, reference: TypeRef, other: TypeRef) -> bool:
        """A subtype, and not the same."""
        return reference != other and self.is_subtype(reference, other)

    def levels(self, name: str) -> Mapping[str, int]:
        """Each super-type (and the type itself, 0) with the longest chain that leads to it.

        In the order of a depth-first walk of the declared super-types. The longest chain, since a
        type derived from another is then always on a lower level than that one.
        """
        if name not in self._levels:
            found = {name: 0}
            for super_type in self.named(name).super_types:
                for further, level in self.levels(super_type).items():
                    found[further] = max(found.get(further, 0), level + 1)
            self._levels[name] = found
        return self._levels[name]

    def nearness(self, name: str, super_type: str) -> tuple[int, int]:
        """Subtyping level, then order of declaration: smaller is nearer. [P3, P4]"""
        levels = self.levels(name)
        return levels[super_type], list(levels).index(super_type)

    def subtypes(self, name: str) -> tuple[str, ...]:
        """The type itself first, then all types derived from it."""
        return self._subtypes.get(name, (name,))

    @cached_property
    def _subtypes(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, list[str]] = {name: [name] for name in self._types}
        for name in self._types:
            for super_type in self.levels(name):
                if super_type != name:
                    found[super_type].append(name)
        return {name: tuple(below) for name, below in found.items()}

    def dynamic(self, name: str) -> tuple[str, ...]:
        """The types a value may have where `name` is declared; primitives carry no `@type`."""
        return self.subtypes(name) if self.is_complex(name) else (name,)

    def reach(self, reference: TypeRef) -> frozenset[str]:
        """Names of all types that can occur at or below a value of this type, and their
        super-types, with all attribute names below, these with a leading dot.
        """
        if reference not in self._reach:
            inner = element_of(reference)
            found = self._reach_of_list(reference, inner) if inner else self._reach_below(reference)
            self._reach[reference] = frozenset(found)
        return self._reach[reference]

    def _reach_of_list(self, reference: TypeRef, element: TypeRef) -> set[str]:
        found = {reference, *self.reach(element)}
        for super_type in self.levels(innermost(reference)):
            found.add(reference.replace(innermost(reference), super_type))
        return found

    def _reach_below(self, name: str) -> set[str]:
        found: set[str] = set()
        for each in self.dynamic(name):
            found |= self.levels(each).keys()
            for attribute in self.attributes(each).values():
                found.add(f".{attribute.name}")
                found |= self.reach(attribute.type)
        return found

    def all(self) -> tuple[Type, ...]:
        """All declared types, without the built-in ones."""
        built_in = {each.name for each in BUILT_IN}
        return tuple(each for name, each in self._types.items() if name not in built_in)
