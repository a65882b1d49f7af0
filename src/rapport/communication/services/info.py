"""What a type of message means, how to answer it, and which messages relate to it. Pure. [CO-14]

Three layers: what is shipped (info_predefined.py), what the site file says, and what was added at
run time; the later ones replace the earlier.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from rapport.communication.services.info_schema import check_schema
from rapport.core.errors import InvalidInput, UnknownName

LONGEST_TEXT, LONGEST_REMARK = 10_000, 1_000
"""Characters about a type of message, and about each that relates to it."""
_LONGEST_PRETTY = 100_000
LONGEST_NAME = 100
MOST_RELATED = 100

Kind = tuple[str, str]
"""Type and subtype of a message; an empty subtype stands for those that have no entry of their own.
"""


class RelatedMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another type of message, and what it has to do with this one."""

    type: str
    subtype: str = ""
    text: str = ""


class MessageInformation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that is told of a type of message."""

    text: str
    """For people: what it means and what to do about it."""
    schema: dict[str, Any] = {}
    """For programs: the JSON Schema of its content; empty when the content is free text."""
    answers: tuple[RelatedMessage, ...] = ()
    """Messages that are expected in response."""
    related: tuple[RelatedMessage, ...] = ()
    """Other messages that belong to the same matter."""


class InformationFound(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the type that was asked for; an empty subtype holds for all of the type."""

    type: str
    subtype: str
    information: MessageInformation
    origin: str
    """`shipped`, `site` or `added`."""


class MessageCatalogue:
    """Everything that is told of messages, by type and subtype."""

    def __init__(self, layers: Iterable[tuple[str, Mapping[Kind, MessageInformation]]]) -> None:
        """`layers`: each with the name of its origin, the one that counts least first."""
        self._found: dict[Kind, InformationFound] = {}
        for origin, known in layers:
            for (type, subtype), information in known.items():
                self._found[type, subtype] = InformationFound(
                    type=type, subtype=subtype, information=information, origin=origin
                )

    def find(self, type: str, subtype: str = "") -> InformationFound:
        """What is told of a message: of exactly this subtype, else of the type in general.

        Raises UnknownName (`message.unknown`) with the nearest type that is known.
        """
        found = self._found.get((type, subtype)) or self._found.get((type, ""))
        if found is not None:
            return found
        subtypes = [known for of, known in self._found if of == type]
        if subtypes and subtype:
            raise UnknownName(f"message of type {type}", subtype, subtypes, code="message.unknown")
        names = sorted({of for of, _subtype in self._found})
        if not subtypes:
            raise UnknownName("message type", type, names, code="message.unknown")
        error = UnknownName("message type without a subtype", type, (), code="message.unknown")
        error.hint = f"ask for one of its subtypes: {', '.join(sorted(subtypes))}"
        raise error

    def all(self) -> list[InformationFound]:
        """Everything, by type and subtype."""
        return [self._found[kind] for kind in sorted(self._found)]


def check_information(type: str, subtype: str, information: MessageInformation) -> None:
    """Raises InvalidInput for what cannot be told of a message."""
    check_kind(type, subtype)
    if not information.text.strip():
        raise _bad("it has no text", "say what the message means and how to answer it")
    if len(information.text) > LONGEST_TEXT:
        raise _bad("its text is too long", f"at most {LONGEST_TEXT} characters")
    for each in (*information.answers, *information.related):
        check_kind(each.type, each.subtype)
        if len(each.text) > LONGEST_REMARK:
            raise _bad("a text is too long", f"at most {LONGEST_REMARK} characters")
    if len(information.answers) > MOST_RELATED or len(information.related) > MOST_RELATED:
        raise _bad("it names too many messages", f"at most {MOST_RELATED} of each kind")
    if information.schema:
        check_schema(information.schema)


def check_kind(type: str, subtype: str = "") -> None:
    """Raises InvalidInput unless these may be the type and subtype of a message."""
    for name, value, needed in (("type", type, True), ("subtype", subtype, False)):
        if (needed and not value) or len(value) > LONGEST_NAME or not _is_printable(value):
            raise _bad(
                f"{value[:40]!r} cannot be the {name} of a message",
                f"1 to {LONGEST_NAME} characters that can be printed",
            )


def as_text(found: InformationFound) -> str:
    """The information as a person reads it.

    >>> told = MessageInformation(text="Please check a machine.")
    >>> print(as_text(InformationFound(type="TASK", subtype="", information=told, origin="site")))
    TASK
    Please check a machine.
    """
    told = found.information
    lines = [_shown(found.type, found.subtype), told.text.strip()]
    for title, several in (("Answer with:", told.answers), ("See also:", told.related)):
        if several:
            lines += ["", title]
            lines += [
                f"- {_shown(one.type, one.subtype)}: {one.text}".rstrip(": ") for one in several
            ]
    if told.schema:
        plain = msgspec.json.encode(told.schema)
        pretty = msgspec.json.format(plain, indent=2)
        schema = pretty if len(pretty) <= _LONGEST_PRETTY else plain
        lines += ["", "Its content, as JSON Schema:", schema.decode()]
    return "\n".join(lines)


def _shown(type: str, subtype: str) -> str:
    return f"{type} {subtype}".strip()


def _is_printable(text: str) -> bool:
    return text.isprintable()


def _bad(message: str, hint: str) -> InvalidInput:
    return InvalidInput(f"this cannot be told of a message: {message}", code="info.bad", hint=hint)
