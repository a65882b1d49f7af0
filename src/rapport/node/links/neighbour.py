"""A neighbour's doors as a link sees them; the only home of httpx2 in this room. [CH-11]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import httpx2
import msgspec

from rapport.channel.federation import WAIT_MS, NeighbourBatch, check_node_id
from rapport.core.codec import decode_cloudevent, to_cloudevent
from rapport.core.errors import NotAllowed, RapportError, TooLarge, Unavailable
from rapport.core.event import Event, Gap
from rapport.core.urls import without_password

T = TypeVar("T")

MOST_ANSWER_BYTES = 64 * 1024 * 1024
_TIMEOUT_SECONDS = WAIT_MS / 1_000 + 10
_PLACE = ("position", "received", "handback")
"""Members that say where an event stands at the neighbour, not what it is."""


class PlaceRefused(RapportError):
    """The neighbour does not know its own token: its data are others than before."""

    code = "link.place_refused"


class Hello(msgspec.Struct, frozen=True):
    """Who the neighbour is, and the channels it lets us read."""

    node: str
    channels: list[str]
    site: str = ""


class Arrival(msgspec.Struct, frozen=True):
    """One answer of a neighbour's source side."""

    events: list[Event]
    received: NeighbourBatch
    gaps: tuple[Gap, ...] = ()


class _Batch(msgspec.Struct):
    events: list[msgspec.Raw]
    current_token: str
    next_token: str | None = None
    gone: bool = False
    gaps: tuple[Gap, ...] = ()


class Neighbour:
    """Asks; raises Unavailable when nobody answers as a node does, NotAllowed when we may not,
    TooLarge for more than it takes at once, and other RapportErrors as the neighbour tells them.
    """

    def __init__(self, url: str, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._url = url
        self._client = httpx2.AsyncClient(
            headers=headers, timeout=_TIMEOUT_SECONDS, follow_redirects=False, trust_env=False
        )

    async def hello(self) -> Hello:
        """Who is there."""
        hello = _decoded(await self._ask("GET", "/federation"), Hello)
        check_node_id(hello.node)
        return hello

    async def request(self, channel: str, asked: dict[str, Any], now_ms: int) -> Arrival:
        """The answer to a request for messages."""
        path = f"/channels/{quote(channel, safe='')}/requests"
        batch = _decoded(await self._ask("POST", path, asked), _Batch)
        events = [_as_event(raw, now_ms) for raw in batch.events]
        received = NeighbourBatch(batch.current_token, batch.next_token, batch.gone)
        return Arrival(events, received, batch.gaps)

    async def hand_over(self, channel: str, node: str, events: Sequence[Event]) -> None:
        """Gives events; they are on the neighbour's disk when it returns."""
        path = f"/federation/channels/{quote(channel, safe='')}/events"
        body = {"node": node, "events": [to_cloudevent(event) for event in events]}
        await self._ask("POST", path, body)

    async def close(self) -> None:
        """Closes kept connections."""
        await self._client.aclose()

    async def _ask(self, method: str, path: str, body: Any = None) -> bytes:
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if content is None else {"Content-Type": "application/json"}
        try:
            async with self._client.stream(
                method, self._url + path, content=content, headers=headers
            ) as response:
                raw = await _bounded(response)
                status = response.status_code
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            why = str(error)[:200] or type(error).__name__
            raise Unavailable(
                f"no node answers at {without_password(self._url)}: {why}", code="link.unreachable"
            ) from None
        if status != 200:
            raise _told(status, raw)
        return raw


async def _bounded(response: Any) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in response.aiter_bytes():
        size += len(piece)
        if size > MOST_ANSWER_BYTES:
            raise Unavailable("the answer is larger than any of a node", code="link.strange_answer")
        pieces.append(piece)
    return b"".join(pieces)


def _decoded(raw: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Unavailable(
            "what answers at this address is not a node", code="link.strange_answer"
        ) from None


def _as_event(raw: msgspec.Raw, now_ms: int) -> Event:
    event = decode_cloudevent(bytes(raw), received_ms=now_ms)
    headers = {name: text for name, text in event.headers.items() if name not in _PLACE}
    return msgspec.structs.replace(event, headers=headers)


def _told(status: int, raw: bytes) -> RapportError:
    try:
        told = msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        told = {}
    message = str(told.get("detail", f"the neighbour answered {status}"))
    code = str(told.get("title", f"http.{status}"))
    if code.startswith("token."):
        return PlaceRefused(message)
    if status in (401, 403):
        return NotAllowed(message, code=code, hint=str(told.get("hint", "")))
    if status == 413:
        return TooLarge(message, code=code)
    return Unavailable(message, code=code)
