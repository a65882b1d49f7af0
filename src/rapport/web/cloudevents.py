"""Events that came in over HTTP, whichever server code carried them: CloudEvents in all modes, and
readings of a source in its own format. [CH-12, ME-13]

Called by the routes of the framework and by the front that passes it by; so both give the same
answers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from rapport.channel.channel import AppendResult
from rapport.channel.log.sequences import counted_in
from rapport.channel.validation import is_reserved
from rapport.core.codec import (
    DATA_ENCODING,
    DATA_TYPE,
    decode_cloudevents,
    decode_single,
    have_no_headers,
    is_json_type,
    is_xml_type,
    octets_event_parts,
)
from rapport.core.errors import InvalidInput, KeyReused, NotAllowed, TooLarge
from rapport.core.event import ADDED_FIELDS, MAX_NAME, Event, check_envelope, content_id
from rapport.core.times import parse_time
from rapport.core.xml import check_xml
from rapport.mediation.formats.objects import unpack
from rapport.mediation.interpretations.model import FormatChoice
from rapport.mediation.rejections import RejectedValue
from rapport.node.node import Node

BATCH_TYPE, EVENT_TYPE = "application/cloudevents-batch+json", "application/cloudevents+json"
_CHARSET = re.compile(r";\s*charset=\"?([^\s;\"]+)", re.I)
_XML_ENCODING = re.compile(r"\s*<\?xml[^>]*?encoding\s*=\s*[\"']([^\"']+)")
_VERSION = "1.0"
_OF_DATA = (DATA_ENCODING, DATA_TYPE, "data", "data_base64")
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_KEY = "idempotency-key"
_OTHER_TYPES = {
    "csv": "text/csv",
    "xml": "application/xml",
    "msgpack": "application/msgpack",
    "value": "text/plain",
}
"""The media type of each format that is not JSON."""
_ONE_VALUE = 'the source is read as JSON; an interpretation may say format = "value", "csv", "xml"'
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
    node: Node,
    identity: str,
    channel: str,
    headers: Mapping[str, str],
    body: bytes,
    _query: str = "",
) -> bytes:
    """Appends CloudEvents of any mode, all or none; gives the JSON answer once they are on disk."""
    check_not_reserved(channel)
    events = read_cloudevents(headers, body, node.clock.now_ms())
    check_batch(node, len(events))
    numbered = counted_in(channel, events)
    return _answer(await node.append(channel, numbered, identity=identity))


async def publish_readings(
    node: Node, identity: str, source: str, headers: Mapping[str, str], body: bytes, query: str = ""
) -> bytes:
    """Appends what a device sent, in the format of its source, to the source's raw channel; gives
    the JSON answer. Parameters of the query are fields of each reading.

    Each reading is an event of its own, also when it equals the one before. A repeated request is
    stored once where the site declares the source's `id`, or the request has an Idempotency-Key.
    Raises UnknownName for a source that the site does not have, KeyReused for a key that came with
    another body.
    """
    reading = node.reading_of(source)
    payloads = read_payloads(body, reading.format, headers.get("content-type", ""))
    check_batch(node, len(payloads))
    key, now_ms = _idempotency_key(headers), node.clock.now_ms()
    added = _added_fields(query)
    if key:  # with the number of readings: then all of a request are known, or none
        named = (_KEY, identity, source, key, str(len(payloads)))
        ids = [content_id(*named, str(index)) for index in range(len(payloads))]
    else:
        ids = node.ids.many(len(payloads))
    events = []
    for (data, kind), id in zip(payloads, ids, strict=True):
        event = Event(source, id, f"{source}.raw", "", now_ms, data, kind | added)
        declared = reading.declared_id(event)
        events.append(msgspec.structs.replace(event, id=declared) if declared else event)
        check_envelope(events[-1])
    channel = f"raw.{source}"
    appended = await node.append(channel, events, identity=identity)
    if key and appended.duplicates and not reading.own_id:
        await _check_same_request(node, channel, events, appended)
    return _answer(appended)


async def append_events(
    node: Node, channel: str, events: Sequence[Event], *, identity: str
) -> bytes:
    """Appends and gives the JSON answer: positions and how many were known already."""
    check_batch(node, len(events))
    return _answer(await node.append(channel, events, identity=identity))


def _answer(appended: AppendResult) -> bytes:
    return msgspec.json.encode({"positions": appended.positions, "duplicates": appended.duplicates})


def check_batch(node: Node, count: int) -> None:
    """Raises TooLarge for more events than one request may bring."""
    if count > node.settings.max_batch:
        raise TooLarge(
            f"{count} events in one request; the limit is {node.settings.max_batch}",
            code="event.batch_too_large",
            hint="send them in several requests",
        )


def _added_fields(query: str) -> dict[str, str]:
    """The header with the fields of the query string."""
    fields = dict(parse_qsl(query, keep_blank_values=True)) if query else {}
    return {ADDED_FIELDS: msgspec.json.encode(fields).decode()} if fields else {}


def _idempotency_key(headers: Mapping[str, str]) -> str:
    """The key of the request, with or without the quotes of a structured field; empty without."""
    key = headers.get(_KEY, "").strip()
    if len(key) > 1 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if len(key) > MAX_NAME:
        raise InvalidInput(
            f"the Idempotency-Key has more than {MAX_NAME} characters",
            code="event.bad_key",
            hint="such as a UUID, a new one for each request",
        )
    return key


async def _check_same_request(
    node: Node, channel: str, events: Sequence[Event], appended: AppendResult
) -> None:
    """Raises KeyReused when a known key stands for other readings than before."""
    for event, position in zip(events, appended.positions, strict=True):
        found = await node.channels.channel(channel).read_after(position - 1, limit=1)
        first = found[0] if position and found and found[0].position == position else None
        if first is not None and first.event.id == event.id and first.event.data != event.data:
            raise KeyReused(
                "the Idempotency-Key came before with another body",
                hint="send a repetition as it was, and anything else under a new key",
            )


def read_cloudevents(headers: Mapping[str, str], body: bytes, now_ms: int) -> Sequence[Event]:
    """The events of a request: structured, a JSON array, or binary (ce-* headers).

    Raises InvalidInput; XML payloads must be well-formed and without entities of their own.
    """
    if "ce-id" in headers or "ce-type" in headers:
        return [_read_binary(headers, body, now_ms)]
    kind = headers.get("content-type", "").split(";")[0].strip()
    if kind == BATCH_TYPE or body.lstrip()[:1] == b"[":
        events = decode_cloudevents(body, received_ms=now_ms)
    else:
        events = decode_single(body, received_ms=now_ms)
    check_payloads(events)
    return events


def check_payloads(events: Sequence[Event]) -> None:
    """Raises InvalidInput for a payload that does not fit its media type."""
    for event in () if have_no_headers(events) else events:
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
    given = {
        name[3:]: _header_text(value) for name, value in headers.items() if name.startswith("ce-")
    }
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
        time=parse_time(given["time"], needs_offset=True) if "time" in given else now_ms,
        data=data,
        headers={name: value for name, value in given.items() if name not in _ATTRIBUTES} | marks,
    )
    check_envelope(event)
    return event


def _header_text(value: str) -> str:
    """The text of a header of binary mode: letters beyond ASCII are percent-encoded, or in UTF-8
    (from old clients in Latin-1).
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
    """The body as text if it is UTF-8 and declares no other encoding; in any other the octets are
    kept as they came, so that the declaration in the document stays true.
    """
    charset = _CHARSET.search(media_type)
    if charset is None and is_xml_type(media_type):
        charset = _XML_ENCODING.match(body[:200].decode("latin-1"))
    if charset is not None and charset[1].lower() not in ("utf-8", "utf8", "us-ascii", "ascii"):
        return None
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def read_payloads(
    body: bytes, choice: FormatChoice, media_type: str
) -> list[tuple[bytes, dict[str, str]]]:
    """The readings of a request as data and headers of events: the elements of a JSON list, else
    the body as a whole; what a format says of it is read when it gets its meaning.

    Raises InvalidInput for a body that is not in the format: JSON, XML or MessagePack.
    """
    if not body.strip():
        raise InvalidInput("the body is empty", code="event.bad_data")
    if choice.name not in _OTHER_TYPES:
        check_json(body, hint=_ONE_VALUE)
        whole = choice.name == "senml"  # its records belong together
        return [(data, {}) for data in _json_parts(body, whole=whole)]
    if body.lstrip()[:1] in (b"{", b"[", b'"') and _is_json(body):
        # Texts as they travel in JSON, and objects that were read before, as import does.
        return [(data, {}) for data in _json_parts(body, whole=False)]
    if choice.name == "msgpack":
        _check_msgpack(body)
    return [_binary_data(_media_type(choice, media_type), body)]


