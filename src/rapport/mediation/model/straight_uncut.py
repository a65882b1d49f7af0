"""Objects that a batch hands on in the bytes they came in: those that nothing is done to, and whose
bytes are what an encoder would write. [ME-8]

To look at the bytes costs half of what it costs to decode and encode them, where an object has many
objects in it; for others it costs more, and they are decoded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from rapport.mediation.model.types import Types

FEWEST_OBJECTS = 5
"""Fewer are decoded and encoded as fast as they are looked at."""
MOST_ODD = 20
"""So many objects of a batch that are written otherwise are decoded by themselves; then everything
is decoded at once, which costs less if more of them come.
"""
_MOST_ATTRIBUTES = 200
_TEXT = r'"[ !#-\[\]-~]*+"'
"""Without anything that can be written in two ways: no escapes, and of Unicode only ASCII."""
_KINDS = {"text": _TEXT, "boolean": "(?:true|false)"}


class Uncut(msgspec.Struct, frozen=True):
    """Where an event has such an object, by slots; whether its bytes are as they are written here,
    and what it is decoded into if not.
    """

    path: tuple[str, ...]
    is_usual: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def usual_form(types: Types, type_name: str) -> Callable[[Any], Any] | None:
    """Looks whether bytes are an object of the type with all its attributes in order and none of
    them null, as an encoder writes it; linear in the bytes. None for types that are not worth it,
    or have attributes that can be written in several ways.
    """
    pattern = _Pattern(types)
    text = pattern.of(type_name)
    if text is None or pattern.objects < FEWEST_OBJECTS:
        return None
    return re.compile(text.encode()).fullmatch


class _Pattern:
    """Counts what it wrote: a type may have another one in many places."""

    def __init__(self, types: Types) -> None:
        self._types = types
        self.objects = self._attributes = 0

    def of(self, type_name: str) -> str | None:
        self.objects += 1
        members: list[str] = []
        for attribute in self._types.attributes(type_name).values():
            self._attributes += 1
            value = self._value(attribute.type) if self._attributes <= _MOST_ATTRIBUTES else None
            if value is None:
                return None
            name = msgspec.json.encode(attribute.name).decode()
            members.append(f"{re.escape(name)}:{value}")
        return rf"\{{{','.join(members)}\}}"

    def _value(self, type_name: str) -> str | None:
        kind = self._types.kind(type_name)
        if kind != "object":
            return _KINDS.get(kind)
        return self.of(type_name) if len(self._types.dynamic(type_name)) == 1 else None
