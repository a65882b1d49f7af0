"""XMessageBatch and XMessageRequest as XML, field by field as the paper has them. [CH-1, CH-2,
CH-12, ME-9]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rapport.channel.requesting.batch import (
    DEFAULT_LEASE_MINUTES,
    KEEP_AS_LONG_AS_POSSIBLE,
    Batch,
    Request,
)
from rapport.channel.xmessages.events import (
    FIELDS,
    XEVENT,
    Unnamed,
    read_message,
    read_template,
    write_message,
)
from rapport.channel.xmessages.fields import (
    bad_field,
    fields_of,
    flag_of,
    number_of,
    text_of,
    write_field,
)
from rapport.channel.xmessages.names import TIME_TO_LIVE, XMESSAGES
from rapport.channel.xmessages.writing import quoted
from rapport.core.errors import InvalidInput
from rapport.core.event import Event, Gap
from rapport.core.ids import content_id
from rapport.core.xml import MAX_XML_BYTES, XmlNode

_BATCH = (
    *("messages", "currentToken", "nextToken"),
    *("leaseDurationInMinutes", "timeToLiveForMessagesInMs", "gone"),
)
_REQUEST = (
    *("query", "timeToWaitForMatchInMs", "maxNumberOfMessagesToReturn"),
    *("maxTimeRangeInMsToReturn", "suggestedLeaseDurationInMinutes", "subscriberWSDL"),
    *("maxNumberOfMessagesToPush", "takeMessages", "handback", "interpretation"),
)
_TOKEN = re.compile(r"[A-Za-z0-9_-]{24,}\Z")


class Asked(msgspec.Struct, frozen=True):
    """A request as it came; a subscriber's WSDL still has to be read."""

    request: Request
    subscriber_wsdl: str
    """Address of the WSDL or the WSDL itself; empty = pull."""


def read_messages(
    node: XmlNode, *, sender: str, now_ms: int, new_id: Callable[[], str]
) -> list[Event]:
    """The events of an XMessageBatch; raises InvalidInput naming the message at fault.

    A message without an id is named by the batch's token and its place: a batch that is sent again
    is seen to be the same. Without a token each message is a new one.
    """
    found = fields_of(node, _BATCH)
    token = text_of(found.get("currentToken"))
    messages = found.get("messages")
    events: list[Event] = []
    size = 0
    for index, child in enumerate(messages.children if messages else ()):
        name = content_id(sender, token, str(index)) if token else new_id()
        try:
            events.append(read_message(child, Unnamed(sender, name, now_ms)))
            size += len(events[-1].data)
            _check_size(size)
        except InvalidInput as error:
            raise InvalidInput(
                f"message {index}: {error.message}", code=error.code, hint=error.hint
            ) from None
    live_ms = number_of(found.get("timeToLiveForMessagesInMs"), KEEP_AS_LONG_AS_POSSIBLE)
    return [_with_time_to_live(event, live_ms) for event in events]


def _check_size(size: int) -> None:
    """Each message repeats the namespaces declared around it, so all may be far larger together
    than the document."""
    if size > 2 * MAX_XML_BYTES:
        raise InvalidInput(
            f"the messages have over {2 * MAX_XML_BYTES} bytes with the namespaces they need",
            code="xml.too_large",
            hint="declare namespaces in the messages that use them, or send fewer messages",
        )


def _with_time_to_live(event: Event, live_ms: int) -> Event:
    if live_ms < KEEP_AS_LONG_AS_POSSIBLE:
        raise bad_field(
            f"timeToLiveForMessagesInMs cannot be {live_ms}", "-1 = as long as possible, 0, or ms"
        )
    if live_ms == KEEP_AS_LONG_AS_POSSIBLE or TIME_TO_LIVE in event.headers:
        return event
    return msgspec.structs.replace(event, headers=event.headers | {TIME_TO_LIVE: str(live_ms)})


def read_asked(node: XmlNode) -> Asked:
    """What an XMessageRequest asks for; raises InvalidInput."""
    found = fields_of(node, _REQUEST)
    lease = number_of(found.get("suggestedLeaseDurationInMinutes"), DEFAULT_LEASE_MINUTES)
    query = _read_query(found.get("query"))
    request = Request(
        **query,
        wait_ms=number_of(found.get("timeToWaitForMatchInMs"), 0),
        max_messages=number_of(found.get("maxNumberOfMessagesToReturn"), 0),
        max_time_range_ms=number_of(found.get("maxTimeRangeInMsToReturn"), 0),
        lease_minutes=lease,
        max_push=number_of(found.get("maxNumberOfMessagesToPush"), 0),
        take=flag_of(found.get("takeMessages")),
        interpretation=text_of(found.get("interpretation")).strip(),
        # A token has its session's handback in itself; clients may send the old one along.
        handback="" if "token" in query else text_of(found.get("handback")),
    )
    return Asked(request, text_of(found.get("subscriberWSDL")).strip())


def _read_query(node: XmlNode | None) -> dict[str, Any]:
    """The overloaded field: a token, a condition, a template, or nothing for everything."""
    if node is None:
        return {"query": {}}
    if node.children:
        return {"query": _read_template(node)}
    text = node.text.strip()
    if _TOKEN.match(text):
        return {"token": text}
    return {"query": text or {}}


def _read_template(node: XmlNode) -> dict[str, Any]:
    """An XEvent within the query, or its fields there themselves, as some clients write it."""
    first = node.children[0]
    if first.namespace == XMESSAGES and first.name in FIELDS:
        return read_template(node)
    if len(node.children) > 1 or (first.namespace, first.name) != (XMESSAGES, XEVENT):
        raise InvalidInput(
            f"a query cannot be the element {first.name!r}",
            code="query.bad_query",
            hint=f"a text, or one XEvent of {XMESSAGES} with the fields that must be equal",
        )
    return read_template(first)


def write_batch(batch: Batch) -> str:
    """The element `batch` of our schema (prefix `x`)."""
    messages = "".join(write_message(stored, batch.handback) for stored in batch.events)
    following = write_field("nextToken", batch.next_token) if batch.next_token else ""
    return (
        f"<x:batch><x:messages>{messages}</x:messages>"
        f"{write_field('currentToken', batch.current_token)}{following}"
        f"<x:leaseDurationInMinutes>{batch.lease_minutes}</x:leaseDurationInMinutes>"
        f"<x:timeToLiveForMessagesInMs>{batch.ttl_ms}</x:timeToLiveForMessagesInMs>"
        f"<x:gone>{'true' if batch.gone else 'false'}</x:gone></x:batch>"
    )


def write_gaps(gaps: Sequence[Gap]) -> str:
    """The header block that names positions which could not be read; empty when there are none.

    It is a header and not a field of the batch: clients built from an older schema reject unknown
    fields and ignore unknown headers.
    """
    if not gaps:
        return ""
    named = "".join(
        f'<x:gap first="{gap.first}" last="{gap.last}" reason={quoted(gap.reason)}/>'
        for gap in gaps
    )
    return f"<x:gaps>{named}</x:gaps>"
