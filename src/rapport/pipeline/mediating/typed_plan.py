"""The typed form as column operations: a plan is carried out on names instead of values, and what
is left at the end is how each result is made of fields. [ME-14, PI-4]
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rapport.core.errors import InterpretationError
from rapport.mediation.concepts import KEY, TIME, ConceptAttribute
from rapport.mediation.conversion.conversions import Conversion
from rapport.mediation.formats.base import decimal_mark
from rapport.mediation.formats.csv_format import csv_options, joins_of
from rapport.mediation.interpretations.model import (
    CreateAttribute,
    DropAttribute,
    MergeAttributes,
    RenameAttribute,
    ShapeStep,
    SplitAttribute,
)
from rapport.mediation.interpretations.repository import ActiveInterpretations, stamp_of
from rapport.mediation.plans import LEAVE, ConvertStep, KeepStep, ObjectStep, Plan, Step, is_idle
from rapport.mediation.source_bindings import SourceBinding
from rapport.mediation.types import Types
from rapport.pipeline.mediating.conversions_plan import Conversions
from rapport.pipeline.mediating.meanings import SentTables
from rapport.pipeline.mediating.nodes import (
    Constant,
    NativePlan,
    Need,
    Node,
    NotColumnsError,
    Path,
    Present,
    StepShown,
    Taken,
)
from rapport.pipeline.mediating.symbols import Field, Made, Obj, Symbol, opened
from rapport.pipeline.mediating.typed_results import Results

_DEEPEST = 30


def typed_plan(
    binding: SourceBinding, in_force: ActiveInterpretations, tables: SentTables
) -> NativePlan:
    """The plan; raises NotColumnsError with the reason."""
    name, interpretations = binding.interpretation, in_force.typed
    choice = in_force.format_of(name)
    if choice.name not in ("json", "csv"):
        raise NotColumnsError("format", f"events are written as {choice.name}")
    if choice.name == "csv":
        options = csv_options(choice.options)
        if joins_of(options) or options.thousands != "none":
            raise NotColumnsError("format", "columns of the CSV are joined, or numbers are grouped")
    if not binding.concept:
        raise NotColumnsError("source", "its events are values of root, and may hold anything")
    scope = interpretations.checked(name).scope
    mapped = [source for source, direction in scope.mappings if direction == "in"]
    speaks, others = _spoken(binding, scope.types, mapped)
    try:
        plan = interpretations.plan(name, speaks, "in")
    except InterpretationError as error:
        raise NotColumnsError(speaks, error.message) from None
    work = _TypedPlan(plan, interpretations.types_met(name), tables, decimal_mark(choice) or "")
    found = work.plan(binding, in_force.concepts.get(binding.concept, {}))
    return msgspec.structs.replace(
        found,
        stamp=stamp_of(interpretations, name, choice),
        other_types=others,
        plain=True,
    )


def _spoken(binding: SourceBinding, types: Types, mapped: list[str]) -> tuple[str, tuple[str, ...]]:
    """The type that its events are of, and types of the envelope that say otherwise."""
    if binding.speaks and types.is_complex(binding.speaks):
        return binding.speaks, ()
    if len(mapped) != 1:
        raise NotColumnsError("source", "each event says itself of which type it is")
    return mapped[0], tuple(each for each in types.complex_names if each != mapped[0])


class _TypedPlan:
    def __init__(self, plan: Plan, types: Types, tables: SentTables, decimal: str) -> None:
        self._plan, self._types, self._decimal = plan, types, decimal
        self.steps: list[StepShown] = []
        self.needed: list[Need] = []
        self.looked_at: list[Node] = []
        self._conversions = Conversions(types, tables, self)

    def plan(
        self, binding: SourceBinding, attributes: Mapping[str, ConceptAttribute]
    ) -> NativePlan:
        """The whole, but for what the source says of itself."""
        step = self._only_step()
        if self._plan.result_type != binding.concept or step.tag not in (
            LEAVE,
            "",
            binding.concept,
        ):
            raise NotColumnsError(self._plan.type, f"gives no {binding.concept}")
        event = opened(Field((), self._plan.type, optional=False), self._types, step.path)
        self._read_texts(event)
        declared = self._types.attributes(self._plan.type)
        for name in (KEY, TIME, *binding.attributes):
            if name not in declared:
                event.parts.pop(name, None)
        result = self._object(step, event, 0)
        results = Results(self._types, self)
        return NativePlan(
            source=binding.source,
            stamp="",
            time=results.time(result),
            key=results.key(result),
            concept=binding.concept,
            given=results.given(result, binding, attributes),
            needed=tuple(self.needed),
            looked_at=tuple(self.looked_at),
            untagged=True,
            several=len(binding.attributes) > 1,
            steps=tuple(self.steps),
        )

    def _only_step(self) -> ObjectStep:
        stages = [step for step in self._plan.stages if not isinstance(step, KeepStep)]
        if not stages:
            return ObjectStep(self._plan.type, self._plan.type, ())
        step = stages[0]
        if len(stages) > 1:
            raise NotColumnsError(self._plan.type, "a type of root was replaced since")
        if self._plan.several or not isinstance(step, ObjectStep) or step.each:
            raise NotColumnsError(self._plan.type, "the event is converted or split as a whole")
        return step

    # --- fields

    def field(self, field: Field, look: str) -> Taken:
        """How a field is taken out of the payload."""
        kind = self._types.kind(field.type)
        if self._decimal and look == "number" and kind == "number":
            return Taken(field.path, "number-text", self._decimal)  # type: ignore[arg-type]
        return Taken(field.path, look)  # type: ignore[arg-type]

    def _read_texts(self, event: Obj) -> None:
        """A format of texts reads every number that is declared, used or not."""
        if not self._decimal:
            return
        for name, symbol in event.parts.items():
            assert isinstance(symbol, Field)
            kind = self._types.kind(symbol.type)
            if kind == "number":
                self.looked_at.append(self.field(symbol, "number"))
            elif kind != "text":
                raise NotColumnsError(name, f"texts are read as {kind}")

    # --- steps

    def _object(self, step: ObjectStep, value: Obj, depth: int) -> Obj:
        if step.each:
            raise NotColumnsError(step.path, "a list is spread")
        if depth > _DEEPEST:
            raise NotColumnsError(step.path, "objects are nested too deeply")
        for part in step.parts:
            if is_idle(part.step):
                continue
            name = part.attribute
            held = value.parts.get(name)
            if held is None:
                raise NotColumnsError(f"{step.path}.{name}", "nothing is known of it")
            value.parts[name] = self._step(part.step, held, value.path, part.optional, depth)
        for shape, conversion in step.shape:
            self._shape(shape, conversion, value, step.path)
        if step.only is not None:
            value.parts = {n: each for n, each in value.parts.items() if n in step.only}
        return value

    def _step(self, step: Step, value: Symbol, within: Path, optional: bool, depth: int) -> Symbol:
        if isinstance(step, KeepStep):
            return value
        if isinstance(step, ConvertStep):
            if step.tag not in (LEAVE, ""):
                raise NotColumnsError(step.path, "the result names its type")
            found = self._conversions.one(step.conversion, value, step.path)
            self._require(found, value, within, optional)
            return found
        if isinstance(step, ObjectStep):
            held = opened(value, self._types, step.path)
            if not optional and isinstance(value, Field):
                self.needed.append(Need(Present(value.path), within))
            return self._object(step, held, depth + 1)
        raise NotColumnsError(step.path, "lists and subtypes are no columns")

    def _require(self, found: Symbol, value: Symbol, within: Path, optional: bool) -> None:
        """A conversion of what must be there: nothing is a doubt; else only a failed one is."""
        if isinstance(found, Made):
            self.looked_at.append(found.node)
            if not optional:
                self.needed.append(Need(found.node, within))
        elif isinstance(found, Obj):
            inner = value.path if isinstance(value, Field) else within
            for each in found.parts.values():
                if isinstance(each, Made):
                    self.needed.append(Need(each.node, inner if optional else within))

    def _shape(
        self, shape: ShapeStep, conversion: Conversion | None, value: Obj, path: str
    ) -> None:
        parts = value.parts
        if isinstance(shape, RenameAttribute):
            if shape.old in parts:
                parts[shape.new] = parts.pop(shape.old)
            self.show(path, f"{shape.old} is called {shape.new}")
        elif isinstance(shape, DropAttribute):
            parts.pop(shape.name, None)
            self.show(path, f"{shape.name} is left out")
        elif isinstance(shape, CreateAttribute):
            self._create(shape, value, path)
        elif isinstance(shape, MergeAttributes):
            assert conversion is not None
            taken = [self._must(value, name, path) for name in shape.sources]
            parts[shape.target], *_ = self._conversions.many(conversion, taken, 1, path)
            self._need_all([parts[shape.target]], value.path)
        elif isinstance(shape, SplitAttribute):
            assert conversion is not None
            source = self._must(value, shape.source, path)
            count = len(shape.targets)
            made = self._conversions.many(conversion, [source], count, path)
            parts.update(zip(shape.targets, made, strict=True))
            self._need_all(made, value.path)

    def _create(self, shape: CreateAttribute, value: Obj, path: str) -> None:
        self.show(path, f"{shape.name} is {shape.value!r}")
        value.parts.pop(shape.name, None)
        if shape.value is not None:
            kind = self._types.kind(shape.type)
            if kind not in ("text", "number", "integer", "boolean"):
                raise NotColumnsError(path, f"{shape.name} is no scalar")
            given = float(shape.value) if kind == "number" else shape.value
            value.parts[shape.name] = Made(Constant(given, kind))  # type: ignore[arg-type]

    def _must(self, value: Obj, name: str, path: str) -> Symbol:
        held: Symbol | None = value.parts.pop(name, None)
        if held is None:
            raise NotColumnsError(f"{path}.{name}", "nothing is known of it")
        return held

    def _need_all(self, made: list[Symbol], within: Path) -> None:
        for each in made:
            if isinstance(each, Made):
                self.needed.append(Need(each.node, within))
            elif isinstance(each, Obj):
                self._need_all(list(each.parts.values()), within)
            else:
                self.needed.append(Need(self._whole(each), within))

    def _whole(self, field: Field) -> Node:
        kind = self._types.kind(field.type)
        if kind == "object":
            return Present(field.path)
        if kind not in ("text", "number", "integer", "boolean"):
            raise NotColumnsError(".".join(field.path), f"it is a {kind}")
        return self.field(field, kind)

    def show(self, place: str, what: str, why: str = "") -> None:
        """A step for people; `why` it is Python's."""
        self.steps.append(StepShown(place, what, "arrow" if why else "native", why))
