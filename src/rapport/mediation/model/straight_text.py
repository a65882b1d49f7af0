"""The text that turns one struct into another: formulas in place, everything else as in
`generator.py`. [ME-8]

Whatever is not usual ends it with None or an exception: nothing is decided here about rejections.
"""

from __future__ import annotations

import msgspec

from rapport.mediation.model.conversions import Conversion, Formula, UnitChange
from rapport.mediation.model.generator import Writer, is_idle
from rapport.mediation.model.interpretation import (
    CreateAttribute,
    DropAttribute,
    MergeAttributes,
    RenameAttribute,
    Shape,
    SplitAttribute,
)
from rapport.mediation.model.plan import LEAVE, Convert, Object, Part
from rapport.mediation.model.straight_forms import (
    Field,
    Form,
    NotStraightError,
    built_form,
    is_formula,
)
from rapport.mediation.model.types import TAG

_GIVE_UP = "return None"


class Held(msgspec.Struct, frozen=True):
    """An attribute while it is being turned: the text that gives its value."""

    text: str
    field: Field


class StraightWriter:
    """The lines so far, the structs they name, and the conversions they call."""

    def __init__(self, *, own: bool) -> None:
        """`own`: the structs it is given may be written into."""
        self._own = own
        self.lines: list[str] = []
        self.structs: dict[str, type[msgspec.Struct]] = {}
        self.plain = Writer(own=own)
        self._count = 0
        self._indent = ""
        self._sums: list[str] = []

    def turned(self, step: Object, form: Form, variable: str) -> tuple[str, Form]:
        """The variable that holds the result, and what that is; raises NotStraightError."""
        if self._own and not step.shape and step.only is None and step.tag in (LEAVE, ""):
            return variable, self._in_place(step, form, variable)
        held = {
            name: Held(f"{variable}.{field.slot}", field) for name, field in form.fields.items()
        }
        return self.built(step, held)

    def built(self, step: Object, held: dict[str, Held]) -> tuple[str, Form]:
        """The same for attributes that stand anywhere; they are not written to."""
        for part in step.parts:
            if is_idle(part.step):
                continue
            if part.attribute in held:
                held[part.attribute] = self._part(part, held[part.attribute])
            elif not part.optional:
                raise NotStraightError
        for shape, conversion in step.shape:
            self._shape(shape, conversion, held)
        if step.only is not None:
            held = {name: held[name] for name in step.only if name in held}
        if step.tag not in (LEAVE, ""):
            held[TAG] = Held(repr(step.tag), Field("", may_lack=False))
        form = built_form((name, each.field) for name, each in held.items())
        values = ", ".join(each.text for each in held.values())
        return self._assigned(f"{self._struct_named(form)}({values})"), form

    def close(self) -> None:
        """One test for all numbers: a sum is finite only if all in it are; a sum of finite ones
        that is too large is looked at again in the plain way.
        """
        if self._sums:
            total = self._assigned(" + ".join(self._sums))
            self._write(f"if {total} - {total} != 0.0: {_GIVE_UP}")

    # --- attributes -------------------------------------------------------------------------------

    def _in_place(self, step: Object, form: Form, variable: str) -> Form:
        fields = dict(form.fields)
        for part in step.parts:
            field = fields.get(part.attribute)
            if is_idle(part.step):
                continue
            if field is None and not part.optional:
                raise NotStraightError
            if field is not None:
                target = f"{variable}.{field.slot}"
                held = self._part(part, Held(target, field), target)
                fields[part.attribute] = msgspec.structs.replace(held.field, slot=field.slot)
        return Form(form.struct, fields)

    def _part(self, part: Part, held: Held, target: str = "") -> Held:
        """The value turned, and written to the target if there is one."""
        value = loaded = self._assigned(held.text)
        if part.optional:
            self._write(f"if {value} is not None and {value} is not UNSET:")
            outer, self._indent = self._indent, self._indent + "    "
            result, field = self._value(part, value, held.field)
            if result != value:
                self._write(f"{value} = {result}")
                loaded = ""
        else:
            outer = self._indent
            value, field = self._value(part, value, held.field)
            field = msgspec.structs.replace(field, may_lack=False)
        if target and (held.field.form is None or value != loaded):
            self._write(f"{target} = {value}")
        self._indent = outer
        return Held(value, field)

    def _value(self, part: Part, value: str, field: Field) -> tuple[str, Field]:
        step = part.step
        if field.form is not None:
            if not isinstance(step, Object) or step.each:
                raise NotStraightError
            if field.may_lack and not part.optional:
                self._write(f"if {value} is None or {value} is UNSET: {_GIVE_UP}")
            result, form = self.turned(step, field.form, value)
            return result, msgspec.structs.replace(field, form=form)
        if is_formula(part):
            self._formula(part, value, field)
            return value, msgspec.structs.replace(field, kind="float")
        if field.may_lack and not part.optional:
            self._write(f"if {value} is UNSET: {_GIVE_UP}")
        self._write(f"{value} = {self.plain.function(step, 'part')}({value})")
        return value, msgspec.structs.replace(field, kind="plain")

    def _formula(self, part: Part, value: str, field: Field) -> None:
        assert isinstance(part.step, Convert)
        how = part.step.conversion.how
        assert isinstance(how, (Formula, UnitChange))
        if field.kind != "float" or (field.may_lack and not part.optional):
            self._write(
                f"if {value}.__class__ is not float: {value} = number({value}, {part.step.path!r})"
            )
        self._write(f"{value} = {how.affine().expression(value)}")
        if self._indent:
            self._write(f"if {value} - {value} != 0.0: {_GIVE_UP}")
        else:
            self._sums.append(value)

    # --- changes of shape -------------------------------------------------------------------------

    def _shape(self, shape: Shape, conversion: Conversion | None, held: dict[str, Held]) -> None:
        if isinstance(shape, DropAttribute):
            held.pop(shape.name, None)
        elif isinstance(shape, CreateAttribute):
            held.pop(shape.name, None)
            held[shape.name] = Held(repr(shape.value), Field("", may_lack=False))
        elif isinstance(shape, RenameAttribute):
            if shape.new in held:
                raise NotStraightError  # which of the two counts depends on which are there
            if shape.old in held:
                held[shape.new] = held.pop(shape.old)
        else:
            assert conversion is not None
            self._converted(shape, conversion, held)

    def _converted(
        self,
        shape: MergeAttributes | SplitAttribute,
        conversion: Conversion,
        held: dict[str, Held],
    ) -> None:
        """From some attributes to others by a conversion; all must be there."""
        sources = shape.sources if isinstance(shape, MergeAttributes) else (shape.source,)
        targets = (shape.target,) if isinstance(shape, MergeAttributes) else shape.targets
        if any(name not in held or held[name].field.form is not None for name in sources):
            raise NotStraightError
        taken = [self._assigned(held.pop(name).text) for name in dict.fromkeys(sources)]
        if len(taken) != len(sources):
            raise NotStraightError
        for value in taken:
            self._write(f"if {value} is UNSET: {_GIVE_UP}")
        given = [self._fresh() for _ in targets]
        call = f"{self.plain.name_of(conversion)}({', '.join(taken)})"
        self._write(f"{', '.join(given)} = {call}")
        for name, value in zip(targets, given, strict=True):
            held.pop(name, None)
            held[name] = Held(value, Field("", may_lack=False))

    # --- text -------------------------------------------------------------------------------------

    def _struct_named(self, form: Form) -> str:
        for name, struct in self.structs.items():
            if struct is form.struct:
                return name
        name = f"Struct_{len(self.structs)}"
        self.structs[name] = form.struct
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
