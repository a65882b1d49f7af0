"""Structs generated for one type each, into which JSON is decoded directly, and the text that
converts one struct into another: formulas inline, other steps as calls; no I/O. [ME-8]

A struct accepts exactly what the plan can process: numbers where there is a formula, no undeclared
attributes. An event that does not fit is not wrong, only irregular: the text ends with None or an
exception, and rejections are left to the transformer. The range of numbers is known in advance, so
results need not be checked one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec

from rapport.mediation.codegen.runtime import GENERATED_NAMES, callable_of
from rapport.mediation.codegen.transformer import CodeWriter
from rapport.mediation.conversion.conversions import (
    Call,
    Conversion,
    Formula,
    UnitChange,
    plain_steps,
)
from rapport.mediation.conversion.lookups import ConversionEnvironment
from rapport.mediation.interpretations.model import (
    CreateAttribute,
    DropAttribute,
    MergeAttributes,
    RenameAttribute,
    ShapeStep,
    SplitAttribute,
)
from rapport.mediation.memory import ConversionMemory, remembers
from rapport.mediation.plans import LEAVE, ConvertStep, ObjectPart, ObjectStep, Step, is_idle
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


DEEPEST = 30
"""Deeper objects are decoded as plain values."""


class NoFastPathError(Exception):
    """The plan needs decoded values."""


class StructField(msgspec.Struct, frozen=True):
    """The slot of an attribute in a struct, and what is known of its value."""

    slot: str
    kind: Literal["float", "plain", "struct"] = "plain"
    """`plain`: any JSON."""
    layout: StructLayout | None = None
    may_lack: bool = True
    """It may be null, or UNSET if the event lacks it."""
    most: float = math.inf
    """Maximum absolute value of a number."""


class StructLayout(msgspec.Struct, frozen=True):
    """A struct and its attributes by name."""

    struct: type[msgspec.Struct]
    fields: Mapping[str, StructField]


def decoded_layout(types: Types, type_name: str, step: ObjectStep) -> StructLayout:
    """The struct that an event is decoded into for a step. Linear in the plan and the types;
    raises NoFastPathError.
    """
    return _LayoutBuilder(types).layout(type_name, step, 0)


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

    def __init__(self, types: Types) -> None:
        self._types = types
        self._passed_on: dict[str, StructLayout] = {}

    def layout(self, type_name: str, step: ObjectStep | None, depth: int) -> StructLayout:
        """Without a step the object is passed on."""
        attributes = self._types.attributes(type_name)
        if TAG in attributes:
            raise NoFastPathError
        parts = {part.attribute: part for part in step.parts} if step else {}
        fields: dict[str, StructField] = {}
        defined: list[Any] = []
        for number, attribute in enumerate(attributes.values()):
            part, slot = parts.get(attribute.name), f"f{number}"
            if part is None or is_idle(part.step):
                field, kind = self._untouched(attribute, slot, depth)
            else:
                field, kind = self._changed(part, slot, depth)
            fields[attribute.name] = field
            defined.append((slot, kind, msgspec.UNSET) if field.may_lack else (slot, kind))
        return StructLayout(_struct(defined, fields, kw_only=True), fields)

    def _untouched(self, attribute: Attribute, slot: str, depth: int) -> tuple[StructField, Any]:
        """Accepts anything that costs nothing to accept."""
        kind = self._types.kind(attribute.type)
        layout = self._passed(attribute.type, depth) if kind == "object" else None
        if layout is not None:
            return StructField(slot, "struct", layout), layout.struct | None
        found: dict[str, Any] = {"text": str | None, "boolean": bool | None}
        return StructField(slot), found.get(kind, Any)

    def _passed(self, type_name: str, depth: int) -> StructLayout | None:
        if depth >= DEEPEST or len(self._types.dynamic(type_name)) > 1:
            return None
        if type_name not in self._passed_on:
            self._passed_on[type_name] = self.layout(type_name, None, depth + 1)
        return self._passed_on[type_name]

    def _changed(self, part: ObjectPart, slot: str, depth: int) -> tuple[StructField, Any]:
        step, lacks = part.step, part.optional
        if is_formula(part):
            field = StructField(slot, "float", may_lack=lacks, most=MAX_FAST_NUMBER)
            return field, BoundedNumber | None if lacks else BoundedNumber
        if isinstance(step, ObjectStep) and not step.each and depth < DEEPEST:
            layout = self.layout(step.type, step, depth + 1)
            kind = layout.struct | None if lacks else layout.struct
            return StructField(slot, "struct", layout, may_lack=lacks), kind
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


class CallTable:
    """Functions by their names in the text. Only functions that may run twice, since an
    irregular event is processed again by the transformer. Site functions and conversions with
    memory raise NoFastPathError.
    """

    def __init__(self, surroundings: ConversionEnvironment | None = None) -> None:
        self._surroundings = surroundings or ConversionEnvironment()
        self.names: dict[str, Any] = {"number": GENERATED_NAMES["number"]}

    @property
    def are_none(self) -> bool:
        """Whether the text calls nothing, so that nothing can need the event's time."""
        return len(self.names) == 1

    def step(self, step: Step, types: Types) -> str:
        """A step as the transformer runs it; it may modify its argument."""
        writer = CodeWriter(own=True)
        about = writer.function(step, "part")
        names = dict(GENERATED_NAMES)
        for number, conversion in enumerate(writer.conversions):
            names[f"convert_{number}"] = self._callable(conversion, types)
        exec(compile("\n".join(writer.lines), "<JSON step>", "exec"), names)
        return self._called("part", names[about])

    def conversion(self, conversion: Conversion, types: Types) -> str:
        return self._called("convert", self._callable(conversion, types))

    def _callable(self, conversion: Conversion, types: Types) -> Any:
        if not _may_be_done_twice(conversion):
            raise NoFastPathError
        return callable_of(conversion, {}, ConversionMemory(), types, self._surroundings)

    def _called(self, about: str, function: Any) -> str:
        name = f"{about}_{len(self.names)}"
        self.names[name] = function
        return name


