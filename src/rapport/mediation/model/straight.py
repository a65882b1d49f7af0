"""From JSON to JSON without dictionaries between: decoded into a struct made for the type, turned
by generated code, encoded as a struct in the names of the other side. [ME-8]

It does only what is usual. Bytes that do not fit the struct, values that a conversion refuses,
numbers that are not finite give None, and the transformer decides what becomes of them: results
and rejections are its own. Attributes come in the order in which the type declares them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

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
from rapport.mediation.model.straight_numbers import MOST, Number
from rapport.mediation.model.straight_text import Held, StraightWriter
from rapport.mediation.model.straight_uncut import Uncut
from rapport.mediation.model.surroundings import Surroundings
from rapport.mediation.model.types import TAG, Types

_ENCODER = msgspec.json.Encoder()

_ROOM_BYTES = 1024
"""Where a batch begins; more is made when an event needs it.
"""

Through = Callable[[bytes], bytes | None]
"""The bytes on the other side; None: see to it in the plain way."""
Batch = Callable[[Sequence[bytes]], list[bytes | None]]
"""The same for several events, each by itself."""
ReadingThrough = Callable[[bytes, int], bytes | None]
"""From data and time of a reading."""

Way = Sequence[tuple[Plan, Types]]
"""Plans one after the other, each with the types it speaks of (`Interpretations.types_met`)."""


Comparison = Literal["<", "<=", ">", ">="]
KEPT_BACK = b""
"""In place of an event that is not wanted."""


class Bound(msgspec.Struct, frozen=True):
    """A condition on an attribute of root, which is a number."""

    attribute: str
    comparison: Comparison
    number: float

    def text(self, variable: str) -> str:
        """As Python; raises NotStraightError for what is no number, or no comparison."""
        if self.comparison not in get_args(Comparison) or not math.isfinite(self.number):
            raise NotStraightError
        return f"{variable} {self.comparison} {float(self.number)!r}"


def straight_through(way: Way, surroundings: Surroundings | None = None) -> Through | None:
    """All plans in one function, with nothing made between them.

    None for plans that only decoded values can be put through: events that are split, several
    stages, conversions that must not be done twice (functions of the site, those that remember).
    Takes about as long as the transformers; keep it as long.
    """
    calls = Calls(surroundings)
    writer = StraightWriter(calls)
    try:
        decoded, form, tail = _turned(writer, way)
    except NotStraightError:
        return None
    result = f"encode({writer.whole(form, tail)})"
    decode = msgspec.json.Decoder(decoded.struct).decode
    found: Through = _compiled(writer, calls, "data", "value = decode(data)", result, decode=decode)
    return found


def straight_batch(
    way: Way, wanted: Bound | None = None, surroundings: Surroundings | None = None
) -> Batch | None:
    """The same for many events in one call, and only for those that are wanted: root is looked at
    between the first plan and the others. One event that is not usual is None, and no other; one
    that is not wanted is KEPT_BACK. With `surroundings` there is none for plans with conversions
    that may ask the time of an event: those have to come one by one.
    """
    for may_be_uncut in (True, False):  # a later plan may want to look into what the first does not
        try:
            return _made_batch(way, wanted, surroundings, may_be_uncut=may_be_uncut)
        except NotStraightError:
            continue
    return None


def _made_batch(
    way: Way, wanted: Bound | None, surroundings: Surroundings | None, *, may_be_uncut: bool
) -> Batch:
    calls = Calls(surroundings)
    writer = StraightWriter(calls, give_up="told.append(None); continue")
    uncut: list[Uncut] = []
    decoded, form, tail = _turned(writer, way, wanted, uncut if may_be_uncut else None)
    if surroundings is not None and not calls.are_none:
        raise NotStraightError
    result = writer.whole(form, tail)
    names: dict[str, Any] = {"decode_first": msgspec.json.Decoder(decoded.struct).decode}
    for number, each in enumerate(uncut):
        names[f"is_usual_{number}"], names[f"decode_{number}"] = each.is_usual, each.decode
    if uncut:
        (first, types), *_ = way
        whole = decoded_form(types, first.type, _only_step(first))
        names |= {"decode_all": msgspec.json.Decoder(whole.struct).decode, "Raw": msgspec.Raw}
    found: Batch = _compiled_loop(writer, calls, result, **names)
    return found


def _turned(
    writer: StraightWriter,
    way: Way,
    wanted: Bound | None = None,
    uncut: list[Uncut] | None = None,
) -> tuple[Form, Form, str]:
    """What is decoded, what comes out, and the variable that holds it."""
    (first, types), *_ = way
    form = decoded = decoded_form(types, first.type, _only_step(first), uncut)
    for number, each in enumerate(uncut or ()):
        writer.look_at_uncut(each, number)
    tail, seen = "value", ""
    for plan, types in way:
        tail, form = writer.turned(_only_step(plan), types, form, tail)
        if wanted is not None and not seen:
            seen = writer.value_of(form, tail, wanted.attribute)
    _untagged(form)
    writer.check()
    if wanted is not None:
        writer.unless(wanted.text(seen), "told.append(KEPT_BACK); continue")
    return decoded, form, tail


def straight_reading(
    plan: Plan,
    types: Types,
    attribute: str,
    kind: AttributeType,
    surroundings: Surroundings | None = None,
) -> ReadingThrough | None:
    """For readings of one attribute of a concept, whose type the plan is about."""
    calls = Calls(surroundings)
    writer = StraightWriter(calls)
    try:
        step = _only_step(plan)
        calculated = any(part.attribute == attribute and is_formula(part) for part in step.parts)
        held = _reading_held(attribute, kind, calculated=calculated)
        tail, form = writer.built(step, types, held)
        _untagged(form)
        writer.check()
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
    each: Any = Number if calculated else Any
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
    own = Field("", may_lack=False)
    if calculated:
        own = Field("", "float", may_lack=False, most=MOST)
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
    ]
    return _executed(lines, writer, calls, names)


def _compiled_loop(writer: StraightWriter, calls: Calls, result: str, **names: Any) -> Any:
    """The same, for one event after the other. All are encoded into one buffer and copied out of
    it: bytes of their own grow while they are filled, and are moved each time, which costs twice as
    much as the copy. The buffer is that of the call, so threads have nothing in common.
    """
    writer.close()
    lines = [
        "def straight(several):",
        f"    told, room, odd, decode = [], bytearray({_ROOM_BYTES}), 0, decode_first",
        "    for data in several:",
        "        try:",
        *(f"            {line}" for line in ("value = decode(data)", *writer.lines)),
        f"            encode_into({result}, room)",
        "            told.append(join((room,)))",  # half of what bytes(room) costs
        "        except Exception:",
        "            told.append(None)",
        "    return told",
    ]
    names |= {"KEPT_BACK": KEPT_BACK, "encode_into": _ENCODER.encode_into, "join": b"".join}
    return _executed(lines, writer, calls, names)


def _executed(lines: list[str], writer: StraightWriter, calls: Calls, names: dict[str, Any]) -> Any:
    names |= {**calls.names, **writer.structs, "UNSET": msgspec.UNSET, "encode": _ENCODER.encode}
    exec(compile("\n".join([*lines, ""]), "<straight>", "exec"), names)
    return names["straight"]
