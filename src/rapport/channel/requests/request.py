"""Requests and batches: the model, its checks and its JSON form. [CH-1, CH-2, CH-17, ME-9]

Field by field the structures of the paper: XMessageRequest and XMessageBatch. A node's source
endpoint, a direct source and the listener share the JSON form. The interpretation that a request
names becomes part of its query (kind `own`), so tokens carry it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from rapport.channel.query.query_kinds import OWN, SQL, TEMPLATE, OwnTermsRequest, Query
from rapport.channel.requests.leases import Answers
from rapport.channel.validation import KEEP_AS_LONG_AS_POSSIBLE
from rapport.core.codec import decode_cloudevent, stored_cloudevent
from rapport.core.errors import InvalidInput, RapportError, Unsupported
from rapport.core.event import Gap, StoredEvent
from rapport.core.json_objects import ObjectDecoder

DEFAULT_MESSAGES = 100
"""Messages per batch when the request leaves it to the source."""
MOST_MESSAGES = 10_000
"""Larger requests are reduced to this; so are batches whose data and headers exceed MOST_BYTES."""
MOST_BYTES = 8 * 1024 * 1024
LONGEST_WAIT_MS = 60_000
DEFAULT_LEASE_MINUTES = 10
LONGEST_LEASE_MINUTES = 24 * 60
LONGEST_LEASE_MS = LONGEST_LEASE_MINUTES * 60_000
DEFAULT_TRIES = 5
MOST_TRIES = 1_000

LONGEST_HANDBACK_BYTES = 1024
"""A handback travels in every token and with every message."""


_NUMBERS = (
    *("wait_ms", "max_messages", "max_time_range_ms", "lease_minutes", "lease_ms", "max_push"),
)
_OWN = ("position", "received", "handback")
"""Members that the channel adds to an event. They replace a producer's attributes of the same name,
which could not be distinguished from the channel's.
"""
_READ_ANSWERS = ObjectDecoder(
    Answers,
    fault="these are not answers to deliveries",
    code="request.not_a_request",
    hint='send an object such as {"ack": ["17.3f2a"], "nak": [], "delay_ms": 0}',
)
ROOT = "root"
"""The canonical interpretation: a request that names it gets the stored form."""
_RAW = "raw."
Present = Callable[[str, Sequence[StoredEvent], str, str], Awaitable[list[StoredEvent]]]
"""Messages of a channel in the words of an interpretation, for an identity."""


class Request(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Which messages, how many, and how to continue.

    Limits shape the set that the answer's `next_token` names (for a query, also the first set); the
    set of a token was fixed when the token was issued.
    """

    query: str | dict[str, Any] | None = None
    """A condition (text) or a template (object); begins with the oldest message."""
    kind: str = ""
    """The query's kind; "" takes texts for `sql` and objects for `template`."""
    interpretation: str = ""
    """With a query: the interpretation of query and messages. A token carries its own."""
    token: str = ""
    """Instead of a query: the `current_token` or `next_token` of an earlier batch."""
    wait_ms: int = 0
    """How long to wait for a first match; at most a minute."""
    max_messages: int = 0
    """0 = as in the query that began the session, or the source's default."""
    max_time_range_ms: int = 0
    """Most time between the earliest and the latest message of a batch; 0 = as before, or any."""
    lease_minutes: int = DEFAULT_LEASE_MINUTES
    """Suggested lease; 0 with a token ends the session."""
    take: bool = False
    """The messages leave the source: no other request sees them."""
    lease_ms: int = 0
    """With `take` and a query: the messages are leased for so long, at most a day. Messages without
    an ack by then are redelivered to the next worker; 0 takes them for good.
    """
    max_tries: int = DEFAULT_TRIES
    """With `lease_ms`: a message delivered so often without an ack is dead-lettered."""
    seen: bool = False
    """With a token: the receiver has this set already and requests only the next token."""
    from_start: bool = True
    """With a query: False begins with the next message instead of the oldest."""
    handback: str = ""
    """With a query: a text that is returned with each message of the session."""
    push_address: str = ""
    """Where the messages are to be pushed, an http(s) address; empty = pull."""
    max_push: int = 0
    """Most messages in one pushed batch; 0 = the source's default."""


