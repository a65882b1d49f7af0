"""Encoding of events: CloudEvents JSON for HTTP and people, msgpack blocks for the log. [CH-12]

A block is a msgpack array of events: one call encodes or decodes a whole committed batch.
CloudEvents JSON is decoded in two ways. The fast path lets msgspec validate whole batches of
events with the usual attributes. Everything else, and every faulty event, goes to the general
decoder, which returns the same events and raises the errors that people read.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from rapport.core.errors import Corrupt, InvalidInput, TooLarge
from rapport.core.event import MAX_NAME, BareEvent, Event, StoredEvent, check_envelope
from rapport.core.times import format_time, parse_time, parse_times

DATA_ENCODING, BASE64 = "dataencoding", "base64"
"""Header of an event with binary data: the data are then a JSON string with their base64."""
DATA_TYPE = "datacontenttype"
"""Header of an event whose data are not JSON: their media type. The data are then a JSON string."""

_JSON_TYPE = "application/json"
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Raised by msgspec for invalid JSON, invalid UTF-8 and values nested too deeply."""

_AnyEvent = TypeVar("_AnyEvent", Event, BareEvent)


# --- log blocks -----------------------------------------------------------------------------------

_PACK = msgspec.msgpack.Encoder()
_UNPACK_BLOCK = msgspec.msgpack.Decoder(list[Event])
_UNPACK_BARE = msgspec.msgpack.Decoder(list[BareEvent])


def encode_block(events: Sequence[Event]) -> bytes:
    """Encodes a committed batch for the log."""
    return _PACK.encode(events)


def decode_block(block: bytes) -> list[Event]:
    """Decodes the events of a block; raises Corrupt."""
    return _decode_block(_UNPACK_BLOCK, block)


def decode_bare_block(block: bytes) -> list[BareEvent]:
    """Decodes the events of a block without their headers; raises Corrupt."""
    return _decode_block(_UNPACK_BARE, block)


def _decode_block(
    decoder: msgspec.msgpack.Decoder[list[_AnyEvent]], block: bytes
) -> list[_AnyEvent]:
    try:
        return decoder.decode(block)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"a log block cannot be read: {error}", code="log.bad_block") from None


# --- batches that need no further checks ----------------------------------------------------------


class DecodedEvents(tuple[Event, ...]):
    """Events as the fast path decoded them: names and times are valid, there are no headers; only
    their sizes are unchecked.

    Only this module creates them. Slices, lists and selections of it are ordinary sequences, about
    which nothing is known.
    """

    __slots__ = ()


class TrustedEvents(tuple[Event, ...]):
    """Events whose producer guarantees valid names, times and headers, and that carry no publisher
    sequence numbers; only their sizes are unchecked.

    The producer has checked every text from outside (`isprintable`, at most `MAX_NAME` characters).
    """

    __slots__ = ()


TRUSTED_BATCHES = frozenset((DecodedEvents, TrustedEvents))
"""Types of batches whose names need no check and which have no publisher sequence numbers."""


def have_no_headers(events: Sequence[Event]) -> bool:
    """Whether none of the events has headers; costs nothing for DecodedEvents."""
    return type(events) is DecodedEvents or not any(event.headers for event in events)


# --- CloudEvents JSON: encoding -------------------------------------------------------------------


MOST_VALUES = 1_000_000
"""JSON values in one body; decoded, each takes up to a hundred times its own two bytes."""
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.S)


def check_value_count(body: bytes) -> None:
    """Raises TooLarge for JSON with more than MOST_VALUES values, without decoding it.

    Commas and openings bound the values; they are counted outside of strings only when there are
    suspiciously many, so that a body of plain size costs a few microseconds.
    """
    if len(body) <= MOST_VALUES or body.lstrip()[:1] not in (b"[", b"{"):
        return
    if _count_separators(body) < MOST_VALUES:
        return
    if _count_separators(_STRING.sub(b"", body)) >= MOST_VALUES:
        raise TooLarge(
            f"the body holds more than {MOST_VALUES:,} JSON values",
            code="event.too_many_values",
            hint="send it in several requests",
        )


