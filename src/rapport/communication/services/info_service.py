"""Answers MESSAGEINFO REQUESTs: reads the channel `info`, replies to who asked. [CO-2, CO-12,
CO-14]

A request is answered once: the reply's id follows from the request's, so one that is sent again
after a crash is dropped as a repetition.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from rapport.channel.channel import Channels, Subscription
from rapport.channel.dead_letters import append_dead_letter
from rapport.communication.delivering.telling import PROOF
from rapport.communication.services.info import as_text
from rapport.communication.services.info_records import MessageInfoService, shown_information
from rapport.core.errors import InvalidInput
from rapport.core.event import Event, StoredEvent
from rapport.core.ids import content_id
from rapport.core.json_objects import ObjectDecoder
from rapport.core.message import MESSAGE, MESSAGEINFO, Identifier, Message
from rapport.kernel.telemetry import get_logger

REQUEST, REPLY = "REQUEST", "REPLY"
COMPONENT = Identifier("component", "info")
CHANNEL = "info"
READER = "message_info"
JSON_LANGUAGES = ("json", "application/json")
_BATCH = 100

Send = Callable[[Sequence[Message]], Awaitable[object]]
"""Sends messages of the node itself; durable when it returns."""

_log = get_logger(__name__)


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a request asks about."""

    type: str = ""
    subtype: str = ""
    id: str = ""


_READ = ObjectDecoder(
    Wanted,
    fault="the request cannot be read",
    code="info.bad_request",
    hint='such as {"type": "TASK", "subtype": "REQUEST"}',
)


class InfoAnswers:
    """The reader of `info`; `run` until cancelled."""

    def __init__(self, channels: Channels, infos: MessageInfoService, send: Send) -> None:
        self._channels, self._infos, self._send = channels, infos, send
        self._subscription: Subscription | None = None

    async def run(self) -> None:
        """Works until cancelled; started again after a failure it goes on where it stood."""
        self._subscription = None
        while True:
            await self.step()

    async def step(self, *, timeout_ms: int | None = None) -> int:
        """Answers what waits; returns how many requests it looked at."""
        if self._subscription is None:
            self._subscription = await self._channels.subscribe(CHANNEL, READER)
        batch = await self._subscription.next_batch(limit=_BATCH, timeout_ms=timeout_ms)
        for stored in batch:
            await self._answer(stored)
        if batch:
            await self._subscription.commit(batch[-1].position)
        return len(batch)

    async def _answer(self, stored: StoredEvent) -> None:
        """Sends the reply to a request. One that cannot be read, or whose reply cannot be sent, is
        set aside; the others go on.
        """
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
    """The request of an event; None for what is none, and for what nobody is known to have asked:
    else a stranger could have anybody sent messages.
    """
    if event.type != MESSAGE:
        return None
    message = Message.from_event(event)
    if message.type != MESSAGEINFO or message.subtype != REQUEST:
        return None
    if event.headers.get(PROOF) == "none":
        _log.warning("info request of an unknown sender not answered", id=event.id)
        return None
    return msgspec.structs.replace(message, id=event.id)


def read_request(request: Message) -> Wanted:
    """What a request asks about: JSON with type and subtype or an id, plain `TYPE SUBTYPE`, or the
    message it refers to.

    >>> ana = Identifier("peer", "ana")
    >>> asked = Message(type="MESSAGEINFO", subtype="REQUEST", sender=ana, content="TASK REQUEST")
    >>> read_request(asked)
    Wanted(type='TASK', subtype='REQUEST', id='')
    """
    content = request.content.strip()
    if not content and request.refers_to:
        return Wanted(id=request.refers_to)
    if content.startswith("{"):
        return _READ.decode(content.encode("utf-8", "replace"))
    first, _, rest = content.replace("/", " ", 1).partition(" ")
    return Wanted(type=first, subtype=rest.strip())


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
