"""Fast path from JSON to JSON without dictionaries. [ME-8, ME-9]

Events are decoded into a struct generated for the type, converted by generated code, and encoded as
a struct with the names of the other side. Only regular events take it: for bytes that do not fit
the struct, rejected values and numbers that are not finite it returns None, and the transformer
decides. Attributes keep the order of the type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Literal, get_args

import msgspec

from rapport.core.event import Event
from rapport.core.schema import PARTS, AttributeType
from rapport.mediation.codegen.json_writer import (
    MAX_FAST_NUMBER,
    AttributeText,
    BoundedNumber,
    CallTable,
    JsonCodeWriter,
    NoFastPathError,
    StructField,
    StructLayout,
    decoded_layout,
    is_formula,
)
from rapport.mediation.concepts import ConceptAttribute
from rapport.mediation.conversion.lookups import ConversionEnvironment
from rapport.mediation.plans import KeepStep, ObjectStep, Plan
from rapport.mediation.types import TAG, Types

_ENCODER = msgspec.json.Encoder()

_BUFFER_BYTES = 1024
"""Initial size of a batch's buffer; it grows on demand."""

EventFunction = Callable[[bytes], bytes | None]
"""From the bytes of an event to those of the other side; None: use the transformer."""
BatchFunction = Callable[[Sequence[bytes]], list[bytes | None]]
"""The same for several events, each on its own."""
ReadingFunction = Callable[[bytes, int], bytes | None]
"""From data and time of a reading."""

PlanSequence = Sequence[tuple[Plan, Types]]
"""Consecutive plans, each with its types (`InterpretationRegistry.types_met`)."""


Comparison = Literal["<", "<=", ">", ">="]
FILTERED_OUT = b""
"""Result for an event that fails the condition."""


class NumberCondition(msgspec.Struct, frozen=True):
    """A condition on a numeric attribute of the canonical event."""

    attribute: str
    comparison: Comparison
    number: float

    def text(self, variable: str) -> str:
        """The Python expression; raises NoFastPathError for an invalid number or
        comparison.
        """
        if self.comparison not in get_args(Comparison) or not math.isfinite(self.number):
            raise NoFastPathError
        return f"{variable} {self.comparison} {float(self.number)!r}"


def compile_event_path(
    plans: PlanSequence, surroundings: ConversionEnvironment | None = None
) -> EventFunction | None:
    """Compiles all plans into one function without intermediate values. None for plans that
    need decoded values: split events, several stages, conversions that must not run twice (site
    functions, conversions with memory). Takes about as long as building the transformers; keep
    it as long as them.
    """
    calls = CallTable(surroundings)
    writer = JsonCodeWriter(calls)
    try:
        decoded, layout, tail = _convert_plans(writer, plans)
    except NoFastPathError:
        return None
    result = f"encode({writer.whole(layout, tail)})"
    decode = msgspec.json.Decoder(decoded.struct).decode
    found: EventFunction = _compiled(
        writer, calls, "data", "value = decode(data)", result, decode=decode
    )
    return found


def compile_batch_path(
    plans: PlanSequence,
    wanted: NumberCondition | None = None,
    surroundings: ConversionEnvironment | None = None,
) -> BatchFunction | None:
    """The same for many events in one call, optionally filtered by a condition on the canonical
    event. An irregular event gives None, one that fails the condition FILTERED_OUT. With
    `surroundings` it returns None for plans whose conversions may need the time of an event,
    since these must run one by one.
    """
    calls = CallTable(surroundings)
    writer = JsonCodeWriter(calls, give_up="results.append(None); continue")
    try:
        decoded, layout, tail = _convert_plans(writer, plans, wanted)
    except NoFastPathError:
        return None
    if surroundings is not None and not calls.are_none:
        return None
    decode = msgspec.json.Decoder(decoded.struct).decode
    found: BatchFunction = _compiled_loop(writer, calls, writer.whole(layout, tail), decode=decode)
    return found


