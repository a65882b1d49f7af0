"""The event envelope; field names follow CloudEvents 1.0. [CH-12, CH-17]"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from rapport.core.errors import InvalidInput

MAX_NAME = 256
"""Longest id, source, type or subject, in characters."""

CAUSE = "cause"
"""Header with the ids of the events that caused this one; written by `cause_text`."""
INTERPRETATION = "interpretation"
"""Header `name@version` of the interpretation that was applied to the event."""
ADDED_FIELDS = "addedfields"
"""Header of a raw event: fields from its transport, such as levels of an MQTT topic, as a JSON
object. They count as fields of the payload.
"""

_EMPTY: dict[str, str] = {}


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event, identified by (source, id); `time` is event time in ms UTC, `data` is JSON.

    `data` stays undecoded until `payload` (any JSON) or `payload_as` (typed) is called. The order
    of the fields is the order on disk; new fields go at the end with a default.
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
            # The possible nesting depends on the stack depth of the caller, so an accepted event
            # may still raise RecursionError here.
            raise InvalidInput(
                f"the data of event {self.id!r} cannot be read: {error}", code="event.bad_data"
            ) from None

    def causes(self) -> tuple[str, ...]:
        """Ids of the events that caused this one."""
        return tuple(_unescaped(text) for text in self.headers.get(CAUSE, "").split())


def cause_text(*ids: str) -> str:
    """Ids in the form of the `cause` header: separated by spaces, spaces in ids escaped.

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
    """An event without its headers, for code that reads many events: decoding a dictionary for each
    would double the cost. The fields are the first fields of `Event`, in the same order.
    """

    source: str
    id: str
    type: str
    subject: str
    time: int
    data: bytes = b"null"


class BareStoredEvent(msgspec.Struct, frozen=True, gc=False):
    """A bare event with its position; see `channel.read_after` for the headers."""

    position: int
    received: int
    event: BareEvent


class StoredEvent(msgspec.Struct, frozen=True, gc=False):
    """An event with its position in the channel, counted from 1, and its time of arrival."""

    position: int
    received: int
    event: Event


class Gap(msgspec.Struct, frozen=True, gc=False):
    """Positions of a channel, from `first` to `last`, whose events should be present but cannot be
    read; `reason` is `damaged` or `missing`. Events removed by retention or expired by their time
    to live are no gap.
    """

    first: int
    last: int
    reason: str


def clip_gaps(gaps: Iterable[Gap], first: int, last: int | None = None) -> list[Gap]:
    """The parts of gaps between `first` and `last` (None: no upper bound)."""
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
    """Creates an event from Python values; encodes `data` to JSON. Raises InvalidInput for values
    out of bounds.
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
    """Turns any name into the subject of an event by replacing unprintable characters. Several
    names may get the same subject; the data distinguishes them.
    """
    if name.isprintable():
        return name
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in name)


def check_envelope(event: Event) -> None:
    """Raises InvalidInput unless names are present, short and printable, and the time fits in 64
    bits.
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
