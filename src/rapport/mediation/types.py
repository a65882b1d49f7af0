"""Types of values: primitive types, complex types with super-types, and lists; and their checks.
[ME-1, ME-7]

A reference to a type is text: `Position`, or `[Position]` for a list, to any depth. Values are
decoded JSON. A value of a complex type may name its dynamic type, a subtype of the declared one, in
the attribute `@type`; without `@type` it has the declared type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from graphlib import TopologicalSorter
from typing import Literal

import msgspec

from rapport.core.errors import Problem, UnknownName, did_you_mean

TypeRef = str
"""`Name`, `[Name]`, `[[Name]]`, ..."""

TAG = "@type"
"""The attribute in which a value names its dynamic type."""

Kind = Literal["text", "number", "integer", "boolean", "json"]
"""The JSON kind of a primitive type; `json` is any value and is never inspected."""


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
    """A record of attributes. It inherits the attributes of its super-types, whose order
    matters (P4).
    """

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
"""Types that exist without a declaration."""


def element_of(reference: TypeRef) -> TypeRef | None:
    """Returns the element type of a list, None for any other type.

    >>> element_of("[[Line]]"), element_of("Line")
    ('[Line]', None)
    """
    return reference[1:-1] if reference.startswith("[") else None


def innermost(reference: TypeRef) -> str:
    """The type's name without the brackets of lists."""
    return reference.strip("[]")


class Types:
    """The types visible in one interpretation, with derived tables; immutable. Expects types
    that passed `check_types`. Tables are built on first use; memory is a few words per pair of
    type and super-type.
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
        """All names, built-in types first."""
        return tuple(self._types)

    @property
    def complex_names(self) -> tuple[str, ...]:
        """The types an event may have."""
        return tuple(name for name in self._types if self.is_complex(name))

    def named(self, name: str) -> Type:
        """The type; raises UnknownName `type.unknown`."""
        found = self._types.get(name)
        if found is None:
            raise UnknownName("type", name, self.names, code="type.unknown")
        return found

    def is_complex(self, reference: TypeRef) -> bool:
        return isinstance(self._types.get(reference), ComplexType)

    def kind(self, reference: TypeRef) -> str:
        """`object`, `list`, or the kind of the primitive."""
        if reference.startswith("["):
            return "list"
        found = self.named(reference)
        return found.kind if isinstance(found, PrimitiveType) else "object"

    def attributes(self, name: str) -> Mapping[str, Attribute]:
        """Attributes of all super-types in declared order, then the type's own; empty for
        primitives. A type may redeclare an inherited attribute with a narrower type.
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
        """Whether `reference` is allowed where `other` is expected; every type is its own
        subtype. A list is a subtype of another list if its elements are.
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
        return reference != other and self.is_subtype(reference, other)

    def levels(self, name: str) -> Mapping[str, int]:
        """Each super-type (and the type itself at 0) with the length of the longest chain
        to it. The order is that of a depth-first walk of the declared super-types. With the
        longest chain a derived type is always on a lower level than its super-type.
        """
        if name not in self._levels:
            found = {name: 0}
            for super_type in self.named(name).super_types:
                for further, level in self.levels(super_type).items():
                    found[further] = max(found.get(further, 0), level + 1)
            self._levels[name] = found
        return self._levels[name]

    def nearness(self, name: str, super_type: str) -> tuple[int, int]:
        """Subtyping level, then order of declaration; smaller is nearer. [P3, P4]"""
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
        """The dynamic types a value may have where `name` is declared; primitives carry no
        `@type`.
        """
        return self.subtypes(name) if self.is_complex(name) else (name,)

    def reach(self, reference: TypeRef) -> frozenset[str]:
        """Names of all types that can occur at or below a value of this type, with their
        super-types, and the names of all attributes below it, these with a leading dot.
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


_RESERVED = frozenset('"[]()')


LONGEST_NAME = 100
"""Maximum length of a type name."""


