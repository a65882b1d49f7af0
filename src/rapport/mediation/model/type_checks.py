"""Faults of declared types: names, cycles, ambiguity; all of them at once. [ME-1, ME-7]"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rapport.core.errors import Problem, nearest_names
from rapport.mediation.model.patterns import LONGEST_NAME, is_type_name
from rapport.mediation.model.types import (
    BUILT_IN,
    TAG,
    Attribute,
    ComplexType,
    PrimitiveType,
    Type,
    TypeRef,
    Types,
    innermost,
)

_BRACKETS = re.compile(r"(\[*)([^\[\]]*)(\]*)")
_LONGEST_LIST = 8
DEEPEST = 150
"""Levels of nesting and of inheritance; resolving them is recursive."""


def check_types(types: Sequence[Type]) -> list[Problem]:
    """Every fault; an empty list means that `Types(types)` may be asked anything.

    Later checks need the earlier ones to hold, so cycles are looked for only when all names are
    known, and attributes only when there are no cycles.
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
    """Attribute name -> which super-type gives it as what."""
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
    """The types that values in a value of each type may be of."""
    contains: dict[str, list[str]] = {}
    for name in known.names:
        inner = {innermost(each.type) for each in known.attributes(name).values()}
        contains[name] = [dynamic for each in sorted(inner) for dynamic in known.dynamic(each)]
    return contains


def _containment(contains: Mapping[str, Sequence[str]]) -> Iterator[Problem]:
    """A value that may contain one of its own type has no longest path; rules could not be
    resolved before events come.
    """
    for cycle in _cycles(contains):
        yield Problem(
            code="type.recursive",
            message=f"a value would contain its own type: {' contains '.join(cycle)}",
            hint="give the inner value the type json, or a type with fewer levels",
        )


def _too_deep(graph: Mapping[str, Sequence[str]], relation: str) -> Iterator[Problem]:
    """Of names that do not go in circles; without recursion."""
    depths: dict[str, int] = {}
    for start in graph:
        waiting = [(start, False)]
        while waiting:
            name, leaving = waiting.pop()
            below = graph.get(name, ())
            if leaving:
                depths[name] = 1 + max((depths[each] for each in below), default=0)
            elif name not in depths:
                waiting += [(name, True), *((each, False) for each in below)]
    deepest = max(depths, key=lambda name: depths[name], default="")
    if depths.get(deepest, 0) > DEEPEST:
        yield Problem(
            code="type.too_deep",
            message=f"{deepest} {relation} {depths[deepest]} levels of types",
            hint=f"{DEEPEST} levels can be resolved; give what is below the type json",
        )


def _cycles(graph: Mapping[str, Iterable[str]]) -> Iterator[list[str]]:
    """One cycle per group of names that reach each other; without recursion."""
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
    nearest = nearest_names(name, known, 1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else "declare it, or a list of it as [Name]"
    return Problem(
        code="type.unknown", message=f"{place}: there is no type {name[:60]!r}", hint=hint
    )
