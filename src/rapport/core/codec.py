"""Events to bytes and back: CloudEvents JSON for people and doors, packed blocks for the log.
[CH-12]

A block is a msgpack array of events: one call encodes or decodes a whole committed batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rapport.core.errors import Corrupt, InvalidInput
from rapport.core.event import Event, check_envelope
from rapport.core.times import format_time, parse_time

_PACK = msgspec.msgpack.Encoder()
_UNPACK_BLOCK = msgspec.msgpack.Decoder(list[Event])

_KNOWN = frozenset(
    ("specversion", "id", "source", "type", "subject", "time", "datacontenttype", "data")
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
    dataschema: str | None = None
    data: msgspec.Raw = msgspec.Raw(b"null")


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


def encode_cloudevent(event: Event) -> bytes:
    """Structured CloudEvents JSON of one event."""
    return msgspec.json.encode(to_cloudevent(event))


def decode_cloudevent(body: bytes, *, received_ms: int) -> Event:
    """One event from structured CloudEvents JSON; `received_ms` stands in when it names no time.

    Raises InvalidInput with the member at fault. Unknown members become headers (text of scalars
    only).
    """
    try:
        read = _READ_ONE.decode(body)
        event = Event(
            source=read.source,
            id=read.id,
            type=read.type,
            subject=read.subject or "",
            time=received_ms if read.time is None else parse_time(read.time),
            data=bytes(read.data),
            headers=_extensions(body),
        )
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
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
    check_envelope(event)
    return event


def decode_cloudevents(body: bytes, *, received_ms: int) -> list[Event]:
    """A JSON array of CloudEvents, all or none; the error names the index of the faulty one."""
    try:
        parts = _READ_MANY.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"this is not a JSON array of events: {error}", code="event.not_a_batch"
        ) from None
    events = []
    for index, part in enumerate(parts):
        try:
            events.append(decode_cloudevent(bytes(part), received_ms=received_ms))
        except InvalidInput as error:
            raise InvalidInput(
                f"event {index}: {error.message}", code=error.code, hint=error.hint
            ) from None
    return events


def _extensions(body: bytes) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, raw in _READ_MEMBERS.decode(body).items():
        if name in _KNOWN:
            continue
        value = msgspec.json.decode(raw)
        if isinstance(value, (dict, list)):
            raise InvalidInput(
                f"the attribute {name!r} is not a scalar", code="event.bad_extension"
            )
        headers[name] = value if isinstance(value, str) else bytes(raw).decode()
    return headers