def _count_separators(body: bytes) -> int:
    return sum(body.count(mark) for mark in (b",", b"[", b"{", b":"))


def to_cloudevent(event: Event) -> dict[str, Any]:
    """The event as a structured CloudEvent; headers become extension attributes."""
    members: dict[str, Any] = {
        "specversion": "1.0",
        "id": event.id,
        "source": event.source,
        "type": event.type,
        "time": format_time(event.time),
        "datacontenttype": _JSON_TYPE,
    }
    if event.subject:
        members["subject"] = event.subject
    members.update(event.headers)
    members["data"] = msgspec.Raw(event.data)
    return members


def stored_cloudevent(stored: StoredEvent) -> dict[str, Any]:
    """A stored event as the HTTP API returns it: with position and time of arrival beside the
    attributes, and binary data in `data_base64` as CloudEvents requires.
    """
    event = stored.event
    members = to_cloudevent(event)
    if event.headers and DATA_ENCODING in event.headers:
        del members[DATA_ENCODING]
        members["data_base64"] = members.pop("data")
    # Last: a publisher's attribute named `position` must not replace ours.
    members["position"], members["received"] = stored.position, stored.received
    return members


def encode_cloudevent(event: Event) -> bytes:
    """Structured CloudEvents JSON of one event."""
    return msgspec.json.encode(to_cloudevent(event))


def octets_event_parts(octets: bytes, media_type: str) -> tuple[bytes, dict[str, str]]:
    """The data and the headers of an event with binary data."""
    text = base64.b64encode(octets).decode()
    return msgspec.json.encode(text), {DATA_TYPE: media_type, DATA_ENCODING: BASE64}


def is_json_type(media_type: str | None) -> bool:
    """Whether data of a media type are JSON; no media type means JSON.

    >>> is_json_type("application/geo+json; charset=utf-8"), is_json_type("text/xml")
    (True, False)
    """
    kind = (media_type or _JSON_TYPE).partition(";")[0].strip().lower()
    return kind in (_JSON_TYPE, "text/json") or kind.endswith("+json")


def is_xml_type(media_type: str | None) -> bool:
    kind = (media_type or "").partition(";")[0].strip().lower()
    return kind in ("application/xml", "text/xml") or kind.endswith("+xml")


# --- CloudEvents JSON: decoding -------------------------------------------------------------------


def decode_cloudevent(body: bytes, *, received_ms: int) -> Event:
    """Decodes one event from structured CloudEvents JSON; without a time it gets `received_ms`.

    Raises InvalidInput with the member at fault. Unknown members become headers (text of scalars
    only). Data that are not JSON are kept as a JSON string, with `datacontenttype` as a header;
    binary data (`data_base64`) likewise, marked by the header `dataencoding`.
    """
    return decode_single(body, received_ms=received_ms)[0]


def decode_single(body: bytes, *, received_ms: int) -> Sequence[Event]:
    """Like `decode_cloudevent`, as a batch of one event: DecodedEvents when the event has only the
    usual attributes.
    """
    _check_utf8(body, "event.not_a_cloudevent")
    events = _decode_common(_COMMON_ONE, body, received_ms)
    return [_decode_any_event(body, received_ms)] if events is None else events


def decode_cloudevents(body: bytes, *, received_ms: int) -> Sequence[Event]:
    """Decodes a JSON array of CloudEvents, all or none; the error names the index of the faulty
    one.

    Returns DecodedEvents when all events have only the usual attributes.
    """
    _check_utf8(body, "event.not_a_batch")
    events = _decode_common(_COMMON_MANY, body, received_ms)
    return _decode_each(body, received_ms) if events is None else events


