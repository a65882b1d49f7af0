"""The readings that are in a value of root, as column operations. [ME-14, PI-4]"""

from __future__ import annotations

from collections.abc import Mapping

from rapport.core.schema import PARTS
from rapport.mediation.concepts import KEY, TIME, ConceptAttribute
from rapport.mediation.source_bindings import SourceBinding
from rapport.mediation.types import Types
from rapport.pipeline.mediating.nodes import (
    EnvelopeTime,
    FirstOf,
    Given,
    Node,
    NotColumnsError,
    Taken,
)
from rapport.pipeline.mediating.outcomes import part_columns
from rapport.pipeline.mediating.symbols import Around, Field, Made, Obj, Symbol, opened


class Results:
    """What a source gives, taken out of the value that its plan ends with."""

    def __init__(self, types: Types, around: Around) -> None:
        self._types, self._around = types, around

    def key(self, value: Obj) -> Node:
        """Whom it is about."""
        symbol = value.parts.get(KEY)
        if isinstance(symbol, Field) and self._types.kind(symbol.type) != "object":
            return Taken(symbol.path, "name")
        if isinstance(symbol, Made) and symbol.node.kind == "text":
            return symbol.node
        raise NotColumnsError(KEY, "it is no text")

    def time(self, value: Obj) -> Node:
        """When; the envelope says it where the value does not."""
        symbol = value.parts.get(TIME)
        if symbol is None:
            return EnvelopeTime()
        node: Node
        if isinstance(symbol, Field):
            node = Taken(symbol.path, "moment")
        elif isinstance(symbol, Made) and symbol.node.kind == "integer":
            node = symbol.node
        else:
            raise NotColumnsError(TIME, "it is no time")
        return FirstOf((node, EnvelopeTime()), "integer")

    def given(
        self, value: Obj, binding: SourceBinding, attributes: Mapping[str, ConceptAttribute]
    ) -> tuple[Given, ...]:
        """The attributes that can be there."""
        there = [name for name in binding.attributes if value.parts.get(name) is not None]
        return tuple(
            self._given(f"{binding.concept}.{name}", name, value.parts[name], attributes[name])
            for name in there
        )

    def _given(self, stream: str, name: str, symbol: Symbol, attribute: ConceptAttribute) -> Given:
        kind, columns = attribute.type, tuple(part_columns(attribute.type).values())
        if kind not in ("point", "rectangle"):
            return Given(stream, name, (self._scalar(symbol, kind, name),), columns, needed=False)
        whole = opened(symbol, self._types, name)
        parts = []
        for part in PARTS[kind]:
            if part not in whole.parts:
                raise NotColumnsError(name, f"nothing gives its {part}")
            parts.append(self._scalar(whole.parts[part], "number", f"{name}.{part}"))
        if whole.path:
            return Given(stream, name, tuple(parts), columns, needed=False, within=whole.path)
        return Given(stream, name, tuple(parts), columns)

    def _scalar(self, symbol: Symbol, kind: str, place: str) -> Node:
        if isinstance(symbol, Field):
            found = self._types.kind(symbol.type)
            if found == kind or (found, kind) == ("integer", "number"):
                return self._around.field(symbol, kind)
        elif isinstance(symbol, Made) and symbol.node.kind == kind:
            return symbol.node
        raise NotColumnsError(place, f"it is no {kind}")
