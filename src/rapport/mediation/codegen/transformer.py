"""The transformer for events of one type: Python generated from a plan and compiled. [ME-8]

Only text written here is compiled: external names enter as the `repr` of a string, conversions as
bound constants `convert_N`. Lists, variants and optional objects become separate functions, so the
nesting stays flat for deep types. Wide types are split as well, so that no function is long:
compiling one cannot be interrupted. Linear in the plan.

The batch function contains the same lines in a loop, since a call per event costs as much as
converting two attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rapport.mediation.codegen.runtime import GENERATED_NAMES, callable_of
from rapport.mediation.conversion.conversions import Conversion, Formula, Identity, UnitChange
from rapport.mediation.conversion.lookups import ConversionEnvironment
from rapport.mediation.interpretations.model import (
    CreateAttribute,
    Direction,
    DropAttribute,
    MergeAttributes,
    RenameAttribute,
    ShapeStep,
    SplitAttribute,
)
from rapport.mediation.interpretations.registry import InterpretationRegistry
from rapport.mediation.memory import ConversionMemory, Functions
from rapport.mediation.plans import (
    LEAVE,
    ConvertStep,
    EachStep,
    KeepStep,
    ObjectPart,
    ObjectStep,
    Plan,
    Step,
    VariantsStep,
    is_idle,
)
from rapport.mediation.rejections import RejectedValue
from rapport.mediation.types import TAG, Types

MAX_FUNCTION_LINES = 200
"""Lines for attributes in one function; compiling these takes about a millisecond."""


class GeneratedCode(msgspec.Struct, frozen=True):
    """The text and the conversions it calls as `convert_0`, `convert_1`, ..."""

    source: str
    conversions: tuple[Conversion, ...]


def generate(plan: Plan, *, own: bool = False) -> GeneratedCode:
    """The source of `transform(event)`, which returns the new value (a list if the plan gives
    several) or raises Rejected.
    """
    writer = CodeWriter(own=own)
    stages = [step for step in plan.stages if not isinstance(step, KeepStep)]
    calls = [writer.function(step, "event") for step in stages]
    text = "event"
    for call in calls:
        text = f"{call}({text})"
    about = f"{plan.interpretation} {plan.direction}: {plan.type} => {plan.result_type}"
    main = [_comment(about), "def transform(event):", f"    return {text}"]
    return GeneratedCode("\n".join([*writer.lines, *main]) + "\n", tuple(writer.conversions))


def split_functions(source: str) -> list[str]:
    """The functions of a generated text one by one, each with the comment before it.

    >>> split_functions("def one():\\n    return 1\\n# next\\ndef two():\\n    return 2\\n")
    ['def one():\\n    return 1\\n', '# next\\ndef two():\\n    return 2\\n']
    """
    found: list[list[str]] = [[]]
    for line in source.splitlines(keepends=True):
        if not line.startswith((" ", "\n")) and any(each.startswith("def ") for each in found[-1]):
            found.append([])
        found[-1].append(line)
    return ["".join(lines) for lines in found]


class CodeWriter:
    """Collects the text and the names in use."""

    def __init__(self, *, own: bool = False) -> None:
        """`own`: values may be modified in place, since nobody else uses them."""
        self._own = own
        self.lines: list[str] = []
        self.conversions: list[Conversion] = []
        self._known: dict[Conversion, str] = {}
        self._count = 0

    def function(self, step: Step, about: str) -> str:
        """Writes a function from a value to its result; returns its name."""
        self._count += 1
        name = f"{about}_{self._count}"
        body = self._body(step)
        self.lines += [f"def {name}(value):", *(f"    {line}" for line in body), ""]
        return name

    def _body(self, step: Step) -> list[str]:
        if isinstance(step, ObjectStep):
            if step.each:
                return [*_checked(step), *self._parts(step, "value"), *self._spread(step)]
            return [*self.in_place(step), "return value"]
        if isinstance(step, VariantsStep):
            return self._variants(step)
        if isinstance(step, ConvertStep):
            return [*self._convert(step, "value", nullable=True), "return value"]
        if isinstance(step, EachStep):
            return [*self._each(step, "value"), "return value"]
        return ["return value"]

    def in_place(self, step: ObjectStep) -> list[str]:
        """Lines that replace `value` by the object's result; for a step without `each`."""
        return [*_checked(step), *self._parts(step, "value"), *self._shape(step, "value")]

    def _parts(self, step: ObjectStep, variable: str) -> list[str]:
        """Modifies a copy unless the value is owned."""
        copied = [] if self._own else [f"{variable} = {variable}.copy()"]
        pieces: list[list[str]] = []
        for part in step.parts:  # no comprehension: saves a frame per level of a deep type
            pieces.append(self._part(part, variable, step.path))
        return [*copied, *self._in_functions(pieces, variable)]

    def _in_functions(self, pieces: list[list[str]], variable: str) -> list[str]:
        """Joins the pieces, in separate functions if there are many lines."""
        if sum(map(len, pieces)) <= MAX_FUNCTION_LINES:
            return [line for piece in pieces for line in piece]
        calls: list[str] = []
        body: list[str] = []
        for number, piece in enumerate(pieces, start=1):
            body += piece
            if body and (len(body) > MAX_FUNCTION_LINES // 2 or number == len(pieces)):
                self._count += 1
                name = f"some_{self._count}"
                self.lines += [f"def {name}({variable}):", *(f"    {line}" for line in body), ""]
                calls.append(f"{name}({variable})")
                body = []
        return calls

    def _part(self, part: ObjectPart, owner: str, path: str) -> list[str]:
        if is_idle(part.step):
            return []
        self._count += 1
        name, inner = part.attribute, f"v{self._count}"
        if part.optional:
            return [
                f"{inner} = {owner}.get({name!r})",
                f"if {inner} is not None:",
                *(f"    {line}" for line in self._changed(part.step, inner)),
                f"    {owner}[{name!r}] = {inner}",
            ]
        return [
            "try:",
            f"    {inner} = {owner}[{name!r}]",
            "except KeyError:",
            f"    missing({path!r}, {name!r})",
            *self._changed(part.step, inner, nullable=True),
            f"{owner}[{name!r}] = {inner}",
        ]

    def _changed(self, step: Step, variable: str, *, nullable: bool = False) -> list[str]:
        """Lines that replace the variable by its result; null in a required attribute is
        rejected.
        """
        if isinstance(step, ConvertStep):
            return self._convert(step, variable, nullable=nullable)
        if isinstance(step, EachStep):
            return self._each(step, variable)
        if isinstance(step, ObjectStep) and nullable:
            return [
                f"if {variable}.__class__ is not dict:",
                f"    an_object({variable}, {step.path!r})",
                *self._parts(step, variable),
                *self._shape(step, variable),
            ]
        return [f"{variable} = {self.function(step, 'part')}({variable})"]

    def _convert(self, step: ConvertStep, variable: str, *, nullable: bool = False) -> list[str]:
        how = step.conversion.how
        lines = [_comment(f"{step.path}: {step.rule}")]
        if nullable and not isinstance(how, (Formula, UnitChange, Identity)):
            lines += [f"if {variable} is None:", f"    null({step.path!r})"]
        if isinstance(how, Identity):
            pass
        elif isinstance(how, (Formula, UnitChange)):
            lines += self._arithmetic(step, variable, how)
        else:
            lines.append(f"{variable} = {self.name_of(step.conversion)}({variable})")
        if step.tag not in (LEAVE, ""):
            lines += [
                f"if {TAG!r} not in {variable}:",
                f"    {variable} = {{**{variable}, {TAG!r}: {step.tag!r}}}",
            ]
        return lines

    def _arithmetic(self, step: ConvertStep, variable: str, how: Formula | UnitChange) -> list[str]:
        """`x - x` is 0.0 only for finite numbers: one test for input and result."""
        affine = how.affine()
        return [
            f"if {variable}.__class__ is not float:",
            f"    {variable} = number({variable}, {step.path!r})",
            f"{variable} = {affine.expression(variable)}",
            f"if {variable} - {variable} != 0.0:",
            f"    finite({variable}, {step.path!r})",
        ]

    def _each(self, step: EachStep, variable: str) -> list[str]:
        call = self.function(step.step, "element")
        return [
            f"if {variable}.__class__ is not list:",
            f"    a_list({variable}, {step.path!r})",
            f"{variable} = [{call}(item) for item in {variable}]",
        ]

    def _variants(self, step: VariantsStep) -> list[str]:
        lines = [
            "if value.__class__ is not dict:",
            f"    an_object(value, {step.path!r})",
            f"kind = value.get({TAG!r}, {step.declared!r})",
        ]
        for case in step.cases:
            done = "value"
            if not isinstance(case.step, KeepStep):
                done = f"{self.function(case.step, 'variant')}(value)"
            lines += [f"if kind == {case.type!r}:", f"    return {done}"]
        return [*lines, f"unknown_type(kind, {step.path!r}, {step.declared!r})"]

    def _spread(self, step: ObjectStep) -> list[str]:
        name = step.each
        return [
            f"if {name!r} not in value:",
            f"    missing({step.path!r}, {name!r})",
            f"items = value[{name!r}]",
            "if items.__class__ is not list:",
            f"    a_list(items, {f'{step.path}.{name}'!r})",
            "several = []",
            "for item in items:",
            f"    one = {{**value, {name!r}: item}}",
            *(f"    {line}" for line in self._shape(step, "one")),
            "    several.append(one)",
            "return several",
        ]

    def _shape(self, step: ObjectStep, variable: str) -> list[str]:
        pieces = [
            self._shape_step(shape, conversion, variable, step.path)
            for shape, conversion in step.shape
        ]
        lines = self._in_functions(pieces, variable)
        if step.only is not None:
            kept = f"{{name: {variable}[name] for name in {step.only!r} if name in {variable}}}"
            lines.append(f"{variable} = {kept}")
        if step.tag == "":
            lines += [f"if {TAG!r} in {variable}:", f"    del {variable}[{TAG!r}]"]
        elif step.tag != LEAVE:
            lines.append(f"{variable}[{TAG!r}] = {step.tag!r}")
        return lines

    def _shape_step(
        self, shape: ShapeStep, conversion: Conversion | None, variable: str, path: str
    ) -> list[str]:
        if isinstance(shape, RenameAttribute):
            return [
                f"if {shape.old!r} in {variable}:",
                f"    {variable}[{shape.new!r}] = {variable}.pop({shape.old!r})",
            ]
        if isinstance(shape, DropAttribute):
            return [f"{variable}.pop({shape.name!r}, None)"]
        if isinstance(shape, CreateAttribute):
            return [f"{variable}[{shape.name!r}] = {shape.value!r}"]
        assert conversion is not None
        if isinstance(shape, MergeAttributes):
            taken = ", ".join(f"{variable}.pop({name!r})" for name in shape.sources)
            lines = self._needed(shape.sources, variable, path)
            return [*lines, f"{variable}[{shape.target!r}] = {self.name_of(conversion)}({taken})"]
        assert isinstance(shape, SplitAttribute)
        targets = ", ".join(f"{variable}[{name!r}]" for name in shape.targets)
        return [
            *self._needed((shape.source,), variable, path),
            f"{targets} = {self.name_of(conversion)}({variable}.pop({shape.source!r}))",
        ]

    def _needed(self, names: tuple[str, ...], variable: str, path: str) -> list[str]:
        lines = []
        for name in names:
            lines += [f"if {name!r} not in {variable}:", f"    missing({path!r}, {name!r})"]
        return lines

    def name_of(self, conversion: Conversion) -> str:
        if conversion not in self._known:
            self._known[conversion] = f"convert_{len(self.conversions)}"
            self.conversions.append(conversion)
        return self._known[conversion]


def _checked(step: ObjectStep) -> list[str]:
    return ["if value.__class__ is not dict:", f"    an_object(value, {step.path!r})"]


def _comment(text: str) -> str:
    """A single comment line, whatever characters the names contain."""
    return "# " + "".join(each if each.isprintable() else " " for each in text)


def generate_batch(plan: Plan, *, own: bool = False) -> GeneratedCode | None:
    """The source of `transform_all(values, results, rejected)`, which fills two empty lists;
    None for plans that are transformed one by one: several stages, several results, or a
    conversion of the whole event.
    """
    stages = [step for step in plan.stages if not isinstance(step, KeepStep)]
    if len(stages) != 1 or not isinstance(stages[0], ObjectStep) or stages[0].each:
        return None
    writer = CodeWriter(own=own)
    body = writer.in_place(stages[0])
    lines = [
        *writer.lines,
        "def transform_all(values, results, rejected):",
        "    append = results.append",
        "    for value in values:",
        "        try:",
        *(f"            {line}" for line in body),
        "        except Rejected as rejection:",
        "            rejected.append((len(results) + len(rejected), rejection))",
        "        else:",
        "            append(value)",
    ]
    return GeneratedCode("\n".join(lines) + "\n", tuple(writer.conversions))


BatchTransform = Callable[[Sequence[Any], list[Any], list[tuple[int, RejectedValue]]], None]
"""Takes a batch and two empty lists for results and rejections."""


def make_transformer(
    interpretations: InterpretationRegistry,
    name: str,
    type_name: str,
    direction: Direction,
    functions: Functions | None = None,
    memory: ConversionMemory | None = None,
    surroundings: ConversionEnvironment | None = None,
    *,
    own: bool = False,
) -> Transformer:
    """Builds the transformer for events of a type between an interpretation and the canonical
    model. `own`: the transformer may modify its input; copying costs as much as five formulas.
    Raises InterpretationError if the type cannot be passed or a function is missing. Takes some
    milliseconds; keep it as long as the interpretations are in force.
    """
    plan = interpretations.plan(name, type_name, direction)
    types = interpretations.types_met(name)
    return Transformer(plan, types, functions, memory, surroundings, own=own)


class BatchResult(msgspec.Struct):
    """Results in order, and rejections with their index in the batch."""

    results: list[Any]
    rejected: list[tuple[int, RejectedValue]]


class Transformer:
    """Converts values of one type in one direction. The input is not modified unless it is
    owned (`own`), then even if it is rejected. Stateless: stateful conversions keep their state
    in `memory`.
    """

    def __init__(
        self,
        plan: Plan,
        types: Types,
        functions: Functions | None = None,
        memory: ConversionMemory | None = None,
        surroundings: ConversionEnvironment | None = None,
        *,
        own: bool = False,
    ) -> None:
        """Raises InterpretationError if a site function is missing."""
        self.plan, self._own = plan, own
        self._types, self._functions = types, functions or {}
        self._memory = memory if memory is not None else ConversionMemory()
        self._surroundings = surroundings if surroundings is not None else ConversionEnvironment()
        generated = generate(plan, own=own)
        self.source = generated.source
        self.conversions = generated.conversions
        """The called conversions; formulas are inlined."""
        self._transform: Callable[[Any], Any] = self._compiled(generated)["transform"]
        self._transform_all: BatchTransform | None = None

    def __call__(self, value: Any) -> Any:
        """Returns the converted value, a list if the plan gives several; raises Rejected."""
        return self._transform(value)

    def batch(self, values: Sequence[Any]) -> BatchResult:
        """Converts all values; a rejection does not stop the others. The first call
        compiles a function of its own, in about the time the transformer took.
        """
        if self._transform_all is None:
            generated = generate_batch(self.plan, own=self._own)
            made = self._compiled(generated)["transform_all"] if generated else self._one_by_one
            self._transform_all = made
        found = BatchResult([], [])
        self._transform_all(values, found.results, found.rejected)
        return found

    def _one_by_one(
        self, values: Sequence[Any], results: list[Any], rejected: list[tuple[int, RejectedValue]]
    ) -> None:
        append = results.extend if self.plan.several else results.append
        for index, value in enumerate(values):
            try:
                append(self._transform(value))
            except RejectedValue as rejection:
                rejected.append((index, rejection))

    def _compiled(self, generated: GeneratedCode) -> dict[str, Any]:
        """Executes the text and returns its names."""
        names = dict(GENERATED_NAMES)
        for number, conversion in enumerate(generated.conversions):
            names[f"convert_{number}"] = callable_of(
                conversion, self._functions, self._memory, self._types, self._surroundings
            )
        place = f"<{self.plan.interpretation} {self.plan.direction} {self.plan.type}>"
        for text in split_functions(
            generated.source
        ):  # one by one, to release the interpreter lock in between
            exec(compile(text, place, "exec"), names)
        return names
