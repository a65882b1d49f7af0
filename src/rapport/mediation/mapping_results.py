"""The result of a mapping: its shape steps checked, and resolved steps fitted to the target type.
[ME-7, ME-17]

The result type of a complex value is, in this order: the target of a mapping of its own type, if
allowed there; its own type, if all conversions below preserve it; the type declared at that path in
the target. Its attributes must then conform to that type.
"""

from __future__ import annotations

import math
from collections.abc import Mapping as Dict

import msgspec

from rapport.core.errors import Problem, did_you_mean
from rapport.mediation.conversion.conversions import Conversion, Identity
from rapport.mediation.interpretations.model import (
    CreateAttribute,
    Direction,
    DropAttribute,
    MergeAttributes,
    RenameAttribute,
    ShapeStep,
    SplitAttribute,
    TypeMapping,
)
from rapport.mediation.plans import (
    KEEP,
    LEAVE,
    ConvertStep,
    EachStep,
    KeepStep,
    ObjectPart,
    ObjectStep,
    Step,
    VariantCase,
    VariantsStep,
)
from rapport.mediation.rejections import is_of_kind
from rapport.mediation.rule_resolution import Scope
from rapport.mediation.types import Attribute, TypeRef, element_of


class ShapeChecker:
    """Checks the shape steps of one mapping and computes the resulting attributes."""

    def __init__(
        self, mapping: TypeMapping | None, scope: Scope, path: str, problems: list[Problem]
    ) -> None:
        self._mapping, self._scope, self._path = mapping, scope, path
        self._problems = problems
        self.steps: tuple[tuple[ShapeStep, Conversion | None], ...] = ()

    def goal_of(self, name: str) -> str:
        """The name of an attribute in the result; empty if a step removes it."""
        if self._mapping is None:
            return name
        if name == self._mapping.each:
            return ""
        for step in self._mapping.shape:
            if isinstance(step, RenameAttribute) and step.old == name:
                name = step.new
            elif name in _taken(step):
                return ""
        return name

    def apply(self, attributes: Dict[str, Attribute]) -> dict[str, Attribute]:
        """Returns the attributes after all steps; sets `steps` and reports impossible
        steps.
        """
        there = dict(attributes)
        if self._mapping is None:
            return there
        if self._mapping.each:
            self._spread(there, self._mapping.each)
        self.steps = tuple((step, self._apply(step, there)) for step in self._mapping.shape)
        return there

    def _spread(self, there: dict[str, Attribute], name: str) -> None:
        found = self._take(there, name)
        inner = element_of(found.type) if found else None
        if found and (inner is None or found.optional):
            self._fault(f"{name!r} is no list that is always there", "name a required list")
        elif found and inner is not None:
            there[name] = Attribute(name, inner)

    def _apply(self, step: ShapeStep, there: dict[str, Attribute]) -> Conversion | None:
        if isinstance(step, RenameAttribute):
            found = self._take(there, step.old)
            if found is not None:
                self._put(there, Attribute(step.new, found.type, found.optional))
        elif isinstance(step, DropAttribute):
            self._take(there, step.name)
        elif isinstance(step, CreateAttribute):
            self._create(step, there)
        elif isinstance(step, MergeAttributes):
            return self._convert(step.conversion, step.sources, (step.target,), there)
        elif isinstance(step, SplitAttribute):
            return self._convert(step.conversion, (step.source,), step.targets, there)
        return None

    def _create(self, step: CreateAttribute, there: dict[str, Attribute]) -> None:
        if step.type not in self._scope.types:
            self._fault(f"there is no type {step.type!r}", "")
            return
        kind = self._scope.types.kind(step.type)
        if step.value is not None and not (is_of_kind(step.value, kind) and _is_finite(step.value)):
            self._fault(f"{step.value!r} is no {step.type}", "")
        self._put(there, Attribute(step.name, step.type, optional=step.value is None))

    def _convert(
        self,
        name: str,
        sources: tuple[str, ...],
        targets: tuple[str, ...],
        there: dict[str, Attribute],
    ) -> Conversion | None:
        taken = [self._take(there, source, needed=True) for source in sources]
        conversion = self._scope.conversions.get(name)
        if conversion is None:
            hint = did_you_mean(name, self._scope.conversions)
            self._fault(f"there is no conversion {name!r}", hint)
            return None
        found = tuple(attribute.type for attribute in taken if attribute is not None)
        if len(found) == len(taken):
            self._check(conversion, found, targets)
        if len(conversion.results) == len(targets):
            for target, result in zip(targets, conversion.results, strict=True):
                self._put(there, Attribute(target, result))
        return conversion

    def _check(
        self, conversion: Conversion, found: tuple[TypeRef, ...], targets: tuple[str, ...]
    ) -> None:
        types = self._scope.types
        fits = len(found) == len(conversion.arguments) and all(
            types.is_subtype(here, wanted)
            for here, wanted in zip(found, conversion.arguments, strict=True)
        )
        if not fits or len(conversion.results) != len(targets):
            self._fault(
                f"{conversion.name} {conversion.signature()} cannot take ({', '.join(found)}) "
                f"and give {len(targets)}",
                "its arguments and results are the attributes named, in order",
            )

    def _take(
        self, there: dict[str, Attribute], name: str, *, needed: bool = False
    ) -> Attribute | None:
        found = there.pop(name, None)
        if found is None:
            self._fault(f"there is no attribute {name!r} here", did_you_mean(name, there))
        elif needed and found.optional:
            self._fault(f"{name!r} may be missing", "only required attributes can be converted")
        return found

    def _put(self, there: dict[str, Attribute], attribute: Attribute) -> None:
        if attribute.name in there:
            self._fault(f"there is an attribute {attribute.name!r} already", "drop it first")
        there[attribute.name] = attribute

    def _fault(self, message: str, hint: str) -> None:
        message = f"{self._mapping} at {self._path}: {message}"
        self._problems.append(Problem(code="mapping.shape", message=message, hint=hint))


