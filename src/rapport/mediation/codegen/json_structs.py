"""How large the numbers of a straight way can become, known before the first event: so that results
need not be looked at one by one. [ME-8]

Objects that a batch hands on in the bytes they came in: those that nothing is done to, and whose
bytes are what an encoder would write. [ME-8]

To look at the bytes costs half of what it costs to decode and encode them, where an object has many
objects in it; for others it costs more, and they are decoded.

Structs made for one type each, so that JSON is decoded straight into them; no I/O. [ME-8]

A struct takes exactly what the plan can be done with: numbers where there is a formula, no
attribute that the type does not declare. What does not fit it is not wrong, only not usual.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec

from rapport.mediation.codegen.generator import is_idle
from rapport.mediation.conversion.conversions import Formula, UnitChange
from rapport.mediation.plans import ConvertStep, ObjectPart, ObjectStep
from rapport.mediation.types import TAG, Attribute, Types
from rapport.units.quantities import Affine

MAX_FAST_NUMBER = 1e100
"""Numbers to calculate with that are larger are nothing usual; hardly a formula makes such a number
too large for a float.
"""
BoundedNumber = Annotated[float, msgspec.Meta(ge=-MAX_FAST_NUMBER, le=MAX_FAST_NUMBER)]
_NEARLY_TOO_LARGE = 1e300


def affine_of(part: ObjectPart) -> Affine:
    """The arithmetic of a part that is a formula."""
    assert isinstance(part.step, ConvertStep)
    how = part.step.conversion.how
    assert isinstance(how, (Formula, UnitChange))
    return how.affine()


def most_after(affine: Affine, given: float) -> float:
    """How large results are at most, whatever their sign, and what they are calculated by; infinite
    where that comes near what a float can be.

    >>> most_after(Affine(5.0, -160.0, 9.0), 320.0), most_after(Affine(1e250, 0.0, 1.0), MOST)
    (195.55555555555554, inf)
    """
    if affine.divide == 0.0:
        return math.inf
    product = given * abs(affine.multiply) + abs(affine.add)
    result = product / abs(affine.divide)
    return result if max(product, result) < _NEARLY_TOO_LARGE else math.inf


MIN_OBJECTS = 5
"""Fewer are decoded and encoded as fast as they are looked at."""
MAX_IRREGULAR = 20
"""So many objects of a batch that are written otherwise are decoded by themselves; then everything
is decoded at once, which costs less if more of them come.
"""
_MOST_ATTRIBUTES = 200
_TEXT = r'"[ !#-\[\]-~]*+"'
"""Without anything that can be written in two ways: no escapes, and of Unicode only ASCII."""
_KINDS = {"text": _TEXT, "boolean": "(?:true|false)"}


class RawObject(msgspec.Struct, frozen=True):
    """Where an event has such an object, by slots; whether its bytes are as they are written here,
    and what it is decoded into if not.
    """

    path: tuple[str, ...]
    is_usual: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def exact_bytes_matcher(types: Types, type_name: str) -> Callable[[Any], Any] | None:
    """Looks whether bytes are an object of the type with all its attributes in order and none of
    them null, as an encoder writes it; linear in the bytes. None for types that are not worth it,
    or have attributes that can be written in several ways.
    """
    pattern = _ObjectPattern(types)
    text = pattern.of(type_name)
    if text is None or pattern.objects < MIN_OBJECTS:
        return None
    return re.compile(text.encode()).fullmatch


class _ObjectPattern:
    """Counts what it wrote: a type may have another one in many places."""

    def __init__(self, types: Types) -> None:
        self._types = types
        self.objects = self._attributes = 0

    def of(self, type_name: str) -> str | None:
        self.objects += 1
        members: list[str] = []
        for attribute in self._types.attributes(type_name).values():
            self._attributes += 1
            value = self._value(attribute.type) if self._attributes <= _MOST_ATTRIBUTES else None
            if value is None:
                return None
            name = msgspec.json.encode(attribute.name).decode()
            members.append(f"{re.escape(name)}:{value}")
        return rf"\{{{','.join(members)}\}}"

    def _value(self, type_name: str) -> str | None:
        kind = self._types.kind(type_name)
        if kind != "object":
            return _KINDS.get(kind)
        return self.of(type_name) if len(self._types.dynamic(type_name)) == 1 else None


DEEPEST = 30
"""Further down, objects are decoded as plain values."""


class NoFastPathError(Exception):
    """The plan is one of those that only decoded values can be put through."""


class StructField(msgspec.Struct, frozen=True):
    """Where a struct holds an attribute, and what is known of its value."""

    slot: str
    kind: Literal["float", "plain", "form", "uncut"] = "plain"
    """`plain`: whatever JSON there was; `uncut`: the bytes of an object that is handed on."""
    form: StructLayout | None = None
    may_lack: bool = True
    """It may be null, or UNSET where the event did not have it."""
    most: float = math.inf
    """A number is not larger than this, whatever its sign."""


class StructLayout(msgspec.Struct, frozen=True):
    """A struct and its attributes by name."""

    struct: type[msgspec.Struct]
    fields: Mapping[str, StructField]


def decoded_layout(
    types: Types, type_name: str, step: ObjectStep, uncut: list[RawObject] | None = None
) -> StructLayout:
    """What an event of a type is decoded into, to be turned by a step. Linear in the plan and the
    types; raises NotStraightError. With a list to fill, objects may be left in their bytes.
    """
    return _LayoutBuilder(types, uncut).form(type_name, step, 0, ())


def result_layout(given: Iterable[tuple[str, StructField]]) -> StructLayout:
    """What is made of several values in this order, by position, and encoded."""
    fields = {
        name: msgspec.structs.replace(field, slot=f"f{number}")
        for number, (name, field) in enumerate(given)
    }
    return StructLayout(_struct([(field.slot, Any) for field in fields.values()], fields), fields)


def is_formula(part: ObjectPart) -> bool:
    """The attribute is a number to calculate with."""
    return isinstance(part.step, ConvertStep) and isinstance(
        part.step.conversion.how, (Formula, UnitChange)
    )


class _LayoutBuilder:
    """The forms made for one event; types that are only passed on have one form each."""

    def __init__(self, types: Types, uncut: list[RawObject] | None = None) -> None:
        self._types, self._uncut = types, uncut
        self._passed_on: dict[str, StructLayout] = {}

    def form(
        self,
        type_name: str,
        step: ObjectStep | None,
        depth: int,
        path: tuple[str, ...] | None = None,
    ) -> StructLayout:
        """Without a step nothing is done to it. `path`: the slots that lead to it in every event;
        None: it may be missing.
        """
        attributes = self._types.attributes(type_name)
        if TAG in attributes:
            raise NoFastPathError
        parts = {part.attribute: part for part in step.parts} if step else {}
        fields: dict[str, StructField] = {}
        defined: list[Any] = []
        for number, attribute in enumerate(attributes.values()):
            part, slot = parts.get(attribute.name), f"f{number}"
            if part is None or is_idle(part.step):
                field, kind = self._untouched(attribute, slot, depth, path)
            else:
                field, kind = self._changed(part, slot, depth, path)
            fields[attribute.name] = field
            defined.append((slot, kind, msgspec.UNSET) if field.may_lack else (slot, kind))
        return StructLayout(_struct(defined, fields, kw_only=True), fields)

    def _untouched(
        self, attribute: Attribute, slot: str, depth: int, path: tuple[str, ...] | None
    ) -> tuple[StructField, Any]:
        """It may be missing, and be what it likes, as far as that costs nothing to allow."""
        kind = self._types.kind(attribute.type)
        form = self._passed(attribute.type, depth) if kind == "object" else None
        if form is not None and path is not None and self._uncut is not None:
            is_usual = exact_bytes_matcher(self._types, attribute.type)
            if is_usual is not None:
                decode = msgspec.json.Decoder(form.struct | None).decode
                self._uncut.append(RawObject((*path, slot), is_usual, decode))
                return StructField(slot, "uncut"), msgspec.Raw
        if form is not None:
            return StructField(slot, "form", form), form.struct | None
        found: dict[str, Any] = {"text": str | None, "boolean": bool | None}
        return StructField(slot), found.get(kind, Any)

    def _passed(self, type_name: str, depth: int) -> StructLayout | None:
        if depth >= DEEPEST or len(self._types.dynamic(type_name)) > 1:
            return None
        if type_name not in self._passed_on:
            self._passed_on[type_name] = self.form(type_name, None, depth + 1)
        return self._passed_on[type_name]

    def _changed(
        self, part: ObjectPart, slot: str, depth: int, path: tuple[str, ...] | None
    ) -> tuple[StructField, Any]:
        step, lacks = part.step, part.optional
        if is_formula(part):
            field = StructField(slot, "float", may_lack=lacks, most=MAX_FAST_NUMBER)
            return field, BoundedNumber | None if lacks else BoundedNumber
        if isinstance(step, ObjectStep) and not step.each and depth < DEEPEST:
            below = None if lacks or path is None else (*path, slot)
            form = self.form(step.type, step, depth + 1, below)
            kind = form.struct | None if lacks else form.struct
            return StructField(slot, "form", form, may_lack=lacks), kind
        return StructField(slot, may_lack=lacks), Any


def _struct(
    defined: list[Any], fields: Mapping[str, StructField], *, kw_only: bool = False
) -> type[msgspec.Struct]:
    return msgspec.defstruct(
        "Straight",
        defined,
        rename={field.slot: name for name, field in fields.items()},
        forbid_unknown_fields=True,
        kw_only=kw_only,
        gc=False,
    )
