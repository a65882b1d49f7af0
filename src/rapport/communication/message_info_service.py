"""The message info service: queries by type or message, changes at run time, and replies to
MESSAGEINFO REQUESTs. [CO-2, CO-12, CO-14]

It also checks contents against the schemas of their types. A request is answered once: the id of
the reply follows from that of the request, so that a reply sent again after a crash is dropped.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from rapport.channel.channel import Channels, Subscription
from rapport.channel.dead_letters import append_dead_letter
from rapport.communication.blocking import run_blocking
from rapport.communication.content_rules import ContentFault, ContentRules
from rapport.communication.logged_records import LoggedRecords
from rapport.communication.message_info import (
    PREDEFINED,
    Kind,
    MessageCatalogue,
    MessageInfoEntry,
    MessageInformation,
    as_text,
    check_information,
    check_kind,
)
from rapport.communication.message_schema import check_schema
from rapport.communication.sender_notifications import PROOF
from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.event import Event, StoredEvent
from rapport.core.ids import content_id
from rapport.core.json_objects import ObjectDecoder
from rapport.core.message import MESSAGE, MESSAGEINFO, Identifier, Message
from rapport.core.message import PREDEFINED as RESERVED
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.store.base import Delete, Put, RecordStore

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
JSON_LANGUAGES = ("json", "application/json")
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
        self._added: dict[Kind, MessageInformation] = {}
        self._store = LoggedRecords(channels, records, TABLE)
        self._turn = asyncio.Lock()
        self._guard = threading.Lock()
        """Held while records are loaded, so that an entry added meanwhile is not lost."""
        self._catalogue = self._layers()
        self._rules = self._content_rules()
        self._looked_ms = 0

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
        async with self._turn:
            await run_blocking(self._refresh)
            event = self._event("added", type, subtype, by)
            value = msgspec.msgpack.encode(_InfoRecord(type, subtype, information))
            await self._store.apply(Put(TABLE, self._key(type, subtype), value), event)
            with self._guard:
                self._added[type, subtype] = information
                self._rebuild()
            await self._store.append(event)

    async def remove_message_info(self, type: str, subtype: str = "", *, by: str = "") -> bool:
        """Removes an entry that was added at run time; that of the site file or the shipped one
        holds again. False when there was none.
        """
        check_kind(type, subtype)
        async with self._turn:
            await run_blocking(self._refresh)
            if (type, subtype) not in self._added:
                return False
            event = self._event("removed", type, subtype, by)
            await self._store.apply(Delete(TABLE, self._key(type, subtype)), event)
            with self._guard:
                self._added.pop((type, subtype), None)
                self._rebuild()
            await self._store.append(event)
            return True

    async def refresh(self) -> None:
        """Loads the schemas that another node added, every few seconds; see `Contents`."""
        now_ms = self._clock.now_ms()
        if abs(now_ms - self._looked_ms) >= LOOK_EVERY_MS:
            self._looked_ms = now_ms
            await run_blocking(self._refresh)

    def fault(self, message: Message) -> ContentFault | None:
        """Why the content of a message does not fit the schema of its type; see `Contents`."""
        return self._rules.fault(message)

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

    def _layers(self) -> MessageCatalogue:
        return MessageCatalogue(
            [("shipped", PREDEFINED), ("site", self._of_site), ("added", self._added)]
        )

    def _rebuild(self) -> None:
        self._catalogue, self._rules = self._layers(), self._content_rules()

    def _content_rules(self) -> ContentRules:
        """The schemas of the types of applications."""
        return content_rules(self._of_site | self._added)

    def _refresh(self) -> None:
        """Loads the entries that another node with the same records added."""
        if self._store.has_changed():
            self._load()

    def _load(self) -> None:
        with self._guard:
            kept = [
                msgspec.msgpack.decode(raw, type=_InfoRecord)
                for _name, raw in self._store.entries()
            ]
            self._added = {(each.type, each.subtype): each.information for each in kept}
            self._rebuild()


class _InfoRecord(msgspec.Struct, frozen=True):
    """One record."""

    type: str
    subtype: str
    information: MessageInformation


def content_rules(told: Mapping[Kind, MessageInformation]) -> ContentRules:
    """The schemas of types that are not reserved."""
    return ContentRules(
        {
            kind: each.schema if _is_sound(kind, each) else None
            for kind, each in told.items()
            if kind[0] not in RESERVED
        }
    )


def _is_sound(kind: Kind, told: MessageInformation) -> bool:
    """Whether contents can be checked by its schema. A schema that an earlier version stored may be
    invalid now, which must not stop messages.
    """
    if not told.schema:
        return False
    try:
        check_schema(told.schema)
    except InvalidInput as error:
        _log.error("contents are not checked", type=kind[0], subtype=kind[1], why=error.message)
        return False
    return True


def shown_information(found: MessageInfoEntry) -> dict[str, object]:
    """An entry as JSON shows it."""
    told: dict[str, object] = msgspec.to_builtins(found.information)
    return {"type": found.type, "subtype": found.subtype, "origin": found.origin} | told


class InfoRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a request is about."""

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
            return _message(request, "CONTROL", "ERROR", content)
        if request.language.lower() not in JSON_LANGUAGES:
            return _message(request, MESSAGEINFO, REPLY, as_text(found))
        content = msgspec.json.encode(shown_information(found)).decode()
        return _message(request, MESSAGEINFO, REPLY, content, language=JSON_LANGUAGES[1])


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
    Wanted(type='TASK', subtype='REQUEST', id='')
    """
    content = request.content.strip()
    if not content and request.refers_to:
        return InfoRequest(id=request.refers_to)
    if content.startswith("{"):
        return _READ.decode(content.encode("utf-8", "replace"))
    first, _, rest = content.replace("/", " ", 1).partition(" ")
    return InfoRequest(type=first, subtype=rest.strip())


def _message(
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
