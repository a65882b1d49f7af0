"""The resolved plan of one transformation: a tree of steps over a value. [ME-8, ME-14]

Data only. `generator.py` makes Python of it, `columns.py` column expressions.
"""

from __future__ import annotations

import msgspec

from rapport.mediation.conversion.conversions import Conversion, Identity
from rapport.mediation.interpretations.model import Direction, ShapeStep, TypeMapping
from rapport.mediation.types import TypeRef

LEAVE = "*leave*"
"""The tag `@type` stays as it is."""


class KeepStep(msgspec.Struct, frozen=True, tag_field="step_kind", tag="keep"):
    """The value goes on unchanged."""


class ConvertStep(msgspec.Struct, frozen=True, tag_field="step_kind", tag="convert"):
    """A conversion, chosen by `rule` (as written, for people) at `path`."""

    path: str
    type: TypeRef
    """What the value is here."""
    rule: str
    conversion: Conversion
    tag: str = LEAVE
    """Written into the result as `@type` unless it has one."""

    @property
    def result(self) -> TypeRef:
        """What comes out; the identity gives what it got, whatever it declares."""
        is_identity = isinstance(self.conversion.how, Identity)
        return self.type if is_identity else self.conversion.result


class ObjectPart(msgspec.Struct, frozen=True):
    """An attribute with something to do."""

    attribute: str
    optional: bool
    step: Step


class ObjectStep(msgspec.Struct, frozen=True, tag_field="step_kind", tag="object"):
    """A value of exactly the complex type `type`, attribute by attribute."""

    path: str
    type: str
    parts: tuple[ObjectPart, ...]
    tag: str = LEAVE
    """The `@type` of the result; empty: removed."""
    only: tuple[str, ...] | None = None
    """These attributes stay; None: all."""
    each: str = ""
    """One result per element of this list."""
    shape: tuple[tuple[ShapeStep, Conversion | None], ...] = ()


class EachStep(msgspec.Struct, frozen=True, tag_field="step_kind", tag="each"):
    """Every element of a list."""

    path: str
    step: Step


class VariantCase(msgspec.Struct, frozen=True):
    """What is done with a value that says it is of this type."""

    type: str
    step: Step


class VariantsStep(msgspec.Struct, frozen=True, tag_field="step_kind", tag="variants"):
    """A step per dynamic type; without `@type` the value is of the type `declared`."""

    path: str
    declared: str
    cases: tuple[VariantCase, ...]


Step = KeepStep | ConvertStep | ObjectStep | EachStep | VariantsStep
KEEP = KeepStep()


class Plan(msgspec.Struct, frozen=True):
    """How events of one type are turned: stages one after the other.

    More than one stage only where a type of root was replaced (4.2.3).
    """

    interpretation: str
    type: str
    direction: Direction
    result_type: str
    stages: tuple[Step, ...]
    several: bool = False
    """The result is a list of events."""
    mapping: TypeMapping | None = None
    """None: the type has no mapping and stays what it is."""