def _convert_plans(
    writer: JsonCodeWriter,
    plans: PlanSequence,
    wanted: NumberCondition | None = None,
) -> tuple[StructLayout, StructLayout, str]:
    """The decoded layout, the result layout, and the variable with the result."""
    (first, types), *_ = plans
    layout = decoded = decoded_layout(types, first.type, _only_step(first))
    tail, seen = "value", ""
    for plan, types in plans:
        tail, layout = writer.convert(_only_step(plan), types, layout, tail)
        if wanted is not None and not seen:
            seen = writer.value_of(layout, tail, wanted.attribute)
    _untagged(layout)
    if wanted is not None:
        writer.unless(wanted.text(seen), "results.append(FILTERED_OUT); continue")
    return decoded, layout, tail


def compile_reading_path(
    plan: Plan,
    types: Types,
    attribute: str,
    kind: AttributeType,
    surroundings: ConversionEnvironment | None = None,
) -> ReadingFunction | None:
    """For readings of one attribute of the concept that the plan converts."""
    calls = CallTable(surroundings)
    writer = JsonCodeWriter(calls)
    try:
        step = _only_step(plan)
        calculated = any(part.attribute == attribute and is_formula(part) for part in step.parts)
        held = _reading_attributes(attribute, kind, calculated=calculated)
        tail, layout = writer.build(step, types, held)
        _untagged(layout)
    except NoFastPathError:
        return None
    decode = msgspec.json.Decoder(_reading_struct(kind, calculated=calculated)).decode
    first, result = "value = decode(data)", f"encode({tail})"
    found: ReadingFunction = _compiled(writer, calls, "data, time", first, result, decode=decode)
    return found


def _only_step(plan: Plan) -> ObjectStep:
    stages = [step for step in plan.stages if not isinstance(step, KeepStep)]
    if not stages:
        return ObjectStep(plan.type, plan.type, ())
    if len(stages) > 1 or plan.several:
        raise NoFastPathError
    step = stages[0]
    if not isinstance(step, ObjectStep) or step.each:
        raise NoFastPathError
    return step


def _untagged(layout: StructLayout) -> None:
    """Events with `@type` may have several types."""
    if TAG in layout.fields:
        raise NoFastPathError


def _reading_struct(kind: AttributeType, *, calculated: bool) -> type[msgspec.Struct]:
    each: Any = BoundedNumber if calculated else Any
    value: Any = tuple.__class_getitem__((each,) * len(PARTS[kind]))
    return msgspec.defstruct("Reading", [("key", str), ("value", value)], gc=False)


def _reading_attributes(
    attribute: str, kind: AttributeType, *, calculated: bool
) -> dict[str, AttributeText]:
    """A position is one value with several parts, any other reading its only part."""
    parts = PARTS[kind]
    whole = "value.value[0]"
    if len(parts) > 1:
        pairs = (f"{name!r}: value.value[{number}]" for number, name in enumerate(parts))
        whole = f"{{{', '.join(pairs)}}}"
    plain = StructField("", may_lack=False)
    own = StructField("", may_lack=False)
    if calculated:
        own = StructField("", "float", may_lack=False, most=MAX_FAST_NUMBER)
    return {
        "key": AttributeText("value.key", plain),
        "time": AttributeText("time", plain),
        attribute: AttributeText(whole, own),
    }


def _compiled(
    writer: JsonCodeWriter, calls: CallTable, given: str, first: str, result: str, **names: Any
) -> Any:
    """Every exception falls back to the transformer, which reports it."""
    writer.close()
    lines = [
        f"def convert({given}):",
        "    try:",
        *(f"        {line}" for line in (first, *writer.lines) if line),
        f"        return {result}",
        "    except Exception:",
        "        return None",
    ]
    return _executed(lines, writer, calls, names)


