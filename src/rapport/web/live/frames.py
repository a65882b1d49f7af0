"""What is said over a socket: one JSON object per frame, in both directions. [CH-12, CH-17]

docs/reference/doors.md tells the protocol to people, the AsyncAPI document tells it to tools; both
are about these structures.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rapport.channel.requests.request import DEFAULT_LEASE_MINUTES, Request
from rapport.core.errors import InvalidInput
from rapport.core.json_objects import ObjectDecoder

LONGEST_ID = 64
MOST_CREDIT = 1_000_000
Ref = str | int | None


class Subscribe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to push, from where, and how much before more is asked for."""

    id: str = ""
    """The client's name for the subscription, unique in its socket."""
    query: str | dict[str, Any] | None = None
    """A condition (text) or a template (object); everything when left out."""
    kind: str = ""
    interpretation: str = ""
    """With a query: whose words it is in, and in which the events come."""
    token: str = ""
    """Instead of a query: `current_token` gives that batch again, `next_token` what follows it."""
    seen: bool = False
    """With `current_token`: its batch is here already."""
    after: int = 0
    """With a query: begins after this position."""
    from_start: bool = True
    """False begins with the next event to arrive."""
    credit: int | None = None
    """Batches that may be sent before more credit is given; left out: as fast as they are read."""
    max_batch: int = 0
    """Most events in a batch; 0 = the source's default."""
    max_time_range_ms: int = 0
    lease_minutes: int = DEFAULT_LEASE_MINUTES
    handback: str = ""
    """A text that comes back with every batch."""


class ClientFrame(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client says: exactly one of the first five members."""

    subscribe: Subscribe | None = None
    credit: int | None = None
    """More batches for the subscription `id`."""
    unsubscribe: str | None = None
    publish: msgspec.Raw = msgspec.Raw()
    """An array of CloudEvents, appended all or none."""
    ping: msgspec.Raw = msgspec.Raw()
    id: str = ""
    """With `credit`: which subscription."""
    ref: Ref = None
    """Comes back with the answer."""


_BAD_FRAME, _NOT_A_FRAME = "this frame cannot be understood", "socket.bad_frame"
_HINT = 'send an object such as {"subscribe": {"id": "a", "query": "type = \'badge.seen\'"}}'
_READ = ObjectDecoder(ClientFrame, fault=_BAD_FRAME, code=_NOT_A_FRAME, hint=_HINT)
_VERBS = ("subscribe", "credit", "unsubscribe", "publish", "ping")


def read_frame(text: str | bytes) -> tuple[str, ClientFrame]:
    """A frame and which verb it has; raises InvalidInput."""
    frame = _READ.decode(text)
    verbs = [verb for verb in _VERBS if _is_there(getattr(frame, verb))]
    if len(verbs) != 1:
        message = f"{_BAD_FRAME}: it needs exactly one of {', '.join(_VERBS)}"
        raise InvalidInput(message, code=_NOT_A_FRAME, hint=_HINT)
    return verbs[0], frame


def _is_there(value: Any) -> bool:
    return bool(bytes(value)) if isinstance(value, msgspec.Raw) else value is not None


def check_subscribe(asked: Subscribe) -> None:
    """Raises InvalidInput for values out of bounds; the source checks queries and tokens."""
    if len(asked.id) > LONGEST_ID:
        raise InvalidInput(
            f"the id of a subscription has at most {LONGEST_ID} characters",
            code="socket.bad_subscription",
        )
    if asked.credit is not None:
        check_credit(asked.credit)
    if not 0 <= asked.after < 2**63:
        raise InvalidInput(
            f"there is no position {asked.after}",
            code="socket.bad_subscription",
            hint="a number from 0 on",
        )


def check_credit(credit: int) -> None:
    """Raises InvalidInput for a credit that is none."""
    if not 0 <= credit <= MOST_CREDIT:
        raise InvalidInput(
            f"{credit} is no credit", code="socket.bad_credit", hint=f"0 to {MOST_CREDIT} batches"
        )


def as_request(asked: Subscribe) -> Request:
    """The subscription as a request to the source."""
    query = {} if asked.query is None and not asked.token else asked.query
    return Request(
        query=query,
        kind=asked.kind,
        interpretation=asked.interpretation,
        token=asked.token,
        seen=asked.seen,
        from_start=asked.from_start,
        max_messages=asked.max_batch,
        max_time_range_ms=asked.max_time_range_ms,
        lease_minutes=asked.lease_minutes,
        handback=asked.handback,
    )


def to_text(members: dict[str, Any]) -> str:
    """A frame to be sent."""
    return msgspec.json.encode(members).decode()
