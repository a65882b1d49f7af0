"""The stream door: a channel as Server-Sent Events. [CH-12]"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from litestar import Request, Response, get
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.response import Stream

from rapport.channel.following import Following
from rapport.channel.requesting.batch import Request as Asked
from rapport.node.node import Node
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
    asked = Asked(
        query=None if token else condition or {},
        kind=kind,
        interpretation=interpretation,
        token=token,
        from_start=from_start,
        handback=handback,
        max_messages=WRITE_EVENTS,
    )
    following = await node.channels.source.follow(
        name, asked, identity=identity, after=after, closing=node.doors_close
    )
    last = request.headers.get("last-event-id")
    if last:
        following.go_on_after(read_place(last))
    if following.is_over:
        return Response(None, status_code=204)  # a browser stops reconnecting
    live: Live = request.app.state.live
    wording = Wording(node, name, identity, following)
    return Stream(_counted(live, node, name, following, wording), media_type="text/event-stream")


async def _counted(
    live: Live, node: Node, name: str, following: Following, wording: Wording
) -> AsyncIterator[bytes]:
    live.enter()
    try:
        async for part in event_stream(node, name, following, live.encoded, wording):
            yield part
    finally:
        live.leave()