def _check_utf8(body: bytes, code: str) -> None:
    """Data are stored undecoded, so invalid UTF-8 would otherwise be noticed only by a reader."""
    if body.isascii():
        return
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"this is not UTF-8 text: {error.reason}", code=code) from None


# --- CloudEvents JSON: fast path for the usual attributes -----------------------------------------

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]


# msgspec finds fields fastest in this order, which is the order most publishers write.
class _PlainCloudEvent(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, gc=False):
    """An event with JSON data and no extension attributes."""

    specversion: Literal["1.0"] = "1.0"
    id: _Name
    source: _Name
    type: _Name
    subject: Annotated[str, msgspec.Meta(max_length=MAX_NAME)] | None = None
    time: str | int | None = None
    datacontenttype: Literal["application/json"] | None = None
    data: msgspec.Raw = msgspec.Raw(b"null")


class _ExtendedCloudEvent(_PlainCloudEvent, kw_only=True, forbid_unknown_fields=True, gc=False):
    """An event that may have the extension attributes of our publishers and common tools."""

    dataschema: str | None = None
    cause: str | None = None
    interpretation: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    publisher: str | None = None
    epoch: str | None = None
    sequence: str | None = None
    signature: str | None = None
    signedby: str | None = None


_EXTENSIONS = tuple(
    name
    for name in _ExtendedCloudEvent.__struct_fields__
    if name not in _PlainCloudEvent.__struct_fields__
)
_extensions_of = attrgetter(*_EXTENSIONS)

_COMMON_ONE = (
    msgspec.json.Decoder(_PlainCloudEvent),
    msgspec.json.Decoder(_ExtendedCloudEvent),
)
_COMMON_MANY = (
    msgspec.json.Decoder(list[_PlainCloudEvent]),
    msgspec.json.Decoder(list[_ExtendedCloudEvent]),
)


def _decode_common(
    decoders: Iterable[msgspec.json.Decoder[Any]], body: bytes, received_ms: int
) -> Sequence[Event] | None:
    """The events in the body, which must be UTF-8; None if the general decoder is needed."""
    for decoder in decoders:
        try:
            read = decoder.decode(body)
        except _DECODE_ERRORS:
            continue  # an unknown attribute, or a fault
        return _to_events(read if isinstance(read, list) else [read], body, received_ms)
    return None


def _to_events(
    decoded: Sequence[_PlainCloudEvent], body: bytes, received_ms: int
) -> Sequence[Event] | None:
    try:
        times = parse_times([read.time for read in decoded], received_ms)
    except InvalidInput:
        return None
    if not (_is_printable_json(body) or _are_printable(decoded)):
        return None
    events = [
        Event(read.source, read.id, read.type, read.subject or "", time, bytes(read.data))
        for read, time in zip(decoded, times, strict=True)
    ]
    if decoded and type(decoded[0]) is _ExtendedCloudEvent:
        return [
            msgspec.structs.replace(event, headers=_headers(read))
            for event, read in zip(events, decoded, strict=True)
        ]
    return DecodedEvents(events)


def _is_printable_json(body: bytes) -> bool:
    """Whether no string in this JSON can hold an unprintable character: the body is ASCII without
    DEL and escapes, and JSON allows no control characters within strings.
    """
    return body.isascii() and b"\\" not in body and b"\x7f" not in body


def _are_printable(decoded: Sequence[_PlainCloudEvent]) -> bool:
    names = [
        name for read in decoded for name in (read.source, read.id, read.type, read.subject or "")
    ]
    return "".join(names).isprintable()


def _headers(read: _PlainCloudEvent) -> dict[str, str]:
    values = _extensions_of(read)
    return {
        name: value for name, value in zip(_EXTENSIONS, values, strict=True) if value is not None
    }


# --- CloudEvents JSON: general decoder ------------------------------------------------------------


