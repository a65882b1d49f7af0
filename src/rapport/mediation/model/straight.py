"""From JSON to JSON without dictionaries between: decoded into a struct made for the type, turned
by generated code, encoded as a struct in the names of the other side. [ME-8]

It does only what is usual. Bytes that do not fit the struct, values that a conversion refuses,
numbers that are not finite give None, and the transformer decides what becomes of them: results
and rejections are its own. Attributes come in the order in which the type declares them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rapport.core.schema import PARTS, AttributeType
from rapport.mediation.model.plan import Keep, Object, Plan
from rapport.mediation.model.straight_calls import Calls
from rapport.mediation.model.straight_forms import (
    Field,
    Form,
    NotStraightError,
    decoded_form,
    is_formula,
)
from rapport.mediation.model.straight_text import Held, StraightWriter
from rapport.mediation.model.surroundings import Surroundings
from rapport.mediation.model.types import TAG, Types

_ENCODE = msgspec.json.Encoder().encode

Through = Callable[[bytes], bytes | None]
"""The bytes on the other side; None: see to it in the plain way."""
SeenThrough = Callable[[bytes], tuple[bytes, Any] | None]
"""Beside them the value of an attribute of root."""
ReadingThrough = Callable[[bytes, int], bytes | None]
"""From data and time of a reading."""
Read = Callable[[bytes], Any]
"""To the struct of the result, which is not encoded yet, or None."""
Write = Callable[[Any], bytes | None]
"""On from there."""

Way = Sequence[tuple[Plan, Types]]
"""Plans one after the other, each with the types it speaks of (`Interpretations.types_met`)."""


def straight_through(way: Way, surroundings: Surroundings | None = None) -> Through | None:
    """All plans in one function, with nothing made between them.

    None for plans that only decoded values can be put through: events that are split, several
    stages, conversions that must not be done twice (functions of the site, those that remember).
    Takes about as long as the transformers; keep it as long.
    """
    found: Through | None = _made(way, surroundings, "")
    return found


def straight_seen(
    way: Way, attribute: str, surroundings: Surroundings | None = None
) -> SeenThrough | None:
    """The same, and what the attribute was after the first plan: for a condition on root."""
    found: SeenThrough | None = _made(way, surroundings, attribute)
    return found


def _made(way: Way, surroundings: Surroundings | None, seen: str) -> Any:
    calls = Calls(surroundings)
    writer = StraightWriter(calls, own=True)
    (first, types), *_ = way
    shown = ""
    try:
        form = decoded = decoded_form(types, first.type, _only_step(first))
        tail = "value"
        for plan, types in way:
            tail, form = writer.turned(_only_step(plan), types, form, tail)
            if seen and not shown:
                shown = writer.value_of(form, tail, seen)
        _untagged(form)
    except NotStraightError:
        return None
    result = f"(encode({tail}), {shown})" if seen else f"encode({tail})"
    decode = msgspec.json.Decoder(decoded.struct).decode
    return _compiled(writer, calls, "data", "value = decode(data)", result, decode=decode)


def straight_read(
    plan: Plan, types: Types, surroundings: Surroundings | None = None
) -> tuple[Read, Form] | None:
    """The first half, for several who go on from the same; the form says where attributes are."""
    calls = Calls(surroundings)
    writer = StraightWriter(calls, own=True)
    try:
        decoded = decoded_form(types, plan.type, _only_step(plan))
        tail, form = writer.turned(_only_step(plan), types, decoded, "value")
        _untagged(form)
    except NotStraightError:
        return None
    decode = msgspec.json.Decoder(decoded.struct).decode
    return _compiled(writer, calls, "data", "value = decode(data)", tail, decode=decode), form


def straight_write(
    form: Form, plan: Plan, types: Types, surroundings: Surroundings | None = None
) -> Write | None:
    """The other half; what was read stays as it is."""
    calls = Calls(surroundings)
    writer = StraightWriter(calls, own=False)
    try:
        tail, result = writer.turned(_only_step(plan), types, form, "value")
        _untagged(result)
    except NotStraightError:
        return None
    found: Write = _compiled(writer, calls, "value", "", f"encode({tail})")
    return found


def straight_reading(
    plan: Plan,
    types: Types,
    attribute: str,
    kind: AttributeType,
    surroundings: Surroundings | None = None,
) -> ReadingThrough | None:
    """For readings of one attribute of a concept, whose type the plan is about."""
    calls = Calls(surroundings)
    writer = StraightWriter(calls, own=True)
    try:
        step = _only_step(plan)
        calculated = any(part.attribute == attribute and is_formula(part) for part in step.parts)
        held = _reading_held(attribute, kind, calculated=calculated)
        tail, form = writer.built(step, types, held)
        _untagged(form)
    except NotStraightError:
        return None
    decode = msgspec.json.Decoder(_reading_struct(kind, calculated=calculated)).decode
    first, result = "value = decode(data)", f"encode({tail})"
    found: ReadingThrough = _compiled(writer, calls, "data, time", first, result, decode=decode)
    return found


def _only_step(plan: Plan) -> Object:
    stages = [step for step in plan.stages if not isinstance(step, Keep)]
    if not stages:
        return Object(plan.type, plan.type, ())
    if len(stages) > 1 or plan.several:
        raise NotStraightError
    step = stages[0]
    if not isinstance(step, Object) or step.each:
        raise NotStraightError
    return step


def _untagged(form: Form) -> None:
    """Events that name their own type are of more than one."""
    if TAG in form.fields:
        raise NotStraightError


def _reading_struct(kind: AttributeType, *, calculated: bool) -> type[msgspec.Struct]:
    each: Any = float if calculated else Any
    value: Any = tuple.__class_getitem__((each,) * len(PARTS[kind]))
    return msgspec.defstruct("Reading", [("key", str), ("value", value)], gc=False)


def _reading_held(attribute: str, kind: AttributeType, *, calculated: bool) -> dict[str, Held]:
    """A place is one value of several parts, anything else its only part."""
    parts = PARTS[kind]
    whole = "value.value[0]"
    if len(parts) > 1:
        pairs = (f"{name!r}: value.value[{number}]" for number, name in enumerate(parts))
        whole = f"{{{', '.join(pairs)}}}"
    plain = Field("", may_lack=False)
    own = Field("", "float" if calculated else "plain", may_lack=False)
    return {
        "key": Held("value.key", plain),
        "time": Held("time", plain),
        attribute: Held(whole, own),
    }


def _compiled(
    writer: StraightWriter, calls: Calls, given: str, first: str, result: str, **names: Any
) -> Any:
    """The function; anything that goes wrong in it is left to the plain way, which names it."""
    writer.close()
    lines = [
        f"def straight({given}):",
        "    try:",
        *(f"        {line}" for line in (first, *writer.lines) if line),
        f"        return {result}",
        "    except Exception:",
        "        return None",
        "",
    ]
    names |= {**calls.names, **writer.structs, "UNSET": msgspec.UNSET, "encode": _ENCODE}
    exec(compile("\n".join(lines), "<straight>", "exec"), names)
    return names["straight"]
