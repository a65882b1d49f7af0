"""Replacing a type T of root by T' while others still speak T (section 4.2.3). [ME-6]

T' has all attributes of T; `forth` makes a T' of a T, `back` the reverse. Who was written for T is
left alone: on its way to root every T in an event becomes a T' as the last stage, on the way back
every T' becomes a T as the first. Root's own conversions are chained, and its patterns renamed.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rapport.core.errors import Problem
from rapport.mediation.model.conversions import Chain, Conversion, Rename
from rapport.mediation.model.interpretation import Interpretation, Mapping, Rule
from rapport.mediation.model.patterns import BoundItem, BoundPattern
from rapport.mediation.model.plan import KEEP, Case, Convert, Each, Object, Part, Step, Variants
from rapport.mediation.model.scope import Scope
from rapport.mediation.model.types import (
    Attribute,
    ComplexType,
    Type,
    TypeRef,
    Types,
    element_of,
    innermost,
)

_replace = msgspec.structs.replace


class Replacement(msgspec.Struct, frozen=True):
    """Root's type `old` gave way to `new`."""

    old: str
    new: str
    forth: Conversion
    back: Conversion


def check_replacement(replacement: Replacement, new: ComplexType, types: Types) -> list[Problem]:
    """Why it cannot be done, among the types of root before it."""
    return [_problem(replacement, text) for text in _faults(replacement, new, types)]


def _faults(replacement: Replacement, new: ComplexType, types: Types) -> Iterator[str]:
    old = replacement.old
    if not types.is_complex(old):
        yield f"root has no complex type {old!r}"
        return
    if new.name != replacement.new or new.name in types:
        yield f"{new.name!r} is not a new name"
        return
    if len(types.subtypes(old)) > 1:
        yield f"{old} has subtypes: {', '.join(types.subtypes(old)[1:])}"
    if set(types.named(old).super_types) - set(new.super_types):
        yield f"{new.name} must extend what {old} extends"
    given = {each.name: each for each in new.attributes}
    for above in new.super_types:
        given |= types.attributes(above) if above in types else {}
    for name, attribute in types.attributes(old).items():
        there = given.get(name)
        if there is None:
            yield f"{new.name} lacks attribute {name!r} of {old}"
        elif there.type in types and not types.is_subtype(there.type, attribute.type):
            yield f"{name!r} is {attribute.type} in {old}, but {there.type} in {new.name}"
    if any(innermost(each.type) == old for each in new.attributes):
        yield f"{new.name} contains {old}"
    if replacement.forth.signature() != f"({old}) -> {new.name}":
        yield f"forth is {replacement.forth.signature()}, needed is ({old}) -> {new.name}"
    if replacement.back.signature() != f"({new.name}) -> {old}":
        yield f"back is {replacement.back.signature()}, needed is ({new.name}) -> {old}"


def replaced_root(
    root: Interpretation, replacement: Replacement, new: ComplexType
) -> Interpretation:
    """Root after the replacement; the old type stays known, but nothing contains it."""
    renamed = rewrite(root, Scope((root,)), replacement, back=False)
    kept = next(each for each in root.types if each.name == replacement.old)
    types = (*(each for each in renamed.types if each.name != kept.name), kept, new)
    return _replace(renamed, types=types)


def rewrite(
    given: Interpretation, scope: Scope, replacement: Replacement, *, back: bool
) -> Interpretation:
    """The same definitions said with the other of the two types; `scope` is where they were valid.

    Types, mappings and patterns get the other name; conversions are chained so that they do what
    they did.
    """
    old, new = (replacement.new, replacement.old) if back else (replacement.old, replacement.new)
    ways = _exactly(replacement.forth), _exactly(replacement.back)
    forth, undo = reversed(ways) if back else ways
    patterns = {each.rule: each.pattern for each in scope.bound}
    return _replace(
        given,
        types=tuple(_in_type(each, old, new) for each in given.types),
        mappings=tuple(_in_mapping(each, old, new) for each in given.mappings),
        rules=tuple(_in_rule(each, patterns.get(each), old, new) for each in given.rules),
        conversions=tuple(_in_conversion(each, old, forth, undo) for each in given.conversions),
    )