class _CloudEvent(msgspec.Struct, kw_only=True):
    """The standard attributes; `_read_extensions` reads the others in a second pass."""

    id: str
    source: str
    type: str
    specversion: str = "1.0"
    subject: str | None = None
    time: str | int | None = None
    datacontenttype: str | None = None
    data: msgspec.Raw = msgspec.Raw(b"")
    """Empty when absent; `Raw | None` would accept only null."""
    data_base64: str | None = None


_READ_ONE = msgspec.json.Decoder(_CloudEvent)
_READ_MANY = msgspec.json.Decoder(list[msgspec.Raw])
_READ_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_STANDARD_MEMBERS = frozenset(_CloudEvent.__struct_fields__)


def _decode_each(body: bytes, received_ms: int) -> list[Event]:
    try:
        parts = _READ_MANY.decode(body)
    except _DECODE_ERRORS as error:
        raise InvalidInput(
            f"this is not a JSON array of events: {error}", code="event.not_a_batch"
        ) from None
    events = []
    for index, part in enumerate(parts):
        try:
            events.append(_decode_any_event(bytes(part), received_ms))
        except InvalidInput as error:
            raise InvalidInput(
                f"event {index}: {error.message}", code=error.code, hint=error.hint
            ) from None
    return events


def _decode_any_event(body: bytes, received_ms: int) -> Event:
    try:
        read = _READ_ONE.decode(body)
        data, marks = _read_data(read)
        event = Event(
            source=read.source,
            id=read.id,
            type=read.type,
            subject=read.subject or "",
            time=received_ms if read.time is None else parse_time(read.time, needs_offset=True),
            data=data,
            headers=_read_extensions(body) | marks,
        )
    except _DECODE_ERRORS as error:
        raise InvalidInput(
            f"this is not a CloudEvent: {error}",
            code="event.not_a_cloudevent",
            hint='an event needs "id", "source" and "type", e.g. '
            '{"id":"1","source":"readers","type":"badge.seen","data":{}}',
        ) from None
    if read.specversion != "1.0":
        raise InvalidInput(
            f"specversion {read.specversion!r} is not known", code="event.not_a_cloudevent"
        )
    if DATA_ENCODING in event.headers:
        _check_base64(event)
    check_envelope(event)
    return event


def _read_data(read: _CloudEvent) -> tuple[bytes, dict[str, str]]:
    """The data as the log stores them, and the headers that describe them."""
    marks = {} if is_json_type(read.datacontenttype) else {DATA_TYPE: read.datacontenttype or ""}
    if read.data_base64 is None:
        return bytes(read.data) or b"null", marks
    if bytes(read.data) not in (b"", b"null"):
        raise InvalidInput(
            "an event has data or data_base64, not both", code="event.not_a_cloudevent"
        )
    return msgspec.json.encode(read.data_base64), marks | {DATA_ENCODING: BASE64}


def _read_extensions(body: bytes) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, raw in _READ_MEMBERS.decode(body).items():
        if name in _STANDARD_MEMBERS:
            continue
        value = msgspec.json.decode(raw)
        if value is None:
            continue  # CloudEvents: a null attribute counts as absent
        if isinstance(value, (dict, list)):
            raise InvalidInput(
                f"the attribute {name!r} is not a scalar", code="event.bad_extension"
            )
        headers[name] = value if isinstance(value, str) else bytes(raw).decode()
    return headers


def _check_base64(event: Event) -> None:
    """Raises InvalidInput unless the data are base64, as the header `dataencoding` states."""
    try:
        text = msgspec.json.decode(event.data, type=str)
        is_base64 = event.headers[DATA_ENCODING] == BASE64
        base64.b64decode(text.encode("ascii"), validate=True)
    except (msgspec.DecodeError, UnicodeError, binascii.Error):
        is_base64 = False
    if not is_base64:
        raise InvalidInput(
            "the octets of the event are not base64",
            code="event.bad_base64",
            hint="put base64 text of RFC 4648 into data_base64",
        )
