"""The door that takes messages: `POST /messages`, the JSON of the source's listing 1. [CO-1, CO-12]

An application (sender `component:...`) needs the right to publish to `input`; a peer proves itself
by the session token in its message. Answered when the messages are on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from litestar import Request, Response, post

from rapport.channel.access.rights import LOCAL
from rapport.communication.blocking import run_blocking
from rapport.communication.delivery_options import DeliveryOptions, read_options
from rapport.core.errors import InvalidInput, NotAllowed, TooFast, TooLarge
from rapport.core.message import Identifier, Message
from rapport.node.node import Node
from rapport.web.callers import allow
from rapport.web.dependencies import NodeDependency

ADAPTER = "messages"
"""Under this name what came through this door stands in `input`."""
_TOO_FAST = "message.too_fast"


class Taken(msgspec.Struct, frozen=True):
    """The ids of the messages, in their order."""

    ids: list[str]


@post("/messages", status_code=202)
async def send_messages(request: Request[Any, Any, Any], node: NodeDependency) -> Response[bytes]:
    """Takes one message, or an array of them, to be handled. Those of applications that ask the
    same are taken all or none; others one by one, up to the first that is refused.
    """
    identity = allow(request, node, "publish", "input")
    parts = _parts(await request.body())
    if len(parts) > node.settings.max_batch:
        raise TooLarge(
            f"{len(parts)} messages in one request; the limit is {node.settings.max_batch}",
            code="message.batch_too_large",
        )
    wanted = [_read(part) for part in parts]
    messages, wishes = [message for message, _ in wanted], [asked for _, asked in wanted]
    node.admission.rates.charge(identity, len(messages), node.clock.now_ms())
    await run_blocking(lambda: _check_receivers(node, messages, wishes))
    ids = await _taken(node, messages, wishes, _named(node, identity))
    body = msgspec.json.encode(Taken(ids))
    return Response(body, media_type="application/json", status_code=202)


def _parts(body: bytes) -> list[bytes]:
    """The messages of a body, each as JSON."""
    if body.lstrip()[:1] != b"[":
        return [body]
    try:
        return [bytes(part) for part in msgspec.json.decode(body, type=list[msgspec.Raw])]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"the body is not JSON: {error}", code="message.not_a_message") from None


def _read(body: bytes) -> tuple[Message, DeliveryOptions]:
    """The message, and what is asked of its delivery beyond its fields (`wishes`)."""
    message, written = Message.from_application(body)
    if written and message.sender.kind != "component":
        raise InvalidInput(
            "only applications have wishes for a delivery",
            code="message.bad_wishes",
            hint="send as component:NAME, or leave out `wishes`",
        )
    return message, read_options(written)


def _named(node: Node, identity: str) -> str:
    """The identity as the sender of its messages; empty for who may send by any name: a caller on
    loopback of a node without identities, and who may change the node and so its rules.
    """
    return "" if identity == LOCAL or node.rights.allows_admin(identity) else identity


async def _taken(
    node: Node, messages: Sequence[Message], wishes: Sequence[DeliveryOptions], identity: str
) -> list[str]:
    if all(message.sender.kind == "component" for message in messages) and len(set(wishes)) == 1:
        return await node.arrivals.send(
            messages, adapter=ADAPTER, options=wishes[0], identity=identity
        )
    return [await _one(node, *each, identity) for each in zip(messages, wishes, strict=True)]


def _check_receivers(
    node: Node, messages: Sequence[Message], wishes: Sequence[DeliveryOptions]
) -> None:
    """A wrong name is refused at once, with the nearest right one; also that of who is asked later,
    on the night that nobody answers.
    """
    named = {message.receiver for message in messages if message.receiver}
    steps = {step.receiver for asked in wishes for step in asked.escalate}
    for receiver in (*named, *map(Identifier.parse, sorted(steps))):
        node.directory.check(receiver)


async def _one(node: Node, message: Message, wishes: DeliveryOptions, identity: str) -> str:
    """One message; that of a peer is proven as those of input adapters are."""
    if message.sender.kind == "component":
        sent = await node.arrivals.send(
            [message], adapter=ADAPTER, options=wishes, identity=identity
        )
        return sent[0]
    (arrived,) = await node.arrivals.publish([message], adapter=ADAPTER)
    if arrived.accepted or arrived.held:
        return arrived.id
    if arrived.reason == _TOO_FAST:
        raise TooFast(f"{message.sender} sends too much", code=_TOO_FAST)
    if arrived.fault is not None:
        raise arrived.fault.as_error()
    raise NotAllowed(
        f"the message of {message.sender} is refused: {arrived.reason}",
        code=arrived.reason,
        hint="a peer shows a session token; an application sends as component:NAME",
    )
