"""The source door: request messages by query or by token, JSON in and JSON out. [CH-2, CH-12,
CH-17]"""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request as HttpRequest
from litestar import Response, post
from litestar.params import FromPath

from rapport.channel.requests.request import read_answers, read_request, write_batch
from rapport.web.callers import allow
from rapport.web.dependencies import NodeDependency


@post("/channels/{name:str}/requests", status_code=200)
async def request_messages(
    request: HttpRequest[Any, Any, Any], name: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """A batch of messages with the tokens of this set and of the one that follows."""
    asked = read_request(await request.body())
    identity = allow(request, node, "subscribe", name)
    batch = await node.pushing.request(name, asked, identity=identity, closing=node.doors_close)
    return Response(write_batch(name, batch), media_type="application/json")


@post("/channels/{name:str}/acks", status_code=200)
async def settle_deliveries(
    request: HttpRequest[Any, Any, Any], name: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """Acks deliveries of a leased take, gives them back or renews their lease; answers when that is
    on disk.
    """
    answers = read_answers(await request.body())
    allow(request, node, "take", name)
    settled = await node.channels.source.settle(name, answers)
    return Response(msgspec.json.encode(settled), media_type="application/json")
