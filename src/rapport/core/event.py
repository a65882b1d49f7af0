"""The one envelope. Everything that happens is an Event; field names follow CloudEvents 1.0.
[CH-12, CH-17]
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from rapport.core.errors import InvalidInput

MAX_NAME = 256
"""Longest id, source, type or subject, in characters."""

CAUSE = "cause"
"""Header that names the events this one follows from; written by `cause_text`."""
INTERPRETATION = "interpretation"
"""Header `name@version` of the interpretation that gave the event its meaning."""
ADDED_FIELDS = "addedfields"
"""Header of a raw event: fields that its transport knows, such as levels of an MQTT topic, as a
JSON object. They count as fields of the payload.
"""

_EMPTY: dict[str, str] = {}


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What happened. Identified by (source, id); `time` is event time in ms UTC; `data` is raw JSON
    bytes.

    `data` stays undecoded until somebody needs it: call `payload` (any JSON) or `payload_as`
    (typed).
    The order of the fields is the order on disk; new fields go at the end with a default.
    """

    source: str
    id: str
    type: str
    subject: str
    time: int
    data: bytes = b"null"
    headers: dict[str, str] = _EMPTY

    def payload(self) -> Any:
        """The decoded data; raises InvalidInput when it is not JSON."""
        return self.payload_as(Any)

    def payload_as(self, kind: Any) -> Any:
        """The data decoded and checked as `kind`."""
        try:
            return msgspec.json.decode(self.data, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            # How deep data may be nested depends on the caller's own depth: a door took it in.
            raise InvalidInput(
                f"the data of event {self.id!r} cannot be read: {error}", code="event.bad_data"
            ) from None

    def causes(self) -> tuple[str, ...]:
        """Ids of the events this one names as its causes."""
        return tuple(_unescaped(text) for text in self.headers.get(CAUSE, "").split())


def cause_text(*ids: str) -> str:
    """Ids as the `cause` header keeps them: separated by spaces, spaces in them escaped.

    >>> cause_text("e 1", "50%")
    'e%201 50%25'
    """
    text = ids[0] if len(ids) == 1 else " ".join(ids)
    if "%" not in text and text.count(" ") == len(ids) - 1:
        return text
    return " ".join(id.replace("%", "%25").replace(" ", "%20") for id in ids)


def _unescaped(text: str) -> str:
    return text.replace("%20", " ").replace("%25", "%")


class BareEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event without its headers, for who reads many and needs none of them: making a dictionary
    for each costs as much as the rest. The first fields of `Event`, in its order.
    """

    source: str
    id: str
    type: str
    subject: str
    time: int
    data: bytes = b"null"


class BareStored(msgspec.Struct, frozen=True, gc=False):
    """A bare event with its place; `channel.read_after(position - 1, limit=1)` has the whole."""

    position: int
    received: int
    event: BareEvent


class StoredEvent(msgspec.Struct, frozen=True, gc=False):
    """An event with the place and time that append gave it: `position` counts from 1 in its
    channel.
    """

    position: int
    received: int
    event: Event


class Gap(msgspec.Struct, frozen=True, gc=False):
    """Positions of a channel, from `first` to `last`, whose events should be there and cannot be
    read; `reason` is `damaged` or `missing`. What retention let go, or what is past its time to
    live, is no gap.
    """

    first: int
    last: int
    reason: str


def clip_gaps(gaps: Iterable[Gap], first: int, last: int | None = None) -> list[Gap]:
    """The parts of gaps that lie from `first` to `last` (None: to their end)."""
    found = []
    for gap in gaps:
        begin, end = max(gap.first, first), gap.last if last is None else min(gap.last, last)
        if begin <= end:
            found.append(Gap(begin, end, gap.reason))
    return found


def make_event(
    *,
    source: str,
    id: str,
    type: str,
    time: int,
    subject: str = "",
    data: Any = None,
    headers: dict[str, str] | None = None,
) -> Event:
    """An event from Python values; `data` is encoded to JSON. Raises InvalidInput for values out of
    bounds.
    """
    event = Event(
        source=source,
        id=id,
        type=type,
        subject=subject,
        time=time,
        data=msgspec.json.encode(data),
        headers=headers or {},
    )
    check_envelope(event)
    return event


def as_subject(name: str) -> str:
    """A name of any characters as the subject of an event: unprintable ones are replaced, so that
    names may share a subject; the data tells them apart.
    """
    if name.isprintable():
        return name
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in name)


def check_envelope(event: Event) -> None:
    """Raises InvalidInput unless names are present, short and free of control characters and time
    fits.
    """
    for field, value in (("id", event.id), ("source", event.source), ("type", event.type)):
        if not value:
            raise InvalidInput(f"the event has no {field}", code="event.missing_field")
        _check_name(field, value)
    _check_name("subject", event.subject)
    if not -(2**63) <= event.time < 2**63:
        raise InvalidInput("the event's time does not fit in 64 bits", code="event.bad_time")


def _check_name(field: str, value: str) -> None:
    if len(value) > MAX_NAME:
        raise InvalidInput(
            f"the event's {field} is longer than {MAX_NAME} characters", code="event.field_too_long"
        )
    if not value.isprintable():
        raise InvalidInput(
            f"the event's {field} has unprintable characters", code="event.bad_field"
        )
