"""Requests and batches as JSON: what the source door of a node, a direct source and the listener
agree on. [CH-1, CH-2, CH-17]
"""

from __future__ import annotations

from typing import Any

import msgspec

from rapport.channel.requesting.batch import Batch, LeasedDelivery, Request
from rapport.channel.requesting.message_leases import Answers
from rapport.core.codec import decode_cloudevent, stored_cloudevent
from rapport.core.errors import InvalidInput, RapportError
from rapport.core.event import Gap, StoredEvent
from rapport.core.json_objects import ObjectDecoder

_OWN = ("position", "received", "handback")
"""Members the channel adds to an event. An attribute of the same name that a producer gave is
covered by them: it could not be told from the channel's.
"""
_READ_REQUEST = ObjectDecoder(
    Request,
    fault="this is not a request",
    code="request.not_a_request",
    hint='send an object such as {"query": "type = \'badge.seen\'", "max_messages": 10}',
)
_READ_ANSWERS = ObjectDecoder(
    Answers,
    fault="these are not answers to deliveries",
    code="request.not_a_request",
    hint='send an object such as {"ack": ["17.3f2a"], "nak": [], "delay_ms": 0}',
)


class _Shown(msgspec.Struct, kw_only=True):
    """A batch as it travels."""

    events: list[msgspec.Raw]
    current_token: str
    next_token: str | None = None
    lease_minutes: int = 0
    ttl_ms: int = -1
    gone: bool = False
    handback: str = ""
    lease_ms: int = 0
    deliveries: tuple[LeasedDelivery, ...] = ()
    gaps: list[Gap] = []


class _Placed(msgspec.Struct):
    """What the channel said of one event."""

    position: int
    received: int


_READ_BATCH = msgspec.json.Decoder(_Shown)
_READ_PLACED = msgspec.json.Decoder(_Placed)


def read_request(body: bytes) -> Request:
    """The request in a body; raises InvalidInput for anything else."""
    return _READ_REQUEST.decode(body)


def read_answers(body: bytes) -> Answers:
    """What a worker says of its deliveries; raises InvalidInput for anything else."""
    return _READ_ANSWERS.decode(body)


def write_request(request: Request) -> bytes:
    """A request as a JSON object, without what it leaves to the source. Raises InvalidInput."""
    plain = Request()
    said = {
        name: getattr(request, name)
        for name in Request.__struct_fields__
        if getattr(request, name) != getattr(plain, name)
    }
    try:
        return msgspec.json.encode(said)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(
            f"the request cannot be written as JSON: {error}", code="request.not_a_request"
        ) from None


def write_batch(channel: str, batch: Batch) -> bytes:
    """A batch as a JSON object; each event carries position, arrival and handback."""
    own: dict[str, Any] = {"handback": batch.handback} if batch.handback else {}
    shown: dict[str, Any] = {
        "channel": channel,
        "events": [show_event(item, **own) for item in batch.events],
        "current_token": batch.current_token,
        "next_token": batch.next_token,
        "lease_minutes": batch.lease_minutes,
        "ttl_ms": batch.ttl_ms,
        "gone": batch.gone,
        **own,
    }
    if batch.lease_ms:
        shown |= {"lease_ms": batch.lease_ms, "deliveries": batch.deliveries}
    if batch.gaps:
        shown["gaps"] = batch.gaps
    return msgspec.json.encode(shown)


def show_event(stored: StoredEvent, **own: str) -> dict[str, Any]:
    """A stored event as a CloudEvent with the channel's own members in front."""
    members = {"position": stored.position, "received": stored.received, **own}
    return members | stored_cloudevent(stored) | members


def read_batch(body: bytes) -> Batch:
    """The batch that `write_batch` wrote; raises InvalidInput for anything else."""
    try:
        shown = _READ_BATCH.decode(body)
        events = tuple(read_event(bytes(raw)) for raw in shown.events)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, RapportError) as error:
        raise InvalidInput(f"this is not a batch: {error}", code="http.strange_answer") from None
    return Batch(
        events=events,
        current_token=shown.current_token,
        next_token=shown.next_token,
        lease_minutes=shown.lease_minutes,
        ttl_ms=shown.ttl_ms,
        gone=shown.gone,
        handback=shown.handback,
        lease_ms=shown.lease_ms,
        deliveries=shown.deliveries,
        gaps=tuple(shown.gaps),
    )


def read_event(raw: bytes) -> StoredEvent:
    """The stored event that `show_event` showed; raises InvalidInput or what msgspec raises."""
    placed = _READ_PLACED.decode(raw)
    event = decode_cloudevent(raw, received_ms=placed.received)
    for name in _OWN:
        event.headers.pop(name, None)  # the dict was made for this event a line ago
    return StoredEvent(placed.position, placed.received, event)
