"""Events, XMessageBatch and XMessageRequest as XML, field by field as in the papers. [CH-1, CH-2,
CH-12, CH-17, ME-9]

| XEvent | envelope |
|---|---|
| namespace, handback | headers of these names |
| type, source, id, subject | the same |
| timestamp (timestampInMs outside the years 1 to 9999) | time |
| message | data: JSON as its text; else a JSON string, with its contentType in `datacontenttype` |
| header | any other header |

A message that is no XEvent is stored as XML text, type = local name of its element, and delivered
as that element again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rapport.channel.requests.request import DEFAULT_LEASE_MINUTES, Batch, Request
from rapport.channel.validation import KEEP_AS_LONG_AS_POSSIBLE
from rapport.channel.xmessages.envelope import (
    BARE,
    CONTENT_TYPE,
    HANDBACK,
    NAMESPACE,
    TIME_TO_LIVE,
    XMESSAGES,
    bad_field,
    fields_of,
    flag_of,
    is_carried,
    number_of,
    quoted,
    read_header,
    text_of,
    write_field,
    write_header,
    write_node,
)
from rapport.core.codec import is_json_type, is_xml_type
from rapport.core.errors import InvalidInput, RapportError
from rapport.core.event import Event, Gap, StoredEvent, check_envelope, content_id
from rapport.core.times import format_time, parse_time
from rapport.core.xml import MAX_XML_BYTES, XmlNode, check_xml

XEVENT = "XEvent"
FIELDS = (
    *("namespace", "type", "source", "timestamp", "message", "handback"),
    *("id", "subject", "timestampInMs", "header", "position", "received"),
)
_JSON, _TEXT, _XML = "application/json", "text/plain", "application/xml"
_OWN_FIELDS = (NAMESPACE, HANDBACK)
_FIRST_YEAR_MS, _LAST_YEAR_MS = -62_135_596_800_000, 253_402_300_799_999
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


class EventDefaults(msgspec.Struct, frozen=True):
    source: str
    id: str
    time: int


# --- reading --------------------------------------------------------------------------------------


def read_message(node: XmlNode, unnamed: EventDefaults) -> Event:
    """The event of one message; raises InvalidInput naming the fault."""
    if node.namespace != XMESSAGES:
        return _read_bare(node, unnamed)
    if node.name != XEVENT:
        raise bad_field(
            f"{node.name!r} of {XMESSAGES} is no message",
            "messages are XEvent elements, or elements of a namespace of your own",
        )
    return _read_event(node, unnamed)


def _read_event(node: XmlNode, unnamed: EventDefaults) -> Event:
    found = fields_of(node, FIELDS, many="header")
    headers = dict(read_header(child) for child in node.children if child.name == "header")
    for name in _OWN_FIELDS:
        if name in found:
            headers[name] = text_of(found[name])
    data, content_type = _read_content(found.get("message"))
    if content_type:
        headers[CONTENT_TYPE] = content_type
    event = Event(
        source=text_of(found.get("source")) or unnamed.source,
        id=text_of(found.get("id")) or unnamed.id,
        type=text_of(found.get("type")),
        subject=text_of(found.get("subject")),
        time=_read_time(found, unnamed.time),
        data=data,
        headers=headers,
    )
    check_envelope(event)
    return event


def _read_bare(node: XmlNode, unnamed: EventDefaults) -> Event:
    headers = {CONTENT_TYPE: _XML, BARE: "bare"}
    if node.namespace:
        headers[NAMESPACE] = node.namespace
    data = msgspec.json.encode(write_node(node))
    event = Event(unnamed.source, unnamed.id, node.name, "", unnamed.time, data, headers)
    check_envelope(event)
    return event


def _read_time(found: dict[str, XmlNode], otherwise: int) -> int:
    if "timestampInMs" in found:
        return parse_time(number_of(found["timestampInMs"], otherwise))
    text = text_of(found.get("timestamp")).strip()
    return parse_time(text, needs_offset=True) if text else otherwise


def _read_content(node: XmlNode | None) -> tuple[bytes, str]:
    """The data of a message and its `datacontenttype`; empty for JSON."""
    if node is None:
        return b"null", ""
    text, content_type = text_of(node), node.attributes.get("contentType", _TEXT)
    if is_json_type(content_type):
        _check_json(text)
        return text.encode(), ""
    if is_xml_type(content_type):
        check_xml(text)
    return msgspec.json.encode(text), content_type


def _check_json(text: str) -> None:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInput(
            f"the message is not JSON: {error}",
            code="event.bad_data",
            hint='plain text has contentType="text/plain", or none',
        ) from None


def read_template(node: XmlNode) -> dict[str, Any]:
    """The template of a query: the fields that are there must be equal."""
    found = fields_of(node, FIELDS, many="header")
    template: dict[str, Any] = {
        name: text_of(found[name]) for name in ("type", "source", "id", "subject") if name in found
    }
    headers = dict(read_header(child) for child in node.children if child.name == "header")
    headers |= {name: text_of(found[name]) for name in _OWN_FIELDS if name in found}
    if headers:
        template["headers"] = headers
    if "message" in found:
        template["data"] = msgspec.json.decode(_read_content(found["message"])[0])
    if "timestamp" in found or "timestampInMs" in found:
        template["time"] = _read_time(found, 0)
    for name in ("position", "received"):
        if name in found:
            template[name] = number_of(found[name], 0)
    return template


# --- writing --------------------------------------------------------------------------------------


def write_message(stored: StoredEvent, handback: str = "") -> str:
    """One message as an element of a batch; its prefix for our schema is `x`.

    A `handback` of the subscription replaces the event's own.
    """
    event = stored.event
    if event.headers.get(BARE) and not handback:
        bare = _bare_text(event)
        if bare is not None:
            return bare
    return write_event(event, handback=handback, position=stored.position, received=stored.received)


def write_event(
    event: Event, *, handback: str = "", position: int = 0, received: int | None = None
) -> str:
    """An event as an XEvent; position and arrival only when it was stored."""
    headers = event.headers
    parts = [write_field("namespace", headers[NAMESPACE])] if NAMESPACE in headers else []
    parts += [write_field("type", event.type), write_field("source", event.source)]
    is_dated = _FIRST_YEAR_MS <= event.time <= _LAST_YEAR_MS
    if is_dated:
        parts.append(f"<x:timestamp>{format_time(event.time)}</x:timestamp>")
    message, is_typed = _write_content(event)
    parts.append(message)
    if handback or HANDBACK in headers:
        parts.append(write_field("handback", handback or headers[HANDBACK]))
    parts.append(write_field("id", event.id))
    if event.subject:
        parts.append(write_field("subject", event.subject))
    if not is_dated:
        parts.append(f"<x:timestampInMs>{event.time}</x:timestampInMs>")
    written = (*_OWN_FIELDS, CONTENT_TYPE) if is_typed else _OWN_FIELDS
    parts += [write_header(key, value) for key, value in headers.items() if key not in written]
    if received is not None:
        parts.append(f"<x:position>{position}</x:position><x:received>{received}</x:received>")
    return f"<x:XEvent>{''.join(parts)}</x:XEvent>"


def _write_content(event: Event) -> tuple[str, bool]:
    """The message element, and whether it carries the content type.

    A text whose JSON form differs from ours is written as that JSON: nothing is changed.
    """
    content_type = event.headers.get(CONTENT_TYPE, "")
    if content_type and not is_json_type(content_type) and is_carried(content_type):
        text = _text_in(event.data)
        if text is not None and msgspec.json.encode(text) == event.data:
            return write_field("message", text, f" contentType={quoted(content_type)}"), True
    if event.data == b"null":
        return "", False
    # Data that are not UTF-8 were never JSON; written as close as a text can be.
    raw = event.data.decode("utf-8", "replace")
    return write_field("message", raw, f' contentType="{_JSON}"'), False


def _text_in(data: bytes) -> str | None:
    try:
        return msgspec.json.decode(data, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _bare_text(event: Event) -> str | None:
    """The element of a bare message; None when its text no longer fits into a batch."""
    text = _text_in(event.data)
    if text is None or text.startswith("<?") or not is_carried(text):
        return None
    try:
        check_xml(text)
    except RapportError:
        return None
    return text


class SoapRequest(msgspec.Struct, frozen=True):
    """A parsed request; a subscriber's WSDL still has to be read."""

    request: Request
    subscriber_wsdl: str
    """Address of the WSDL or the WSDL itself; empty = pull."""


def read_messages(
    node: XmlNode, *, sender: str, now_ms: int, new_id: Callable[[], str]
) -> list[Event]:
    """The events of an XMessageBatch; raises InvalidInput naming the message at fault.

    A message without an id is named by the batch's token and its index: a repeated batch is
    recognised. Without a token each message is new.
    """
    found = fields_of(node, _BATCH)
    token = text_of(found.get("currentToken"))
    messages = found.get("messages")
    events: list[Event] = []
    size = 0
    for index, child in enumerate(messages.children if messages else ()):
        name = content_id(sender, token, str(index)) if token else new_id()
        try:
            events.append(read_message(child, EventDefaults(sender, name, now_ms)))
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


def read_request(node: XmlNode) -> SoapRequest:
    """The request in an XMessageRequest; raises InvalidInput."""
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
    return SoapRequest(request, text_of(found.get("subscriberWSDL")).strip())


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
