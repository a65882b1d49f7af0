"""Structs made for one type each, so that JSON is decoded straight into them; no I/O. [ME-8]

A struct takes exactly what the plan can be done with: numbers where there is a formula, no
attribute that the type does not declare. What does not fit it is not wrong, only not usual.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from rapport.mediation.model.conversions import Formula, UnitChange
from rapport.mediation.model.generator import is_idle
from rapport.mediation.model.plan import Convert, Object, Part
from rapport.mediation.model.straight_numbers import MOST, Number
from rapport.mediation.model.straight_uncut import Uncut, usual_form
from rapport.mediation.model.types import TAG, Attribute, Types

DEEPEST = 30
"""Further down, objects are decoded as plain values."""


class NotStraightError(Exception):
    """The plan is one of those that only decoded values can be put through."""


class Field(msgspec.Struct, frozen=True):
    """Where a struct holds an attribute, and what is known of its value."""

    slot: str
    kind: Literal["float", "plain", "form", "uncut"] = "plain"
    """`plain`: whatever JSON there was; `uncut`: the bytes of an object that is handed on."""
    form: Form | None = None
    may_lack: bool = True
    """It may be null, or UNSET where the event did not have it."""
    most: float = math.inf
    """A number is not larger than this, whatever its sign."""


class Form(msgspec.Struct, frozen=True):
    """A struct and its attributes by name."""

    struct: type[msgspec.Struct]
    fields: Mapping[str, Field]


def decoded_form(
    types: Types, type_name: str, step: Object, uncut: list[Uncut] | None = None
) -> Form:
    """What an event of a type is decoded into, to be turned by a step. Linear in the plan and the
    types; raises NotStraightError. With a list to fill, objects may be left in their bytes.
    """
    return _Decoded(types, uncut).form(type_name, step, 0, ())


def built_form(given: Iterable[tuple[str, Field]]) -> Form:
    """What is made of several values in this order, by position, and encoded."""
    fields = {
        name: msgspec.structs.replace(field, slot=f"f{number}")
        for number, (name, field) in enumerate(given)
    }
    return Form(_struct([(field.slot, Any) for field in fields.values()], fields), fields)


def is_formula(part: Part) -> bool:
    """The attribute is a number to calculate with."""
    return isinstance(part.step, Convert) and isinstance(
        part.step.conversion.how, (Formula, UnitChange)
    )


class _Decoded:
    """The forms made for one event; types that are only passed on have one form each."""

    def __init__(self, types: Types, uncut: list[Uncut] | None = None) -> None:
        self._types, self._uncut = types, uncut
        self._passed_on: dict[str, Form] = {}

    def form(
        self, type_name: str, step: Object | None, depth: int, path: tuple[str, ...] | None = None
    ) -> Form:
        """Without a step nothing is done to it. `path`: the slots that lead to it in every event;
        None: it may be missing.
        """
        attributes = self._types.attributes(type_name)
        if TAG in attributes:
            raise NotStraightError
        parts = {part.attribute: part for part in step.parts} if step else {}
        fields: dict[str, Field] = {}
        defined: list[Any] = []
        for number, attribute in enumerate(attributes.values()):
            part, slot = parts.get(attribute.name), f"f{number}"
            if part is None or is_idle(part.step):
                field, kind = self._untouched(attribute, slot, depth, path)
            else:
                field, kind = self._changed(part, slot, depth, path)
            fields[attribute.name] = field
            defined.append((slot, kind, msgspec.UNSET) if field.may_lack else (slot, kind))
        return Form(_struct(defined, fields, kw_only=True), fields)

    def _untouched(
        self, attribute: Attribute, slot: str, depth: int, path: tuple[str, ...] | None
    ) -> tuple[Field, Any]:
        """It may be missing, and be what it likes, as far as that costs nothing to allow."""
        kind = self._types.kind(attribute.type)
        form = self._passed(attribute.type, depth) if kind == "object" else None
        if form is not None and path is not None and self._uncut is not None:
            is_usual = usual_form(self._types, attribute.type)
            if is_usual is not None:
                decode = msgspec.json.Decoder(form.struct | None).decode
                self._uncut.append(Uncut((*path, slot), is_usual, decode))
                return Field(slot, "uncut"), msgspec.Raw
        if form is not None:
            return Field(slot, "form", form), form.struct | None
        found: dict[str, Any] = {"text": str | None, "boolean": bool | None}
        return Field(slot), found.get(kind, Any)

    def _passed(self, type_name: str, depth: int) -> Form | None:
        if depth >= DEEPEST or len(self._types.dynamic(type_name)) > 1:
            return None
        if type_name not in self._passed_on:
            self._passed_on[type_name] = self.form(type_name, None, depth + 1)
        return self._passed_on[type_name]

    def _changed(
        self, part: Part, slot: str, depth: int, path: tuple[str, ...] | None
    ) -> tuple[Field, Any]:
        step, lacks = part.step, part.optional
        if is_formula(part):
            field = Field(slot, "float", may_lack=lacks, most=MOST)
            return field, Number | None if lacks else Number
        if isinstance(step, Object) and not step.each and depth < DEEPEST:
            below = None if lacks or path is None else (*path, slot)
            form = self.form(step.type, step, depth + 1, below)
            kind = form.struct | None if lacks else form.struct
            return Field(slot, "form", form, may_lack=lacks), kind
        return Field(slot, may_lack=lacks), Any


def _struct(
    defined: list[Any], fields: Mapping[str, Field], *, kw_only: bool = False
) -> type[msgspec.Struct]:
    return msgspec.defstruct(
        "Straight",
        defined,
        rename={field.slot: name for name, field in fields.items()},
        forbid_unknown_fields=True,
        kw_only=kw_only,
        gc=False,
    )
