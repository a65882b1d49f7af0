"""Message information: what a type of message means, how to answer it and which messages relate to
it; queries, changes at run time, and replies to MESSAGEINFO REQUESTs. [CO-2, CO-12, CO-14, UX-2]

Three layers, each overriding the ones before: messages that Rapport itself defines, the
`[messages.TYPE]` tables of the site file, and what was added at run time. The service also checks
contents against the schemas of their types. A request is answered once: the id of the reply follows
from that of the request, so that a reply sent again after a crash is dropped.

```toml
[messages.TASK.REQUEST]           # or [messages.TASK] for every subtype that has no table
text = "Please check a machine."
schema = "schemas/task.json"      # a file in the site's directory, or a table
answers = [{ type = "TASK", subtype = "DONE", text = "when it is done" }]
related = [{ type = "TASK", subtype = "CANCEL" }]
```
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from rapport.channel.channel import Channels, Subscription
from rapport.channel.dead_letters import append_dead_letter
from rapport.communication.content_rules import (
    JSON_LANGUAGES,
    LARGEST_SCHEMA_BYTES,
    ContentFault,
    ContentRules,
    check_schema,
)
from rapport.communication.ledger_events import PROOF
from rapport.communication.logged_records import LoggedRecords
from rapport.core.errors import InvalidInput, Problem, UnknownName
from rapport.core.event import Event, StoredEvent, content_id
from rapport.core.json_objects import ObjectDecoder
from rapport.core.message import MESSAGE, MESSAGEINFO, Identifier, Message
from rapport.core.message import PREDEFINED as RESERVED
from rapport.kernel.clock import Clock
from rapport.kernel.config_fields import Fields
from rapport.kernel.files import is_file, is_inside
from rapport.kernel.tasks import run_blocking
from rapport.kernel.telemetry import get_logger
from rapport.kernel.toml import Section, TomlFile
from rapport.store.base import Delete, Put, RecordStore

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
        if (needed and not value) or len(value) > LONGEST_NAME or not value.isprintable():
            raise _bad(
                f"{value[:40]!r} cannot be the {name} of a message",
                f"1 to {LONGEST_NAME} characters that can be printed",
            )


def as_text(found: MessageInfoEntry) -> str:
    """The information as a text for people.

    >>> info = MessageInformation(text="Please check a machine.")
    >>> print(as_text(MessageInfoEntry(type="TASK", subtype="", information=info, origin="site")))
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


def _bad(message: str, hint: str) -> InvalidInput:
    return InvalidInput(f"invalid message information: {message}", code="info.bad", hint=hint)


