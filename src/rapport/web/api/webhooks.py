"""The door of inputs by HTTP: messages from gateways and other systems. [CO-16, CO-5]

`POST /inputs/NAME` takes the JSON of a message (or several), CloudEvents, or a form; it answers
with the ids once they are durable. Who posts shows it by a signature or by a bearer token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from litestar import Request, Response, post
from litestar.params import FromPath

from rapport.channel.access.rates import FailedAttempts
from rapport.channel.access.rights import NOBODY
from rapport.communication.adapters.incoming.input_base import Arrival
from rapport.communication.adapters.web.webhook_in import WebhookInput
from rapport.core.errors import (
    InvalidInput,
    NotAllowed,
    NotAuthenticated,
    TooFast,
    UnknownName,
)
from rapport.node.node import Node
from rapport.web.api.sessions import origin_of
from rapport.web.callers import identity_of
from rapport.web.dependencies import NodeDependency
from rapport.web.guard import OPEN
from rapport.web.publishing import BATCH_TYPE, EVENT_TYPE, read_cloudevents
from rapport.web.query_parameters import ANY_QUERY

TOO_FAST = "message.too_fast"
_NO_PROOF = ("session.invalid", "message.not_proven", "message.only_answers")
SIGNED = "signature"
"""Stands for the caller of a signed request."""


@post("/inputs/{name:str}", opt={OPEN: True, ANY_QUERY: True}, status_code=202)
async def take_messages(
    request: Request[Any, Any, Any], name: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """Takes messages of an input; answered when they are durable. Those that were refused have a
    reason instead of an id. They count against the rate of the identity that posts them.
    """
    door = _door(request, node, name)
    body = await request.body()
    identity = None if _is_signed(request, node, door, body) else _identity(request, node, name)
    door.check_size(body)
    now_ms = node.clock.now_ms()
    events = read_cloudevents(request.headers, body, now_ms) if _has_events(request) else None

    def admit(messages: int) -> None:
        if identity is not None:
            node.admission.rates.charge(identity, messages, now_ms)

    caller = SIGNED if identity is None else identity
    arrivals = await door.take(request.headers, body, events, caller=caller, admit=admit)
    check_taken(arrivals)
    told = [_told(one) for one in arrivals]
    return Response(
        msgspec.json.encode({"messages": told}), status_code=202, media_type="application/json"
    )


def _door(request: Request[Any, Any, Any], node: Node, name: str) -> WebhookInput:
    """The input; raises UnknownName, which tells strangers no names that they did not know."""
    try:
        return node.web_input(name)
    except UnknownName as error:
        if identity_of(request) != NOBODY:
            raise
        raise UnknownName(error.kind, name, code=error.code) from None


def check_taken(arrivals: Sequence[Arrival]) -> None:
    """Raises the fault of the first message when none of them was taken."""
    if any(one.accepted or one.id for one in arrivals):  # one that is held has an id
        return
    reason = arrivals[0].reason
    if reason == TOO_FAST:
        hint = "wait as long as Retry-After says"
        raise TooFast("messages come too fast", code=reason, retry_after_seconds=1, hint=hint)
    if reason in _NO_PROOF:
        raise NotAllowed("it is not proven who sends this", code=reason)
    if arrivals[0].fault is not None:
        raise arrivals[0].fault.as_error()
    raise InvalidInput("the message was refused", code=reason or "message.refused")


def _told(arrival: Arrival) -> dict[str, object]:
    told = {"id": arrival.id, "accepted": arrival.accepted, "reason": arrival.reason}
    return told | ({"fault": arrival.fault} if arrival.fault is not None else {})


def _is_signed(
    request: Request[Any, Any, Any], node: Node, door: WebhookInput, body: bytes
) -> bool:
    """Raises NotAuthenticated for a wrong signature, TooFast for many of them."""
    failures: FailedAttempts = request.app.state.failed_signatures
    now_ms = node.clock.now_ms()
    try:
        return door.is_signed(request.headers, body, now_ms)
    except NotAuthenticated:
        failures.note(origin_of(request), now_ms)
        raise


def _identity(request: Request[Any, Any, Any], node: Node, name: str) -> str:
    """Who posts without a signature; raises NotAllowed for a caller without the right."""
    identity = identity_of(request)
    node.rights.check(identity, "publish", f"input.{name}")
    return identity


def _has_events(request: Request[Any, Any, Any]) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind in (EVENT_TYPE, BATCH_TYPE) or "ce-id" in request.headers
