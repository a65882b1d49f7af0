"""What a type of message means, how to answer it, and which messages relate to it.
[CO-2, CO-14, UX-2]

Three layers, each overriding the ones before: messages that Rapport itself defines, the
`[messages.TYPE]` tables of the site file, and what was added at run time.

```toml
[messages.TASK.REQUEST]           # or [messages.TASK] for every subtype that has no table
text = "Please check a machine."
schema = "schemas/task.json"      # a file in the site's directory, or a table
answers = [{ type = "TASK", subtype = "DONE", text = "when it is done" }]
related = [{ type = "TASK", subtype = "CANCEL" }]
```
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from rapport.communication.message_schema import LARGEST_SCHEMA_BYTES, check_schema
from rapport.core.errors import InvalidInput, Problem, UnknownName
from rapport.kernel.config_fields import Fields
from rapport.kernel.files import is_file, is_inside
from rapport.kernel.toml import Section, TomlFile

LONGEST_TEXT, LONGEST_REMARK = 10_000, 1_000
"""Characters of the text about a type, and of that about a related message."""
_LONGEST_PRETTY = 100_000
LONGEST_NAME = 100
MOST_RELATED = 100

Kind = tuple[str, str]
"""Type and subtype of a message; an empty subtype stands for those without an entry of their own.
"""

_TEXT = {"type": "string"}
_REASON = {"type": "string", "description": "What went wrong, for people."}
_CODE = {"type": "string", "description": "The stable code of the error."}
_OPTIONAL_TEXT = {"type": "string", "description": "For people; may be empty."}
_KEYS = ("text", "schema", "answers", "related")
_RELATED_KEYS = ("type", "subtype", "text")
_EXAMPLE = '[{ type = "TASK", subtype = "DONE", text = "when it is done" }]'


class RelatedMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another type of message and its relation to this one."""

    type: str
    subtype: str = ""
    text: str = ""


class MessageInformation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The information about a type of message."""

    text: str
    """For people: its meaning and how to react."""
    schema: dict[str, Any] = {}
    """For programs: the JSON Schema of its content; empty when the content is free text."""
    answers: tuple[RelatedMessage, ...] = ()
    """Messages that are expected in reply."""
    related: tuple[RelatedMessage, ...] = ()
    """Other messages about the same matter."""


class MessageInfoEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the catalogue; an empty subtype holds for all of the type."""

    type: str
    subtype: str
    information: MessageInformation
    origin: str
    """`shipped`, `site` or `added`."""


