"""The socket of an open inbox: deliveries to be shown at once, and news that the page is old.
[CO-16]

The page says `{"shown": KEY}`; the node says `{"delivery": {...}}` or `{"changed": MARK}`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from litestar.connection import ASGIConnection

from rapport.communication.adapters.base import Delivery
from rapport.communication.ledger_rows import MessageRow
from rapport.communication.presentation import shown_text, shown_time
from rapport.core.times import format_time
from rapport.kernel.tasks import first_of
from rapport.web.inbox.access import Inboxes
from rapport.web.live.frames import to_text
from rapport.web.message_view import about_message

MOST_WAITING = 100
"""Deliveries that a page may be behind; more are not taken, so that they go another way."""
AT_MOST_EVERY_MS = 1_000
"""How often an open page is told of changes: each costs a look at the ledger."""
CHECK_EVERY_MS = 30_000
"""How late an open page notices that its session was ended elsewhere."""
_LONGEST_FRAME = 1_000
_GOING_AWAY = 1012


class _Told(msgspec.Struct, frozen=True):
    """What a page says."""

    shown: str = ""


def _shown(delivery: Delivery, zone: str) -> dict[str, Any]:
    """A delivery as the page shows it."""
    time_ms = delivery.sent or delivery.time or delivery.queued
    row = MessageRow(
        message=delivery.message,
        sender=delivery.sender,
        policy=delivery.policy,
        type=delivery.type,
        subtype=delivery.subtype,
        conversation=delivery.conversation,
    )
    return {
        "message": delivery.message,
        "key": delivery.key,
        "text": shown_text(delivery.type, delivery.subtype, delivery.text),
        "about": " · ".join((*about_message(row), "")),
        "time": format_time(time_ms),
        "shown_time": shown_time(time_ms, zone),
        "urgent": delivery.urgent,
    }


class InboxSocket:
    """One open page of a person."""

    def __init__(
        self,
        peer: str,
        inboxes: Inboxes,
        connection: ASGIConnection[Any, Any, Any, Any],
        is_allowed: Callable[[], Awaitable[bool]],
    ) -> None:
        """`is_allowed` says whether the person may still look: sessions and links end."""
        self._peer, self._inboxes, self._node = peer, inboxes, inboxes.node
        self._connection, self._is_allowed, self._is_gone = connection, is_allowed, False
        self._waiting: asyncio.Queue[Delivery] = asyncio.Queue(MOST_WAITING)

    def take(self, delivery: Delivery) -> bool:
        """See OpenPage."""
        if self._waiting.full():
            return False
        self._waiting.put_nowait(delivery)
        return True

    async def serve(self) -> None:
        """Until the page is closed or the node ends."""
        await self._say({"type": "websocket.accept"})
        pages = self._node.pages
        pages.enter(self._peer, self)
        try:
            closing = self._node.doors_close.wait()
            await first_of(self._listen(), self._show(), self._watch(), closing)
            if not self._is_gone:
                await self._say({"type": "websocket.close", "code": _GOING_AWAY, "reason": ""})
        except OSError:
            return  # the page has gone
        finally:
            pages.leave(self._peer, self)

    async def _listen(self) -> None:
        while True:
            message: Any = await self._connection.receive()
            if message["type"] == "websocket.disconnect":
                self._is_gone = True
                return
            text = message.get("text") or message.get("bytes") or ""
            try:
                told = msgspec.json.decode(text[:_LONGEST_FRAME], type=_Told)
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                continue  # a page that we did not make; it harms nobody but itself
            self._node.pages.shown(self._peer, told.shown)

    async def _show(self) -> None:
        while True:
            delivery = await self._waiting.get()
            zone = await self._node.zone_of(self._peer)
            await self._tell({"delivery": _shown(delivery, zone)})

    async def _watch(self) -> None:
        """Tells the page whenever the inbox is another than at the last look; ends with the right
        to look.
        """
        log, mark = self._node.channels.channel("log"), ""
        while await self._is_allowed():
            position = log.last_position()
            view = await self._inboxes.look(self._peer)
            if view.mark != mark:
                mark = view.mark
                await self._tell({"changed": mark})
            await log.wait_after(position, timeout_ms=CHECK_EVERY_MS)
            await self._node.clock.sleep(AT_MOST_EVERY_MS)

    async def _tell(self, members: dict[str, Any]) -> None:
        await self._say({"type": "websocket.send", "text": to_text(members)})

    async def _say(self, frame: Any) -> None:
        await self._connection.send(frame)
