"""What is known of a source's payloads before they get their meaning: their format, and the field
that names them. [ME-13, CH-6]
"""

from __future__ import annotations

from typing import Any

import msgspec

from rapport.core.errors import UnknownName
from rapport.core.event import Event
from rapport.mediation.binding import SourceBinding
from rapport.mediation.formats.base import Document
from rapport.mediation.formats.named import format_named
from rapport.mediation.in_force import InForce
from rapport.mediation.interpretation import FormatChoice
from rapport.mediation.rejection import Rejected


class RawReading(msgspec.Struct, frozen=True):
    """The format of a source's payloads; `own_id` is the field with the id of an event, if any."""

    format: FormatChoice
    own_id: str = ""

    def declared_id(self, event: Event) -> str:
        """The id that the payload itself says; empty where none is declared, where it is missing,
        and for a payload of several documents, which have ids of their own.
        """
        if not self.own_id:
            return ""
        try:
            documents = format_named(self.format.name, self.format.options).read(event, {})
        except Rejected:
            return ""  # quarantined with the reason when it is given its meaning
        return own_id(documents[0], self.own_id) if len(documents) == 1 else ""


def raw_reading(binding: SourceBinding, in_force: InForce) -> RawReading:
    """How a source's payloads are read; as JSON where its interpretation is not in force."""
    try:
        choice = in_force.format_of(binding.interpretation)
    except UnknownName:
        choice = FormatChoice()
    return RawReading(choice, binding.own_id)


def own_id(document: Document, field: str) -> str:
    """What a document says at its id field."""
    return field_id(document.value, field)


def field_id(value: Any, field: str) -> str:
    """What a value says at its id field: text or a whole number; empty when it says none."""
    said: Any = value.get(field) if field and isinstance(value, dict) else None
    if isinstance(said, str):
        return said.strip()
    return str(said) if isinstance(said, int) and not isinstance(said, bool) else ""
