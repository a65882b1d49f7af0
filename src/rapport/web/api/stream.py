"""The stream door: a channel as Server-Sent Events. [CH-12]"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from litestar import Request, Response, get
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.response import Stream

from rapport.channel.requests.request import Request as Asked
from rapport.web.callers import allow
from rapport.web.dependencies import NodeDependency
from rapport.web.live.socket import Live
from rapport.web.live.stream import WRITE_EVENTS, event_stream, read_place
from rapport.web.terms import Wording


@get("/channels/{name:str}/stream")
async def stream(
    request: Request[Any, Any, Any],
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
    identity = allow(request, node, "subscribe", name)
    live: Live = request.app.state.live
    live.check_room()
    seen = _seen(request)
    asked = Asked(
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
        name, asked, identity=identity, after=after, closing=node.doors_close
    )
    if seen is not None and seen >= following.reach:
        following.go_on_after(seen)  # else it was lost within the token's own set
    if following.is_over:
        return Response(None, status_code=204)  # a browser stops reconnecting
    wording = Wording(node, name, identity, following)
    parts = event_stream(
        *(node, name, following, live.encoded, wording),
        seen=seen or 0,
        has_place=not (from_start or token),
    )
    return Stream(_counted(live, parts), media_type="text/event-stream")


def _seen(request: Request[Any, Any, Any]) -> int | None:
    """How far a reader that reconnects has come; raises InvalidInput."""
    last = request.headers.get("last-event-id")
    return read_place(last) if last else None


async def _counted(live: Live, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    live.join()
    try:
        async for part in parts:
            yield part
    finally:
        live.leave()
