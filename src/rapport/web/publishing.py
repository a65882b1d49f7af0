"""What a door does with events that came over HTTP, whichever server code carried them: CloudEvents
in all modes, and a device's own words. [CH-12]

Called by the routes of the framework and by the front that passes it by; so both give the same
answers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import unquote_to_bytes

import msgspec

from rapport.channel.reserved import is_reserved
from rapport.channel.sequences.numbers import counted_in
from rapport.core.codec import (
    DATA_ENCODING,
    DATA_TYPE,
    decode_cloudevent,
    decode_cloudevents,
    is_json_type,
    is_xml_type,
    octets_event_parts,
)
from rapport.core.errors import InvalidInput, NotAllowed, TooLarge
from rapport.core.event import Event, check_envelope
from rapport.core.ids import content_id
from rapport.core.time_columns import parse_many_times
from rapport.core.times import parse_time
from rapport.core.usual_events import are_bare
from rapport.core.xml import check_xml
from rapport.node.node import Node

BATCH_TYPE, EVENT_TYPE = "application/cloudevents-batch+json", "application/cloudevents+json"
_CHARSET = re.compile(r";\s*charset=\"?([^\s;\"]+)", re.I)
_XML_ENCODING = re.compile(r"\s*<\?xml[^>]*?encoding\s*=\s*[\"']([^\"']+)")
_VERSION = "1.0"
_OF_DATA = (DATA_ENCODING, DATA_TYPE, "data", "data_base64")
_ATTRIBUTES = ("id", "source", "type", "subject", "time", "specversion")


def check_not_reserved(channel: str) -> None:
    """Raises NotAllowed for channels that only the node itself appends to."""
    if is_reserved(channel):
        raise NotAllowed(
            f"only the node itself appends to {channel!r}",
            code="channel.reserved",
            hint="publish to raw.SOURCE, or to a channel of your own name",
        )


async def publish_events(
    node: Node, identity: str, channel: str, headers: Mapping[str, str], body: bytes
) -> bytes:
    """Appends CloudEvents of any mode, all or none; gives the JSON answer once they are on disk."""
    check_not_reserved(channel)
    events = read_cloudevents(headers, body, node.clock.now_ms())
    return await append_events(node, channel, counted_in(channel, events), identity=identity)


async def publish_readings(node: Node, identity: str, source: str, body: bytes) -> bytes:
    """Appends a device's own JSON to the source's raw channel; gives the JSON answer."""
    payloads = _read_payloads(body)
    check_batch(node, len(payloads))
    now_ms, id_field = node.clock.now_ms(), node.id_field(source)
    events = [
        Event(
            source=source,
            id=_device_id(payload, id_field, source),
            type=f"{source}.raw",
            subject="",
            time=now_ms,
            data=bytes(payload),
        )
        for payload in payloads
    ]
    for event in events:
        check_envelope(event)
    return await append_events(node, f"raw.{source}", events, identity=identity)


async def append_events(
    node: Node, channel: str, events: Sequence[Event], *, identity: str
) -> bytes:
    """Appends and gives the JSON answer: positions and how many were known already."""
    check_batch(node, len(events))
    appended = await node.append(channel, events, identity=identity)
    return msgspec.json.encode({"positions": appended.positions, "duplicates": appended.duplicates})


def check_batch(node: Node, count: int) -> None:
    """Raises TooLarge for more events than one request may bring."""
    if count > node.settings.max_batch:
        raise TooLarge(
            f"{count} events in one request; the limit is {node.settings.max_batch}",
            code="event.batch_too_large",
            hint="send them in several requests",
        )


def read_cloudevents(headers: Mapping[str, str], body: bytes, now_ms: int) -> Sequence[Event]:
    """The events of a request: structured, a JSON array, or binary (ce-* headers).

    Raises InvalidInput; XML payloads must be well-formed and without entities of their own.
    """
    if "ce-id" in headers or "ce-type" in headers:
        return [_read_binary(headers, body, now_ms)]
    kind = headers.get("content-type", "").split(";")[0].strip()
    if kind == BATCH_TYPE or body.lstrip()[:1] == b"[":
        events = decode_cloudevents(body, received_ms=now_ms, read_times=parse_many_times)
    else:
        events = [decode_cloudevent(body, received_ms=now_ms)]
    check_payloads(events)
    return events


def check_payloads(events: Sequence[Event]) -> None:
    """Raises InvalidInput for a payload that is not what its media type says."""
    for event in () if are_bare(events) else events:
        if event.headers and DATA_TYPE in event.headers and DATA_ENCODING not in event.headers:
            _check_payload(event)


def _check_payload(event: Event) -> None:
    """Data that are not JSON stand in the envelope as text; XML among them is looked at."""
    media_type = event.headers[DATA_TYPE]
    try:
        text = msgspec.json.decode(event.data, type=str)
    except msgspec.DecodeError:
        raise InvalidInput(
            f"data of type {media_type!r} must be a JSON text, or data_base64",
            code="event.bad_data",
        ) from None
    if is_xml_type(media_type):
        check_xml(text)


def _read_binary(headers: Mapping[str, str], body: bytes, now_ms: int) -> Event:
    """CloudEvents binary mode: attributes in ce-* headers, data in the body."""
    given = {name[3:]: _told(value) for name, value in headers.items() if name.startswith("ce-")}
    missing = [name for name in ("id", "source", "type") if not given.get(name)]
    if missing:
        raise InvalidInput(f"the header ce-{missing[0]} is missing", code="event.missing_field")
    if given.get("specversion", _VERSION) != _VERSION:
        raise InvalidInput(
            f"specversion {given['specversion']!r} is not known", code="event.not_a_cloudevent"
        )
    if not given.keys().isdisjoint(_OF_DATA):
        raise InvalidInput(
            "the data are the body, and their kind is told by Content-Type alone",
            code="event.bad_extension",
        )
    data, marks = _binary_data(headers.get("content-type"), body)
    event = Event(
        source=given["source"],
        id=given["id"],
        type=given["type"],
        subject=given.get("subject", ""),
        time=parse_time(given["time"]) if "time" in given else now_ms,
        data=data,
        headers={name: value for name, value in given.items() if name not in _ATTRIBUTES} | marks,
    )
    check_envelope(event)
    return event


def _told(value: str) -> str:
    """What a header of binary mode says: letters beyond ASCII come percent-encoded, or as they are
    in UTF-8 (or, from old clients, in Latin-1).
    """
    if value.isascii() and "%" not in value:
        return value
    try:
        return unquote_to_bytes(value.encode("latin-1")).decode()
    except UnicodeError:
        return value


def _binary_data(media_type: str | None, body: bytes) -> tuple[bytes, dict[str, str]]:
    """The body as the log keeps it: JSON as it is, text as a JSON text, anything else as base64."""
    if not body:
        return b"null", {}
    if media_type is None or is_json_type(media_type):
        check_json(body)
        return body, {}
    if is_xml_type(media_type):
        check_xml(body)
    elif not media_type.lower().startswith("text/"):
        return octets_event_parts(body, media_type)
    text = _text_of(body, media_type)
    if text is None:
        return octets_event_parts(body, media_type)
    return msgspec.json.encode(text), {DATA_TYPE: media_type}


def _text_of(body: bytes, media_type: str) -> str | None:
    """The body as text if it is UTF-8 and says nothing else; in any other encoding the octets are
    kept as they came, so that what the document says of itself stays true.
    """
    told = _CHARSET.search(media_type)
    if told is None and is_xml_type(media_type):
        told = _XML_ENCODING.match(body[:200].decode("latin-1"))
    if told is not None and told[1].lower() not in ("utf-8", "utf8", "us-ascii", "ascii"):
        return None
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def _read_payloads(body: bytes) -> list[msgspec.Raw]:
    check_json(body)  # the whole of it: parts that are kept as they came are not looked into
    if body.lstrip()[:1] == b"[":
        return msgspec.json.decode(body, type=list[msgspec.Raw])
    return [msgspec.Raw(body.strip())]


def check_json(body: bytes) -> None:
    """Raises InvalidInput unless the body is JSON."""
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"the body is not JSON: {error}", code="event.bad_data") from None


def _device_id(payload: msgspec.Raw, id_field: str | None, source: str) -> str:
    """The id the device gives, or one made from what it said: sent twice is stored once."""
    if id_field is not None:
        value = msgspec.json.decode(payload)
        given = value.get(id_field) if isinstance(value, dict) else None
        if isinstance(given, (str, int)) and not isinstance(given, bool) and str(given):
            return str(given)
    return content_id(source, bytes(payload).decode("utf-8", "replace"))
