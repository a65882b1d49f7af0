"""The doors for the load: the report of the last minute, and one value followed approximately.
[PO-14]

Looking needs any right at this node.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get, post
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.response import Stream

from rapport.channel.access.rights import Grant
from rapport.core.errors import NotAllowed
from rapport.node.load import Follower
from rapport.node.node import Node
from rapport.web.callers import identity_of
from rapport.web.dependencies import NodeDependency
from rapport.web.live.socket import Live
from rapport.web.live.stream import BEAT_MS, RETRY_MS, named_block

Imprecision = Annotated[float, QueryParameter(ge=0, le=1e12)]


@get("/load")
async def show_load(request: Request[Any, Any, Any], node: NodeDependency) -> Response[bytes]:
    """How busy policies kept the node in the last minute, what each cost, and what to do."""
    _allow_looking(request, node)
    return _json(node.load.report())


@get("/load/stream")
async def follow_load(
    request: Request[Any, Any, Any],
    node: NodeDependency,
    imprecision: Imprecision = 5.0,
    of: FromQuery[str] = "busy",
    how: FromQuery[str] = "average",
) -> Stream:
    """One value as Server-Sent Events: a report whenever it leaves what the last one allows.

    `of` is busy (percent), events (per second) or behind (events that wait); `how` is average, sum
    or max of the last minute.
    """
    _allow_looking(request, node)
    follower = node.load.follower(imprecision, of, how)
    live: Live = request.app.state.live
    live.check_room()
    return Stream(_reports(live, node, follower), media_type="text/event-stream")


@post("/load/stream/{follower:str}", status_code=200)
async def change_imprecision(
    request: Request[Any, Any, Any],
    follower: FromPath[str],
    node: NodeDependency,
    imprecision: Imprecision,
) -> Response[bytes]:
    """Another imprecision for a stream that runs, by the name that its reports say; what is too
    rough for it is reported at once.
    """
    _allow_looking(request, node)
    node.load.change(follower, imprecision)
    return _json({"follower": follower, "imprecision": imprecision})


async def _reports(live: Live, node: Node, follower: Follower) -> AsyncIterator[bytes]:
    live.join()
    try:
        yield f"retry: {RETRY_MS}\n\n".encode()
        with node.load.following(follower):
            while not node.doors_close.is_set():
                followed = await follower.next(BEAT_MS, node.clock, node.doors_close)
                yield b": beat\n\n" if followed is None else named_block("load", followed)
    finally:
        live.leave()


def _allow_looking(request: Request[Any, Any, Any], node: Node) -> None:
    """Raises NotAllowed for who has no right at all, TooFast for who looks too often."""
    identity = identity_of(request)
    if node.rights.grants().get(identity, Grant()) == Grant():
        raise NotAllowed(
            f"{identity!r} may not look at the load",
            code="access.no_right",
            hint="the site's [access] gives rights: any of them is enough",
        )
    node.admission.rates.charge(identity, 1, node.clock.now_ms())


def _json(value: object) -> Response[bytes]:
    return Response(msgspec.json.encode(value), media_type="application/json")
