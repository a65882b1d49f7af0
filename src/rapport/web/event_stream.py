"""A channel as Server-Sent Events. [CH-12, CH-14]"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from typing import Annotated, Any

import msgspec
from litestar import Response, get
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.response import Stream

from rapport.channel.requests.request import Request as Asked
from rapport.channel.requests.source import ChannelFollower
from rapport.core.errors import InvalidInput, RapportError
from rapport.core.event import Gap, StoredEvent
from rapport.kernel.telemetry import get_logger
from rapport.node.node import Node
from rapport.web.channel_socket import PushConnections
from rapport.web.endpoint import HttpRequest, NodeDependency, require_right
from rapport.web.endpoint_docs import TEXT, documented
from rapport.web.event_view import ConsumerView, EventTextCache
from rapport.web.problems import problem_members

_log = get_logger(__name__)

BEAT_MS = 15_000
"""Silence after which a comment shows that the connection lives."""
RETRY_MS = 2_000
"""How long a browser waits before it reconnects."""
WRITE_EVENTS = 200
"""Most events in one write: a slow reader is waited for after each."""
_MOST_DIGITS = 18


def parse_last_event_id(last_event_id: str) -> int:
    """The position in a Last-Event-ID; raises InvalidInput for what we never gave out."""
    text = last_event_id.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise InvalidInput(
            f"{text[:40]!r} is no place in a stream",
            code="stream.bad_place",
            hint="Last-Event-ID is the id of the last event that was read, a position",
        )
    return int(text)


async def event_stream(
    node: Node,
    channel: str,
    following: ChannelFollower,
    encoded: EventTextCache,
    wording: ConsumerView,
    *,
    seen: int = 0,
    has_place: bool = False,
) -> AsyncGenerator[bytes]:
    """The bytes of the stream, one write at a time: nothing is read ahead of a slow reader.

    Ends with the query, with an `event: problem`, or when the node closes.

    Args:
        seen: events up to this position are left out of a token's own set.
        has_place: the reader is told at once where it stands, as it began there and at no other
            time: lost before anything came, it could not go on from there.
    """
    if has_place:
        yield _place_alone(following.reach)
    try:
        while not node.closing.is_set():
            followed = await following.next_set(wait_ms=BEAT_MS)
            if followed is not None and followed.gone:
                for lost in followed.gaps:
                    yield sse_event("gap", lost)
                yield sse_event("gone", {"position": following.reach})
            elif followed is not None:
                events, words = await wording.delivered(followed), wording.stamp
                if seen:
                    events = [stored for stored in events if stored.position > seen]
                for part, gap in _at_gaps(events, followed.gaps):
                    if part:
                        lines = [encoded.event(channel, stored, words) for stored in part]
                        yield sse_blocks(part, lines, following.handback)
                    if gap is not None:
                        yield f"id: {gap.last}\n".encode() + sse_event("gap", gap)
                if not events or events[-1].position < followed.chosen.through:
                    yield _place_alone(following.reach)  # past what has no words for the reader
            elif following.is_over:
                yield sse_event("end", {"position": following.reach})
                return
            else:
                # An id alone moves the reader's position past events that do not match.
                yield _place_alone(following.reach)
    except RapportError as error:
        yield sse_event("problem", problem_members(error))


def _at_gaps(
    events: Sequence[StoredEvent], gaps: Sequence[Gap]
) -> Iterator[tuple[Sequence[StoredEvent], Gap | None]]:
    """Events in parts, each with the gap that follows it; the last part has none."""
    start = 0
    for gap in gaps:
        end = bisect_left(events, gap.first, key=lambda stored: stored.position)
        yield events[start:end], gap
        start = end
    yield events[start:], None


def sse_blocks(events: Sequence[StoredEvent], texts: Sequence[str], handback: str) -> bytes:
    """Events as they stand in the stream. Of several with one position the last has the id: who
    reconnects between them gets all of them again.
    """
    tail = f',"handback":{msgspec.json.encode(handback).decode()}}}' if handback else ""
    shown = [f"{text[:-1]}{tail}" if tail else text for text in texts]
    following = [stored.position for stored in events[1:]] + [0]
    return "".join(
        [
            f"{_id_line(stored, after)}data: {_one_line(text)}\n\n"
            for stored, after, text in zip(events, following, shown, strict=True)
        ]
    ).encode()


def _id_line(stored: StoredEvent, following: int) -> str:
    return "" if stored.position == following else f"id: {stored.position}\n"


def _place_alone(position: int) -> bytes:
    return f": beat\nid: {position}\n\n".encode()


def sse_event(name: str, members: object) -> bytes:
    """Something that is not an event of the channel, under a name of its own."""
    return f"event: {name}\ndata: {msgspec.json.encode(members).decode()}\n\n".encode()


def _one_line(text: str) -> str:
    """A payload may have come with line breaks between its members; in strings they are escaped."""
    if "\n" in text or "\r" in text:
        return text.replace("\r", " ").replace("\n", " ")
    return text


@get(
    "/channels/{name:str}/stream",
    opt=documented(
        answer=TEXT,
        media=("text/event-stream; charset=utf-8",),
        statuses=("200", "204"),
    ),
)
async def stream(
    request: HttpRequest,
    name: FromPath[str],
    node: NodeDependency,
    condition: Annotated[str, QueryParameter(name="query")] = "",
    kind: FromQuery[str] = "",
    interpretation: FromQuery[str] = "",
    token: FromQuery[str] = "",
    after: Annotated[int, QueryParameter(ge=0, le=2**63 - 1)] = 0,
    from_start: FromQuery[bool] = True,
    handback: FromQuery[str] = "",
) -> Response[Any]:
    """The events of a channel, history first and then live, as Server-Sent Events."""
    identity = require_right(request, node, "subscribe", name)
    live: PushConnections = request.app.state.live
    live.check_room()
    seen = _seen(request)
    query = Asked(
        query=None if token else condition or {},
        kind=kind,
        interpretation=interpretation,
        token=token,
        from_start=from_start or seen is not None,
        handback=handback,
        max_messages=WRITE_EVENTS,
    )
    if seen is not None and not token:
        after = seen  # not where `from_start=false` begins now: that would leave a gap
    following = await node.channels.source.follow(
        name, query, identity=identity, after=after, closing=node.closing
    )
    if seen is not None and seen >= following.reach:
        following.go_on_after(seen)  # else it was lost within the token's own set
    if following.is_over:
        return Response(None, status_code=204)  # a browser stops reconnecting
    wording = ConsumerView(node, name, identity, following)
    parts = event_stream(
        *(node, name, following, live.encoded, wording),
        seen=seen or 0,
        has_place=not (from_start or token),
    )
    return sse(live, parts)


def _seen(request: HttpRequest) -> int | None:
    """How far a reader that reconnects has come; raises InvalidInput."""
    last = request.headers.get("last-event-id")
    return parse_last_event_id(last) if last else None


def sse(live: PushConnections, parts: AsyncGenerator[bytes]) -> Stream:
    """A stream that counts as a connection from its first byte to its end."""

    async def counted() -> AsyncIterator[bytes]:
        live.join()
        try:
            yield f"retry: {RETRY_MS}\n\n".encode()
            async with aclosing(parts):
                async for part in parts:
                    yield part
        finally:
            live.leave()

    return Stream(counted(), media_type="text/event-stream")
