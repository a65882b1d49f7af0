"""Mediation in a client: the same transformers, built from the interpretations a node exports.
Pure. [ME-9]

A client that converts canonical events itself saves the node this work; a publisher may send
canonical events. Results equal the node's, since the code is generated from the same declarations.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rapport.core.errors import InvalidInput
from rapport.core.event import Event, StoredEvent
from rapport.mediation.codegen.transformer import Transformer, make_transformer
from rapport.mediation.concepts import ConceptAttribute
from rapport.mediation.interpretations.model import FormatChoice, Interpretation
from rapport.mediation.interpretations.registry import (
    InterpretationRegistry,
    RegisteredInterpretation,
    Replacement,
)
from rapport.mediation.interpretations.repository import ActiveInterpretations
from rapport.mediation.memory import ConversionMemory, Functions
from rapport.mediation.outgoing.consumer_transformer import ConsumerTransformer
from rapport.mediation.rejections import RejectedValue


class _ExportedInterpretations(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The wire format of all typed interpretations of a node."""

    roots: tuple[Interpretation, ...]
    replacements: tuple[Replacement, ...] = ()
    held: dict[str, RegisteredInterpretation] = {}
    concepts: dict[str, dict[str, ConceptAttribute]] = {}
    formats: dict[str, FormatChoice] = {}


def export_interpretations(in_force: ActiveInterpretations) -> bytes:
    """Everything that clients need to mediate, as JSON."""
    typed = in_force.typed
    exported = _ExportedInterpretations(
        typed.canonical_versions,
        typed.replacements,
        dict(typed.registered),
        {concept: dict(attributes) for concept, attributes in in_force.concepts.items()},
        dict(in_force.formats),
    )
    return msgspec.json.encode(exported)


def import_interpretations(body: bytes) -> ActiveInterpretations:
    """Reads the result of `export_interpretations`; raises InvalidInput."""
    try:
        exported = msgspec.json.decode(body, type=_ExportedInterpretations)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(
            f"these are not exported interpretations: {error}", code="interpretation.unreadable"
        ) from None
    typed = InterpretationRegistry(exported.roots, exported.replacements, exported.held)
    return ActiveInterpretations({}, typed, formats=exported.formats, concepts=exported.concepts)


class Mediator:
    """Mediates for one interpretation. Transformers are built at the first event of a type, in
    some milliseconds. Site functions must be given and run in this process.
    """

    def __init__(self, body: bytes, interpretation: str, functions: Functions | None = None):
        """`body`: the result of `export_interpretations`. Raises InvalidInput, UnknownName
        with the nearest name, InterpretationError.
        """
        self._in_force = import_interpretations(body)
        self._functions, self._memory = functions, ConversionMemory()
        self._consumer = ConsumerTransformer(self._in_force, interpretation, functions)
        self._received: dict[str, Transformer] = {}

    @property
    def stamp(self) -> str:
        """`name@version`; comparable with the header `interpretation` of an event."""
        return self._consumer.stamp

    def from_root(self, event: Event) -> list[Event]:
        """Converts a canonical event as the node would deliver it. Raises InvalidInput."""
        result = self._consumer.transform(StoredEvent(0, 0, event))
        if result.code:
            raise InvalidInput(result.message, code=result.code)
        return list(result.events)

    def to_root(self, type_name: str, value: Any) -> list[tuple[str, Any]]:
        """Converts a value of one of this interpretation's types to canonical values, each
        with its type. Raises InvalidInput, InterpretationError, UnknownName.
        """
        if type_name not in self._received:
            name, typed = self._consumer.name, self._in_force.typed
            self._received[type_name] = make_transformer(
                typed, name, type_name, "in", self._functions, self._memory
            )
        transformer = self._received[type_name]
        try:
            found = transformer(value)
        except RejectedValue as rejected:
            raise InvalidInput(rejected.message, code=rejected.code, hint=rejected.hint) from None
        values = found if transformer.plan.several else [found]
        return [(one.get("@type") or transformer.plan.result_type, one) for one in values]