class LeasedDelivery(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    """Identifies the delivery in acks and naks."""
    tries: int
    """How often the message was delivered to a worker, this time included."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The messages a token names, and how to go on."""

    events: tuple[StoredEvent, ...]
    current_token: str
    """Names exactly this set: a receiver that has seen it drops the batch."""
    next_token: str | None = None
    """Names the following set; None = nothing new yet, request `current_token` again."""
    lease_minutes: int = 0
    ttl_ms: int = KEEP_AS_LONG_AS_POSSIBLE
    gone: bool = False
    """Messages of this set were taken or trimmed; the rest of it comes with `next_token`."""
    handback: str = ""
    """The text of the query that is returned with each message."""
    lease_ms: int = 0
    """How long the messages are leased; 0 = they are not."""
    deliveries: tuple[LeasedDelivery, ...] = ()
    """Of a leased take, one per message in their order; such a batch has no tokens."""
    gaps: tuple[Gap, ...] = ()
    """Unreadable positions between the set before this one and the set that follows."""


class BatchLimits(msgspec.Struct, frozen=True):
    messages: int = DEFAULT_MESSAGES
    time_range_ms: int = 0
    data_bytes: int = MOST_BYTES


def check_request(request: Request) -> None:
    """Raises InvalidInput for a request that contradicts itself."""
    if bool(request.token) == (request.query is not None):
        raise InvalidInput(
            "a request names either a query or a token",
            code="request.no_query",
            hint='for everything from the beginning send {"query": {}}',
        )
    if request.token and request.kind:
        raise InvalidInput("a token has its query's kind in itself", code="request.bad_field")
    if request.seen and not request.token:
        raise InvalidInput("only a token's messages can be seen already", code="request.bad_field")
    if request.token and (request.handback or request.interpretation or not request.from_start):
        raise InvalidInput(
            "a token has its beginning, handback and interpretation in itself",
            code="request.bad_field",
        )
    if request.lease_ms and not _can_lease(request):
        raise InvalidInput(
            "a leased take has a query that begins with the oldest message, and neither a token "
            "nor an address",
            code="request.bad_field",
            hint='such as {"query": {}, "take": true, "lease_ms": 30000}',
        )
    if not 1 <= request.max_tries <= MOST_TRIES:
        raise InvalidInput(
            f"max_tries cannot be {request.max_tries}",
            code="request.bad_field",
            hint=f"a number from 1 to {MOST_TRIES}",
        )
    _check_handback(request.handback)
    for field in _NUMBERS:
        if not 0 <= getattr(request, field) < 2**53:
            raise InvalidInput(
                f"{field} cannot be {getattr(request, field)}",
                code="request.bad_field",
                hint="a number from 0 on",
            )


def _can_lease(request: Request) -> bool:
    return (
        request.take
        and request.from_start
        and not (request.token or request.push_address or request.max_time_range_ms)
    )


def _check_handback(handback: str) -> None:
    try:
        size = len(handback.encode())
    except UnicodeEncodeError:
        raise InvalidInput(
            "the handback has lone surrogates", code="request.bad_handback"
        ) from None
    if size > LONGEST_HANDBACK_BYTES:
        raise InvalidInput(
            f"the handback has {size} bytes; {LONGEST_HANDBACK_BYTES} are allowed",
            code="request.bad_handback",
            hint="keep the long text on your side and hand back its name",
        )


def request_limits(request: Request, before: BatchLimits | None = None) -> BatchLimits:
    """The limits of the following sets: the request's own, the session's, or the defaults."""
    base = before or BatchLimits()
    return BatchLimits(
        messages=min(request.max_messages or base.messages, MOST_MESSAGES),
        time_range_ms=request.max_time_range_ms or base.time_range_ms,
    )


_READ_REQUEST = ObjectDecoder(
    Request,
    fault="this is not a request",
    code="request.not_a_request",
    hint='send an object such as {"query": "type = \'badge.seen\'", "max_messages": 10}',
)


class _BatchJson(Batch, frozen=True, kw_only=True):
    """A batch as it travels."""

    events: tuple[msgspec.Raw, ...]  # type: ignore[assignment]


class _EventPlacement(msgspec.Struct):
    position: int
    received: int


_READ_BATCH = msgspec.json.Decoder(_BatchJson)
_READ_PLACED = msgspec.json.Decoder(_EventPlacement)


def read_request(body: bytes) -> Request:
    """The request in a body; raises InvalidInput for anything else."""
    return _READ_REQUEST.decode(body)


def read_answers(body: bytes) -> Answers:
    """A worker's answers in a body; raises InvalidInput for anything else."""
    return _READ_ANSWERS.decode(body)


def write_request(request: Request) -> bytes:
    """A request as a JSON object without default values. Raises InvalidInput."""
    try:
        return msgspec.json.encode(request)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(
            f"the request cannot be written as JSON: {error}", code="request.not_a_request"
        ) from None


def write_batch(channel: str, batch: Batch) -> bytes:
    """A batch as a JSON object; each event carries position, arrival and handback."""
    own: dict[str, Any] = {"handback": batch.handback} if batch.handback else {}
    shown: dict[str, Any] = {
        "channel": channel,
        "events": [event_json(item, **own) for item in batch.events],
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


def event_json(stored: StoredEvent, **own: str) -> dict[str, Any]:
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
    others = {name: getattr(shown, name) for name in shown.__struct_fields__ if name != "events"}
    return Batch(events=events, **others)


def read_event(raw: bytes) -> StoredEvent:
    """The stored event that `event_json` wrote; raises InvalidInput or msgspec's errors."""
    placed = _READ_PLACED.decode(raw)
    event = decode_cloudevent(raw, received_ms=placed.received)
    for name in _OWN:
        event.headers.pop(name, None)  # the dict was made for this event a line ago
    return StoredEvent(placed.position, placed.received, event)


def with_interpretation(name: str, request: Request) -> Request:
    """The request with its interpretation in the query; raises InvalidInput, Unsupported."""
    if not request.interpretation:
        return request
    plain = msgspec.structs.replace(request, interpretation="")
    if request.interpretation == ROOT and not name.startswith(_RAW):
        return plain
    own_terms = _own_query(request)
    if name.startswith(_RAW) and (own_terms.where or own_terms.template):
        raise Unsupported(
            "a condition in own terms",
            f"channel {name!r}, whose messages have no meaning yet",
            hint="request all of them, or use a canonical channel such as 'events'",
        )
    return msgspec.structs.replace(plain, kind=OWN, query=_members(own_terms))


def interpretation_of(query: Query) -> str:
    """The interpretation of a query's matches; empty for the canonical one."""
    if query.kind != OWN:
        return ""
    return msgspec.json.decode(query.text, type=OwnTermsRequest).interpretation


def _own_query(request: Request) -> OwnTermsRequest:
    query, kind = request.query, request.kind
    if isinstance(query, str) and kind in ("", SQL):
        return OwnTermsRequest(request.interpretation, where=query)
    if isinstance(query, dict) and kind in ("", TEMPLATE):
        return OwnTermsRequest(request.interpretation, template=query or None)
    raise InvalidInput(
        f"a query of the kind {kind!r} cannot be used with an interpretation",
        code="request.bad_field",
        hint="use a condition (text) or a template (object)",
    )


def _members(own_terms: OwnTermsRequest) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(own_terms)
    return found
