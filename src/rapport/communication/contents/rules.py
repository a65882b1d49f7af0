"""What the content of a message must be like: the schemas of types, looked up at the door. [CO-14]

Content is read as JSON. What does not look like JSON may also fit as the text it is, so that a type
may be words of a certain length; not so when the message says that its language is JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from rapport.communication.contents.fitting import Misfit, misfit
from rapport.core.errors import InvalidInput
from rapport.core.message import Message

BAD_CONTENT = "message.bad_content"
JSON_LANGUAGES = ("json", "application/json")
_SHOWN = 300


class ContentFault(msgspec.Struct, frozen=True, kw_only=True):
    """Why a content is refused: code, where, what, and what to do."""

    code: str = BAD_CONTENT
    place: str = ""
    """A JSON pointer into the content; empty = the whole of it."""
    message: str
    hint: str

    def as_error(self) -> InvalidInput:
        """The fault for who can be told at once."""
        return InvalidInput(self.message, code=self.code, hint=self.hint)


class Contents(Protocol):
    """What the door asks of each message."""

    async def refresh(self) -> None:
        """Takes in what changed elsewhere; called before each batch, cheap when nothing did."""

    def fault(self, message: Message) -> ContentFault | None:
        """Why this content cannot pass; never raises."""


class AnyContent:
    """For a node whose messages have no schemas."""

    async def refresh(self) -> None:
        """Nothing to learn."""

    def fault(self, message: Message) -> ContentFault | None:
        """Everything fits."""
        return None


ANY_CONTENT = AnyContent()


class ContentRules:
    """Schemas by type and subtype; a subtype without one of its own has its type's."""

    def __init__(self, schemas: Mapping[tuple[str, str], dict[str, Any] | None]) -> None:
        """`schemas`: None for a subtype that is told of without a schema: its content is free."""
        self._schemas = dict(schemas)

    def fault(self, message: Message) -> ContentFault | None:
        """Why this content does not fit; costs one look-up for types without a schema."""
        kind = (message.type, message.subtype)
        schema = self._schemas.get(kind if kind in self._schemas else (message.type, ""))
        if not schema:
            return None
        found = _misfit(schema, message)
        return None if found is None else _told(message, found)


def _misfit(schema: dict[str, Any], message: Message) -> Misfit | None:
    content = message.content
    is_json = message.language.lower() in JSON_LANGUAGES or content.lstrip()[:1] in ("{", "[", '"')
    try:
        value = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        found = Misfit("", f"JSON is wanted ({str(error)[:_SHOWN]})")
    else:
        read = misfit(schema, value)
        if read is None:
            return None
        found = read
    return found if is_json or misfit(schema, content) is not None else None


def _told(message: Message, found: Misfit) -> ContentFault:
    type, subtype = message.type, message.subtype
    place = _printable(found.place)
    where = f" at {place}" if place else ""
    asked = f"{type} {subtype}".strip()
    return ContentFault(
        place=place,
        message=f"the content does not fit the schema of {asked}{where}: "
        + _printable(found.wanted),
        hint=f"`rapport info show {asked}` or GET /messages/info/{type}{'/' * bool(subtype)}"
        f"{subtype} gives the JSON Schema",
    )


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_SHOWN])