def is_type_name(name: str) -> bool:
    """Whether the name is printable, at most 100 characters long, without any of `"[]()`,
    without a leading dot or space and without a trailing space.
    """
    return (
        0 < len(name) <= LONGEST_NAME
        and name.isprintable()
        and _RESERVED.isdisjoint(name)
        and name.strip() == name
        and name[0] != "."
    )


_BRACKETS = re.compile(r"(\[*)([^\[\]]*)(\]*)")
_LONGEST_LIST = 8
DEEPEST = 150
"""Maximum levels of nesting and of inheritance; the resolution is recursive."""


def check_types(types: Sequence[Type]) -> list[Problem]:
    """Returns every fault. `Types(types)` is usable if the list is empty. Later checks depend
    on earlier ones: cycles are searched only when all names are known, attributes only when
    there are no cycles.
    """
    problems = [*_names(types), *_references(types)]
    if problems:
        return problems
    above = {each.name: each.super_types for each in types}
    problems = [*_super_type_cycles(above)] or [*_too_deep(above, "extends")]
    if problems:
        return problems
    known = Types(types)
    contains = _contained(known)
    problems = [*_attributes(types, known), *_containment(contains)]
    return problems or [*_too_deep(contains, "contains")]


def _names(types: Sequence[Type]) -> Iterator[Problem]:
    seen = {each.name for each in BUILT_IN}
    for each in types:
        if not is_type_name(each.name):
            yield Problem(
                code="type.bad_name",
                message=f"{each.name[:60]!r} cannot name a type",
                hint=f"use at most {LONGEST_NAME} printable characters without [ ] ( ) and quotes",
            )
        if each.name in seen:
            yield Problem(
                code="type.duplicate",
                message=f"type {each.name!r} is declared twice",
                hint="a changed type needs a new name and a replacement",
            )
        seen.add(each.name)


def _references(types: Sequence[Type]) -> Iterator[Problem]:
    known = {each.name: each for each in (*BUILT_IN, *types)}
    for each in types:
        for super_type in each.super_types:
            yield from _super_type(each, super_type, known)
        if isinstance(each, ComplexType):
            for attribute in each.attributes:
                yield from _attribute_type(each.name, attribute, known)


def _super_type(owner: Type, super_type: str, known: Mapping[str, Type]) -> Iterator[Problem]:
    found = known.get(super_type)
    if found is None:
        yield _unknown(super_type, f"super-type of {owner.name}", known)
    elif type(found) is not type(owner):
        yield Problem(
            code="type.bad_super_type",
            message=f"{owner.name} and its super-type {super_type} are of different sorts",
            hint="complex types extend complex types, primitive ones primitive ones",
        )


def _attribute_type(
    owner: str, attribute: Attribute, known: Mapping[str, Type]
) -> Iterator[Problem]:
    place = f"{owner}.{attribute.name}"
    shape = _BRACKETS.fullmatch(attribute.type)
    if shape is None or len(shape[1]) != len(shape[3]) or len(shape[1]) > _LONGEST_LIST:
        yield Problem(
            code="type.bad_reference",
            message=f"{place}: {attribute.type[:60]!r} names no type",
            hint="write Name, or [Name] for a list",
        )
    elif shape[2] not in known:
        yield _unknown(shape[2], place, known)
    if not attribute.name or attribute.name == TAG:
        yield Problem(
            code="type.bad_name",
            message=f"{owner}: {attribute.name!r} cannot name an attribute",
            hint=f"{TAG} says the type of a value",
        )


def _super_type_cycles(above: Mapping[str, Sequence[str]]) -> Iterator[Problem]:
    for cycle in _cycles(above):
        yield Problem(
            code="type.cycle",
            message=f"types extend themselves: {' extends '.join(cycle)}",
            hint="remove one of these super-types",
        )


def _attributes(types: Sequence[Type], known: Types) -> Iterator[Problem]:
    for each in types:
        if isinstance(each, PrimitiveType):
            yield from _kinds(each, known)
            continue
        own = [attribute.name for attribute in each.attributes]
        for name in sorted({name for name in own if own.count(name) > 1}):
            yield Problem(
                code="type.duplicate", message=f"{each.name} declares attribute {name!r} twice"
            )
        for name, found in _inherited(each, known).items():
            yield from _inheritance(each, name, found, known)


