"""Changes of shape that a mapping asks for, checked against the attributes at hand. [ME-17]"""

from __future__ import annotations

import math
from collections.abc import Mapping as Dict

from rapport.core.errors import Problem, nearest_names
from rapport.mediation.model.conversions import Conversion
from rapport.mediation.model.interpretation import (
    CreateAttribute,
    DropAttribute,
    Mapping,
    MergeAttributes,
    RenameAttribute,
    Shape,
    SplitAttribute,
)
from rapport.mediation.model.scope import Scope
from rapport.mediation.model.types import Attribute, TypeRef, element_of


class Shaping:
    """The steps of one mapping at one place; tells what attributes are left."""

    def __init__(
        self, mapping: Mapping | None, scope: Scope, path: str, problems: list[Problem]
    ) -> None:
        self._mapping, self._scope, self._path = mapping, scope, path
        self._problems = problems
        self.steps: tuple[tuple[Shape, Conversion | None], ...] = ()

    def goal_of(self, name: str) -> str:
        """Under which name an attribute arrives in the result; empty if a step takes it."""
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
        """The attributes after all steps; sets `steps`, reports what cannot be done."""
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

    def _apply(self, step: Shape, there: dict[str, Attribute]) -> Conversion | None:
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
            nearest = nearest_names(name, self._scope.conversions, 1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else ""
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
            nearest = nearest_names(name, there, 1)
            self._fault(
                f"there is no attribute {name!r} here",
                f"did you mean {nearest[0]!r}?" if nearest else "",
            )
        elif needed and found.optional:
            self._fault(f"{name!r} may be missing", "only what is always there can be converted")
        return found

    def _put(self, there: dict[str, Attribute], attribute: Attribute) -> None:
        if attribute.name in there:
            self._fault(f"there is an attribute {attribute.name!r} already", "drop it first")
        there[attribute.name] = attribute

    def _fault(self, message: str, hint: str) -> None:
        message = f"{self._mapping} at {self._path}: {message}"
        self._problems.append(Problem(code="mapping.shape", message=message, hint=hint))


def is_of_kind(value: object, kind: str) -> bool:
    """A JSON value is of a kind of type, looked at from outside only."""
    if kind == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    wanted = {"text": str, "boolean": bool, "object": dict, "list": list}.get(kind, object)
    return isinstance(value, wanted)


def _is_finite(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _taken(step: Shape) -> tuple[str, ...]:
    if isinstance(step, DropAttribute):
        return (step.name,)
    if isinstance(step, MergeAttributes):
        return step.sources
    return (step.source,) if isinstance(step, SplitAttribute) else ()
