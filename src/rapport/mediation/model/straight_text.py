"""The text that turns one struct into another: formulas on its numbers, everything else as the
transformer does it. [ME-8]

Whatever is not usual ends it with None or an exception: nothing is decided here about rejections.
"""

from __future__ import annotations

import msgspec

from rapport.mediation.model.conversions import Conversion, Formula, UnitChange
from rapport.mediation.model.generator import is_idle
from rapport.mediation.model.interpretation import (
    CreateAttribute,
    DropAttribute,
    MergeAttributes,
    RenameAttribute,
    Shape,
    SplitAttribute,
)
from rapport.mediation.model.plan import LEAVE, Convert, Object, Part
from rapport.mediation.model.straight_calls import Calls
from rapport.mediation.model.straight_forms import (
    Field,
    Form,
    NotStraightError,
    built_form,
    is_formula,
)
from rapport.mediation.model.types import TAG, Types

_replace = msgspec.structs.replace
_GIVE_UP = "return None"


class Held(msgspec.Struct, frozen=True):
    """An attribute while it is being turned: the text that gives its value."""

    text: str
    field: Field


class StraightWriter:
    """The lines so far, the structs they name, and what they call.

    Values of structs that are written into stay in variables until `close`, so that a further step
    finds them there.
    """

    def __init__(self, calls: Calls, *, own: bool) -> None:
        """`own`: the structs it is given may be written into."""
        self._calls, self._own = calls, own
        self.lines: list[str] = []
        self.structs: dict[str, type[msgspec.Struct]] = {}
        self._types = Types(())
        self._count = 0
        self._indent = ""
        self._sums: list[str] = []
        self._known: dict[str, str] = {}
        """Variables by the text of the place whose value they have."""
        self._unwritten: set[str] = set()
        """Places of which that is not true yet."""

    def turned(self, step: Object, types: Types, form: Form, variable: str) -> tuple[str, Form]:
        """The variable that holds the result, and what that is; raises NotStraightError.

        `types`: those that conversions of the step speak of.
        """
        self._types = types
        return self._turned(step, form, variable)

    def built(self, step: Object, types: Types, held: dict[str, Held]) -> tuple[str, Form]:
        """The same for attributes that stand anywhere."""
        self._types = types
        return self._built(step, held)

    def value_of(self, form: Form, variable: str, attribute: str) -> str:
        """The text of an attribute's value as it is by now."""
        return self._present(f"{variable}.{form.fields[attribute].slot}")

    def close(self) -> None:
        """Looks whether all numbers are finite by one test: their sum is only if all are. A sum
        that becomes too large is nothing usual either.
        """
        if self._sums:
            total = self._assigned(" + ".join(self._sums))
            self._write(f"if {total} - {total} != 0.0: {_GIVE_UP}")
        self._write_known()

    # --- objects ----------------------------------------------------------------------------------

    def _turned(self, step: Object, form: Form, variable: str) -> tuple[str, Form]:
        if self._own and not step.shape and step.only is None and step.tag in (LEAVE, ""):
            return variable, self._in_place(step, form, variable)
        held = {
            name: Held(self._present(f"{variable}.{field.slot}"), field)
            for name, field in form.fields.items()
        }
        return self._built(step, held)

    def _built(self, step: Object, held: dict[str, Held]) -> tuple[str, Form]:
        for part in _at_work(step):
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
        made = self._assigned(f"{self._struct_named(form)}({values})")
        if not self._indent:
            for field, each in zip(form.fields.values(), held.values(), strict=True):
                if each.text.isidentifier():  # the same object must not go by two names
                    self._known[f"{made}.{field.slot}"] = each.text
        return made, form

    def _in_place(self, step: Object, form: Form, variable: str) -> Form:
        fields = dict(form.fields)
        for part in _at_work(step):
            field = fields.get(part.attribute)
            if field is not None:
                place = f"{variable}.{field.slot}"
                held = self._part(part, Held(self._present(place), field), place)
                fields[part.attribute] = _replace(held.field, slot=field.slot)
            elif not part.optional:
                raise NotStraightError
        return Form(form.struct, fields)

    # --- attributes -------------------------------------------------------------------------------

    def _part(self, part: Part, held: Held, place: str = "") -> Held:
        """The value turned; it becomes that of the place, if there is one."""
        if part.optional:
            return self._optional(part, held, place)
        known = held.field.form is not None and held.text.isidentifier()
        value = held.text if known else self._assigned(held.text)
        result, field = self._value(part, value, held)
        if place and self._indent:
            self._write(f"{place} = {result}")
        elif place:
            self._known[place] = result
            if field.form is None or result != value:
                self._unwritten.add(place)
        return Held(result, _replace(field, may_lack=False))

    def _optional(self, part: Part, held: Held, place: str) -> Held:
        """What is written only sometimes cannot be kept in variables."""
        if not self._indent:
            self._write_known()
        value = self._assigned(held.text)
        self._write(f"if {value} is not None and {value} is not UNSET:")
        outer, self._indent = self._indent, self._indent + " "
        result, field = self._value(part, value, held)
        if result != value:
            self._write(f"{value} = {result}")
        if place:
            self._write(f"{place} = {value}")
        self._indent = outer
        return Held(value, field)

    def _value(self, part: Part, value: str, held: Held) -> tuple[str, Field]:
        step, field = part.step, held.field
        if field.may_lack and not part.optional:
            self._write(f"if {value} is UNSET: {_GIVE_UP}")
        if field.form is not None:
            if not isinstance(step, Object) or step.each:
                raise NotStraightError
            if field.may_lack and not part.optional:
                self._write(f"if {value} is None: {_GIVE_UP}")
            result, form = self._turned(step, field.form, value)
            return result, _replace(field, form=form)
        if is_formula(part):
            self._formula(part, value, held)
            return value, _replace(field, kind="float")
        call = self._calls.step(step, self._types, own=self._own)
        self._write(f"{value} = {call}({value})")
        return value, _replace(field, kind="plain")

    def _formula(self, part: Part, value: str, held: Held) -> None:
        assert isinstance(part.step, Convert)
        how = part.step.conversion.how
        assert isinstance(how, (Formula, UnitChange))
        if held.field.kind != "float" or (held.field.may_lack and not part.optional):
            path = part.step.path
            self._write(f"if {value}.__class__ is not float: {value} = number({value}, {path!r})")
        self._write(f"{value} = {how.affine().expression(value)}")
        if self._indent:
            self._write(f"if {value} - {value} != 0.0: {_GIVE_UP}")
            return
        if held.text in self._sums:
            self._sums.remove(held.text)  # not finite before, not finite now
        self._sums.append(value)

    # --- changes of shape -------------------------------------------------------------------------

    def _shape(self, shape: Shape, conversion: Conversion | None, held: dict[str, Held]) -> None:
        if isinstance(shape, DropAttribute):
            held.pop(shape.name, None)
        elif isinstance(shape, CreateAttribute):
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
        self, shape: MergeAttributes | SplitAttribute, conversion: Conversion, held: dict[str, Held]
    ) -> None:
        """From some attributes to others by a conversion; all must be there."""
        merges = isinstance(shape, MergeAttributes)
        sources = shape.sources if isinstance(shape, MergeAttributes) else (shape.source,)
        targets = (shape.target,) if isinstance(shape, MergeAttributes) else shape.targets
        is_plain = all(name in held and held[name].field.form is None for name in sources)
        if not is_plain or len(set(sources)) != len(sources) or not (merges or targets):
            raise NotStraightError
        taken = [self._assigned(held.pop(name).text) for name in sources]
        for value in taken:
            self._write(f"if {value} is UNSET: {_GIVE_UP}")
        given = [self._fresh() for _ in targets]
        call = f"{self._calls.conversion(conversion, self._types)}({', '.join(taken)})"
        self._write(f"{', '.join(given)} = {call}")
        for name, value in zip(targets, given, strict=True):
            held[name] = Held(value, Field("", may_lack=False))

    # --- text -------------------------------------------------------------------------------------

    def _present(self, place: str) -> str:
        return self._known.get(place, place)

    def _write_known(self) -> None:
        for place, variable in self._known.items():
            if place in self._unwritten:
                self._write(f"{place} = {variable}")
        self._known.clear()
        self._unwritten.clear()

    def _struct_named(self, form: Form) -> str:
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


def _at_work(step: Object) -> list[Part]:
    return [part for part in step.parts if not is_idle(part.step)]
