"""What a node pushes: looked at and ended by who subscribed, or by who may change the node. [CH-2]

A push is begun and renewed at the request doors, with `push_address`.
"""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response, get, post
from litestar.params import FromPath

from rapport.channel.push import PushDelivery
from rapport.core.errors import UnknownName
from rapport.core.times import format_time
from rapport.node.node import Node
from rapport.web.callers import identity_of
from rapport.web.dependencies import NodeDependency


@get("/pushes")
async def list_pushes(request: Request[Any, Any, Any], node: NodeDependency) -> Response[bytes]:
    """The caller's push subscriptions; all of them for who may change the node."""
    shown = [_shown(one) for one in _visible(request, node)]
    return Response(msgspec.json.encode(shown), media_type="application/json")


@post("/pushes/{session:str}/cancel", status_code=200)
async def cancel_push(
    request: Request[Any, Any, Any], session: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """Ends a push subscription; 404 when the caller has none of that name."""
    sessions = [one.push.session for one in _visible(request, node)]
    if session not in sessions:
        raise UnknownName("push subscription", session, sessions)
    await node.pushing.cancel(session)
    return Response(msgspec.json.encode({"cancelled": session}), media_type="application/json")


def _visible(request: Request[Any, Any, Any], node: Node) -> list[PushDelivery]:
    identity = identity_of(request)
    everything = node.rights.allows_admin(identity)
    return [one for one in node.pushing.pushes() if everything or one.push.identity == identity]


def _shown(delivery: PushDelivery) -> dict[str, object]:
    push = delivery.push
    return {
        "session": push.session,
        "channel": push.channel,
        "identity": push.identity,
        "address": push.address,
        "form": push.form,
        "until": format_time(push.until_ms),
        "batches": push.batches,
        "messages": push.messages,
        "failures": delivery.failures,
        "trouble": delivery.trouble,
    }
