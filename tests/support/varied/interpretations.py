"""Random interpretations of one concept, and random payloads for each, to compare ways of mediating
that must give the same: what both forms share. [ME-14]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import msgspec

from rapport.core.schema import AttributeType
from rapport.mediation.concepts import ConceptAttribute
from rapport.mediation.interpretations.model import FieldsInterpretation
from rapport.mediation.interpretations.model import Interpretation as Typed
from rapport.mediation.interpretations.repository import ActiveInterpretations, activate
from rapport.mediation.source_bindings import SourceBinding
from rapport.policy.ontology import Ontology, PushSource

CONCEPT = "thing"
ATTRIBUTES: dict[str, AttributeType] = {
    "temp": "number",
    "place": "point",
    "area": "rectangle",
    "words": "text",
    "truth": "boolean",
}
TABLES: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "tags": {
        "E1": {"who": "anna", "level": "3.5"},
        "E2": {"who": "bob", "level": "x"},
        "7": {"who": "seven", "level": "-0"},
        "E3": {"who": "", "level": "1e3"},
        "Grün": {"who": "Zoë", "level": "0.1"},
    },
    "sensors": {
        "s1": {"x": "10.5", "y": "-3", "heading": "33.3"},
        "s2": {"x": "0", "y": "7.25", "heading": "90"},
        "s3": {"x": "no", "y": "1", "heading": "0"},
        "8": {"x": "1e3", "y": "0.1", "heading": "-725.5"},
    },
}

Make = Callable[[Random], Any]


class Case(msgspec.Struct):
    """A source, how it speaks, and how good values of its fields are made, by path."""

    binding: SourceBinding
    fields: dict[tuple[str, ...], Make]
    plain: FieldsInterpretation | None = None
    typed: Typed | None = None


def ontology_of(cases: Sequence[Case]) -> Ontology:
    """One concept, given by all of them."""
    return Ontology(
        concepts={CONCEPT: ATTRIBUTES},
        relationships={},
        sources={
            case.binding.source: PushSource(
                name=case.binding.source,
                concept=CONCEPT,
                attribute=case.binding.attribute,
                further=case.binding.further,
                key="key",
                value=(),
                interpretation=case.binding.interpretation,
            )
            for case in cases
        },
        units={CONCEPT: {"temp": "degC"}},
    )


def in_force_of(cases: Sequence[Case]) -> ActiveInterpretations:
    """All interpretations together; one with faults refuses itself."""
    attributes = {
        name: ConceptAttribute(kind, "degC" if name == "temp" else "")
        for name, kind in ATTRIBUTES.items()
    }
    return activate(
        {case.plain.name: case.plain for case in cases if case.plain is not None},
        [case.typed for case in cases if case.typed is not None],
        concepts={CONCEPT: attributes},
    )[0]


# --- values

ISO = (
    "2026-03-02T09:14:05.210Z",
    "2026-03-02T09:14:05Z",
    "1969-12-31 23:59:59.999999-05:30",
    "2026-03-29T02:30:00",
    "2026-10-25T02:30:00.000",
    "2026-07-01T12:00:00",
    "1947-07-01T12:00:00",
    "2026-02-30T00:00:00Z",
    "0000-01-01T00:00:00Z",
    "9999-12-31T23:59:59-14:00",
    "2026-03-02",
    " 2026-03-02T09:14:05Z",
)
_NUMBERS = (0, 1, -7, 0.1, -0.0, 1e-300, 5e-324, 1e300, 1.7e308, 2**53 + 1, 2**63, 10**25, 1 / 3)
EPOCHS = (0, 1772442845.3, 0.0005, 0.0015, -1.5, 1e15, -62135596800, 253402300799.999, 3e11)
_ODD = (
    None,
    True,
    "",
    "x",
    5,
    5.5,
    -0.0,
    10**400,
    [1],
    {"a": 1},
    "5",
    "5,5",
    "5.5",
    "true",
    "E1",
    "s1",
    "-0",
    "1e5",
    "2026-03-02T09:14:05Z",
    "[",
    "a\u0000b",
    "\u00a0",
    "\U0001f600",
    "x" * 300,
)
_BROKEN: tuple[Callable[[str], str], ...] = (
    lambda text: text + "x",
    lambda text: text + "}",
    lambda text: text[:-1],
    lambda text: f"[{text}]",
    lambda text: f"[{text},{text}]",
    lambda text: "\ufeff" + text,
    lambda text: f" {text}\n",
    lambda text: "null",
    lambda text: text[:-1] + ',"more":1e999}',
    lambda text: text[:-1] + ',"more":1e-999,"most":' + "1" * 310 + "}",
    lambda text: text[:-1] + ',"more":"\\ud800"}',
    lambda text: text[:-1] + ',"@type":"thing"}',
    lambda text: text[:-1] + ',"more":' + "[" * 120 + "]" * 120 + "}",
    lambda text: text[:-1] + "," + text[1:],
)


class _Tame(Random):
    """Gives what comes first, and numbers from the middle."""

    def choice(self, seq: Any) -> Any:
        return seq[self.randrange(min(2, len(seq)))]

    def random(self) -> float:
        return 0.25 + super().random() / 2


def payload(case: Case, chance: Random) -> bytes:
    """Every second one is what the source would send; others are not quite, or not at all."""
    if chance.random() < 0.5:
        chance = _Tame(chance.randrange(2**32))
    value: dict[str, Any] = {}
    for path, make in case.fields.items():
        if chance.random() < 0.02:
            continue
        here = value
        for name in path[:-1]:
            here = here.setdefault(name, {})
        here[path[-1]] = chance.choice(_ODD) if chance.random() < 0.06 else make(chance)
    if chance.random() < 0.05:
        value["more"] = {"key": 1, "temp": [2]}
    if value and chance.random() < 0.03:
        value[chance.choice(list(value))] = chance.choice(_ODD)
    text = json.dumps(value, ensure_ascii=chance.random() < 0.5)
    if chance.random() < 0.08:
        text = chance.choice(_BROKEN)(text)
    found = text.encode("utf-8", "surrogatepass")
    return found[:-3] + b"\xff" + found[-3:] if chance.random() < 0.02 else found


def one_of(*values: Any) -> Make:
    return lambda chance: chance.choice(values)


def some_number(chance: Random) -> Any:
    return chance.choice(_NUMBERS) if chance.random() < 0.4 else chance.uniform(-1e3, 1e3)


def number_text(mark: str) -> Make:
    def make(chance: Random) -> Any:
        number = chance.choice((f"{chance.uniform(-99, 99):.3f}", "-0.0", "7", "+1.5", "1e3"))
        text = number.replace(".", mark)
        return chance.choice((text, text, f" {text}", chance.uniform(-9, 9)))

    return make


def binding_of(name: str, attribute: str, kind: AttributeType) -> SourceBinding:
    units = ("degC",) if attribute == "temp" else ()
    return SourceBinding(
        source=name,
        concept=CONCEPT,
        attribute=attribute,
        type=kind,
        interpretation=name,
        units=units,
    )