class MessageCatalogue:
    """The information about all messages, by type and subtype."""

    def __init__(self, layers: Iterable[tuple[str, Mapping[Kind, MessageInformation]]]) -> None:
        """`layers`: each with the name of its origin; later ones override earlier ones."""
        self._found: dict[Kind, MessageInfoEntry] = {}
        for origin, known in layers:
            for (type, subtype), information in known.items():
                self._found[type, subtype] = MessageInfoEntry(
                    type=type, subtype=subtype, information=information, origin=origin
                )

    def find(self, type: str, subtype: str = "") -> MessageInfoEntry:
        """The entry of a message: of exactly this subtype, else of the type in general.

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
        error.hint = f"give one of its subtypes: {', '.join(sorted(subtypes))}"
        raise error

    def all(self) -> list[MessageInfoEntry]:
        """All entries, by type and subtype."""
        return [self._found[kind] for kind in sorted(self._found)]


def check_information(type: str, subtype: str, information: MessageInformation) -> None:
    """Raises InvalidInput for invalid information."""
    check_kind(type, subtype)
    if not information.text.strip():
        raise _bad("it has no text", "write what the message means and how to answer it")
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
    """Raises InvalidInput unless these are a valid type and subtype."""
    for name, value, needed in (("type", type, True), ("subtype", subtype, False)):
        if (needed and not value) or len(value) > LONGEST_NAME or not _is_printable(value):
            raise _bad(
                f"{value[:40]!r} cannot be the {name} of a message",
                f"1 to {LONGEST_NAME} characters that can be printed",
            )


def as_text(found: MessageInfoEntry) -> str:
    """The information as a text for people.

    >>> info = MessageInformation(text="Please check a machine.")
    >>> print(as_text(InformationFound(type="TASK", subtype="", information=info, origin="site")))
    TASK
    Please check a machine.
    """
    information = found.information
    lines = [_shown(found.type, found.subtype), information.text.strip()]
    for title, several in (
        ("Answer with:", information.answers),
        ("See also:", information.related),
    ):
        if several:
            lines += ["", title]
            lines += [
                f"- {_shown(one.type, one.subtype)}: {one.text}".rstrip(": ") for one in several
            ]
    if information.schema:
        plain = msgspec.json.encode(information.schema)
        pretty = msgspec.json.format(plain, indent=2)
        schema = pretty if len(pretty) <= _LONGEST_PRETTY else plain
        lines += ["", "Its content, as JSON Schema:", schema.decode()]
    return "\n".join(lines)


def _shown(type: str, subtype: str) -> str:
    return f"{type} {subtype}".strip()


def _is_printable(text: str) -> bool:
    return text.isprintable()


def _bad(message: str, hint: str) -> InvalidInput:
    return InvalidInput(f"invalid message information: {message}", code="info.bad", hint=hint)


def _object(required: str = "", **properties: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return schema | ({"required": required.split()} if required else {})


def _message(type: str, subtype: str = "", text: str = "") -> RelatedMessage:
    return RelatedMessage(type=type, subtype=subtype, text=text)


_FAULT = _object("code reason", code=_CODE, reason=_REASON)
_WANTED = {
    "description": "Which message: its type and subtype, or the id of one that was sent. A plain "
    "text such as TASK REQUEST is understood, too.",
    "anyOf": [
        _object("type", type=_TEXT, subtype=_TEXT),
        _object("id", id=_TEXT),
        _TEXT,
    ],
}
_INFORMATION = _object(
    "type subtype text",
    type=_TEXT,
    subtype=_TEXT,
    text=_TEXT,
    schema={"type": "object"},
    answers={"type": "array", "items": {"$ref": "#/$defs/message"}},
    related={"type": "array", "items": {"$ref": "#/$defs/message"}},
)
_MESSAGE = _object("type", type=_TEXT, subtype=_TEXT, text=_TEXT)

PREDEFINED: dict[Kind, MessageInformation] = {
    ("CONTROL", ""): MessageInformation(
        text="Says how the delivery of another message went; refers-to names that message. Nobody "
        "has to answer it.",
        schema=_OPTIONAL_TEXT,
        related=(
            _message("CONTROL", "ACK", "it was delivered"),
            _message("CONTROL", "ERROR", "something went wrong"),
            _message("CONTROL", "COMERROR", "it could not be delivered"),
            _message("CONTROL", "TIMEOUT", "its time is over"),
        ),
    ),
    ("CONTROL", "ACK"): MessageInformation(
        text="The message named in refers-to was delivered as its delivery policy asks: the medium "
        "took it, or, where an answer counts, somebody answered. That the medium took it does not "
        "mean that somebody read it or agrees. Not sent for messages that want no acknowledgement.",
        schema=_OPTIONAL_TEXT,
        related=(_message("CONTROL", "COMERROR", "the contrary"),),
    ),
    ("CONTROL", "ERROR"): MessageInformation(
        text="Something about the message named in refers-to is wrong; the content says what. "
        "Correct the message and send it again. Routing rules may send this on to others.",
        schema=_OPTIONAL_TEXT,
        related=(_message("CONTROL", "COMERROR", "a fault on the way, not in the message"),),
    ),
    ("CONTROL", "COMERROR"): MessageInformation(
        text="The message named in refers-to did not reach its receiver: no address, no adapter, "
        "refused by the receiver's privacy rules, or every attempt failed; the content says which. "
        "It goes to the sender of the message, also when no acknowledgement was asked for. Reach "
        "the receiver in another way, or send it again when the reason is gone.",
        schema=_OPTIONAL_TEXT,
        related=(_message("CONTROL", "ACK", "the contrary"), _message("CONTROL", "TIMEOUT")),
    ),
    ("CONTROL", "TIMEOUT"): MessageInformation(
        text="The time to live of the message named in refers-to ended before it was delivered, or "
        "nobody answered in time. What comes in later is written down and changes nothing.",
        schema=_OPTIONAL_TEXT,
        related=(_message("CONTROL", "COMERROR", "it failed before its time was over"),),
    ),
    ("MESSAGEINFO", "REQUEST"): MessageInformation(
        text="Asks what a type of message means and how to answer it. Put the type and subtype "
        "into the content, or leave it empty and name a message in refers-to. For an answer in "
        "JSON set language to application/json.",
        schema=_WANTED,
        answers=(
            _message("MESSAGEINFO", "REPLY", "what is known"),
            _message("CONTROL", "ERROR", "nothing is known of such a message"),
        ),
    ),
    ("MESSAGEINFO", "REPLY"): MessageInformation(
        text="Says what a type of message means, what its content looks like, and how to answer "
        "it; refers-to names the request. Nobody has to answer it. A text for people, unless the "
        "request asked for JSON.",
        schema={"anyOf": [_TEXT, _INFORMATION], "$defs": {"message": _MESSAGE}},
        related=(_message("MESSAGEINFO", "REQUEST", "asks for it"),),
    ),
    ("AUTH", "REQUEST"): MessageInformation(
        text="A peer shows who it is and asks for a session token. The sender is the peer, the "
        "content its password. Without a password, and with a session token that is still good, "
        "it asks for a new one.",
        schema=_object(password={"type": "string", "description": "Never logged."}),
        answers=(
            _message("AUTH", "REPLY", "a session token"),
            _message("AUTH", "FAILED", "the name or the password is wrong"),
            _message("AUTH", "ERROR", "it could not be checked now"),
        ),
    ),
    ("AUTH", "REPLY"): MessageInformation(
        text="The peer is known; session-token has its token. Send it with every message until it "
        "expires, and ask for a new one before that.",
        schema=_object(
            "expires",
            expires={"type": "string", "format": "date-time"},
            seal_key={"type": "string", "description": "For signing and encrypting messages."},
        ),
        related=(_message("AUTH", "REQUEST", "asks for it, and renews it"),),
    ),
    ("AUTH", "FAILED"): MessageInformation(
        text="The name or the password is wrong, or the session token is not good any more. Ask "
        "again with the right password; after several failures one has to wait.",
        schema=_FAULT,
        answers=(_message("AUTH", "REQUEST", "with the right password"),),
    ),
    ("AUTH", "ERROR"): MessageInformation(
        text="Whether the password is right could not be found out now: what checks it cannot be "
        "reached, or there were too many attempts. Ask again later.",
        schema=_object(
            "code reason",
            code=_CODE,
            reason=_REASON,
            retry_after_seconds={"type": "number", "minimum": 0},
        ),
        answers=(_message("AUTH", "REQUEST", "after some time"),),
    ),
    ("NOTIFICATION", ""): MessageInformation(
        text="A policy found a situation that somebody wanted to be told of. The subtype is the "
        "policy's phrase, such as 'raise alarm'; the content says what was found and where. "
        "conversation-id names the detection. Where the message has a link, open it and press the "
        "button, or answer by the way it came: that tells the others that you see to it.",
        schema=_TEXT,
        related=(_message("ACTION", "", "what is done without people"),),
    ),
    ("ACTION", ""): MessageInformation(
        text="A policy found a situation in which a program is to do something: an address is "
        "called or an event is written. The subtype is the policy's phrase, the content says what "
        "is done. Nobody has to answer it.",
        schema=_TEXT,
        related=(_message("NOTIFICATION", "", "what people are told"),),
    ),
}


def info_from_site(
    file: TomlFile, directory: Path
) -> tuple[dict[Kind, MessageInformation], list[Problem]]:
    """The information of `[messages]` and all its problems; never raises for a wrong site."""
    problems: list[Problem] = []
    found: dict[Kind, MessageInformation] = {}
    section = file.section("messages")
    for key, value in section.values.items():
        if not isinstance(value, dict):
            message, hint = f"messages.{key} is not a table", f"write [messages.{key}]"
            problems.append(section.problem(key, "site.not_a_table", message, hint=hint))
    if not isinstance(file.values.get("messages", {}), dict):
        message = "messages is not a table"
        problems.append(
            file.problem(("messages",), "site.not_a_table", message, hint="write [messages.TYPE]")
        )
    for type, table in section.sections():
        subtypes = [(name, below) for name, below in table.sections() if name not in _KEYS]
        own = {key: value for key, value in table.values.items() if key not in dict(subtypes)}
        if own or not subtypes:
            _read_entry(found, (type, ""), Section(file, table.path, own), directory, problems)
        for subtype, below in subtypes:
            _read_entry(found, (type, subtype), below, directory, problems)
    return found, problems


def _read_entry(
    found: dict[Kind, MessageInformation],
    kind: Kind,
    section: Section,
    directory: Path,
    problems: list[Problem],
) -> None:
    before = len(problems)
    fields = Fields(section, problems, known=_KEYS, strict=True)
    information = MessageInformation(
        text=fields.filled_text("text", example='"What it means and how to answer it."'),
        schema=_schema(fields, directory),
        answers=_messages(fields, "answers"),
        related=_messages(fields, "related"),
    )
    if any(problem.severity == "error" for problem in problems[before:]):
        return
    try:
        check_information(*kind, information)
    except InvalidInput as error:
        fields.report("schema" if error.code == "info.bad_schema" else "", error)
        return
    found[kind] = information


def _messages(fields: Fields, key: str) -> tuple[RelatedMessage, ...]:
    return tuple(
        RelatedMessage(
            type=entry.filled_text("type", example='"TASK"'),
            subtype=entry.text("subtype", ""),
            text=entry.text("text", ""),
        )
        for entry in fields.entries(key, _RELATED_KEYS, _EXAMPLE)
    )


def _schema(fields: Fields, directory: Path) -> dict[str, Any]:
    given = fields.section.values.get("schema", {})
    if isinstance(given, dict):
        return given
    if not isinstance(given, str):
        fields.wrong("schema", "a table or the name of a file", 'schema = "schemas/task.json"')
        return {}
    path = directory / given
    if not is_inside(path, directory) or not is_file(path):
        message = f"there is no file {given!r} in the site's directory"
        fields.fault("schema", "site.no_file", message)
        return {}
    return _schema_in(path, fields)


def _schema_in(path: Path, fields: Fields) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            read = msgspec.json.decode(file.read(LARGEST_SCHEMA_BYTES + 1))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        fields.fault("schema", "info.bad_schema", f"{path.name} cannot be read: {error}")
        return {}
    if not isinstance(read, dict):
        fields.fault("schema", "info.bad_schema", f"{path.name} is not a JSON object")
        return {}
    return read