def _may_be_done_twice(conversion: Conversion) -> bool:
    calls = any(isinstance(step.how, Call) for step in plain_steps(conversion))
    return not calls and not remembers(conversion)


_replace = msgspec.structs.replace
_WRITE_NS, _LOAD_NS, _MAKE_NS = 30, 6, 45
"""Relative costs of writing into, reading from and creating a struct."""


class AttributeText(msgspec.Struct, frozen=True):
    """An attribute during the conversion: the expression of its value."""

    text: str
    field: StructField


class JsonCodeWriter:
    """Collects lines, structs and calls. Changed values stay in variables until `close`, so
    that a later step finds them there.
    """

    def __init__(self, calls: CallTable, *, give_up: str = "return None") -> None:
        """`give_up`: the statement for irregular values."""
        self._calls, self._give_up = calls, give_up
        self.lines: list[str] = []
        self.structs: dict[str, type[msgspec.Struct]] = {}
        self._types = Types(())
        self._count = 0
        self._indent = ""
        self._known: dict[str, str] = {}
        """Variables by the expression whose value they hold."""
        self._unwritten: set[str] = set()
        """Expressions that are not updated yet."""

    def convert(
        self, step: ObjectStep, types: Types, layout: StructLayout, variable: str
    ) -> tuple[str, StructLayout]:
        """Returns the variable and the layout of the result; raises NoFastPathError.
        `types`: the types of the step's conversions.
        """
        self._types = types
        return self._convert(step, layout, variable)

    def build(
        self, step: ObjectStep, types: Types, held: dict[str, AttributeText]
    ) -> tuple[str, StructLayout]:
        """The same for attributes from any expressions."""
        self._types = types
        return self._build(step, held)

    def value_of(self, layout: StructLayout, variable: str, attribute: str) -> str:
        """A variable with the present value of an attribute; raises NoFastPathError."""
        if attribute not in layout.fields:
            raise NoFastPathError
        present = self._present(f"{variable}.{layout.fields[attribute].slot}")
        return present if present.isidentifier() else self._assigned(present)

    def unless(self, condition: str, otherwise: str) -> None:
        """Continues only if the condition holds."""
        self._write(f"if not {condition}: {otherwise}")

    def whole(self, layout: StructLayout, variable: str) -> str:
        """The expression of a result that is only encoded. If many fields changed, a new
        struct is cheaper than writing into the old one.
        """
        places = [f"{variable}.{field.slot}" for field in layout.fields.values()]
        changed = self._unwritten.intersection(places)
        kept = len(places) - len(changed)
        if len(changed) * _WRITE_NS <= _MAKE_NS + kept * _LOAD_NS:
            return variable
        values = ", ".join(map(self._present, places))
        self._unwritten.difference_update(changed)
        return f"{self._struct_named(result_layout(layout.fields.items()))}({values})"

    def close(self) -> None:
        """Writes the variables into their structs."""
        for place, variable in self._known.items():
            if place in self._unwritten:
                self._write(f"{place} = {variable}")
        self._known.clear()
        self._unwritten.clear()

    # --- objects ----------------------------------------------------------------------------------

    def _convert(
        self, step: ObjectStep, layout: StructLayout, variable: str
    ) -> tuple[str, StructLayout]:
        if not step.shape and step.only is None and step.tag in (LEAVE, ""):
            return variable, self._in_place(step, layout, variable)
        held = {
            name: AttributeText(self._present(f"{variable}.{field.slot}"), field)
            for name, field in layout.fields.items()
        }
        return self._build(step, held)

    def _build(self, step: ObjectStep, held: dict[str, AttributeText]) -> tuple[str, StructLayout]:
        for part in _active_parts(step):
            if part.attribute in held:
                held[part.attribute] = self._part(part, held[part.attribute])
            elif not part.optional:
                raise NoFastPathError
        for shape, conversion in step.shape:
            self._shape(shape, conversion, held)
        if step.only is not None:
            held = {name: held[name] for name in step.only if name in held}
        if step.tag not in (LEAVE, ""):
            held[TAG] = AttributeText(repr(step.tag), StructField("", may_lack=False))
        layout = result_layout((name, each.field) for name, each in held.items())
        values = ", ".join(each.text for each in held.values())
        made = self._assigned(f"{self._struct_named(layout)}({values})")
        if not self._indent:
            for field, each in zip(layout.fields.values(), held.values(), strict=True):
                if each.text.isidentifier():  # an object must not have two names
                    self._known[f"{made}.{field.slot}"] = each.text
        return made, layout

    def _in_place(self, step: ObjectStep, layout: StructLayout, variable: str) -> StructLayout:
        fields = dict(layout.fields)
        for part in _active_parts(step):
            field = fields.get(part.attribute)
            if field is not None:
                place = f"{variable}.{field.slot}"
                held = self._part(part, AttributeText(self._present(place), field), place)
                fields[part.attribute] = _replace(held.field, slot=field.slot)
            elif not part.optional:
                raise NoFastPathError
        return StructLayout(layout.struct, fields)

    # --- attributes -------------------------------------------------------------------------------

    def _part(self, part: ObjectPart, held: AttributeText, place: str = "") -> AttributeText:
        """Converts the value and assigns it to `place`, if given."""
        if part.optional:
            return self._optional(part, held, place)
        if is_formula(part) and held.field.kind == "float" and not held.field.may_lack:
            value, (result, field) = "", self._calculated(part, held)
        else:
            known = held.field.layout is not None and held.text.isidentifier()
            value = held.text if known else self._assigned(held.text)
            result, field = self._value(part, value, held)
        if place and self._indent:
            self._write(f"{place} = {result}")
        elif place:
            self._known[place] = result
            if field.layout is None or result != value:
                self._unwritten.add(place)
        return AttributeText(result, _replace(field, may_lack=False))

    def _optional(self, part: ObjectPart, held: AttributeText, place: str) -> AttributeText:
        """Conditional writes cannot stay in variables."""
        if not self._indent:
            self.close()
        value = self._assigned(held.text)
        self._write(f"if {value} is not None and {value} is not UNSET:")
        outer, self._indent = self._indent, self._indent + " "
        result, field = self._value(part, value, held)
        if result != value:
            self._write(f"{value} = {result}")
        if place:
            self._write(f"{place} = {value}")
        self._indent = outer
        return AttributeText(value, field)

    def _value(self, part: ObjectPart, value: str, held: AttributeText) -> tuple[str, StructField]:
        step, field = part.step, held.field
        if field.may_lack and not part.optional:
            self._write(f"if {value} is UNSET: {self._give_up}")
        if field.layout is not None:
            if not isinstance(step, ObjectStep) or step.each:
                raise NoFastPathError
            if field.may_lack and not part.optional:
                self._write(f"if {value} is None: {self._give_up}")
            result, layout = self._convert(step, field.layout, value)
            return result, _replace(field, layout=layout)
        if is_formula(part):
            return value, self._formula(part, value, held)
        call = self._calls.step(step, self._types)
        self._write(f"{value} = {call}({value})")
        return value, _replace(field, kind="plain", most=math.inf)

    def _formula(self, part: ObjectPart, value: str, held: AttributeText) -> StructField:
        """Converts in place a value that may turn out not to be a number."""
        assert isinstance(part.step, ConvertStep)
        if held.field.kind != "float" or (held.field.may_lack and not part.optional):
            path = part.step.path
            self._write(f"if {value}.__class__ is not float: {value} = number({value}, {path!r})")
        affine = affine_of(part)
        self._write(f"{value} = {affine.expression(value)}")
        return self._finite(value, affine, held)

    def _calculated(self, part: ObjectPart, held: AttributeText) -> tuple[str, StructField]:
        """A variable with the result for a known number."""
        affine = affine_of(part)
        result = self._assigned(affine.expression(held.text))
        return result, self._finite(result, affine, held)

    def _finite(self, result: str, affine: Affine, held: AttributeText) -> StructField:
        """Checks a result that may overflow: `x - x` is 0.0 only for finite numbers."""
        most = most_after(affine, held.field.most)
        if most == math.inf:
            self._write(f"if {result} - {result} != 0.0: {self._give_up}")
        return _replace(held.field, kind="float", most=most)

    # --- changes of shape -------------------------------------------------------------------------

    def _shape(
        self, shape: ShapeStep, conversion: Conversion | None, held: dict[str, AttributeText]
    ) -> None:
        if isinstance(shape, DropAttribute):
            held.pop(shape.name, None)
        elif isinstance(shape, CreateAttribute):
            held[shape.name] = AttributeText(repr(shape.value), StructField("", may_lack=False))
        elif isinstance(shape, RenameAttribute):
            if shape.new in held:
                raise NoFastPathError  # the winner depends on which are present
            if shape.old in held:
                held[shape.new] = held.pop(shape.old)
        else:
            assert conversion is not None
            self._merge_or_split(shape, conversion, held)

    def _merge_or_split(
        self,
        shape: MergeAttributes | SplitAttribute,
        conversion: Conversion,
        held: dict[str, AttributeText],
    ) -> None:
        """Applies a merge or split; all sources must be present."""
        merges = isinstance(shape, MergeAttributes)
        sources = shape.sources if isinstance(shape, MergeAttributes) else (shape.source,)
        targets = (shape.target,) if isinstance(shape, MergeAttributes) else shape.targets
        is_plain = all(name in held and held[name].field.layout is None for name in sources)
        if not is_plain or len(set(sources)) != len(sources) or not (merges or targets):
            raise NoFastPathError
        taken = [self._assigned(held.pop(name).text) for name in sources]
        for value in taken:
            self._write(f"if {value} is UNSET: {self._give_up}")
        given = [self._fresh() for _ in targets]
        call = f"{self._calls.conversion(conversion, self._types)}({', '.join(taken)})"
        self._write(f"{', '.join(given)} = {call}")
        for name, value in zip(targets, given, strict=True):
            held[name] = AttributeText(value, StructField("", may_lack=False))

    # --- text -------------------------------------------------------------------------------------

    def _present(self, place: str) -> str:
        return self._known.get(place, place)

    def _struct_named(self, layout: StructLayout) -> str:
        name = f"Struct_{len(self.structs)}"
        self.structs[name] = layout.struct
        return name

    def _assigned(self, text: str) -> str:
        variable = self._fresh()
        self._write(f"{variable} = {text}")
        return variable

    def _fresh(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def _write(self, line: str) -> None:
        self.lines.append(f"{self._indent}{line}")


def _active_parts(step: ObjectStep) -> list[ObjectPart]:
    return [part for part in step.parts if not is_idle(part.step)]