def _object(required: str = "", **properties: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return schema | ({"required": required.split()} if required else {})


def _related(type: str, subtype: str = "", text: str = "") -> RelatedMessage:
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
            _related("CONTROL", "ACK", "it was delivered"),
            _related("CONTROL", "ERROR", "something went wrong"),
            _related("CONTROL", "COMERROR", "it could not be delivered"),
            _related("CONTROL", "TIMEOUT", "its time is over"),
        ),
    ),
    ("CONTROL", "ACK"): MessageInformation(
        text="The message named in refers-to was delivered as its delivery policy asks: the medium "
        "took it, or, where an answer counts, somebody answered. That the medium took it does not "
        "mean that somebody read it or agrees. Not sent for messages that want no acknowledgement.",
        schema=_OPTIONAL_TEXT,
        related=(_related("CONTROL", "COMERROR", "the contrary"),),
    ),
    ("CONTROL", "ERROR"): MessageInformation(
        text="Something about the message named in refers-to is wrong; the content says what. "
        "Correct the message and send it again. Routing rules may send this on to others.",
        schema=_OPTIONAL_TEXT,
        related=(_related("CONTROL", "COMERROR", "a fault on the way, not in the message"),),
    ),
    ("CONTROL", "COMERROR"): MessageInformation(
        text="The message named in refers-to did not reach its receiver: no address, no adapter, "
        "refused by the receiver's privacy rules, or every attempt failed; the content says which. "
        "It goes to the sender of the message, also when no acknowledgement was asked for. Reach "
        "the receiver in another way, or send it again when the reason is gone.",
        schema=_OPTIONAL_TEXT,
        related=(_related("CONTROL", "ACK", "the contrary"), _related("CONTROL", "TIMEOUT")),
    ),
    ("CONTROL", "TIMEOUT"): MessageInformation(
        text="The time to live of the message named in refers-to ended before it was delivered, or "
        "nobody answered in time. What comes in later is written down and changes nothing.",
        schema=_OPTIONAL_TEXT,
        related=(_related("CONTROL", "COMERROR", "it failed before its time was over"),),
    ),
    ("MESSAGEINFO", "REQUEST"): MessageInformation(
        text="Asks what a type of message means and how to answer it. Put the type and subtype "
        "into the content, or leave it empty and name a message in refers-to. For an answer in "
        "JSON set language to application/json.",
        schema=_WANTED,
        answers=(
            _related("MESSAGEINFO", "REPLY", "what is known"),
            _related("CONTROL", "ERROR", "nothing is known of such a message"),
        ),
    ),
    ("MESSAGEINFO", "REPLY"): MessageInformation(
        text="Says what a type of message means, what its content looks like, and how to answer "
        "it; refers-to names the request. Nobody has to answer it. A text for people, unless the "
        "request asked for JSON.",
        schema={"anyOf": [_TEXT, _INFORMATION], "$defs": {"message": _MESSAGE}},
        related=(_related("MESSAGEINFO", "REQUEST", "asks for it"),),
    ),
    ("AUTH", "REQUEST"): MessageInformation(
        text="A peer shows who it is and asks for a session token. The sender is the peer, the "
        "content its password. Without a password, and with a session token that is still good, "
        "it asks for a new one.",
        schema=_object(password={"type": "string", "description": "Never logged."}),
        answers=(
            _related("AUTH", "REPLY", "a session token"),
            _related("AUTH", "FAILED", "the name or the password is wrong"),
            _related("AUTH", "ERROR", "it could not be checked now"),
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
        related=(_related("AUTH", "REQUEST", "asks for it, and renews it"),),
    ),
    ("AUTH", "FAILED"): MessageInformation(
        text="The name or the password is wrong, or the session token is not good any more. Ask "
        "again with the right password; after several failures one has to wait.",
        schema=_FAULT,
        answers=(_related("AUTH", "REQUEST", "with the right password"),),
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
        answers=(_related("AUTH", "REQUEST", "after some time"),),
    ),
    ("NOTIFICATION", ""): MessageInformation(
        text="A policy found a situation that somebody wanted to know of. The subtype is the "
        "policy's phrase, such as 'raise alarm'; the content says what was found and where. "
        "conversation-id names the detection. Where the message has a link, open it and press the "
        "button, or answer by the way it came: that tells the others that you see to it.",
        schema=_TEXT,
        related=(_related("ACTION", "", "what is done without people"),),
    ),
    ("ACTION", ""): MessageInformation(
        text="A policy found a situation in which a program is to do something: an address is "
        "called or an event is written. The subtype is the policy's phrase, the content says what "
        "is done. Nobody has to answer it.",
        schema=_TEXT,
        related=(_related("NOTIFICATION", "", "the message to people"),),
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


# --- the service ---


CHANGED = "rapport.info.changed"
SOURCE = "message info"
TABLE = "communication.info"
LOOK_EVERY_MS = 5_000
"""Delay until a schema that another node added holds here."""
_log = get_logger(__name__)

REQUEST, REPLY = "REQUEST", "REPLY"
COMPONENT = Identifier("component", "info")
CHANNEL = "info"
READER = "message_info"
_BATCH = 100
Send = Callable[[Sequence[Message]], Awaitable[object]]
"""Sends messages of the node itself; durable when it returns."""


class MessageInfoService:
    """The message information of this node. Calls belong to one event loop."""

    def __init__(
        self,
        channels: Channels,
        records: RecordStore,
        clock: Clock,
        *,
        of_site: Mapping[Kind, MessageInformation] | None = None,
    ) -> None:
        self._channels, self._clock = channels, clock
        self._of_site = dict(of_site or {})
        self._store = LoggedRecords(channels, records, TABLE)
        self._looked_ms = 0
        self._use({})

    async def open(self) -> None:
        """Loads the entries that were added at run time."""
        await run_blocking(self._load)
        await self._store.append_again()

    async def info_for_message(
        self, *, id: str = "", type: str = "", subtype: str = ""
    ) -> MessageInfoEntry:
        """The information about a type, or about the type of the message with this id.

        Raises UnknownName (`message.unknown`), with the nearest known type, when no message has
        that id or its type is unknown; InvalidInput when neither is given.
        """
        if id:
            message = await self._message(id)
            type, subtype = message.type, message.subtype
        elif not type:
            raise InvalidInput(
                "neither the id nor the type of a message is given",
                code="info.nothing_asked",
                hint="give one of them",
            )
        await run_blocking(self._refresh)
        return self._catalogue.find(type, subtype)

    async def all(self) -> list[MessageInfoEntry]:
        """All entries, by type and subtype."""
        await run_blocking(self._refresh)
        return self._catalogue.all()

    async def add_message_info(
        self, type: str, subtype: str, information: MessageInformation, *, by: str = ""
    ) -> None:
        """Adds or replaces the information about a type; durable when it returns. An empty subtype
        stands for all subtypes without an entry of their own.

        Raises InvalidInput for an invalid text, name or JSON Schema.
        """
        check_information(type, subtype, information)
        async with self._store.turn:
            await run_blocking(self._refresh)
            event = self._event("added", type, subtype, by)
            value = msgspec.msgpack.encode(_InfoRecord(type, subtype, information))
            added = self._added | {(type, subtype): information}
            put = Put(TABLE, self._key(type, subtype), value)
            await self._store.change(put, event, partial(self._use, added))

    async def remove_message_info(self, type: str, subtype: str = "", *, by: str = "") -> bool:
        """Removes an entry that was added at run time; that of the site file or the shipped one
        holds again. False when there was none.
        """
        check_kind(type, subtype)
        async with self._store.turn:
            await run_blocking(self._refresh)
            if (type, subtype) not in self._added:
                return False
            event = self._event("removed", type, subtype, by)
            left = {kind: each for kind, each in self._added.items() if kind != (type, subtype)}
            delete = Delete(TABLE, self._key(type, subtype))
            await self._store.change(delete, event, partial(self._use, left))
            return True

    async def refresh(self) -> None:
        """Loads the schemas that another node added, every few seconds; see `Contents`."""
        now_ms = self._clock.now_ms()
        if abs(now_ms - self._looked_ms) >= LOOK_EVERY_MS:
            self._looked_ms = now_ms
            await run_blocking(self._refresh)

    def fault(self, message: Message) -> ContentFault | None:
        """Why the content of a message does not fit the schema of its type; see `Contents`."""
        return None if self._rules.is_empty else self._rules.fault(message)

    async def _message(self, id: str) -> Message:
        for _channel, stored in await self._channels.find_event(id):
            if stored.event.type == MESSAGE:
                return Message.from_event(stored.event)
        raise UnknownName("message", id, code="message.unknown")

    def _event(self, what: str, type: str, subtype: str, by: str) -> Event:
        return self._store.event(
            source=SOURCE,
            type=CHANGED,
            subject=f"{type}/{subtype}".rstrip("/"),
            time=self._clock.now_ms(),
            data={"change": what, "type": type, "subtype": subtype, "by": by},
        )

    def _key(self, type: str, subtype: str) -> str:
        return self._store.key(f"{len(type)}/{type}/{subtype}")

    def _use(self, added: dict[Kind, MessageInformation]) -> None:
        self._added = added
        self._catalogue = MessageCatalogue(
            [("shipped", PREDEFINED), ("site", self._of_site), ("added", added)]
        )
        self._rules = content_rules(self._of_site | added)

    def _refresh(self) -> None:
        """Loads the entries that another node with the same records added."""
        if self._store.has_changed():
            self._load()

    def _load(self) -> None:
        with self._store.guard:
            kept = [
                msgspec.msgpack.decode(raw, type=_InfoRecord)
                for _name, raw in self._store.entries()
            ]
            self._use({(each.type, each.subtype): each.information for each in kept})


class _InfoRecord(msgspec.Struct, frozen=True):
    type: str
    subtype: str
    information: MessageInformation


def content_rules(entries: Mapping[Kind, MessageInformation]) -> ContentRules:
    """The schemas of types that are not reserved."""
    return ContentRules(
        {
            kind: each.schema if _is_sound(kind, each) else None
            for kind, each in entries.items()
            if kind[0] not in RESERVED
        }
    )


def _is_sound(kind: Kind, information: MessageInformation) -> bool:
    """Whether contents can be checked by its schema. A schema that an earlier version stored may be
    invalid now, which must not stop messages.
    """
    if not information.schema:
        return False
    try:
        check_schema(information.schema)
    except InvalidInput as error:
        _log.error("contents are not checked", type=kind[0], subtype=kind[1], why=error.message)
        return False
    return True


def shown_information(found: MessageInfoEntry) -> dict[str, object]:
    """An entry as JSON shows it."""
    fields: dict[str, object] = msgspec.to_builtins(found.information)
    return {"type": found.type, "subtype": found.subtype, "origin": found.origin} | fields


class InfoRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The type or message that a request is about."""

    type: str = ""
    subtype: str = ""
    id: str = ""


_READ = ObjectDecoder(
    InfoRequest,
    fault="the request cannot be read",
    code="info.bad_request",
    hint='such as {"type": "TASK", "subtype": "REQUEST"}',
)


class InfoResponder:
    """The reader of `info`; `run` until cancelled."""

    def __init__(self, channels: Channels, infos: MessageInfoService, send: Send) -> None:
        self._channels, self._infos, self._send = channels, infos, send
        self._subscription: Subscription | None = None

    async def run(self) -> None:
        """Works until cancelled; restarted after a failure it continues where it stood."""
        self._subscription = None
        while True:
            await self.step()

    async def step(self, *, timeout_ms: int | None = None) -> int:
        """Answers one batch of requests; returns its size."""
        if self._subscription is None:
            self._subscription = await self._channels.subscribe(CHANNEL, READER)
        batch = await self._subscription.next_batch(limit=_BATCH, timeout_ms=timeout_ms)
        for stored in batch:
            await self._answer(stored)
        if batch:
            await self._subscription.commit(batch[-1].position)
        return len(batch)

    async def _answer(self, stored: StoredEvent) -> None:
        """Sends the reply to a request; one that fails is dead-lettered, and the others go on."""
        try:
            request = _request_in(stored.event)
            if request is not None:
                await self._send([await self.reply(request)])
        except InvalidInput as error:
            await append_dead_letter(self._channels, CHANNEL, READER, stored, error, attempts=1)

    async def reply(self, request: Message) -> Message:
        """The answer to a request: MESSAGEINFO REPLY, or CONTROL ERROR when nothing is known."""
        try:
            wanted = read_request(request)
            found = await self._infos.info_for_message(
                id=wanted.id, type=wanted.type, subtype=wanted.subtype
            )
        except InvalidInput as error:
            hint = f" ({error.hint})" if error.hint else ""
            content = f"{error.code}: {error.message}{hint}"
            return _reply_message(request, "CONTROL", "ERROR", content)
        if request.language.lower() not in JSON_LANGUAGES:
            return _reply_message(request, MESSAGEINFO, REPLY, as_text(found))
        content = msgspec.json.encode(shown_information(found)).decode()
        return _reply_message(request, MESSAGEINFO, REPLY, content, language=JSON_LANGUAGES[1])


def _request_in(event: Event) -> Message | None:
    """The request in an event; None for other messages and for unproven senders: else a stranger
    could have messages sent to anybody.
    """
    if event.type != MESSAGE:
        return None
    message = Message.from_event(event)
    if message.type != MESSAGEINFO or message.subtype != REQUEST:
        return None
    if event.headers.get(PROOF) == "none":
        _log.warning("info request of an unproven sender not answered", id=event.id)
        return None
    return msgspec.structs.replace(message, id=event.id)


def read_request(request: Message) -> InfoRequest:
    """The type or message of a request: JSON with type and subtype or an id, `TYPE SUBTYPE`, or the
    message it refers to.

    >>> ana = Identifier("peer", "ana")
    >>> asked = Message(type="MESSAGEINFO", subtype="REQUEST", sender=ana, content="TASK REQUEST")
    >>> read_request(asked)
    InfoRequest(type='TASK', subtype='REQUEST', id='')
    """
    content = request.content.strip()
    if not content and request.refers_to:
        return InfoRequest(id=request.refers_to)
    if content.startswith("{"):
        return _READ.decode(content.encode("utf-8", "replace"))
    first, _, rest = content.replace("/", " ", 1).partition(" ")
    return InfoRequest(type=first, subtype=rest.strip())


def _reply_message(
    request: Message, type: str, subtype: str, content: str, *, language: str = ""
) -> Message:
    return Message(
        type=type,
        subtype=subtype,
        sender=COMPONENT,
        id=content_id("message info", request.id),
        receiver=request.sender,
        conversation=request.conversation,
        content=content,
        language=language,
        refers_to=request.id,
        delivery_policy="unreliable",
    )