def _json_parts(body: bytes, *, whole: bool) -> list[bytes]:
    if whole or body.lstrip()[:1] != b"[":
        return [body.strip()]
    return [bytes(part) for part in msgspec.json.decode(body, type=list[msgspec.Raw])]


def _media_type(choice: FormatChoice, fields: str) -> str:
    """The media type of the format, with the encoding of the interpretation or else the request."""
    encoding = choice.options.get("encoding")
    declared = _CHARSET.search(fields)
    charset = str(encoding) if encoding else declared[1] if declared else ""
    kind = _OTHER_TYPES[choice.name]
    return f"{kind}; charset={charset}" if charset else kind


def _is_json(body: bytes) -> bool:
    try:
        msgspec.json.decode(body)
    except _NOT_JSON:
        return False
    return True


def check_json(body: bytes, *, hint: str = "") -> None:
    """Raises InvalidInput unless the body is JSON."""
    try:
        msgspec.json.decode(body)
    except _NOT_JSON as error:
        raise InvalidInput(
            f"the body is not JSON: {error}", code="event.bad_data", hint=hint
        ) from None


def _check_msgpack(body: bytes) -> None:
    try:
        unpack(body)
    except RejectedValue as fault:
        raise InvalidInput(fault.message, code="event.bad_data", hint=fault.hint) from None
