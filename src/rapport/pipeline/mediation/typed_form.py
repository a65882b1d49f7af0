"""The typed form as column operations. [ME-14, PI-4]

A plan is carried out on symbols instead of values: conversions become operations, or steps in
Python, and the result is how each reading is made of fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rapport.core.errors import InterpretationError
from rapport.core.schema import PARTS
from rapport.mediation.concepts import KEY, TIME, ConceptAttribute
from rapport.mediation.conversion.conversions import (
    Call,
    Chain,
    Conversion,
    Cut,
    Enumeration,
    Formula,
    Gather,
    Identity,
    Join,
    Lookup,
    Rename,
    Scatter,
    Stateful,
    UnitChange,
    ValueKind,
)
from rapport.mediation.conversion.currencies import ChangeCurrency
from rapport.mediation.conversion.lookups import ContextLookup, TableLookup
from rapport.mediation.conversion.notations import (
    EPOCH_MILLISECONDS,
    EPOCH_SECONDS,
    ISO,
    ParseNumber,
    ParseTime,
)
from rapport.mediation.conversion.places import FixedOrigin, TableOrigin, ToAbsolute, ToRelative
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
from rapport.mediation.memory import remembers
from rapport.mediation.plans import LEAVE, ConvertStep, KeepStep, ObjectStep, Plan, Step, is_idle
from rapport.mediation.source_bindings import SourceBinding
from rapport.mediation.types import Types
from rapport.pipeline.mediation import operations
from rapport.pipeline.mediation.fields_form import MOST_ROWS, origin_rows
from rapport.pipeline.mediation.instants import is_fixed_pattern
from rapport.pipeline.mediation.meanings import SentTables
from rapport.pipeline.mediation.operations import (
    Arithmetic,
    CalculatedValue,
    Constant,
    EnvelopeTime,
    Field,
    FirstOf,
    Kind,
    NativePlan,
    Need,
    Node,
    NotColumnsError,
    Obj,
    Path,
    PayloadField,
    Present,
    ReadingColumns,
    StepShown,
    Sum,
    Symbol,
    bare,
    opened,
)
from rapport.pipeline.mediation.python_rows import part_columns
from rapport.pipeline.mediation.steps import ConversionStep, called
from rapport.units.coordinates import direction
from rapport.units.quantities import Affine, converter


def asked(step: ConversionStep, kinds: tuple[Kind, ...], key: str) -> tuple[Any, ...] | None:
    """What a look-up gives for a key; None when it refuses."""
    return called(step.function(), (key,), kinds)


def one_kind(results: list[Any]) -> Kind | None:
    """The kind that all results are of."""
    classes = {each.__class__ for each in results}
    kinds: dict[type, Kind] = {str: "text", float: "number", int: "integer", bool: "boolean"}
    if len(classes) != 1:
        return None
    found = kinds.get(classes.pop())
    fits = all(-(2**63) <= each < 2**63 for each in results) if found == "integer" else True
    return found if fits else None


def may_equal(key: Any, kind: str) -> bool:
    """A value of this kind can be this key."""
    if kind == "boolean":
        return key.__class__ is bool
    if kind == "text":
        return key.__class__ is str
    return key.__class__ in (int, float) and abs(key) < 2**53


def fixed_at(numbers: tuple[float, float, float]) -> tuple[Node, ...]:
    """x, y and heading of a device that never moves, and the direction it looks along."""
    return tuple(Constant(each, "number") for each in (*numbers, *direction(numbers[2])))


def framed(
    how: ToAbsolute | ToRelative, x: Node, y: Node, at: tuple[Node, ...]
) -> tuple[Node, Node]:
    """Where it is, or how the device sees it; `at` as `fixed_at` gives it."""
    x, y = (_applied(each, converter(how.unit, "m")) for each in (x, y))
    at_x, at_y, _heading, ahead_x, ahead_y = at
    found: tuple[Node, Node]
    if isinstance(how, ToAbsolute):
        found = (
            Sum(at_x, ((x, ahead_y), (y, ahead_x)), (False, False)),
            Sum(at_y, ((x, ahead_x), (y, ahead_y)), (True, False)),
        )
    else:
        x, y = Sum(x, ((at_x, None),), (True,)), Sum(y, ((at_y, None),), (True,))
        found = (
            Sum(None, ((x, ahead_y), (y, ahead_x)), (False, True)),
            Sum(None, ((x, ahead_x), (y, ahead_y)), (False, False)),
        )
    outward = converter("m", how.to_unit)
    return _applied(found[0], outward), _applied(found[1], outward)


def _applied(node: Node, affine: Affine) -> Node:
    """`Affine.apply` does every step: adding 0.0 makes 0.0 of -0.0."""
    return Arithmetic(node, affine, every=True)


_MOST_ENTRIES = 200
_SCALARS = ("number", "integer", "text", "boolean")


class Conversions:
    """Conversions on symbols: as operations where there are some, else as a step in Python."""

    def __init__(self, types: Types, tables: SentTables, around: _TypedPlan) -> None:
        self._types, self._tables, self._around = types, tables, around

    def one(self, conversion: Conversion, value: Symbol, place: str) -> Symbol:
        """What becomes of one value; raises NotColumnsError."""
        how = conversion.how
        if isinstance(how, (Formula, UnitChange)):  # written into the generated text
            self._around.show(place, f"{conversion.name}: {how.affine().expression('x')}")
            return CalculatedValue(Arithmetic(self._node(value, "number", place), how.affine()))
        found, *_ = self.many(conversion, [value], 1, place)
        return found

    def many(
        self, conversion: Conversion, values: list[Symbol], results: int, place: str
    ) -> list[Symbol]:
        """The same for merging and splitting."""
        how = conversion.how
        if isinstance(how, Identity):
            return values
        if isinstance(how, Chain):
            for number, step in enumerate(how.steps):
                last = number == len(how.steps) - 1
                values = self.many(step, values, results if last else 1, place)
            return values
        if isinstance(how, (Rename, Gather, Scatter)):
            return self._renamed(conversion, how, values, place)
        if isinstance(how, (Call, Stateful)):
            name = how.function
            raise NotColumnsError(place, f"{conversion.name} calls {name}, a function of the site")
        if remembers(conversion):
            raise NotColumnsError(place, f"{conversion.name} depends on earlier events")
        if isinstance(how, ContextLookup):
            raise NotColumnsError(place, f"{conversion.name} asks for what is so at present")
        if isinstance(how, ChangeCurrency) and not how.time:
            raise NotColumnsError(place, f"{conversion.name} goes by the time of the event")
        native = self._native(conversion, values, place)
        if native is not None:
            self._around.show(place, f"{conversion.name} ({_kind_of(how)})")
            return native
        self._around.show(place, f"{conversion.name} ({_kind_of(how)})", _why_python(how))
        return self._stepped(conversion, values, place)

    # --- objects

    def _renamed(
        self,
        conversion: Conversion,
        how: Rename | Gather | Scatter,
        values: list[Symbol],
        place: str,
    ) -> list[Symbol]:
        if isinstance(how, Gather):
            self._around.show(place, f"{', '.join(how.names)} become one object")
            return [Obj(dict(zip(how.names, values, strict=True)))]
        held = opened(values[0], self._types, place)
        if isinstance(how, Rename):
            self._around.show(place, "attributes get other names")
            named = {name for pair in how.names for name in pair}
            parts = {name: each for name, each in held.parts.items() if name not in named}
            parts |= {new: held.parts[old] for old, new in how.names if old in held.parts}
            if self._types.is_complex(conversion.result):
                promised = self._types.attributes(conversion.result)
                parts = {name: each for name, each in parts.items() if name in promised}
            return [Obj(parts, held.path)]
        self._around.show(place, f"one object becomes {', '.join(how.names)}")
        if any(name not in held.parts for name in how.names):
            raise NotColumnsError(place, "an attribute that it needs is not declared")
        return [held.parts[name] for name in how.names]

    # --- values

    def _native(
        self, conversion: Conversion, values: list[Symbol], place: str
    ) -> list[Symbol] | None:
        """The results as operations; None when only Python can do it."""
        how = conversion.how
        if isinstance(how, (Formula, UnitChange)):
            node = self._node(values[0], "number", place)
            return [CalculatedValue(Arithmetic(node, how.affine(), every=True))]
        if isinstance(how, Enumeration):
            how = how.lookup()
        if isinstance(how, Lookup):
            return self._matched(how, values[0], place)
        if isinstance(how, Join):
            texts = tuple(self._node(each, "text", place) for each in values)
            return [CalculatedValue(operations.Concatenation(texts, how.separator))]
        if isinstance(how, Cut) and how.separator:
            text, pieces = self._node(values[0], "text", place), len(conversion.results)
            return [
                CalculatedValue(operations.Cut(text, how.separator, pieces, number))
                for number in range(pieces)
            ]
        if isinstance(how, ParseNumber) and not self._types.is_complex(conversion.argument):
            text = self._node(values[0], "text", place)
            return [CalculatedValue(operations.NumberOf(text, how.decimal))]
        if isinstance(how, ParseTime) and not how.attributes:
            return self._time(how, values, place)
        if isinstance(how, (ToAbsolute, ToRelative)):
            return self._framed(conversion, how, values, place)
        if isinstance(how, TableLookup):
            return self._looked_up(conversion, how, values, place)
        return None

    def _matched(self, how: Lookup, value: Symbol, place: str) -> list[Symbol] | None:
        kind = self._kind(value)
        results: list[Any] = [each for _, each in how.entries]
        has_otherwise = how.otherwise is not msgspec.UNSET
        results += [how.otherwise] if has_otherwise else []
        made = one_kind(results)
        if made is None or kind not in _SCALARS or len(how.entries) > _MOST_ENTRIES:
            return None
        entries = tuple((key, each) for key, each in how.entries if may_equal(key, kind))
        node = self._node(value, "number" if kind == "integer" else kind, place)
        if not has_otherwise:
            node = bare(node, (str(key) for key, _ in entries))
        otherwise = how.otherwise if has_otherwise else None
        return [CalculatedValue(operations.KeyMatch(node, entries, made, otherwise))]

    def _time(self, how: ParseTime, values: list[Symbol], place: str) -> list[Symbol] | None:
        if how.format in (EPOCH_SECONDS, EPOCH_MILLISECONDS):
            unit = 1_000.0 if how.format == EPOCH_SECONDS else 1.0
            return [CalculatedValue(operations.Epoch(self._node(values[0], "number", place), unit))]
        pattern = "" if how.format == ISO else how.format
        if pattern and not is_fixed_pattern(pattern):
            return None
        texts = tuple(self._node(each, "text", place) for each in values)
        whole: Node = (
            bare(texts[0], ())
            if len(texts) == 1
            else operations.Concatenation(texts, how.separator)
        )
        return [CalculatedValue(operations.Instant(whole, pattern, how.zone))]

    def _framed(
        self,
        conversion: Conversion,
        how: ToAbsolute | ToRelative,
        values: list[Symbol],
        place: str,
    ) -> list[Symbol] | None:
        taken, held = self._taken(conversion, how, values, place)
        origin = how.origin
        length, turn = converter(origin.unit, "m"), converter(origin.heading_unit, "deg")
        if isinstance(origin, FixedOrigin):
            numbers = (length.apply(origin.x), length.apply(origin.y), turn.apply(origin.heading))
            at = fixed_at(numbers)
        elif isinstance(origin, TableOrigin):
            columns = [(origin.x, length), (origin.y, length)]
            columns += [(origin.heading, turn)] if origin.heading else []
            keys = tuple(self._tables.keys(origin.table))
            if len(keys) > MOST_ROWS:
                return None
            rows = origin_rows(self._tables, origin.table, keys, tuple(columns), north=True)
            device = bare(self._node(taken[2], "text", place), (str(row[0]) for row in rows))
            at = tuple(
                operations.InTable(
                    device, f"{origin.table} as origin", rows, ("number",) * 5, number
                )
                for number in range(5)
            )
        else:
            return None
        x, y = (self._node(each, "number", place) for each in taken[:2])
        return self._given(conversion, how, held, framed(how, x, y, at))

    def _looked_up(
        self, conversion: Conversion, how: TableLookup, values: list[Symbol], place: str
    ) -> list[Symbol] | None:
        """All rows are asked for here, by the function that Python would ask with."""
        taken, held = self._taken(conversion, how, values, place)
        keys = self._tables.keys(how.table)
        kinds = self._result_kinds(conversion, how)
        if kinds is None or len(keys) > MOST_ROWS or how.otherwise is not msgspec.UNSET:
            return None
        step = self._step(conversion, how)
        rows = tuple((key, *found) for key in keys if (found := asked(step, kinds, key)))
        key = bare(self._node(taken[0], "text", place), (row[0] for row in rows))
        made = [operations.InTable(key, how.table, rows, kinds, n) for n in range(len(kinds))]
        return self._given(conversion, how, held, tuple(made))

    # --- in Python

    def _stepped(self, conversion: Conversion, values: list[Symbol], place: str) -> list[Symbol]:
        how = conversion.how
        if not isinstance(how, ValueKind):
            raise NotColumnsError(place, f"{conversion.name} is no conversion of columns")
        taken, held = self._taken(conversion, how, values, place)
        kinds = self._result_kinds(conversion, how)
        if kinds is None:
            raise NotColumnsError(place, f"{conversion.name} gives no scalars")
        ports = how.takes(len(conversion.arguments))
        given = tuple(
            self._node(each, "text" if port.kind == "scalar" else port.kind, place)
            for each, port in zip(taken, ports, strict=True)
        )
        step = self._step(conversion, how)
        made = tuple(
            operations.StepResult(given, step, kinds, number) for number in range(len(kinds))
        )
        return self._given(conversion, how, held, made)

    def _step(self, conversion: Conversion, how: Any) -> ConversionStep:
        takes: tuple[str, ...] = ()
        gives: tuple[str, ...] = ()
        if len(conversion.arguments) == 1 and self._types.is_complex(conversion.argument):
            takes = tuple(port.name for port in how.takes(1))
        if len(conversion.results) == 1 and self._types.is_complex(conversion.result):
            gives = tuple(port.name for port in how.gives(1))
        return ConversionStep(conversion, self._types, self._tables, takes, gives)

    def _taken(
        self, conversion: Conversion, how: Any, values: list[Symbol], place: str
    ) -> tuple[list[Symbol], Obj | None]:
        """The values that go in, and the object that they are taken out of."""
        if not (len(conversion.arguments) == 1 and self._types.is_complex(conversion.argument)):
            return values, None
        held = opened(values[0], self._types, place)
        names = [port.name for port in how.takes(1)]
        if any(name not in held.parts for name in names):
            raise NotColumnsError(place, "an attribute that it needs is not declared")
        return [held.parts[name] for name in names], held

    def _given(
        self, conversion: Conversion, how: Any, held: Obj | None, made: tuple[Node, ...]
    ) -> list[Symbol]:
        """The results, one by one or as an object, which keeps what its type has."""
        if not (len(conversion.results) == 1 and self._types.is_complex(conversion.result)):
            return [CalculatedValue(node) for node in made]
        kept: dict[str, Any] = dict(held.parts) if held is not None else {}
        if conversion.argument != conversion.result:
            there = self._types.attributes(conversion.result)
            kept = {name: each for name, each in kept.items() if name in there}
        names = [port.name for port in how.gives(1)]
        kept |= {name: CalculatedValue(node) for name, node in zip(names, made, strict=True)}
        return [Obj(kept, held.path if held is not None else ())]

    def _result_kinds(self, conversion: Conversion, how: Any) -> tuple[Kind, ...] | None:
        if len(conversion.results) == 1 and self._types.is_complex(conversion.result):
            there = self._types.attributes(conversion.result)
            types = [there[port.name].type for port in how.gives(1)]
        else:
            types = list(conversion.results)
        kinds = tuple(self._types.kind(each) for each in types)
        return kinds if all(kind in _SCALARS for kind in kinds) else None  # type: ignore[return-value]

    def _kind(self, value: Symbol) -> str:
        if isinstance(value, CalculatedValue):
            return value.node.kind
        return self._types.kind(value.type) if isinstance(value, Field) else "object"

    def _node(self, value: Symbol, wanted: str, place: str) -> Node:
        """A value as an operation of a kind."""
        if isinstance(value, Field) and self._types.kind(value.type) in (*_SCALARS, "json"):
            return self._around.field(value, wanted)
        if isinstance(value, CalculatedValue) and value.node.kind == wanted:
            return value.node
        raise NotColumnsError(place, f"it is no {wanted}")


def _kind_of(how: Any) -> str:
    return str(how.__struct_config__.tag)


def _why_python(how: Any) -> str:
    if isinstance(how, ParseTime):
        return "only Python reads this pattern"
    if isinstance(how, (Lookup, Enumeration, TableLookup)):
        return "too many entries, results of several kinds, or an `otherwise`"
    return "only Python calculates this to the last bit"


class Results:
    """What a source gives, taken out of the value that its plan ends with."""

    def __init__(self, types: Types, around: _TypedPlan) -> None:
        self._types, self._around = types, around

    def key(self, value: Obj) -> Node:
        """Whom it is about."""
        symbol = value.parts.get(KEY)
        if isinstance(symbol, Field) and self._types.kind(symbol.type) != "object":
            return PayloadField(symbol.path, "name")
        if isinstance(symbol, CalculatedValue) and symbol.node.kind == "text":
            return symbol.node
        raise NotColumnsError(KEY, "it is no text")

    def time(self, value: Obj) -> Node:
        """When; the envelope says it where the value does not."""
        symbol = value.parts.get(TIME)
        if symbol is None:
            return EnvelopeTime()
        node: Node
        if isinstance(symbol, Field):
            node = PayloadField(symbol.path, "moment")
        elif isinstance(symbol, CalculatedValue) and symbol.node.kind == "integer":
            node = symbol.node
        else:
            raise NotColumnsError(TIME, "it is no time")
        return FirstOf((node, EnvelopeTime()), "integer")

    def given(
        self, value: Obj, binding: SourceBinding, attributes: Mapping[str, ConceptAttribute]
    ) -> tuple[ReadingColumns, ...]:
        """The attributes that can be there."""
        there = [name for name in binding.attributes if value.parts.get(name) is not None]
        return tuple(
            self._given(f"{binding.concept}.{name}", name, value.parts[name], attributes[name])
            for name in there
        )

    def _given(
        self, stream: str, name: str, symbol: Symbol, attribute: ConceptAttribute
    ) -> ReadingColumns:
        kind, columns = attribute.type, tuple(part_columns(attribute.type).values())
        if kind == "geo_point":
            raise NotColumnsError(name, "longitudes and latitudes have ranges")
        if len(PARTS[kind]) == 1:
            return ReadingColumns(
                stream, name, (self._scalar(symbol, kind, name),), columns, needed=False
            )
        whole = opened(symbol, self._types, name)
        parts = []
        for part in PARTS[kind]:
            if part not in whole.parts:
                raise NotColumnsError(name, f"nothing gives its {part}")
            parts.append(self._scalar(whole.parts[part], "number", f"{name}.{part}"))
        if whole.path:
            return ReadingColumns(
                stream, name, tuple(parts), columns, needed=False, within=whole.path
            )
        return ReadingColumns(stream, name, tuple(parts), columns)

    def _scalar(self, symbol: Symbol, kind: str, place: str) -> Node:
        if isinstance(symbol, Field):
            found = self._types.kind(symbol.type)
            if found == kind or (found, kind) == ("integer", "number"):
                return self._around.field(symbol, kind)
        elif isinstance(symbol, CalculatedValue) and symbol.node.kind == kind:
            return symbol.node
        raise NotColumnsError(place, f"it is no {kind}")


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

    def field(self, field: Field, look: str) -> PayloadField:
        """How a field is taken out of the payload."""
        kind = self._types.kind(field.type)
        if self._decimal and look == "number" and kind == "number":
            return PayloadField(field.path, "number-text", self._decimal)  # type: ignore[arg-type]
        return PayloadField(field.path, look)  # type: ignore[arg-type]

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
        if isinstance(found, CalculatedValue):
            self.looked_at.append(found.node)
            if not optional:
                self.needed.append(Need(found.node, within))
        elif isinstance(found, Obj):
            inner = value.path if isinstance(value, Field) else within
            for each in found.parts.values():
                if isinstance(each, CalculatedValue):
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
            value.parts[shape.name] = CalculatedValue(Constant(given, kind))  # type: ignore[arg-type]

    def _must(self, value: Obj, name: str, path: str) -> Symbol:
        held: Symbol | None = value.parts.pop(name, None)
        if held is None:
            raise NotColumnsError(f"{path}.{name}", "nothing is known of it")
        return held

    def _need_all(self, made: list[Symbol], within: Path) -> None:
        for each in made:
            if isinstance(each, CalculatedValue):
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
