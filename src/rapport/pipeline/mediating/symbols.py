"""What stands for a value while a typed plan becomes column operations. [ME-14, PI-4]"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from rapport.mediation.types import TAG, Types
from rapport.pipeline.mediating.nodes import Node, NotColumnsError, Path, Taken


class Field(msgspec.Struct):
    """A field of the payload, as it is."""

    path: Path
    type: str
    optional: bool


class Made(msgspec.Struct):
    """Something calculated."""

    node: Node


class Obj(msgspec.Struct):
    """An object by its attributes; `path` where it stands in the payload, if it does."""

    parts: dict[str, Any]
    path: Path = ()


Symbol = Field | Made | Obj


class Around(Protocol):
    """The plan under way."""

    def field(self, field: Field, look: str) -> Taken:
        """How a field is taken out of the payload."""

    def show(self, place: str, what: str, why: str = "") -> None:
        """A step for people; `why` it is Python's."""


def opened(symbol: Symbol, types: Types, place: str) -> Obj:
    """An object by its attributes; raises NotColumnsError."""
    if isinstance(symbol, Obj):
        return symbol
    if not isinstance(symbol, Field) or not types.is_complex(symbol.type):
        raise NotColumnsError(place, "it is no object")
    if symbol.path and len(types.dynamic(symbol.type)) > 1:
        raise NotColumnsError(place, f"it may be of a subtype of {symbol.type}")
    parts = {
        name: Field((*symbol.path, name), each.type, each.optional)
        for name, each in types.attributes(symbol.type).items()
        if name != TAG
    }
    return Obj(parts, symbol.path)
