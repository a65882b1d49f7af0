"""The source door: request messages by query or by token, JSON in and JSON out. [CH-2, CH-12]"""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request as HttpRequest
from litestar import Response, post
from litestar.params import FromPath

from rapport.channel.batch import Batch, Request
from rapport.core.codec import to_cloudevent
from rapport.core.errors import InvalidInput
from rapport.web.callers import allow
from rapport.web.dependencies import NodeDependency

_READ = msgspec.json.Decoder(Request)


@post("/channels/{name:str}/requests", status_code=200)
async def request_messages(
    request: HttpRequest[Any, Any, Any], name: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """A batch of messages with the tokens of this set and of the one that follows."""
    asked = _read(await request.body())
    identity = allow(request, node, "subscribe", name)
    batch = await node.channels.source.request(
        name, asked, identity=identity, closing=node.doors_close
    )
    return Response(msgspec.json.encode(_shown(name, batch)), media_type="application/json")


def _read(body: bytes) -> Request:
    try:
        return _READ.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(
            f"this is not a request: {error}",
            code="request.not_a_request",
            hint='send an object such as {"query": "type = \'badge.seen\'", "max_messages": 10}',
        ) from None


def _shown(name: str, batch: Batch) -> dict[str, Any]:
    return {
        "channel": name,
        "events": [
            {"position": item.position, "received": item.received, **to_cloudevent(item.event)}
            for item in batch.events
        ],
        "current_token": batch.current_token,
        "next_token": batch.next_token,
        "lease_minutes": batch.lease_minutes,
        "ttl_ms": batch.ttl_ms,
        "gone": batch.gone,
    }