def _compiled_loop(writer: JsonCodeWriter, calls: CallTable, result: str, **names: Any) -> Any:
    """The same in a loop. All events are encoded into one buffer and copied out of it: separate
    bytes grow and move while they are filled, which costs twice as much as the copy. The buffer
    is local to the call, so it is safe in threads.
    """
    writer.close()
    lines = [
        "def convert(several):",
        f"    results, buffer = [], bytearray({_BUFFER_BYTES})",
        "    for data in several:",
        "        try:",
        *(f"            {line}" for line in ("value = decode(data)", *writer.lines)),
        f"            encode_into({result}, buffer)",
        "            results.append(join((buffer,)))",  # half of what bytes(buffer) costs
        "        except Exception:",
        "            results.append(None)",
        "    return results",
    ]
    names |= {"FILTERED_OUT": FILTERED_OUT, "encode_into": _ENCODER.encode_into, "join": b"".join}
    return _executed(lines, writer, calls, names)


def _executed(
    lines: list[str], writer: JsonCodeWriter, calls: CallTable, names: dict[str, Any]
) -> Any:
    names |= {**calls.names, **writer.structs, "UNSET": msgspec.UNSET, "encode": _ENCODER.encode}
    exec(compile("\n".join([*lines, ""]), "<convert>", "exec"), names)
    return names["convert"]


_PATIENCE = 50


class JsonFastPath:
    """The fast path for events of one type, from or to the canonical model. It is given up if
    most events are irregular, for instance because of undeclared attributes.
    """

    def __init__(
        self,
        plan: Plan,
        types: Types,
        surroundings: ConversionEnvironment,
        attribute: str = "",
        declared: ConceptAttribute | None = None,
    ) -> None:
        """`attribute` and its declaration if the events are readings."""
        self._surroundings, self._plans = surroundings, [(plan, types)]
        self._is_reading = declared is not None
        self._reading: ReadingFunction | None = None
        if declared is not None:
            self._reading = compile_reading_path(
                plan, types, attribute, declared.type, surroundings
            )
        self.type = plan.result_type
        self._credit = _PATIENCE

    def data_of(self, event: Event) -> bytes | None:
        """The converted data; None: use the transformer."""
        if self._credit <= 0:
            return None
        self._surroundings.event_time_ms = event.time
        found: bytes | None = None
        if self._reading is not None:
            found = self._reading(event.data, event.time)
        elif self._through is not None:
            found = self._through(event.data)
        self._credit = _PATIENCE if found is not None else self._credit - 1
        return found

    def data_of_all(self, events: Sequence[Event]) -> list[bytes | None] | None:
        """The same for many events in one call; None if they must be converted one by one."""
        if self._credit <= 0 or self._batch is None:
            return None
        found = self._batch([event.data for event in events])
        irregular = found.count(None)
        self._credit = _PATIENCE if irregular < len(found) else self._credit - irregular
        return found

    def prepare(self) -> None:
        """Compiles now what is otherwise compiled at the first event and the first batch."""
        _ = self._through
        self.prepare_batch()

    def prepare_batch(self) -> None:
        """The same where events only arrive in batches."""
        _ = self._batch

    @cached_property
    def _through(self) -> EventFunction | None:
        return None if self._is_reading else compile_event_path(self._plans, self._surroundings)

    @cached_property
    def _batch(self) -> BatchFunction | None:
        """Compiled at the first batch, since many types never get one."""
        if self._is_reading:
            return None
        return compile_batch_path(self._plans, surroundings=self._surroundings)


def convert_batch(
    events: Iterable[tuple[int, Event]],
    fast_path_of: Callable[[Event], JsonFastPath | None],
    *,
    least: int,
) -> dict[int, tuple[str, bytes]]:
    """Type and data of the events that the fast path converts, by their numbers; the others are to
    be converted alone. Types with fewer than `least` events are not worth a batch.
    """
    rows: dict[str, list[tuple[int, Event]]] = {}
    for numbered in events:
        rows.setdefault(numbered[1].type, []).append(numbered)
    found: dict[int, tuple[str, bytes]] = {}
    for row in rows.values():
        fast_path = fast_path_of(row[0][1]) if len(row) >= least else None
        converted = fast_path.data_of_all([event for _, event in row]) if fast_path else None
        if fast_path is None or converted is None:
            continue
        type_name = fast_path.type
        for (number, _event), data in zip(row, converted, strict=True):
            if data is not None:
                found[number] = type_name, data
    return found
