"""The registry: all typed interpretations of a node as one value, with lineage, checks and plans.
[ME-4, ME-5, ME-6, ME-7]

A registry is immutable: `type_changes` creates a new one, and holders of the old one keep working
with it. So a change takes effect by swapping one reference.

Section 4.2.3, replacing a canonical type T by T': T' has all attributes of T; `forth` converts T to
T', `back` the reverse. Interpretations written for T are unchanged: on the way in, every T in an
event becomes T' in a last stage; on the way out, every T' becomes T in a first stage. Conversions
of the canonical model are chained and its patterns renamed.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from collections.abc import Mapping as Dict

import msgspec

from rapport.core.errors import InterpretationError, Problem, UnknownName
from rapport.mediation.conversion.conversions import Chain, Conversion, Rename, functions_of
from rapport.mediation.interpretation_checks import CheckedInterpretation
from rapport.mediation.interpretations.model import (
    CANONICAL,
    Direction,
    Interpretation,
    Rule,
    TypeMapping,
    empty_canonical_model,
)
from rapport.mediation.memory import feed_types
from rapport.mediation.patterns import BoundItem, BoundPattern
from rapport.mediation.plans import (
    KEEP,
    ConvertStep,
    EachStep,
    ObjectPart,
    ObjectStep,
    Plan,
    Step,
    VariantCase,
    VariantsStep,
)
from rapport.mediation.rule_resolution import Scope
from rapport.mediation.types import (
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
    """The replacement of the canonical type `old` by `new`."""

    old: str
    new: str
    forth: Conversion
    back: Conversion


def check_replacement(replacement: Replacement, new: ComplexType, types: Types) -> list[Problem]:
    """Why it is not possible, given the canonical types before it."""
    return [_problem(replacement, text) for text in _faults(replacement, new, types)]


def _faults(replacement: Replacement, new: ComplexType, types: Types) -> Iterator[str]:
    old = replacement.old
    if not types.is_complex(old):
        yield f"the canonical model has no complex type {old!r}"
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


def replaced_canonical_model(
    model: Interpretation, replacement: Replacement, new: ComplexType
) -> Interpretation:
    """The canonical model after the replacement; the old type stays known, but nothing contains
    it.
    """
    renamed = rewrite(model, Scope((model,)), replacement, back=False)
    kept = next(each for each in model.types if each.name == replacement.old)
    types = (*(each for each in renamed.types if each.name != kept.name), kept, new)
    return _replace(renamed, types=types)


def rewrite(
    given: Interpretation, scope: Scope, replacement: Replacement, *, back: bool
) -> Interpretation:
    """The definitions in terms of the other type; `scope` is where they were valid. Types,
    mappings and patterns are renamed; conversions are chained so that they have the same
    effect.
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
    """Conversions of several values or of lists with the type, which cannot be chained."""
    return [
        each.name
        for each in given.conversions
        for one in (*each.arguments, *each.results)
        if innermost(one) == name and (one != name or not each.is_single)
    ]


def replacing_step(replacement: Replacement, name: str, types: Types, *, back: bool) -> list[Step]:
    """The stage that replaces every occurrence in events of type `name`, if there is any.
    `types`: those before the stage.
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
        return ConvertStep(path, name, about, _exactly(conversion))
    parts = []
    for attribute in types.attributes(name).values():
        if old in types.reach(attribute.type):
            below = f"{path}.{attribute.name}"
            step = _declared(below, attribute.type, replacement, types, back=back)
            parts.append(ObjectPart(attribute.name, attribute.optional, step))
    return ObjectStep(path, name, tuple(parts)) if parts else KEEP


def _exactly(conversion: Conversion) -> Conversion:
    """Restricts input and output to declared attributes, so that a function that copies its
    argument does not carry over others or `@type`.
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
        return EachStep(path, _declared(f"{path}[]", inner, replacement, types, back=back))
    cases = []
    for each in types.dynamic(declared):
        step = _exact(path, each, replacement, types, back=back)
        if isinstance(step, ConvertStep) and each != declared:
            step = _replace(step, tag=step.conversion.result)
        cases.append(VariantCase(each, step))
    return cases[0].step if len(cases) == 1 else VariantsStep(path, declared, tuple(cases))


