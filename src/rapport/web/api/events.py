"""The channel's HTTP input: publish one or many CloudEvents, read a batch, and post readings of a
source. [CH-12]

A device that knows nothing of CloudEvents posts what it has to `/sources/NAME`, in the format of
the source; it lands untouched in `raw.NAME`. Answers come only after the events are on disk.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get, post
from litestar.params import FromPath, FromQuery, QueryParameter

from rapport.channel.channel import gaps_between
from rapport.core.codec import stored_cloudevent
from rapport.core.times import parse_duration
from rapport.kernel.tasks import first_of
from rapport.web.callers import allow
from rapport.web.dependencies import NodeDependency
from rapport.web.publishing import publish_events, publish_readings
from rapport.web.query_parameters import ANY_QUERY
from rapport.web.terms import in_words

_LONGEST_WAIT_MS = 60_000


@post("/channels/{name:str}/events", status_code=200)
async def publish(
    request: Request[Any, Any, Any], name: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """Appends CloudEvents: structured, binary (ce-* headers), or a JSON array; all or none."""
    identity = allow(request, node, "publish", name)
    answer = await publish_events(node, identity, name, request.headers, await request.body())
    return Response(answer, media_type="application/json")


@post("/sources/{source:str}", opt={ANY_QUERY: True}, status_code=200)
async def take_readings(
    request: Request[Any, Any, Any], source: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """Takes readings of a declared source in its format, as they are; mediation gives them a
    meaning later. With an Idempotency-Key a repeated request is stored once.
    """
    identity = allow(request, node, "publish", f"raw.{source}")
    answer = await publish_readings(
        node, identity, source, request.headers, await request.body(), request.url.query
    )
    return Response(answer, media_type="application/json")


@get("/channels/{name:str}/events")
async def read(
    request: Request[Any, Any, Any],
    name: FromPath[str],
    node: NodeDependency,
    after: Annotated[int, QueryParameter(ge=0)] = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=10_000)] = 100,
    wait: FromQuery[str] = "0s",
    interpretation: FromQuery[str] = "",
) -> Response[bytes]:
    """Events after a position, waiting up to `wait` for a first one (long poll); in the words of an
    interpretation when one is named.
    """
    identity = allow(request, node, "subscribe", name)
    if interpretation:
        node.outgoing.speech(interpretation)  # refused before anybody waits
    wait_ms = min(parse_duration(wait), _LONGEST_WAIT_MS)
    channel = node.channels.channel(name)
    if wait_ms:
        # A node that closes its doors answers with what there is.
        await first_of(channel.wait_after(after, timeout_ms=wait_ms), node.doors_close.wait())
    stored = await channel.read_after(after, limit=limit)
    left = await node.channels.source.not_given_out(name, stored)
    seen = node.channels.delivered(name, identity, left)
    given = await in_words(node, name, seen, interpretation, identity)
    reached = stored[-1].position if stored else channel.last_position()
    gaps = gaps_between(channel, after, reached)
    if not stored:
        reached = gaps[-1].last if gaps else after
    body = {
        "channel": name,
        "events": [stored_cloudevent(item) for item in given],
        "next": reached,
    }
    if gaps:
        body["gaps"] = gaps
    return Response(msgspec.json.encode(body), media_type="application/json")
