"""The door for messages of peers who are logged in, or want to be: `POST /sessions/messages`.
[CO-2, CO-11]

It asks for no identity: every message shows a session token, a seal or an answer token of its own,
or the request shows one for all (`Authorization: Session TOKEN`). An AUTH REQUEST is answered here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from litestar import Request, Response, post

from rapport.communication.arrivals import TOO_FAST, ArrivalResult
from rapport.communication.content_rules import ContentFault
from rapport.communication.sender_proof import ANSWER_OVER
from rapport.communication.sessions.seals import INVALID
from rapport.core.errors import InvalidInput, NotAllowed, NotAuthenticated, TooFast, TooLarge
from rapport.core.message import AUTH, Message
from rapport.web.api.sessions import origin_of, shown_token
from rapport.web.dependencies import NodeDependency
from rapport.web.guard import OPEN

ADAPTER = "sessions"
"""Under this name what came through this door stands in `input`."""
_MOST_MESSAGES = 100
_NOT_ALLOWED = ("message.not_from_a_peer", "message.reserved_type", "message.only_answers")


class Told(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one message."""

    id: str = ""
    accepted: bool
    reason: str = ""
    fault: ContentFault | None = None
    held: bool = False
    reply: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


@post("/sessions/messages", opt={OPEN: True}, status_code=202)
async def take_peer_messages(
    request: Request[Any, Any, Any], node: NodeDependency
) -> Response[bytes]:
    """Takes one message of a logged-in peer, or an array of them; answered when they are on disk.

    Those that are refused have a reason; when none was taken, the first one's is the answer.
    """
    token = shown_token(request)
    messages = [_with_token(one, token) for one in _read(await request.body())]
    arrived = await node.arrivals.publish(
        messages, adapter=ADAPTER, origin=origin_of(request), answers_back=True
    )
    if not any(one.accepted or one.held or one.reply for one in arrived):
        raise _fault(arrived)
    body = msgspec.json.encode({"messages": [_told(one) for one in arrived]})
    return Response(body, status_code=202, media_type="application/json")


def _read(body: bytes) -> list[Message]:
    """The messages of a body; raises InvalidInput, TooLarge."""
    if body.lstrip()[:1] != b"[":
        return [Message.from_json(body)]
    try:
        parts = msgspec.json.decode(body, type=list[msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidInput("the body is not JSON", code="message.not_a_message") from None
    if len(parts) > _MOST_MESSAGES:
        raise TooLarge(
            f"{len(parts)} messages in one request; the limit is {_MOST_MESSAGES}",
            code="message.batch_too_large",
        )
    if not parts:
        raise InvalidInput("there is no message", code="message.not_a_message")
    return [Message.from_json(bytes(part)) for part in parts]


def _with_token(message: Message, token: str) -> Message:
    """The message with a proof; raises NotAuthenticated for one that has none and asks for none."""
    if message.session_token or (message.type == AUTH and message.subtype == "REQUEST"):
        return message
    if not token:
        raise NotAuthenticated(
            "a message needs a session token",
            code=INVALID,
            hint="log in at POST /sessions; send the header Authorization: Session TOKEN",
        )
    return msgspec.structs.replace(message, session_token=token)


def _told(arrived: ArrivalResult) -> Told:
    reply = arrived.reply
    return Told(
        id=arrived.id,
        accepted=arrived.accepted,
        reason=arrived.reason,
        fault=arrived.fault,
        held=arrived.held,
        reply=msgspec.Raw(reply.to_json()) if reply is not None else msgspec.UNSET,
    )


def _fault(arrived: Sequence[ArrivalResult]) -> InvalidInput | TooFast:
    reason = arrived[0].reason
    if reason == TOO_FAST:
        return TooFast("messages come too fast", code=reason, retry_after_seconds=1)
    if reason == INVALID:
        return NotAuthenticated("the session is not good any more", code=reason, hint="log in")
    if reason == ANSWER_OVER:
        return NotAllowed(
            "the answer token is too old", code=reason, hint="ask who sent the message"
        )
    if reason in _NOT_ALLOWED:
        return NotAllowed("a peer cannot say this", code=reason)
    if arrived[0].fault is not None:
        return arrived[0].fault.as_error()
    return InvalidInput("the message was refused", code=reason)