def _in_type(given: Type, old: str, new: str) -> Type:
    if not isinstance(given, ComplexType):
        return given
    attributes = tuple(
        Attribute(each.name, _in_reference(each.type, old, new), each.optional)
        for each in given.attributes
    )
    return _replace(given, attributes=attributes)


def _in_mapping(given: TypeMapping, old: str, new: str) -> TypeMapping:
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


class RegisteredInterpretation(msgspec.Struct, frozen=True):
    """An interpretation and the canonical version it was written for."""

    interpretation: Interpretation
    root_version: int


class InterpretationRegistry:
    """All versions of the canonical model and all interpretations below it. `replacements[n]`
    leads from `canonical_versions[n]` to the next. Checks and plans are computed on first use
    and cached: for one thread at a time. Transformers built from them are safe anywhere.
    """

    def __init__(
        self,
        roots: tuple[Interpretation, ...] = (),
        replacements: tuple[Replacement, ...] = (),
        held: Dict[str, RegisteredInterpretation] | None = None,
    ) -> None:
        self.canonical_versions = roots or (empty_canonical_model(),)
        self.replacements = replacements
        self.registered: Dict[str, RegisteredInterpretation] = held or {}
        self._checked: dict[str, CheckedInterpretation] = {}
        self._canonical_types: dict[int, Types] = {}

    def __contains__(self, name: str) -> bool:
        return name == CANONICAL or name in self.registered

    @property
    def canonical(self) -> Interpretation:
        """The present canonical model."""
        return self.canonical_versions[-1]

    @property
    def names(self) -> tuple[str, ...]:
        """All names, the canonical model first."""
        return (CANONICAL, *self.registered)

    def named(self, name: str) -> Interpretation:
        """Raises UnknownName `interpretation.unknown`."""
        if name == CANONICAL:
            return self.canonical
        found = self.registered.get(name)
        if found is None:
            raise UnknownName("interpretation", name, self.names, code="interpretation.unknown")
        return found.interpretation

    def chain(self, name: str) -> tuple[Interpretation, ...]:
        """From the canonical model, in the version it was written for, down to the
        interpretation.
        """
        below: list[Interpretation] = []
        while name != CANONICAL:
            below.append(self.named(name))
            name = below[-1].parent
        return (
            self.canonical_versions[self.canonical_version(below[0].name if below else CANONICAL)],
            *reversed(below),
        )

    def canonical_version(self, name: str) -> int:
        """The canonical version that an interpretation uses."""
        return (
            len(self.canonical_versions) - 1
            if name == CANONICAL
            else self.registered[name].root_version
        )

    def children(self, name: str) -> tuple[str, ...]:
        return tuple(
            each for each, held in self.registered.items() if held.interpretation.parent == name
        )

    def descendants(self, name: str) -> tuple[str, ...]:
        """Parents before their children."""
        found = list(self.children(name))
        for each in found:
            found += self.children(each)
        return tuple(found)

    def apart(self, known: InterpretationRegistry | None = None) -> InterpretationRegistry:
        """A copy for another thread. It reuses checks of `known` for identical
        interpretations and repeats the others now.
        """
        found = InterpretationRegistry(self.canonical_versions, self.replacements, self.registered)
        if known is None:
            return found
        for name, checked in known._checked.copy().items():
            if name in self and self.is_same(name, known):
                found._checked[name] = checked
            elif name in self:
                found.checked(name)
        return found

    def is_same(self, name: str, other: InterpretationRegistry) -> bool:
        """Whether both have the identical interpretation and ancestors."""
        if name not in other or self.canonical_version(name) != other.canonical_version(name):
            return False
        ours, theirs = self.chain(name), other.chain(name)
        return len(ours) == len(theirs) and all(map(operator.is_, ours, theirs))

    def checked(self, name: str) -> CheckedInterpretation:
        """The interpretation with its problems; raises InterpretationError for faulty
        types.
        """
        if name not in self._checked:
            self._checked[name] = CheckedInterpretation(self.chain(name))
        return self._checked[name]

    def plan(self, name: str, type_name: str, direction: Direction) -> Plan:
        """The plan from the interpretation to the canonical model (`in`) or back (`out`).
        `type_name`: the type of the event before. Raises InterpretationError
        `mapping.missing` if it cannot be passed, UnknownName for an unknown type.
        """
        if name == CANONICAL:
            self.checked(CANONICAL).scope.types.named(type_name)
            return Plan(CANONICAL, type_name, direction, type_name, ())
        version = self.canonical_version(name)
        before: tuple[Step, ...] = ()
        mapped = type_name
        if direction == "out":
            mapped, before = self._back(type_name, version)
        checked = self.checked(name)
        checked.scope.types.named(mapped)
        plan = checked.plan(mapped, direction)
        if plan is None:
            raise InterpretationError([_unmapped(name, mapped, direction)])
        result = plan.result_type
        after: tuple[Step, ...] = ()
        if direction == "in":
            result, after = self._forth(result, version, plan.several)
        stages = (*before, *plan.stages, *after)
        return msgspec.structs.replace(plan, type=type_name, result_type=result, stages=stages)

    def types_met(self, name: str) -> Types:
        """All types of values between an interpretation and the canonical model."""
        version = self.canonical_version(name)
        found = {
            each.name: each for model in self.canonical_versions[version:] for each in model.types
        }
        return Types([*found.values(), *self.checked(name).scope.types.all()])

    def _back(self, name: str, version: int) -> tuple[str, tuple[Step, ...]]:
        stages: list[Step] = []
        for number in range(len(self.replacements) - 1, version - 1, -1):
            replacement = self.replacements[number]
            stages += replacing_step(replacement, name, self._types(number + 1), back=True)
            name = replacement.old if name == replacement.new else name
        return name, tuple(stages)

    def _forth(self, name: str, version: int, several: bool) -> tuple[str, tuple[Step, ...]]:
        stages: list[Step] = []
        for number in range(version, len(self.replacements)):
            replacement = self.replacements[number]
            found = replacing_step(replacement, name, self._types(number), back=False)
            stages += [EachStep(name, step) for step in found] if several else found
            name = replacement.new if name == replacement.old else name
        return name, tuple(stages)

    def _types(self, version: int) -> Types:
        if version not in self._canonical_types:
            self._canonical_types[version] = Types(self.canonical_versions[version].types)
        return self._canonical_types[version]


def _unmapped(name: str, type_name: str, direction: Direction) -> Problem:
    return Problem(
        code="mapping.missing",
        message=f"{name}: {type_name} has no mapping ({direction}), and rules change its type",
        hint=f"map it: {type_name} => ...",
    )


def feeds_of(
    interpretations: InterpretationRegistry, name: str
) -> dict[str, tuple[Conversion, ...]]:
    """The event types that conversions of an interpretation learn from, including inherited
    ones.
    """
    found: dict[str, dict[str, Conversion]] = {}
    for conversion in interpretations.checked(name).scope.conversions.values():
        for type_name, fed in feed_types(conversion):
            found.setdefault(type_name, {})[fed.name] = fed
    return {type_name: tuple(fed.values()) for type_name, fed in found.items()}


def functions_needed(interpretations: InterpretationRegistry, name: str) -> tuple[str, ...]:
    """The site functions that an interpretation calls, including those of later replacements."""
    conversions = [*interpretations.checked(name).scope.conversions.values()]
    for replacement in interpretations.replacements[interpretations.canonical_version(name) :]:
        conversions += [replacement.forth, replacement.back]
    return tuple(dict.fromkeys(each for one in conversions for each in functions_of(one)))