def _kinds(owner: PrimitiveType, known: Types) -> Iterator[Problem]:
    for super_type in owner.super_types:
        kind = known.kind(super_type)
        if kind not in (owner.kind, "number" if owner.kind == "integer" else owner.kind):
            yield Problem(
                code="type.bad_super_type",
                message=f"{owner.name} is {owner.kind}, its super-type {super_type} is {kind}",
            )


def _inherited(owner: ComplexType, known: Types) -> dict[str, dict[str, Attribute]]:
    """Maps each inherited attribute name to the super-types that declare it."""
    found: dict[str, dict[str, Attribute]] = {}
    for super_type in owner.super_types:
        for name, attribute in known.attributes(super_type).items():
            found.setdefault(name, {})[super_type] = attribute
    return found


def _inheritance(
    owner: ComplexType, name: str, found: Mapping[str, Attribute], known: Types
) -> Iterator[Problem]:
    own = next((each for each in owner.attributes if each.name == name), None)
    if own is None:
        if len({(each.type, each.optional) for each in found.values()}) > 1:
            given = ", ".join(f"{each.type} by {place}" for place, each in found.items())
            yield Problem(
                code="type.ambiguous_attribute",
                message=f"{owner.name} inherits attribute {name!r} as {given}",
                hint=f"declare {name!r} in {owner.name}, with a type that suits all",
            )
        return
    for place, each in found.items():
        if not known.is_subtype(own.type, each.type) or (own.optional and not each.optional):
            yield Problem(
                code="type.wrong_override",
                message=f"{owner.name}.{name} is {own.type}, but {each.type} in {place}",
                hint="an attribute declared again may only be narrower",
            )


def _contained(known: Types) -> dict[str, list[str]]:
    """The types that can occur inside a value of each type."""
    contains: dict[str, list[str]] = {}
    for name in known.names:
        inner = {innermost(each.type) for each in known.attributes(name).values()}
        contains[name] = [dynamic for each in sorted(inner) for dynamic in known.dynamic(each)]
    return contains


def _containment(contains: Mapping[str, Sequence[str]]) -> Iterator[Problem]:
    """Reports types that contain themselves: their paths are unbounded, so rules cannot be
    resolved in advance.
    """
    for cycle in _cycles(contains):
        yield Problem(
            code="type.recursive",
            message=f"a value would contain its own type: {' contains '.join(cycle)}",
            hint="give the inner value the type json, or a type with fewer levels",
        )


def _too_deep(graph: Mapping[str, Sequence[str]], relation: str) -> Iterator[Problem]:
    """Expects an acyclic graph."""
    depths: dict[str, int] = {}
    for name in TopologicalSorter(graph).static_order():
        depths[name] = 1 + max((depths[each] for each in graph.get(name, ())), default=0)
    deepest = max(depths, key=lambda name: depths[name], default="")
    if depths.get(deepest, 0) > DEEPEST:
        yield Problem(
            code="type.too_deep",
            message=f"{deepest} {relation} {depths[deepest]} levels of types",
            hint=f"{DEEPEST} levels can be resolved; declare deeper values as json",
        )


def _cycles(graph: Mapping[str, Iterable[str]]) -> Iterator[list[str]]:
    """One cycle per group of names that reach each other; iterative."""
    done: set[str] = set()
    for start in graph:
        trail: list[str] = []
        waiting: list[tuple[str, bool]] = [(start, False)]
        while waiting:
            name, leaving = waiting.pop()
            if leaving:
                trail.pop()
                done.add(name)
            elif name in trail:
                yield [*trail[trail.index(name) :], name]
            elif name not in done:
                trail.append(name)
                waiting.append((name, True))
                waiting += [(below, False) for below in graph.get(name, ())]


def _unknown(name: TypeRef, place: str, known: Iterable[str]) -> Problem:
    hint = did_you_mean(name, known, "declare it, or a list of it as [Name]")
    return Problem(
        code="type.unknown", message=f"{place}: there is no type {name[:60]!r}", hint=hint
    )