def unchainable(given: Interpretation, name: str) -> list[str]:
    """Conversions of several values, or of lists, that mention the type: no chain does for them."""
    return [
        each.name
        for each in given.conversions
        for one in (*each.arguments, *each.results)
        if innermost(one) == name and (one != name or not each.is_single)
    ]


def replacing_step(replacement: Replacement, name: str, types: Types, *, back: bool) -> list[Step]:
    """The stage that exchanges every occurrence in events of type `name`; none when there is none.

    `types` are those before the stage.
    """
    wanted = replacement.new if back else replacement.old
    if name not in types or wanted not in types.reach(name):
        return []
    step = _exact(name, name, replacement, types, back=back)
    return [step] if step != KEEP else []


def _exact(path: str, name: str, replacement: Replacement, types: Types, *, back: bool) -> Step:
    old, conversion = (
        (replacement.new, replacement.back) if back else (replacement.old, replacement.forth)
    )
    if name == old:
        about = f"{replacement.old} replaced by {replacement.new}"
        return Convert(path, name, about, _exactly(conversion))
    parts = []
    for attribute in types.attributes(name).values():
        if old in types.reach(attribute.type):
            below = f"{path}.{attribute.name}"
            step = _declared(below, attribute.type, replacement, types, back=back)
            parts.append(Part(attribute.name, attribute.optional, step))
    return Object(path, name, tuple(parts)) if parts else KEEP


def _exactly(conversion: Conversion) -> Conversion:
    """The same, made of nothing but what one type declares and giving nothing but what the other
    does: a function that copies its argument brings no attributes and no `@type` along.
    """
    if isinstance(conversion.how, Rename):
        return conversion
    ((given,), (result,)) = conversion.arguments, conversion.results
    steps = (
        Conversion(conversion.name, (given,), (given,), Rename(())),
        conversion,
        Conversion(conversion.name, (result,), (result,), Rename(())),
    )
    return _replace(conversion, how=Chain(steps))


def _declared(
    path: str, declared: TypeRef, replacement: Replacement, types: Types, *, back: bool
) -> Step:
    inner = element_of(declared)
    if inner is not None:
        return Each(path, _declared(f"{path}[]", inner, replacement, types, back=back))
    cases = []
    for each in types.dynamic(declared):
        step = _exact(path, each, replacement, types, back=back)
        if isinstance(step, Convert) and each != declared:
            step = _replace(step, tag=step.conversion.result)
        cases.append(Case(each, step))
    return cases[0].step if len(cases) == 1 else Variants(path, declared, tuple(cases))


def _in_type(given: Type, old: str, new: str) -> Type:
    if not isinstance(given, ComplexType):
        return given
    attributes = tuple(
        Attribute(each.name, _in_reference(each.type, old, new), each.optional)
        for each in given.attributes
    )
    return _replace(given, attributes=attributes)


def _in_mapping(given: Mapping, old: str, new: str) -> Mapping:
    source = new if given.source == old else given.source
    return _replace(given, source=source, target=new if given.target == old else given.target)


def _in_rule(given: Rule, pattern: BoundPattern | None, old: str, new: str) -> Rule:
    if pattern is None or all(innermost(item.type) != old for item in pattern.items):
        return given
    items = tuple(
        BoundItem(item.attribute, _in_reference(item.type, old, new)) for item in pattern.items
    )
    return _replace(given, pattern=str(BoundPattern(items)))


def _in_conversion(given: Conversion, old: str, forth: Conversion, undo: Conversion) -> Conversion:
    if not given.is_single or old not in (given.argument, given.result):
        return given
    steps = [given]
    argument, result = given.argument, given.result
    if argument == old:
        steps, argument = [undo, *steps], undo.argument
    if result == old:
        steps, result = [*steps, forth], forth.result
    return Conversion(given.name, (argument,), (result,), Chain(tuple(steps)))


def _in_reference(reference: TypeRef, old: str, new: str) -> TypeRef:
    return reference.replace(old, new) if innermost(reference) == old else reference


def _problem(replacement: Replacement, text: str) -> Problem:
    return Problem(
        code="replacement.invalid",
        message=f"{replacement.old} cannot be replaced by {replacement.new}: {text}",
        hint="the new type has all attributes of the old, and conversions lead both ways",
    )
