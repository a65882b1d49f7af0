"""From JSON to JSON without dictionaries between: decoded into a struct made for the type, turned
by generated code, encoded as a struct in the names of the other side. [ME-8]

It does only what is usual. Bytes that do not fit the struct, values that a conversion refuses,
numbers that are not finite give None, and the transformer decides what becomes of them; so results
and rejections are its own. Attributes come in the order in which the type declares them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rapport.core.schema import PARTS, AttributeType
from rapport.mediation.model import runtime
from rapport.mediation.model.conversions import Call, Chain, Conversion, Stateful
from rapport.mediation.model.feeding import remembers
from rapport.mediation.model.memory import Memory
from rapport.mediation.model.plan import Keep, Object, Plan
from rapport.mediation.model.runtime import callable_of
from rapport.mediation.model.straight_forms import (
    Field,
    Form,
    NotStraightError,
    decoded_form,
    is_formula,
)
from rapport.mediation.model.straight_text import Held, StraightWriter
from rapport.mediation.model.surroundings import Surroundings
from rapport.mediation.model.types import Types

_RUNTIME = ("number", "finite", "an_object", "a_list", "missing", "null", "unknown_type")
_ENCODE = msgspec.json.Encoder().encode

Through = Callable[[bytes], bytes | None]
ReadingThrough = Callable[[bytes, int], bytes | None]


class Straight:
    """One plan from bytes to bytes. Keeps no state; belongs to any thread.

    `read` and `write` are its halves, for those who look at what is between: `read` gives a struct
    with the attributes of the result (`fields` says where), `write` encodes it.
    """

    def __init__(self, writer: StraightWriter, names: dict[str, Any], form: Form, tail: str):
        self._writer, self._names, self._form, self._tail = writer, names, form, tail
        self.through: Through = self._compiled("through", "data", f"return encode({tail})")
        """The bytes on the other side, None when the transformer has to see to them."""

    @property
    def source(self) -> str:
        """The generated text of `through`, for people."""
        return self._text("through", "data", f"return encode({self._tail})")

    @property
    def form(self) -> Form:
        """What the result is, before it is encoded."""
        return self._form

    def reader(self) -> Callable[[bytes], Any]:
        """Bytes to the struct of the result, or None; compiled at each call of this."""
        return self._compiled("read", "data", f"return {self._tail}")

    def _compiled(self, name: str, given: str, last: str) -> Any:
        names = dict(self._names)
        exec(compile(self._text(name, given, last), "<straight>", "exec"), names)
        return names[name]

    def _text(self, name: str, given: str, last: str) -> str:
        return _function(self._writer, f"{name}({given})", f"value = decode({given})", last)


def straight_from(
    plan: Plan, types: Types, surroundings: Surroundings | None = None
) -> Straight | None:
    """None for plans that only decoded values can be put through: events that are split, several
    stages, conversions that must not be done twice (functions of the site, those that remember).

    Takes as long as the transformer itself; keep it as long.
    """
    try:
        step = _only_step(plan)
        form = decoded_form(types, plan.type, step)
        writer = StraightWriter(own=True)
        tail, result = writer.turned(step, form, "value")
        names = _names(writer, types, surroundings)
    except NotStraightError:
        return None
    names["decode"] = msgspec.json.Decoder(form.struct).decode
    return Straight(writer, names, result, tail)


def straight_on(
    before: Straight, plan: Plan, types: Types, *, own: bool, surroundings: Surroundings | None = None
) -> Callable[[Any], bytes | None] | None:
    """The bytes of what `before` has read, in the next interpretation: bytes to root to bytes with
    nothing encoded between. `own`: nobody else wants what was read.
    """
    try:
        writer = StraightWriter(own=own)
        tail, _ = writer.turned(_only_step(plan), before.form, "value")
        names = _names(writer, types, surroundings)
    except NotStraightError:
        return None
    text = _function(writer, "write(value)", "", f"return encode({tail})")
    exec(compile(text, "<straight>", "exec"), names)
    found: Callable[[Any], bytes | None] = names["write"]
    return found


def straight_reading(
    plan: Plan,
    types: Types,
    attribute: str,
    kind: AttributeType,
    surroundings: Surroundings | None = None,
) -> ReadingThrough | None:
    """The same for a reading of one attribute of a concept, whose type the plan is about: data and
    time in, bytes out.
    """
    try:
        step = _only_step(plan)
        reading = _reading_form(step, attribute, kind)
        writer = StraightWriter(own=True)
        tail, _ = writer.built(step, _reading_held(reading, attribute, kind))
        names = _names(writer, types, surroundings)
    except NotStraightError:
        return None
    names["decode"] = msgspec.json.Decoder(reading).decode
    text = _function(
        writer, "through(data, time)", "value = decode(data)", f"return encode({tail})"
    )
    exec(compile(text, "<straight>", "exec"), names)
    found: ReadingThrough = names["through"]
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


def _reading_form(step: Object, attribute: str, kind: AttributeType) -> type[msgspec.Struct]:
    calculated = any(part.attribute == attribute and is_formula(part) for part in step.parts)
    each: Any = float if calculated else Any
    value = tuple[(each,) * len(PARTS[kind])]  # type: ignore[misc]
    return msgspec.defstruct("Reading", [("key", str), ("value", value)], gc=False)


def _reading_held(
    reading: type[msgspec.Struct], attribute: str, kind: AttributeType
) -> dict[str, Held]:
    """A place is one value of several parts, anything else its only part."""
    parts = PARTS[kind]
    whole = "value.value[0]"
    if len(parts) > 1:
        pairs = (f"{name!r}: value.value[{number}]" for number, name in enumerate(parts))
        whole = f"{{{', '.join(pairs)}}}"
    plain = Field("", may_lack=False)
    return {
        "key": Held("value.key", plain),
        "time": Held("time", plain),
        attribute: Held(whole, plain),
    }


def _function(writer: StraightWriter, head: str, first: str, last: str) -> str:
    body = [first, *writer.lines, last] if first else [*writer.lines, last]
    lines = [
        *writer.plain.lines,
        f"def {head}:",
        "    try:",
        *(f"        {line}" for line in body),
        "    except Exception:",
        "        return None",
    ]
    return "\n".join(lines) + "\n"


def _names(
    writer: StraightWriter, types: Types, surroundings: Surroundings | None
) -> dict[str, Any]:
    """Everything the text names but `decode`."""
    writer.close()
    conversions: Sequence[Conversion] = writer.plain.conversions
    if not all(map(_may_be_done_twice, conversions)):
        raise NotStraightError
    around, memory = surroundings or Surroundings(), Memory()
    called = {
        f"convert_{number}": callable_of(each, {}, memory, types, around)
        for number, each in enumerate(conversions)
    }
    known = {name: getattr(runtime, name) for name in _RUNTIME}
    return {**known, **called, **writer.structs, "UNSET": msgspec.UNSET, "encode": _ENCODE}


def _may_be_done_twice(conversion: Conversion) -> bool:
    how = conversion.how
    if isinstance(how, Chain):
        return all(map(_may_be_done_twice, how.steps))
    return not isinstance(how, (Call, Stateful)) and not remembers(conversion)
