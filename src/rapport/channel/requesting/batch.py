"""What is asked of a channel's source side and what it answers. [CH-1, CH-2, CH-17]

Field by field the structures of the paper: XMessageRequest and XMessageBatch.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rapport.core.errors import InvalidInput
from rapport.core.event import Gap, StoredEvent

DEFAULT_MESSAGES = 100
"""Messages per batch when the request leaves it to the source."""
MOST_MESSAGES = 10_000
"""Larger wishes are cut down to this; so are batches whose data and headers pass MOST_BYTES."""
MOST_BYTES = 8 * 1024 * 1024
LONGEST_WAIT_MS = 60_000
DEFAULT_LEASE_MINUTES = 10
LONGEST_LEASE_MINUTES = 24 * 60
LONGEST_LEASE_MS = LONGEST_LEASE_MINUTES * 60_000
DEFAULT_TRIES = 5
MOST_TRIES = 1_000
KEEP_AS_LONG_AS_POSSIBLE = -1
LONGEST_HANDBACK_BYTES = 1024
"""A handback travels in every token and with every message."""


_NUMBERS = (
    *("wait_ms", "max_messages", "max_time_range_ms", "lease_minutes", "lease_ms", "max_push"),
)


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which messages, how many, and how to go on.

    Limits shape the set that the answer's `next_token` names (for a query, also the first set);
    the set a token names was fixed when the token was given out.
    """

    query: str | dict[str, Any] | None = None
    """A condition (text) or a template (object); begins with the oldest message."""
    kind: str = ""
    """The query's kind; "" takes texts for `sql` and objects for `template`."""
    interpretation: str = ""
    """With a query: whose words it is in, and in which the messages are to come. A token has its
    own in itself.
    """
    token: str = ""
    """Instead of a query: the `current_token` or `next_token` of an earlier batch."""
    wait_ms: int = 0
    """How long to wait for a first match when there is none; at most a minute."""
    max_messages: int = 0
    """0 = as the query said that began the session, or the source's default."""
    max_time_range_ms: int = 0
    """Most time between the earliest and the latest message of a batch; 0 = as before, or any."""
    lease_minutes: int = DEFAULT_LEASE_MINUTES
    """Suggested lease; 0 with a token ends the session."""
    take: bool = False
    """The messages leave the source: no other request sees them."""
    lease_ms: int = 0
    """With `take` and a query: the messages are taken for so long, at most a day. Those that are
    not acked by then come again, to whoever takes next; 0 takes them for good.
    """
    max_tries: int = DEFAULT_TRIES
    """With `lease_ms`: a message that was given so often without an ack is dead-lettered."""
    seen: bool = False
    """With a token: the receiver has this set already and only asks how to go on."""
    from_start: bool = True
    """With a query: False begins with the next message instead of the oldest."""
    handback: str = ""
    """With a query: a text that comes back with each message of the session."""
    push_address: str = ""
    """Where the messages are to be pushed, an http(s) address; empty = pull."""
    max_push: int = 0
    """Most messages in one pushed batch; 0 = the source's default."""


class LeasedDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """A message given to a worker for a time."""

    id: str
    """By which it is acked or given back."""
    tries: int
    """How often it was given to a worker, this time included."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The messages a token names, and how to go on."""

    events: tuple[StoredEvent, ...]
    current_token: str
    """Names exactly this set: a receiver that has seen it drops the batch."""
    next_token: str | None = None
    """Names the set that follows; None = nothing new yet, ask `current_token` again."""
    lease_minutes: int = 0
    ttl_ms: int = KEEP_AS_LONG_AS_POSSIBLE
    gone: bool = False
    """Messages of this set were taken or let go meanwhile; what is left of it comes with
    `next_token`.
    """
    handback: str = ""
    """What the query gave to be handed back."""
    lease_ms: int = 0
    """How long the messages are leased; 0 = they are not."""
    deliveries: tuple[LeasedDelivery, ...] = ()
    """Of a leased take, one per message in their order; such a batch has no tokens."""
    gaps: tuple[Gap, ...] = ()
    """What could not be read between the set before this one and the set that follows."""


class Limits(msgspec.Struct, frozen=True):
    """How large a set may become."""

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


def request_limits(request: Request, before: Limits | None = None) -> Limits:
    """The limits of the sets to come: the request's own, those of before, the defaults."""
    base = before or Limits()
    return Limits(
        messages=min(request.max_messages or base.messages, MOST_MESSAGES),
        time_range_ms=request.max_time_range_ms or base.time_range_ms,
    )
