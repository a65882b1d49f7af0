"""The events that most publishers send, read a batch at a time; the decoder checks them. [CH-12]

Whatever is unusual or at fault is left to the closer look in `codec.py`, which gives the same
events and knows the words for the faults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Annotated, Literal

import msgspec

from rapport.core.errors import InvalidInput
from rapport.core.event import MAX_NAME, Event
from rapport.core.packed_events import PackedEvents
from rapport.core.times import parse_times

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What a decoder says of what is no JSON, no text, or nested too deeply."""

ReadTimes = Callable[[Sequence[str | int | None], int], list[int]]
"""As `parse_times`."""


class CheckedEvents(tuple[Event, ...]):
    """Events as they came out of the decoder: names and times are sound, there are no headers. Only
    their sizes are still to be looked at.

    Made in this module and nowhere else. It cannot be changed, and whatever is made from it (a
    slice, a list, a selection) is an ordinary sequence of which nothing is known.
    """

    __slots__ = ()


class SoundEvents(tuple[Event, ...]):
    """Events whose maker answers for their names, times and headers, and that no publisher counts:
    made of what was checked before it came in. Only their sizes are still to be looked at.

    Whoever makes these has looked at every text that came from outside (`isprintable`, at most
    `MAX_NAME` characters); whatever is made from it is an ordinary sequence.
    """

    __slots__ = ()


KNOWN_SOUND = frozenset((CheckedEvents, SoundEvents, PackedEvents))
"""Types of batches whose names need no second look, and in which no publisher counts."""


def as_sound(events: Sequence[Event]) -> Sequence[Event]:
    """Events whose maker answers for them, as a batch that says so."""
    return events if type(events) is PackedEvents else SoundEvents(events)


def are_bare(events: Sequence[Event]) -> bool:
    """Whether none of the events has headers; of checked ones that is known without looking."""
    return type(events) is CheckedEvents or not any(event.headers for event in events)


_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]


# The order of the fields is the one most publishers write: each is found at the first look.
class _PlainCloudEvent(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, gc=False):
    """JSON data and no further attributes."""

    specversion: Literal["1.0"] = "1.0"
    id: _Name
    source: _Name
    type: _Name
    subject: Annotated[str, msgspec.Meta(max_length=MAX_NAME)] | None = None
    time: str | int | None = None
    datacontenttype: Literal["application/json"] | None = None
    data: msgspec.Raw = msgspec.Raw(b"null")


class _UsualCloudEvent(_PlainCloudEvent, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The same with the attributes that our own publishers and other tools add."""

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
    for name in _UsualCloudEvent.__struct_fields__
    if name not in _PlainCloudEvent.__struct_fields__
)
_extensions_of = attrgetter(*_EXTENSIONS)

_READ_ONE: tuple[msgspec.json.Decoder[_PlainCloudEvent], ...] = (
    msgspec.json.Decoder(_PlainCloudEvent),
    msgspec.json.Decoder(_UsualCloudEvent),
)
_READ_MANY: tuple[msgspec.json.Decoder[Sequence[_PlainCloudEvent]], ...] = (
    msgspec.json.Decoder(list[_PlainCloudEvent]),
    msgspec.json.Decoder(list[_UsualCloudEvent]),
)


def usual_event(body: bytes, received_ms: int) -> Event | None:
    """The event in structured CloudEvents JSON; None when it calls for a closer look.

    `received_ms` stands in when it names no time. The body must be UTF-8.
    """
    for decoder in _READ_ONE:
        try:
            found = decoder.decode(body)
        except UNREADABLE:
            continue  # an attribute it does not know, or a fault
        events = _events((found,), body, received_ms, parse_times)
        return None if events is None else events[0]
    return None


def usual_events(
    body: bytes, received_ms: int, read_times: ReadTimes = parse_times
) -> Sequence[Event] | None:
    """The events of a JSON array; None when one of them calls for a closer look.

    CheckedEvents when none of them has a header.
    """
    for decoder in _READ_MANY:
        try:
            found = decoder.decode(body)
        except UNREADABLE:
            continue
        return _events(found, body, received_ms, read_times)
    return None


def _events(
    found: Sequence[_PlainCloudEvent], body: bytes, received_ms: int, read_times: ReadTimes
) -> Sequence[Event] | None:
    try:
        times = read_times([read.time for read in found], received_ms)
    except InvalidInput:
        return None
    if not (_is_plain_text(body) or _are_printable(found)):
        return None
    events = [
        Event(read.source, read.id, read.type, read.subject or "", time, bytes(read.data))
        for read, time in zip(found, times, strict=True)
    ]
    if found and type(found[0]) is _UsualCloudEvent:
        return [
            msgspec.structs.replace(event, headers=_headers(read))
            for event, read in zip(events, found, strict=True)
        ]
    return CheckedEvents(events)


def _is_plain_text(body: bytes) -> bool:
    """Whether no text in this JSON can hold anything unprintable, told without looking at each: all
    is ASCII, without DEL and escapes, and JSON has no bare control characters within texts.
    """
    return body.isascii() and b"\\" not in body and b"\x7f" not in body


def _are_printable(found: Sequence[_PlainCloudEvent]) -> bool:
    names = [
        name for read in found for name in (read.source, read.id, read.type, read.subject or "")
    ]
    return "".join(names).isprintable()


def _headers(read: _PlainCloudEvent) -> dict[str, str]:
    values = _extensions_of(read)
    return {
        name: value for name, value in zip(_EXTENSIONS, values, strict=True) if value is not None
    }