def _is_finite(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _taken(step: ShapeStep) -> tuple[str, ...]:
    if isinstance(step, DropAttribute):
        return (step.name,)
    if isinstance(step, MergeAttributes):
        return step.sources
    return (step.source,) if isinstance(step, SplitAttribute) else ()


_replace = msgspec.structs.replace


class ResultFitter:
    """Fits the steps of one scope in one direction; collects `problems`."""

    def __init__(self, scope: Scope, direction: Direction) -> None:
        self._scope, self._types, self._direction = scope, scope.types, direction
        self.problems: list[Problem] = []

    def preserves(self, step: Step, declared: TypeRef) -> bool:
        """Whether every result keeps the type declared at its path."""
        if isinstance(step, ConvertStep):
            return self._types.is_subtype(step.result, declared)
        if isinstance(step, EachStep):
            inner = element_of(declared)
            return inner is not None and self.preserves(step.step, inner)
        if isinstance(step, VariantsStep):
            return all(self.preserves(case.step, declared) for case in step.cases)
        if isinstance(step, ObjectStep):
            attributes = self._types.attributes(step.type)
            return all(
                self.preserves(part.step, attributes[part.attribute].type) for part in step.parts
            )
        return True

    def fit_event(self, step: Step, name: str, mapping: TypeMapping | None) -> Step:
        """Fits the step of a whole event of type `name` to the target of the mapping."""
        if mapping is None:
            return step if isinstance(step, ConvertStep) else self._tagged(step, name)
        if isinstance(step, ConvertStep):
            return self._fit_whole(step, mapping)
        fitted = self._fit_object(self._as_object(step, name, name), mapping.target, mapping)
        # `@type` names the former type; the result has the mapping's target type.
        return _replace(fitted, tag="") if mapping.target != name else fitted

    def _tagged(self, step: Step, declared: TypeRef) -> Step:
        """Adds `@type` where a result is a subtype of the preserved type."""
        if isinstance(step, ConvertStep):
            is_identity = isinstance(step.conversion.how, Identity)
            return step if is_identity else self._fit_convert(step, declared)
        if isinstance(step, EachStep):
            return _replace(step, step=self._tagged(step.step, declared[1:-1]))
        if isinstance(step, VariantsStep):
            cases = (_replace(case, step=self._tagged(case.step, declared)) for case in step.cases)
            return _replace(step, cases=tuple(cases))
        if isinstance(step, ObjectStep):
            attributes = self._types.attributes(step.type)
            parts = (
                _replace(part, step=self._tagged(part.step, attributes[part.attribute].type))
                for part in step.parts
            )
            return _replace(step, parts=tuple(parts))
        return step

    def fit(self, step: Step, declared: TypeRef, wanted: TypeRef | None, path: str) -> Step:
        """Fits the step of a value declared as `declared` to the expected type `wanted`.
        None: no type is expected, a shape step consumes the result.
        """
        if wanted is None:
            return step
        if isinstance(step, ConvertStep):
            return self._fit_convert(step, wanted)
        if isinstance(step, KeepStep) and self._types.is_subtype(declared, wanted):
            return step
        inner, wanted_inner = element_of(declared), element_of(wanted)
        if inner is not None and wanted_inner is not None:
            below = step.step if isinstance(step, EachStep) else KEEP
            fitted = self.fit(below, inner, wanted_inner, f"{path}[]")
            return EachStep(path, fitted) if fitted != KEEP else KEEP
        if not (self._types.is_complex(declared) and self._types.is_complex(wanted)):
            self._misfit(path, wanted, declared)
            return step
        return self._fit_dynamic(step, declared, wanted, path)

    def _fit_dynamic(self, step: Step, declared: str, wanted: str, path: str) -> Step:
        cases = (
            step.cases
            if isinstance(step, VariantsStep)
            else tuple(
                VariantCase(each, step if each == declared else KEEP)
                for each in self._types.dynamic(declared)
            )
        )
        fitted = tuple(
            VariantCase(case.type, self._fit_case(case, declared, wanted, path)) for case in cases
        )
        if len(fitted) == 1 or all(case.step == KEEP for case in fitted):
            return fitted[0].step
        return VariantsStep(path, declared, fitted)

    def _fit_case(self, case: VariantCase, declared: str, wanted: str, path: str) -> Step:
        """Fits the step of one dynamic type to the expected type `wanted`."""
        if isinstance(case.step, ConvertStep):
            return self._fit_convert(case.step, wanted)
        mapping = self._scope.mapping_of(case.type, self._direction)
        if mapping is not None and not self._types.is_subtype(mapping.target, wanted):
            mapping = None
        if mapping is not None and mapping.target != case.type and not mapping.each:
            return self._retyped(case, mapping.target, declared, wanted, path, mapping)
        if self._types.is_subtype(case.type, wanted) and self.preserves(case.step, case.type):
            return case.step
        if case.type == declared:
            return self._retyped(case, wanted, declared, wanted, path, None)
        self._misfit(path, wanted, case.type, "map this subtype, or convert it by a rule")
        return case.step

    def _retyped(
        self,
        case: VariantCase,
        result: str,
        declared: str,
        wanted: str,
        path: str,
        mapping: TypeMapping | None,
    ) -> Step:
        whole = self._as_object(case.step, case.type, path)
        fitted = self._fit_object(whole, result, mapping)
        may_be_tagged = len(self._types.dynamic(declared)) > 1
        tag = result if result != wanted else ("" if may_be_tagged else LEAVE)
        return self._lean(_replace(fitted, tag=tag))

    def _fit_object(self, step: ObjectStep, result: str, mapping: TypeMapping | None) -> ObjectStep:
        """Drops attributes that the mapping's source type lacks: an event of a subtype is
        treated as the mapped super-type.
        """
        given = self._types.attributes(step.type)
        seen_as = self._types.attributes(mapping.source) if mapping else given
        promised = self._types.attributes(result)
        shaping = ShapeChecker(mapping, self._scope, step.path, self.problems)
        steps = {part.attribute: part.step for part in step.parts}
        parts: list[ObjectPart] = []
        produced: dict[str, Attribute] = {}
        for name, attribute in given.items():
            if name not in seen_as:
                continue
            goal = shaping.goal_of(name)
            wanted = promised[goal].type if goal in promised else None
            place = f"{step.path}.{name}"
            fitted = self.fit(steps.get(name, KEEP), attribute.type, wanted, place)
            if fitted != KEEP:
                parts.append(ObjectPart(name, attribute.optional, fitted))
            produced[name] = Attribute(
                name, self._result(fitted, attribute.type, wanted), attribute.optional
            )
        produced = shaping.apply(produced)
        reduces = self._types.is_subtype(step.type, result)
        self._cover(step.path, produced, promised, result, reduces)
        only = self._only(mapping, reduces, given, produced, promised)
        return _replace(
            step,
            parts=tuple(parts),
            only=only,
            each=mapping.each if mapping else "",
            shape=shaping.steps,
        )

    def _only(
        self,
        mapping: TypeMapping | None,
        reduces: bool,
        given: Dict[str, Attribute],
        produced: Dict[str, Attribute],
        promised: Dict[str, Attribute],
    ) -> tuple[str, ...] | None:
        """The attributes to keep, None if all are kept."""
        wanted = tuple(name for name in promised if name in produced)
        drops_unmapped = mapping is not None and any(
            name not in self._types.attributes(mapping.source) for name in given
        )
        drops_by_super_type = reduces and any(name not in promised for name in produced)
        return wanted if drops_unmapped or drops_by_super_type else None

    def _cover(
        self,
        path: str,
        produced: Dict[str, Attribute],
        promised: Dict[str, Attribute],
        result: str,
        reduces: bool,
    ) -> None:
        for name, attribute in produced.items():
            goal = promised.get(name)
            if goal is None:
                if not reduces:
                    hint = f"drop, rename or merge {name!r} in the mapping"
                    message = f"{path}: {result} has no attribute {name!r}"
                    self._problem("mapping.no_place", message, hint)
            elif not self._types.is_subtype(attribute.type, goal.type):
                self._misfit(f"{path}.{name}", goal.type, attribute.type)
        for name, goal in promised.items():
            there = produced.get(name)
            if not goal.optional and (there is None or there.optional):
                what = "may be missing" if there else "comes from nowhere"
                hint = f"create {name!r} in the mapping, or declare it optional in {result}"
                message = f"{path}: attribute {name!r} of {result} {what}"
                self._problem("mapping.incomplete", message, hint)

    def _result(self, step: Step, declared: TypeRef, wanted: TypeRef | None) -> TypeRef:
        """The result type; a fitted step has the expected type, mismatches are reported
        already.
        """
        if wanted is not None:
            return wanted
        if isinstance(step, ConvertStep):
            return step.result
        if isinstance(step, EachStep):
            inner = element_of(declared)
            return f"[{self._result(step.step, inner, None)}]" if inner else declared
        return declared

    def _fit_whole(self, step: ConvertStep, mapping: TypeMapping) -> Step:
        """Fits a rule that converts the whole event; a list result splits it (ME-17)."""
        if mapping.shape or mapping.each:
            message = f"{mapping}: the rule {step.rule} converts the whole event"
            hint = "a change of shape has no effect then; remove it or the rule"
            self._problem("mapping.unused_shape", message, hint)
        inner = element_of(step.result)
        if inner is not None and self._types.is_subtype(inner, mapping.target):
            return step
        return _replace(self._fit_convert(step, mapping.target), tag=LEAVE)

    def _fit_convert(self, step: ConvertStep, wanted: TypeRef) -> ConvertStep:
        result = step.result
        if not self._types.is_subtype(result, wanted):
            message = f"rule {step.rule} at {step.path}: expected {wanted}, found {result}"
            hint = "a more specific rule, another conversion or another mapping mends it"
            self._problem("rule.result", message, hint)
        elif result != wanted and self._types.is_complex(result):
            return _replace(step, tag=result)
        return step

    def _as_object(self, step: Step, name: str, path: str) -> ObjectStep:
        return step if isinstance(step, ObjectStep) else ObjectStep(path, name, ())

    def _lean(self, step: ObjectStep) -> Step:
        """Replaces an object step without any effect by KEEP."""
        idle = not step.parts and not step.shape and step.only is None
        return KEEP if idle and step.tag == LEAVE else step

    def _misfit(self, path: str, wanted: TypeRef, found: TypeRef, hint: str = "") -> None:
        message = f"{path}: expected {wanted}, found {found}"
        self._problem("mapping.misfit", message, hint or f"a rule for {path} may convert it")

    def _problem(self, code: str, message: str, hint: str) -> None:
        self.problems.append(Problem(code=code, message=message, hint=hint))
