"""What the benchmark of mediation sends: events of fifteen attributes, flat or fifteen levels deep,
and the interpretations of those who send and read them. [ME-8]

A producer says Fahrenheit, root Celsius, every consumer Kelvin, each in types of its own; the
attributes that are no temperatures are texts and stay what they are.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rapport.core.event import Event
from rapport.mediation.conversion.conversions import UnitChange, converts
from rapport.mediation.interpretations.model import Interpretation, Rule, TypeMapping
from rapport.mediation.interpretations.registry import InterpretationRegistry
from rapport.mediation.interpretations.type_changes import load_all
from rapport.mediation.types import Attribute, ComplexType, PrimitiveType

ATTRIBUTES = 15
AFFECTED = 5
"""Attributes with a conversion, where nothing else is said."""
Form = Literal["flat", "deep"]
PRODUCER, SENT, ROOT_TYPE = "producer", "Sent0", "Root0"
_UNITS = tuple(PrimitiveType(name, "number") for name in ("Fahrenheit", "Celsius", "Kelvin"))


def interpretations(
    form: Form, *, affected: int = AFFECTED, consumers: int = 1
) -> tuple[InterpretationRegistry, tuple[Interpretation, ...]]:
    """In force, and as declared: root, the producer's, and those of `consumer-0`, ..."""
    declared = (
        Interpretation(name="root", parent="", types=(*_UNITS, *_types("Root", form, affected))),
        producer(form, affected),
        *(consumer(form, affected, number) for number in range(consumers)),
    )
    held, found = load_all(declared)
    refused = [problem for name, (_, problems) in found.items() if name not in held.names
               for problem in problems]  # fmt: skip
    assert not refused, refused
    return held, declared


def producer(form: Form, affected: int) -> Interpretation:
    """Says Fahrenheit."""
    return Interpretation(
        name=PRODUCER,
        types=_types("Sent", form, affected),
        mappings=(TypeMapping(SENT, ROOT_TYPE, "in"),),
        rules=(Rule("Fahrenheit", "to-celsius"),),
        conversions=(converts("to-celsius", "Fahrenheit", "Celsius", UnitChange("degF", "degC")),),
    )


def consumer(form: Form, affected: int, number: int) -> Interpretation:
    """Wants Kelvin."""
    return Interpretation(
        name=f"consumer-{number}",
        types=_types(f"Wanted{number}x", form, affected),
        mappings=(TypeMapping(ROOT_TYPE, f"Wanted{number}x0", "out"),),
        rules=(Rule("Celsius", "to-kelvin"),),
        conversions=(converts("to-kelvin", "Celsius", "Kelvin", UnitChange("degC", "K")),),
    )


def _types(name: str, form: Form, affected: int) -> tuple[ComplexType, ...]:
    unit = {"Sent": "Fahrenheit", "Root": "Celsius"}.get(name, "Kelvin")
    kinds = [unit if number < affected else "text" for number in range(ATTRIBUTES)]
    if form == "flat":
        attributes = tuple(Attribute(f"a{number}", kind) for number, kind in enumerate(kinds))
        return (ComplexType(f"{name}0", attributes),)
    types = []
    for number, kind in enumerate(kinds):
        below = (Attribute("below", f"{name}{number + 1}"),) if number + 1 < len(kinds) else ()
        types.append(ComplexType(f"{name}{number}", (Attribute(f"a{number}", kind), *below)))
    return tuple(types)


def value(form: Form, affected: int, seed: int) -> dict[str, Any]:
    """What the producer says in one event."""
    said: list[Any] = [
        seed % 97 + number + 0.5 if number < affected else f"text {number}"
        for number in range(ATTRIBUTES)
    ]
    if form == "flat":
        return {f"a{number}": each for number, each in enumerate(said)}
    found: dict[str, Any] = {}
    for number in range(ATTRIBUTES - 1, -1, -1):
        found = {f"a{number}": said[number], **({"below": found} if found else {})}
    return found


def values(form: Form, affected: int, count: int) -> list[dict[str, Any]]:
    """As many, no two the same object."""
    return [value(form, affected, seed) for seed in range(count)]


def events(form: Form, count: int, *, affected: int = AFFECTED) -> list[Event]:
    """The same as the producer sends them."""
    encode = msgspec.json.Encoder().encode
    return [
        Event("bench/producer", f"{seed:012d}", SENT, "", seed, encode(one))
        for seed, one in enumerate(values(form, affected, count))
    ]
