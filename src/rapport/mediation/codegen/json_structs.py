"""Structs generated for one type each, into which JSON is decoded directly; no I/O. [ME-8]

A struct accepts exactly what the plan can process: numbers where there is a formula, no undeclared
attributes. An event that does not fit is not wrong, only irregular. The range of numbers is known
in advance, so results need not be checked one by one.

A batch passes unchanged objects on as raw bytes if these are what the encoder would write. Checking
the bytes costs half of decoding and encoding for objects with many nested objects; other objects
are decoded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec

from rapport.mediation.conversion.conversions import Formula, UnitChange
from rapport.mediation.plans import ConvertStep, ObjectPart, ObjectStep, is_idle
from rapport.mediation.types import TAG, Attribute, Types
from rapport.units.quantities import Affine

MAX_FAST_NUMBER = 1e100
"""Larger inputs of formulas are irregular; below it hardly any formula overflows."""
BoundedNumber = Annotated[float, msgspec.Meta(ge=-MAX_FAST_NUMBER, le=MAX_FAST_NUMBER)]
_NEARLY_TOO_LARGE = 1e300


def affine_of(part: ObjectPart) -> Affine:
    """The arithmetic of a formula part."""
    assert isinstance(part.step, ConvertStep)
    how = part.step.conversion.how
    assert isinstance(how, (Formula, UnitChange))
    return how.affine()


def most_after(affine: Affine, given: float) -> float:
    """The maximum absolute value of results and intermediate results; infinite near overflow.
    >>> most_after(Affine(5.0, -160.0, 9.0), 320.0), most_after(Affine(1e250, 0.0, 1.0), 1e100)
    (195.55555555555554, inf)
    """
    if affine.divide == 0.0:
        return math.inf
    product = given * abs(affine.multiply) + abs(affine.add)
    result = product / abs(affine.divide)
    return result if max(product, result) < _NEARLY_TOO_LARGE else math.inf


MIN_OBJECTS = 5
"""With fewer nested objects, decoding and encoding is as fast as checking."""
MAX_IRREGULAR = 20
"""After this many irregular objects in a batch everything is decoded at once, which is cheaper
then.
"""
_MOST_ATTRIBUTES = 200
_TEXT = r'"[ !#-\[\]-~]*+"'
"""Only strings with a single encoding: ASCII without escapes."""
_KINDS = {"text": _TEXT, "boolean": "(?:true|false)"}


class RawObject(msgspec.Struct, frozen=True):
    """An object that may stay in bytes: its path by slots, the check of its bytes, and its
    decoder.
    """

    path: tuple[str, ...]
    is_exact: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def exact_bytes_matcher(types: Types, type_name: str) -> Callable[[Any], Any] | None:
    """Returns a check whether bytes are an object of the type exactly as the encoder writes it,
    complete, in order and without nulls; linear in the bytes. None for types that are not worth
    it or have several encodings.
    """
    pattern = _ObjectPattern(types)
    text = pattern.of(type_name)
    if text is None or pattern.objects < MIN_OBJECTS:
        return None
    return re.compile(text.encode()).fullmatch


class _ObjectPattern:
    """Counts objects and attributes: a type may occur in many places."""

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
"""Deeper objects are decoded as plain values."""


class NoFastPathError(Exception):
    """The plan needs decoded values."""


class StructField(msgspec.Struct, frozen=True):
    """The slot of an attribute in a struct, and what is known of its value."""

    slot: str
    kind: Literal["float", "plain", "form", "raw"] = "plain"
    """`plain`: any JSON; `raw`: raw bytes of an object that is passed on."""
    form: StructLayout | None = None
    may_lack: bool = True
    """It may be null, or UNSET if the event lacks it."""
    most: float = math.inf
    """Maximum absolute value of a number."""


class StructLayout(msgspec.Struct, frozen=True):
    """A struct and its attributes by name."""

    struct: type[msgspec.Struct]
    fields: Mapping[str, StructField]


def decoded_layout(
    types: Types, type_name: str, step: ObjectStep, raw_objects: list[RawObject] | None = None
) -> StructLayout:
    """The struct that an event is decoded into for a step. Linear in the plan and the types;
    raises NoFastPathError. With a list to fill, objects may stay in bytes.
    """
    return _LayoutBuilder(types, raw_objects).form(type_name, step, 0, ())


def result_layout(given: Iterable[tuple[str, StructField]]) -> StructLayout:
    """The struct built from values by position and then encoded."""
    fields = {
        name: msgspec.structs.replace(field, slot=f"f{number}")
        for number, (name, field) in enumerate(given)
    }
    return StructLayout(_struct([(field.slot, Any) for field in fields.values()], fields), fields)


def is_formula(part: ObjectPart) -> bool:
    return isinstance(part.step, ConvertStep) and isinstance(
        part.step.conversion.how, (Formula, UnitChange)
    )


class _LayoutBuilder:
    """Builds the layouts for one event; types that are only passed on have one layout each."""

    def __init__(self, types: Types, raw_objects: list[RawObject] | None = None) -> None:
        self._types, self._raw_objects = types, raw_objects
        self._passed_on: dict[str, StructLayout] = {}

    def form(
        self,
        type_name: str,
        step: ObjectStep | None,
        depth: int,
        path: tuple[str, ...] | None = None,
    ) -> StructLayout:
        """Without a step the object is passed on. `path`: the slots that lead to it in
        every event; None: it may be missing.
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
        """Accepts anything that costs nothing to accept."""
        kind = self._types.kind(attribute.type)
        form = self._passed(attribute.type, depth) if kind == "object" else None
        if form is not None and path is not None and self._raw_objects is not None:
            is_exact = exact_bytes_matcher(self._types, attribute.type)
            if is_exact is not None:
                decode = msgspec.json.Decoder(form.struct | None).decode
                self._raw_objects.append(RawObject((*path, slot), is_exact, decode))
                return StructField(slot, "raw"), msgspec.Raw
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
        "Converted",
        defined,
        rename={field.slot: name for name, field in fields.items()},
        forbid_unknown_fields=True,
        kw_only=kw_only,
        gc=False,
    )
