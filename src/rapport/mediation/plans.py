"""The resolved plan of one transformation: a tree of steps over a value. [ME-8, ME-14]

Data only. `codegen` turns a plan into Python, the pipeline into column expressions.
"""

from __future__ import annotations

import msgspec

from rapport.mediation.conversion.conversions import Conversion, Identity
from rapport.mediation.interpretations.model import Direction, ShapeStep, TypeMapping
from rapport.mediation.types import TypeRef

LEAVE = "*leave*"
"""The tag `@type` is not changed."""


class KeepStep(msgspec.Struct, frozen=True, tag_field="step_kind", tag="keep"):
    """The value stays unchanged."""


class ConvertStep(msgspec.Struct, frozen=True, tag_field="step_kind", tag="convert"):
    """A conversion chosen by `rule` (its text, for messages) at `path`."""

    path: str
    type: TypeRef
    """The type of the value before the conversion."""
    rule: str
    conversion: Conversion
    tag: str = LEAVE
    """Written into the result as `@type` unless it has one."""

    @property
    def result(self) -> TypeRef:
        """The type of the result; the identity returns the type it received."""
        is_identity = isinstance(self.conversion.how, Identity)
        return self.type if is_identity else self.conversion.result


class ObjectPart(msgspec.Struct, frozen=True):
    """An attribute with a step."""

    attribute: str
    optional: bool
    step: Step


class ObjectStep(msgspec.Struct, frozen=True, tag_field="step_kind", tag="object"):
    """Converts a value of exactly the complex type `type`, attribute by attribute."""

    path: str
    type: str
    parts: tuple[ObjectPart, ...]
    tag: str = LEAVE
    """The `@type` of the result; empty: removed."""
    only: tuple[str, ...] | None = None
    """The attributes to keep; None: all."""
    each: str = ""
    """One result per element of this list."""
    shape: tuple[tuple[ShapeStep, Conversion | None], ...] = ()


class EachStep(msgspec.Struct, frozen=True, tag_field="step_kind", tag="each"):
    """Applies a step to every element of a list."""

    path: str
    step: Step


class VariantCase(msgspec.Struct, frozen=True):
    """The step for one dynamic type."""

    type: str
    step: Step


class VariantsStep(msgspec.Struct, frozen=True, tag_field="step_kind", tag="variants"):
    """One step per dynamic type; a value without `@type` has the type `declared`."""

    path: str
    declared: str
    cases: tuple[VariantCase, ...]


Step = KeepStep | ConvertStep | ObjectStep | EachStep | VariantsStep
KEEP = KeepStep()


def is_idle(step: Step) -> bool:
    """Whether the step is an exception from a wider rule that leaves the value unchanged."""
    return (
        isinstance(step, ConvertStep)
        and isinstance(step.conversion.how, Identity)
        and step.tag == LEAVE
    )


class Plan(msgspec.Struct, frozen=True):
    """The transformation of events of one type, as consecutive stages. There is more than one
    stage only where a type of the canonical model was replaced (4.2.3).
    """

    interpretation: str
    type: str
    direction: Direction
    result_type: str
    stages: tuple[Step, ...]
    several: bool = False
    """The result is a list of events."""
    mapping: TypeMapping | None = None
    """None: the type has no mapping and stays the same."""
