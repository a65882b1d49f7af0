"""The channel's HTTP doors: publish one or many CloudEvents, request a batch, and the device door.
[CH-12]

A device that knows nothing of CloudEvents posts its own JSON to `/sources/NAME`; it lands untouched
in `raw.NAME`. Every door answers only after the events are on disk.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get, post
from litestar.params import FromPath, FromQuery, QueryParameter

from rapport.channel.sequences import counted_in
from rapport.core.codec import decode_cloudevent, decode_cloudevents, to_cloudevent
from rapport.core.errors import InvalidInput, NotAllowed, TooLarge
from rapport.core.event import Event, check_envelope
from rapport.core.ids import content_id
from rapport.core.times import parse_duration, parse_time
from rapport.kernel.tasks import first_of
from rapport.node.node import Node
from rapport.web.callers import allow
from rapport.web.dependencies import NodeDependency

_BATCH_TYPE = "application/cloudevents-batch+json"
_ONLY_THE_NODE = ("events", "quarantine", "detections", "control", "log", "dead_letters")
_LONGEST_WAIT_MS = 60_000


@post("/channels/{name:str}/events", status_code=200)
async def publish(
    request: Request[Any, Any, Any], name: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """Appends CloudEvents: structured, binary (ce-* headers), or a JSON array; all or none."""
    allow(request, node, "publish", name)
    if name in _ONLY_THE_NODE or name.startswith("output."):
        raise NotAllowed(
            f"only the node itself appends to {name!r}",
            code="channel.reserved",
            hint="publish to raw.SOURCE, or to a channel of your own name",
        )
    body = await request.body()
    events = _read_cloudevents(request, body, node.clock.now_ms())
    return await _append(node, name, counted_in(name, events))


@post("/sources/{source:str}", status_code=200)
async def take_readings(
    request: Request[Any, Any, Any], source: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """Takes a device's own JSON, one object or an array, as it is; mediation gives it a meaning
    later.
    """
    allow(request, node, "publish", f"raw.{source}")
    body = await request.body()
    payloads = _read_payloads(body)
    now_ms = node.clock.now_ms()
    id_field = node.id_field(source)
    events = [
        Event(
            source=source,
            id=_device_id(payload, id_field, source),
            type=f"{source}.raw",
            subject="",
            time=now_ms,
            data=bytes(payload),
        )
        for payload in payloads
    ]
    for event in events:
        check_envelope(event)
    return await _append(node, f"raw.{source}", events)


@get("/channels/{name:str}/events")
async def read(
    request: Request[Any, Any, Any],
    name: FromPath[str],
    node: NodeDependency,
    after: Annotated[int, QueryParameter(ge=0)] = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=10_000)] = 100,
    wait: FromQuery[str] = "0s",
) -> Response[bytes]:
    """Events after a position, waiting up to `wait` for a first one (long poll)."""
    allow(request, node, "subscribe", name)
    wait_ms = min(parse_duration(wait), _LONGEST_WAIT_MS)
    channel = node.channels.channel(name)
    if wait_ms:
        # A node that closes its doors answers with what there is.
        await first_of(channel.wait_after(after, timeout_ms=wait_ms), node.doors_close.wait())
    stored = await channel.read_after(after, limit=limit)
    body = {
        "channel": name,
        "events": [
            {"position": item.position, "received": item.received, **to_cloudevent(item.event)}
            for item in stored
        ],
        "next": stored[-1].position if stored else after,
    }
    return Response(msgspec.json.encode(body), media_type="application/json")


async def _append(node: Node, channel: str, events: list[Event]) -> Response[bytes]:
    if len(events) > node.settings.max_batch:
        raise TooLarge(
            f"{len(events)} events in one request; the limit is {node.settings.max_batch}",
            code="event.batch_too_large",
        )
    appended = await node.append(channel, events)
    body = {"positions": appended.positions, "duplicates": appended.duplicates}
    return Response(msgspec.json.encode(body), media_type="application/json")


def _read_cloudevents(request: Request[Any, Any, Any], body: bytes, now_ms: int) -> list[Event]:
    if "ce-id" in request.headers or "ce-type" in request.headers:
        return [_read_binary(request, body, now_ms)]
    kind = request.headers.get("content-type", "").split(";")[0].strip()
    if kind == _BATCH_TYPE or body.lstrip()[:1] == b"[":
        return decode_cloudevents(body, received_ms=now_ms)
    return [decode_cloudevent(body, received_ms=now_ms)]


def _read_binary(request: Request[Any, Any, Any], body: bytes, now_ms: int) -> Event:
    """CloudEvents binary mode: attributes in ce-* headers, data in the body."""
    given = {name[3:]: value for name, value in request.headers.items() if name.startswith("ce-")}
    if body:
        _check_json(body)
    missing = [name for name in ("id", "source", "type") if not given.get(name)]
    if missing:
        raise InvalidInput(f"the header ce-{missing[0]} is missing", code="event.missing_field")
    known = ("id", "source", "type", "subject", "time", "specversion")
    event = Event(
        source=given["source"],
        id=given["id"],
        type=given["type"],
        subject=given.get("subject", ""),
        time=parse_time(given["time"]) if "time" in given else now_ms,
        data=body or b"null",
        headers={name: value for name, value in given.items() if name not in known},
    )
    check_envelope(event)
    return event


def _read_payloads(body: bytes) -> list[msgspec.Raw]:
    try:
        if body.lstrip()[:1] == b"[":
            return msgspec.json.decode(body, type=list[msgspec.Raw])
        _check_json(body)
        return [msgspec.Raw(body.strip())]
    except msgspec.DecodeError as error:
        raise InvalidInput(f"the body is not JSON: {error}", code="event.bad_data") from None


def _check_json(body: bytes) -> None:
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"the body is not JSON: {error}", code="event.bad_data") from None


def _device_id(payload: msgspec.Raw, id_field: str | None, source: str) -> str:
    """The id the device gives, or one made from what it said: sent twice is stored once."""
    if id_field is not None:
        value = msgspec.json.decode(payload)
        given = value.get(id_field) if isinstance(value, dict) else None
        if isinstance(given, (str, int)) and not isinstance(given, bool) and str(given):
            return str(given)
    return content_id(source, bytes(payload).decode("utf-8", "replace"))
