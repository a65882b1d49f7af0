"""Messages: send, query, and receive from peers and other systems. [CO-13, CO-1, CO-12, CO-2,
CO-11, CO-16, CO-5]

`POST /messages`: an application (sender `component:...`) needs the right to publish to `input`, or
the role operator; a peer proves itself by the session token in its message. `POST
/sessions/messages` needs no identity: every message carries a session token, a seal or an answer
token, or the request carries one for all (`Authorization: Session TOKEN`); an AUTH REQUEST is
answered directly. `POST /inputs/NAME` accepts the JSON of messages, CloudEvents
or a form, authenticated by a signature or a bearer token.
Responses are sent after the messages are on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from litestar import get
from litestar.params import FromPath, FromQuery, QueryParameter

from rapport.channel.access.identities import LOCAL, NOBODY, FailedAttempts
from rapport.communication.adapters.webhook import WebhookInput
from rapport.communication.answers import CloseData, record_close
from rapport.communication.arrival_checks import ANSWER_OVER
from rapport.communication.arrivals import TOO_FAST, ArrivalResult
from rapport.communication.content_rules import ContentFault
from rapport.communication.delivery_state import DeliveryOptions, read_options
from rapport.communication.ledger import show_message
from rapport.communication.message_query import MOST_PER_PAGE, Criteria, LoggedMessage, MessagePage
from rapport.communication.sessions.seals import INVALID
from rapport.core.errors import (
    InvalidInput,
    NotAllowed,
    NotAuthenticated,
    TooFast,
    TooLarge,
    UnknownName,
)
from rapport.core.message import AUTH, Identifier, Message
from rapport.core.times import format_time, parse_time
from rapport.kernel.tasks import run_blocking
from rapport.node.node import Node
from rapport.web.api.directory import origin_of, shown_token
from rapport.web.cloudevents import BATCH_TYPE, EVENT_TYPE, read_cloudevents
from rapport.web.endpoint import (
    HttpRequest,
    NodeDependency,
    Reply,
    identity_of,
    json_response,
    post,
    require_right,
    require_role,
    require_unfiltered,
)
from rapport.web.endpoint_docs import (
    ANY_JSON,
    FORM,
    FORM_FIELDS,
    JSON,
    JSON_OBJECT,
    MESSAGE_SCHEMA,
    documented,
)
from rapport.web.schemas import CloudEvent

_ORDERS = ("newest", "oldest")


@get("/messages")
async def list_messages(
    request: HttpRequest,
    node: NodeDependency,
    message: Annotated[str, QueryParameter(name="id")] = "",
    kind: Annotated[str, QueryParameter(name="type")] = "",
    subtype: FromQuery[str] = "",
    sender: FromQuery[str] = "",
    receiver: FromQuery[str] = "",
    conversation: FromQuery[str] = "",
    refers_to: FromQuery[str] = "",
    contains: FromQuery[str] = "",
    fate: FromQuery[str] = "",
    since: FromQuery[str] = "",
    until: FromQuery[str] = "",
    order: FromQuery[str] = "newest",
    limit: Annotated[int, QueryParameter(ge=1, le=MOST_PER_PAGE)] = 100,
    token: FromQuery[str] = "",
) -> Reply:
    """Handled messages by criteria (type, sender, receiver, conversation, time, content, fate), or
    the page of a token from an earlier page. Needs the right to read `log`.
    """
    require_unfiltered(request, node, "log")
    if order not in _ORDERS:
        raise InvalidInput(
            f"the order cannot be {order[:40]!r}", code="query.bad_criteria", hint="newest, oldest"
        )
    criteria = Criteria(
        id=message,
        type=kind,
        subtype=subtype,
        sender=sender,
        receiver=receiver,
        conversation=conversation,
        refers_to=refers_to,
        contains=contains,
        fate=fate,
        since_ms=parse_time(since) if since else None,
        until_ms=parse_time(until) if until else None,
        newest_first=order == "newest",
        limit=limit,
    )
    # The endpoint's own defaults are no criteria: a token comes without any.
    options = None if token and criteria == Criteria(newest_first=True) else criteria
    page = await node.services.queries.page(options, token=token)
    return json_response(shown_page(page))


def shown_page(page: MessagePage) -> dict[str, Any]:
    """A page as JSON: each message as it is written, and what is known of it."""
    return {
        "messages": [shown_message(logged) for logged in page.messages],
        "token": page.token,
        "next_token": page.next_token or None,
    }


def shown_message(logged: LoggedMessage) -> dict[str, Any]:
    """The message with the keys of its JSON form, when it was handled, and its fate."""
    written: dict[str, Any] = msgspec.json.decode(logged.message.to_json())
    return written | {
        "time": format_time(logged.time),
        "fate": logged.fate,
        "policy": logged.policy,
        "detection": logged.detection,
        "position": logged.position,
        "received": format_time(logged.received),
    }


MESSAGE_ADAPTER = "messages"
"""The adapter name of these messages in `input`."""


class AcceptedMessages(msgspec.Struct, frozen=True):
    """The ids of the messages, in their order."""

    ids: list[str]


@post(
    "/messages",
    status_code=202,
    opt=documented(
        bodies={JSON: {"anyOf": [JSON_OBJECT, {"type": "array", "items": JSON_OBJECT}]}},
        example={
            "type": "NOTIFICATION",
            "subtype": "MESSAGE",
            "sender": "component:app",
            "receiver": "collective:guards",
            "content": "Please come to the gate",
            "wishes": {"least": 1, "answer_within": 600_000},
        },
    ),
)
async def send_messages(request: HttpRequest, node: NodeDependency) -> Reply:
    """Takes one message, or an array of them, to be handled. Those of applications that ask the
    same are taken all or none; others one by one, up to the first that is refused.
    """
    identity = identity_of(request)
    if not node.rights.allows_role(identity, "operator"):
        require_right(request, node, "publish", "input")
    wanted = [_read(part) for part in _parts(await request.body(), node.settings.max_batch)]
    messages, wishes = [message for message, _ in wanted], [options for _, options in wanted]
    node.admission.rates.charge(identity, len(messages), node.clock.now_ms())
    await run_blocking(lambda: _check_receivers(node, messages, wishes))
    ids = await _accept(node, messages, wishes, _named(node, identity))
    return json_response(AcceptedMessages(ids), status=202)


class ClosedMessage(msgspec.Struct, frozen=True):
    """The message that is being closed."""

    closed: str


@post(
    "/messages/{message:str}/close",
    status_code=202,
    opt=documented(answer=ClosedMessage, statuses=("202",)),
)
async def close_message(
    request: HttpRequest, message: FromPath[str], node: NodeDependency
) -> Reply:
    """Closes an open message: nobody is asked any more. One that is over stays as it is."""
    identity = require_role(request, node, "operator")
    found = await show_message(node.ledger, message, with_timeline=False)
    close = CloseData(message=message, receiver=found.message.receiver, by=identity)
    await record_close(node.channels, close, now_ms=node.clock.now_ms())
    return json_response(ClosedMessage(message), status=202)


def _parts(body: bytes, most: int) -> list[bytes]:
    """The messages of a body, each as JSON; raises InvalidInput, TooLarge."""
    if body.lstrip()[:1] != b"[":
        return [body]
    try:
        parts = [bytes(part) for part in msgspec.json.decode(body, type=list[msgspec.Raw])]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"the body is not JSON: {error}", code="message.not_a_message") from None
    if len(parts) > most:
        raise TooLarge(
            f"{len(parts)} messages in one request; the limit is {most}",
            code="message.batch_too_large",
        )
    return parts


def _read(body: bytes) -> tuple[Message, DeliveryOptions]:
    """The message and its delivery options (`wishes`)."""
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


async def _accept(
    node: Node, messages: Sequence[Message], wishes: Sequence[DeliveryOptions], identity: str
) -> list[str]:
    if all(message.sender.kind == "component" for message in messages) and len(set(wishes)) == 1:
        return await node.arrivals.send(
            messages, adapter=MESSAGE_ADAPTER, options=wishes[0], identity=identity
        )
    return [await _one(node, *each, identity) for each in zip(messages, wishes, strict=True)]


def _check_receivers(
    node: Node, messages: Sequence[Message], wishes: Sequence[DeliveryOptions]
) -> None:
    """A wrong name is refused at once, with the nearest right one; also that of who is asked later,
    on the night that nobody answers.
    """
    named = {message.receiver for message in messages if message.receiver}
    steps = {step.receiver for options in wishes for step in options.escalate}
    for receiver in (*named, *map(Identifier.parse, sorted(steps))):
        node.directory.check(receiver)


async def _one(node: Node, message: Message, wishes: DeliveryOptions, identity: str) -> str:
    """One message; that of a peer is proven as those of input adapters are."""
    if message.sender.kind == "component":
        sent = await node.arrivals.send(
            [message], adapter=MESSAGE_ADAPTER, options=wishes, identity=identity
        )
        return sent[0]
    (arrived,) = await node.arrivals.publish([message], adapter=MESSAGE_ADAPTER)
    if arrived.accepted or arrived.held:
        return arrived.id
    if arrived.reason == TOO_FAST:
        raise TooFast(f"{message.sender} sends too much", code=TOO_FAST)
    if arrived.fault is not None:
        raise arrived.fault.as_error()
    raise NotAllowed(
        f"the message of {message.sender} is refused: {arrived.reason}",
        code=arrived.reason,
        hint="a peer shows a session token; an application sends as component:NAME",
    )


SESSION_ADAPTER = "sessions"
"""The adapter name of these messages in `input`."""
_MOST_MESSAGES = 100
_NOT_ALLOWED = ("message.not_from_a_peer", "message.reserved_type", "message.only_answers")


class MessageResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one message."""

    id: str = ""
    accepted: bool
    reason: str = ""
    fault: ContentFault | None = None
    held: bool = False
    reply: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


