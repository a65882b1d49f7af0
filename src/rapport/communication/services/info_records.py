"""The message info service: asked by type or by message, changed at run time, durable; also what
the door asks whether a content fits the schema of its type. [CO-14]
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

import msgspec

from rapport.channel.channel import Channels
from rapport.communication.aside import run_aside
from rapport.communication.content_rules import ContentFault, ContentRules
from rapport.communication.services.info import (
    InformationFound,
    Kind,
    MessageCatalogue,
    MessageInformation,
    check_information,
    check_kind,
)
from rapport.communication.services.info_predefined import PREDEFINED
from rapport.communication.services.info_schema import check_schema
from rapport.communication.services.told_changes import ToldChanges
from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.event import Event
from rapport.core.message import MESSAGE, Message
from rapport.core.message import PREDEFINED as RESERVED
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.store.base import Delete, Put, RecordStore

CHANGED = "rapport.info.changed"
SOURCE = "message info"
TABLE = "communication.info"
LOOK_EVERY_MS = 5_000
"""A schema that another node with the same records added holds at this door so much later."""
_log = get_logger(__name__)


class MessageInfoService:
    """What is told of messages on this node. Calls belong to one event loop."""

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
        self._kept = ToldChanges(channels, records, TABLE)
        self._turn = asyncio.Lock()
        self._guard = threading.Lock()
        """Held while records are loaded: what is added meanwhile is added to those."""
        self._catalogue = self._layers()
        self._rules = self._judged()
        self._looked_ms = 0

    async def open(self) -> None:
        """Loads what was added at run time."""
        await run_aside(self._load)
        await self._kept.tell_again()

    async def info_for_message(
        self, *, id: str = "", type: str = "", subtype: str = ""
    ) -> InformationFound:
        """What is told of a message: of the type of the one with this id, or of a type itself.

        Raises UnknownName (`message.unknown`), with the nearest type that is known, when no message
        has that id or nothing is told of its type; InvalidInput when neither is given.
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
        await run_aside(self._refresh)
        return self._catalogue.find(type, subtype)

    async def all(self) -> list[InformationFound]:
        """Everything that is told of messages, by type and subtype."""
        await run_aside(self._refresh)
        return self._catalogue.all()

    async def add_message_info(
        self, type: str, subtype: str, information: MessageInformation, *, by: str = ""
    ) -> None:
        """Tells this of a type of message from now on, in place of what was told before; durable
        when it returns. An empty subtype stands for all that have nothing of their own.

        Raises InvalidInput for a text, name or JSON Schema that cannot be.
        """
        check_information(type, subtype, information)
        async with self._turn:
            await run_aside(self._refresh)
            event = self._event("added", type, subtype, by)
            value = msgspec.msgpack.encode(_Kept(type, subtype, information))
            await self._kept.keep(Put(TABLE, self._key(type, subtype), value), event)
            with self._guard:
                self._added[type, subtype] = information
                self._put_together()
            await self._kept.tell(event)

    async def remove_message_info(self, type: str, subtype: str = "", *, by: str = "") -> bool:
        """Takes back what was added at run time; what the site file says, or what is shipped, is
        told again. False when nothing was added.
        """
        check_kind(type, subtype)
        async with self._turn:
            await run_aside(self._refresh)
            if (type, subtype) not in self._added:
                return False
            event = self._event("removed", type, subtype, by)
            await self._kept.keep(Delete(TABLE, self._key(type, subtype)), event)
            with self._guard:
                self._added.pop((type, subtype), None)
                self._put_together()
            await self._kept.tell(event)
            return True

    async def refresh(self) -> None:
        """Takes in, now and then, the schemas that another node added; see `Contents`."""
        now_ms = self._clock.now_ms()
        if abs(now_ms - self._looked_ms) >= LOOK_EVERY_MS:
            self._looked_ms = now_ms
            await run_aside(self._refresh)

    def fault(self, message: Message) -> ContentFault | None:
        """Why the content of a message does not fit the schema of its type; see `Contents`."""
        return self._rules.fault(message)

    async def _message(self, id: str) -> Message:
        for _channel, stored in await self._channels.find_event(id):
            if stored.event.type == MESSAGE:
                return Message.from_event(stored.event)
        raise UnknownName("message", id, code="message.unknown")

    def _event(self, what: str, type: str, subtype: str, by: str) -> Event:
        return self._kept.event(
            source=SOURCE,
            type=CHANGED,
            subject=f"{type}/{subtype}".rstrip("/"),
            time=self._clock.now_ms(),
            data={"change": what, "type": type, "subtype": subtype, "by": by},
        )

    def _key(self, type: str, subtype: str) -> str:
        return self._kept.key(f"{len(type)}/{type}/{subtype}")

    def _layers(self) -> MessageCatalogue:
        return MessageCatalogue(
            [("shipped", PREDEFINED), ("site", self._of_site), ("added", self._added)]
        )

    def _put_together(self) -> None:
        self._catalogue, self._rules = self._layers(), self._judged()

    def _judged(self) -> ContentRules:
        """The schemas of applications' types; what the node itself says is read by its own code."""
        return rules_of(self._of_site | self._added)

    def _refresh(self) -> None:
        """Takes in what another node with the same records added."""
        if self._kept.has_changed():
            self._load()

    def _load(self) -> None:
        with self._guard:
            kept = [msgspec.msgpack.decode(raw, type=_Kept) for _name, raw in self._kept.entries()]
            self._added = {(each.type, each.subtype): each.information for each in kept}
            self._put_together()


class _Kept(msgspec.Struct, frozen=True):
    """One record."""

    type: str
    subtype: str
    information: MessageInformation


def rules_of(told: Mapping[Kind, MessageInformation]) -> ContentRules:
    """What contents have to be like, of what is told of types that are not the node's own."""
    return ContentRules(
        {
            kind: each.schema if _is_sound(kind, each) else None
            for kind, each in told.items()
            if kind[0] not in RESERVED
        }
    )


def _is_sound(kind: Kind, told: MessageInformation) -> bool:
    """Whether contents can be judged by its schema: one that was kept by an earlier version may
    not pass any more, which must not stop the messages.
    """
    if not told.schema:
        return False
    try:
        check_schema(told.schema)
    except InvalidInput as error:
        _log.error("contents are not checked", type=kind[0], subtype=kind[1], why=error.message)
        return False
    return True


def shown_information(found: InformationFound) -> dict[str, object]:
    """What is told of a message, as JSON shows it."""
    told: dict[str, object] = msgspec.to_builtins(found.information)
    return {"type": found.type, "subtype": found.subtype, "origin": found.origin} | told
