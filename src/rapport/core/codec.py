"""Events to bytes and back: CloudEvents JSON for people and doors, packed blocks for the log.
[CH-12]

A block is a msgpack array of events: one call encodes or decodes a whole committed batch.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any

import msgspec

from rapport.core.errors import Corrupt, InvalidInput
from rapport.core.event import BareEvent, Event, StoredEvent, check_envelope
from rapport.core.times import format_time, parse_time, parse_times
from rapport.core.usual_events import UNREADABLE, ReadTimes, usual_event, usual_events

_PACK = msgspec.msgpack.Encoder()
_UNPACK_BLOCK = msgspec.msgpack.Decoder(list[Event])
_UNPACK_BARE = msgspec.msgpack.Decoder(list[BareEvent])

DATA_ENCODING, BASE64 = "dataencoding", "base64"
"""Header of an event whose data are octets: its data are then the JSON text of their base64."""
DATA_TYPE = "datacontenttype"
"""Header of an event whose data are not JSON: their media type; the data are a JSON text."""

_JSON_TYPE = "application/json"
_KNOWN = frozenset(
    (
        *("specversion", "id", "source", "type", "subject", "time"),
        *(DATA_TYPE, "data", "data_base64"),
    )
)


class _CloudEvent(msgspec.Struct, kw_only=True):
    """The members we read; extension attributes are found by a second look, only when there are
    any.
    """

    id: str
    source: str
    type: str
    specversion: str = "1.0"
    subject: str | None = None
    time: str | int | None = None
    datacontenttype: str | None = None
    data: msgspec.Raw = msgspec.Raw(b"")
    """Empty when it is absent; `Raw | None` would read null only."""
    data_base64: str | None = None


_READ_ONE = msgspec.json.Decoder(_CloudEvent)
_READ_MANY = msgspec.json.Decoder(list[msgspec.Raw])
_READ_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def encode_block(events: Sequence[Event]) -> bytes:
    """The bytes the log keeps for a committed batch."""
    return _PACK.encode(events)


def decode_block(block: bytes) -> list[Event]:
    """The events of a block; raises Corrupt when the bytes are not one."""
    try:
        return _UNPACK_BLOCK.decode(block)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise Corrupt(f"a log block cannot be read: {error}", code="log.bad_block") from None


def decode_bare_block(block: bytes) -> list[BareEvent]:
    """The events of a block without their headers; raises Corrupt when the bytes are not one."""
    try:
        return _UNPACK_BARE.decode(block)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise Corrupt(f"a log block cannot be read: {error}", code="log.bad_block") from None


def to_cloudevent(event: Event) -> dict[str, Any]:
    """The event as a structured CloudEvent; headers become extension attributes."""
    members: dict[str, Any] = {
        "specversion": "1.0",
        "id": event.id,
        "source": event.source,
        "type": event.type,
        "time": format_time(event.time),
        "datacontenttype": "application/json",
    }
    if event.subject:
        members["subject"] = event.subject
    members.update(event.headers)
    members["data"] = msgspec.Raw(event.data)
    return members


def stored_cloudevent(stored: StoredEvent) -> dict[str, Any]:
    """A stored event as doors give it out: its place and time of arrival beside the attributes, and
    octets in `data_base64` as CloudEvents has it.
    """
    event = stored.event
    members = to_cloudevent(event)
    if event.headers and DATA_ENCODING in event.headers:
        del members[DATA_ENCODING]
        members["data_base64"] = members.pop("data")
    # Last: an attribute that somebody named `position` must not stand for ours.
    members["position"], members["received"] = stored.position, stored.received
    return members


def encode_cloudevent(event: Event) -> bytes:
    """Structured CloudEvents JSON of one event."""
    return msgspec.json.encode(to_cloudevent(event))


def decode_cloudevent(body: bytes, *, received_ms: int) -> Event:
    """One event from structured CloudEvents JSON; `received_ms` stands in when it names no time.

    Raises InvalidInput with the member at fault. Unknown members become headers (text of scalars
    only). Data that are not JSON are kept as a JSON text, with `datacontenttype` as a header; so
    are octets (`data_base64`), marked by the header `dataencoding`.
    """
    _check_text(body, "event.not_a_cloudevent")
    event = usual_event(body, received_ms)
    return _decode_closely(body, received_ms) if event is None else event


def decode_cloudevents(
    body: bytes, *, received_ms: int, read_times: ReadTimes = parse_times
) -> Sequence[Event]:
    """A JSON array of CloudEvents, all or none; the error names the index of the faulty one.

    CheckedEvents when they are usual ones without headers. `read_times` may be a quicker
    `parse_times`, see `time_columns.py`.
    """
    _check_text(body, "event.not_a_batch")
    events = usual_events(body, received_ms, read_times)
    return _decode_each(body, received_ms) if events is None else events


def _check_text(body: bytes, code: str) -> None:
    """Data are kept as they came, so nobody else would notice that they are no text before a reader
    does.
    """
    if body.isascii():
        return
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"this is not UTF-8 text: {error.reason}", code=code) from None


def _decode_each(body: bytes, received_ms: int) -> list[Event]:
    try:
        parts = _READ_MANY.decode(body)
    except UNREADABLE as error:
        raise InvalidInput(
            f"this is not a JSON array of events: {error}", code="event.not_a_batch"
        ) from None
    events = []
    for index, part in enumerate(parts):
        try:
            events.append(_decode_closely(bytes(part), received_ms))
        except InvalidInput as error:
            raise InvalidInput(
                f"event {index}: {error.message}", code=error.code, hint=error.hint
            ) from None
    return events


def _decode_closely(body: bytes, received_ms: int) -> Event:
    """Every event that can be read, member by member; raises InvalidInput."""
    try:
        read = _READ_ONE.decode(body)
        data, marks = _data_of(read)
        event = Event(
            source=read.source,
            id=read.id,
            type=read.type,
            subject=read.subject or "",
            time=received_ms if read.time is None else parse_time(read.time, needs_offset=True),
            data=data,
            headers=_extensions(body) | marks,
        )
    except UNREADABLE as error:
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
        _check_octets(event)
    check_envelope(event)
    return event


def _data_of(read: _CloudEvent) -> tuple[bytes, dict[str, str]]:
    """The data as the log keeps them, and the headers that say what they are."""
    marks = {} if is_json_type(read.datacontenttype) else {DATA_TYPE: read.datacontenttype or ""}
    if read.data_base64 is None:
        return bytes(read.data) or b"null", marks
    if bytes(read.data) not in (b"", b"null"):
        raise InvalidInput(
            "an event has data or data_base64, not both", code="event.not_a_cloudevent"
        )
    return msgspec.json.encode(read.data_base64), marks | {DATA_ENCODING: BASE64}


def octets_event_parts(octets: bytes, media_type: str) -> tuple[bytes, dict[str, str]]:
    """Octets as the data of an event, and its headers."""
    text = base64.b64encode(octets).decode()
    return msgspec.json.encode(text), {DATA_TYPE: media_type, DATA_ENCODING: BASE64}


def is_json_type(media_type: str | None) -> bool:
    """Whether data of a media type are JSON; so are data of which nothing is said.

    >>> is_json_type("application/geo+json; charset=utf-8"), is_json_type("text/xml")
    (True, False)
    """
    kind = (media_type or _JSON_TYPE).partition(";")[0].strip().lower()
    return kind in (_JSON_TYPE, "text/json") or kind.endswith("+json")


def is_xml_type(media_type: str | None) -> bool:
    """Whether data of a media type are XML."""
    kind = (media_type or "").partition(";")[0].strip().lower()
    return kind in ("application/xml", "text/xml") or kind.endswith("+xml")


def _check_octets(event: Event) -> None:
    """Raises InvalidInput unless the data are what the header says."""
    try:
        text = msgspec.json.decode(event.data, type=str)
        is_sound = event.headers[DATA_ENCODING] == BASE64
        base64.b64decode(text.encode("ascii"), validate=True)
    except (msgspec.DecodeError, UnicodeError, binascii.Error):
        is_sound = False
    if not is_sound:
        raise InvalidInput(
            "the octets of the event are not base64",
            code="event.bad_base64",
            hint="put base64 text of RFC 4648 into data_base64",
        )


def _extensions(body: bytes) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, raw in _READ_MEMBERS.decode(body).items():
        if name in _KNOWN:
            continue
        value = msgspec.json.decode(raw)
        if value is None:
            continue  # CloudEvents: an attribute that is null is not there
        if isinstance(value, (dict, list)):
            raise InvalidInput(
                f"the attribute {name!r} is not a scalar", code="event.bad_extension"
            )
        headers[name] = value if isinstance(value, str) else bytes(raw).decode()
    return headers