@post(
    "/sessions/messages",
    opt=documented(
        bodies={JSON: ANY_JSON},
        example={"type": "TASK", "subtype": "DONE", "sender": "peer:ana"},
        statuses=("202",),
        is_open=True,
    ),
    status_code=202,
)
async def take_peer_messages(request: HttpRequest, node: NodeDependency) -> Reply:
    """Takes one message of a logged-in peer, or an array of them; answered when they are on disk.

    Those that are refused have a reason; when none was taken, the first one's is the answer.
    """
    token = shown_token(request)
    parts = _parts(await request.body(), _MOST_MESSAGES)
    if not parts:
        raise InvalidInput("there is no message", code="message.not_a_message")
    messages = [_with_token(Message.from_json(part), token) for part in parts]
    arrived = await node.arrivals.publish(
        messages, adapter=SESSION_ADAPTER, origin=origin_of(request), answers_back=True
    )
    if not any(one.accepted or one.held or one.reply for one in arrived):
        raise _fault(arrived)
    return json_response({"messages": [_result_of(one) for one in arrived]}, status=202)


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


def _result_of(arrived: ArrivalResult) -> MessageResult:
    reply = arrived.reply
    return MessageResult(
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


_NO_PROOF = ("session.invalid", "message.not_proven", "message.only_answers")
SIGNED = "signature"
"""Stands for the caller of a signed request."""


@post(
    "/inputs/{name:str}",
    opt=documented(
        bodies={
            JSON: {"anyOf": [MESSAGE_SCHEMA, {"type": "array", "items": MESSAGE_SCHEMA}]},
            EVENT_TYPE: CloudEvent,
            FORM: FORM_FIELDS,
        },
        example={"type": "REPLY", "subtype": "TEXT", "sender": "peer:ana", "content": "yes"},
        statuses=("202",),
        is_open=True,
        any_query=True,
    ),
    status_code=202,
)
async def take_messages(request: HttpRequest, name: FromPath[str], node: NodeDependency) -> Reply:
    """Takes messages of an input; answered when they are durable. Those that were refused have a
    reason instead of an id. They count against the rate of the identity that posts them.
    """
    web_input = _input_of(request, node, name)
    body = await request.body()
    identity = (
        None if _is_signed(request, node, web_input, body) else _identity(request, node, name)
    )
    web_input.check_size(body)
    now_ms = node.clock.now_ms()
    events = read_cloudevents(request.headers, body, now_ms) if _has_events(request) else None

    def admit(messages: int) -> None:
        if identity is not None:
            node.admission.rates.charge(identity, messages, now_ms)

    caller = SIGNED if identity is None else identity
    arrivals = await web_input.take(request.headers, body, events, caller=caller, admit=admit)
    check_taken(arrivals)
    return json_response({"messages": [_arrival_result(one) for one in arrivals]}, status=202)


def _input_of(request: HttpRequest, node: Node, name: str) -> WebhookInput:
    """The input; raises UnknownName, without known names for unauthenticated callers."""
    try:
        return node.web_input(name)
    except UnknownName as error:
        if identity_of(request) != NOBODY:
            raise
        raise UnknownName(error.kind, name, code=error.code) from None


def check_taken(arrivals: Sequence[ArrivalResult]) -> None:
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


def _arrival_result(arrival: ArrivalResult) -> dict[str, object]:
    result = {"id": arrival.id, "accepted": arrival.accepted, "reason": arrival.reason}
    return result | ({"fault": arrival.fault} if arrival.fault is not None else {})


def _is_signed(request: HttpRequest, node: Node, web_input: WebhookInput, body: bytes) -> bool:
    """Raises NotAuthenticated for a wrong signature, TooFast for many of them."""
    failures: FailedAttempts = request.app.state.failed_signatures
    now_ms = node.clock.now_ms()
    try:
        return web_input.is_signed(request.headers, body, now_ms)
    except NotAuthenticated:
        failures.note(origin_of(request), now_ms)
        raise


def _identity(request: HttpRequest, node: Node, name: str) -> str:
    """The caller's identity without a signature; raises NotAllowed without the right."""
    identity = identity_of(request)
    node.rights.check(identity, "publish", f"input.{name}")
    return identity


def _has_events(request: HttpRequest) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind in (EVENT_TYPE, BATCH_TYPE) or "ce-id" in request.headers
