"""The door to the message query service: every message that was handled, by criteria. [CO-13]"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get
from litestar.params import FromQuery, QueryParameter

from rapport.communication.message_query import MOST_PER_PAGE, Criteria, LoggedMessage, MessagePage
from rapport.core.errors import InvalidInput
from rapport.core.times import format_time, parse_time
from rapport.web.callers import allow_whole
from rapport.web.dependencies import NodeDependency

_ORDERS = ("newest", "oldest")


@get("/messages")
async def list_messages(
    request: Request[Any, Any, Any],
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
) -> Response[bytes]:
    """Messages that were handled, by what is given of type, sender, receiver, conversation, time,
    content and fate; or the page of a token that an earlier page gave. For who may read `log`.
    """
    allow_whole(request, node, "log")
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
    # The door's own defaults are no criteria: a token comes without any.
    asked = None if token and criteria == Criteria(newest_first=True) else criteria
    page = await node.services.queries.page(asked, token=token)
    return Response(msgspec.json.encode(shown_page(page)), media_type="application/json")


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
