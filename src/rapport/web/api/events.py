"""Events of a channel: publish, read, request; readings of a source; results of the pipeline.
[CH-12, CH-2, CH-17, PI-2, CH-15]

A device that knows nothing of CloudEvents posts its readings to `/sources/NAME` in the format of
the source; they are stored unchanged in `raw.NAME`. Responses are sent after the events are on
disk.
"""

from __future__ import annotations

from typing import Annotated

from litestar import Response, get
from litestar.params import FromPath, FromQuery, QueryParameter

from rapport.channel.channel import gaps_between
from rapport.channel.requests.leases import Answers, SettlementResult
from rapport.channel.requests.request import Request as MessageRequest
from rapport.channel.requests.request import read_answers, read_request, write_batch
from rapport.channel.validation import check_pipeline_channel
from rapport.core.codec import stored_cloudevent
from rapport.core.times import parse_duration
from rapport.kernel.tasks import first_of
from rapport.web.cloudevents import (
    BATCH_TYPE,
    EVENT_TYPE,
    append_events,
    publish_events,
    publish_readings,
    read_cloudevents,
)
from rapport.web.endpoint import (
    HttpRequest,
    NodeDependency,
    Reply,
    json_response,
    post,
    require_admin,
    require_right,
)
from rapport.web.endpoint_docs import (
    ANY_JSON,
    BINARY_HEADERS,
    EVENT_ARRAY,
    EXAMPLE_EVENT,
    IDEMPOTENCY_KEY,
    JSON,
    READING_TYPES,
    documented,
)
from rapport.web.event_view import in_interpretation
from rapport.web.schemas import BatchShown, CloudEvent, Page, Published, reference

_LONGEST_WAIT_MS = 60_000


@post(
    "/channels/{name:str}/events",
    opt=documented(
        bodies={
            EVENT_TYPE: CloudEvent,
            BATCH_TYPE: EVENT_ARRAY,
            JSON: {"anyOf": [reference(CloudEvent), EVENT_ARRAY]},
        },
        example=EXAMPLE_EVENT,
        answer=Published,
        parameters=BINARY_HEADERS,
    ),
)
async def publish(request: HttpRequest, name: FromPath[str], node: NodeDependency) -> Reply:
    """Publishes CloudEvents: structured, binary (ce-* headers), or a JSON array; all or none."""
    identity = require_right(request, node, "publish", name)
    answer = await publish_events(node, identity, name, request.headers, await request.body())
    return Response(answer, media_type="application/json")


@post(
    "/sources/{source:str}",
    opt=documented(
        bodies={JSON: ANY_JSON, **dict.fromkeys(READING_TYPES, ANY_JSON)},
        parameters=IDEMPOTENCY_KEY,
        example={"reader": "r1", "tag": "E200-01", "dx": 1.0, "dy": 2.0},
        answer=Published,
        any_query=True,
    ),
)
async def take_readings(request: HttpRequest, source: FromPath[str], node: NodeDependency) -> Reply:
    """Stores readings of a declared source in its format, unchanged; mediation gives them a
    meaning later. With an Idempotency-Key a repeated request is stored once.
    """
    identity = require_right(request, node, "publish", f"raw.{source}")
    answer = await publish_readings(
        node, identity, source, request.headers, await request.body(), request.url.query
    )
    return Response(answer, media_type="application/json")


@get("/channels/{name:str}/events", opt=documented(answer=Page))
async def read(
    request: HttpRequest,
    name: FromPath[str],
    node: NodeDependency,
    after: Annotated[int, QueryParameter(ge=0)] = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=10_000)] = 100,
    wait: FromQuery[str] = "0s",
    interpretation: FromQuery[str] = "",
) -> Reply:
    """Events after a position, waiting up to `wait` for a first one (long poll); in the words of an
    interpretation when one is named.
    """
    identity = require_right(request, node, "subscribe", name)
    if interpretation:
        node.outgoing.transformer_for(interpretation)  # refused before anybody waits
    wait_ms = min(parse_duration(wait), _LONGEST_WAIT_MS)
    channel = node.channels.channel(name)
    if wait_ms:
        # A closing node answers with what there is.
        await first_of(channel.wait_after(after, timeout_ms=wait_ms), node.closing.wait())
    stored = await channel.read_after(after, limit=limit)
    left = await node.channels.source.not_given_out(name, stored)
    seen = node.channels.delivered(name, identity, left)
    given = await in_interpretation(node, name, seen, interpretation, identity)
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
    return json_response(body)


@post(
    "/channels/{name:str}/requests",
    opt=documented(
        bodies={JSON: MessageRequest},
        example={"query": "type = 'badge.seen'", "max_messages": 10},
        answer=BatchShown,
    ),
)
async def request_messages(
    request: HttpRequest, name: FromPath[str], node: NodeDependency
) -> Reply:
    """A batch of messages with the tokens of this set and of the one that follows."""
    wanted = read_request(await request.body())
    identity = require_right(request, node, "subscribe", name)
    batch = await node.pushing.request(name, wanted, identity=identity, closing=node.closing)
    return Response(write_batch(name, batch), media_type="application/json")


@post(
    "/channels/{name:str}/acks",
    opt=documented(
        bodies={JSON: Answers},
        example={"ack": ["17.3f2a9c01d4e5b6a7"], "nak": [], "delay_ms": 0, "error": ""},
        answer=SettlementResult,
    ),
)
async def settle_deliveries(
    request: HttpRequest, name: FromPath[str], node: NodeDependency
) -> Reply:
    """Acks deliveries of a leased take, gives them back or renews their lease; answers when that is
    on disk.
    """
    answers = read_answers(await request.body())
    require_right(request, node, "take", name)
    settled = await node.channels.source.settle(name, answers)
    return json_response(settled)


@post(
    "/pipeline/channels/{name:str}/events",
    opt=documented(bodies={JSON: EVENT_ARRAY}, example=[EXAMPLE_EVENT], answer=Published),
)
async def take_results(request: HttpRequest, name: FromPath[str], node: NodeDependency) -> Reply:
    """Appends a JSON array of CloudEvents that the pipeline made, all or none, each once; for who
    may change the node.
    """
    identity = require_admin(request, node)
    check_pipeline_channel(name)
    events = read_cloudevents(request.headers, await request.body(), node.clock.now_ms())
    answer = await append_events(node, name, events, identity=identity)
    return Response(answer, media_type="application/json")
