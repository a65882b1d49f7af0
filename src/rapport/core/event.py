"""The event envelope, whose field names follow CloudEvents 1.0, and the ids of events.
[CH-12, CH-17]
"""

from __future__ import annotations

import hashlib
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


# --- ids: time-ordered for new events, digests for what must get the same id twice ---

_ID_BYTES = 16
CHANCE_BYTES = 10
"""Random bytes of one time-ordered id."""
_RANDOM_MASK, _VERSION_BITS = (
    bytes.fromhex("0fff3fffffffffffffff"),
    bytes.fromhex("70008000000000000000"),
)
"""The random bits of these bytes, and the bits of UUID version and variant."""


def time_ordered_id(time_ms: int, chance: bytes) -> str:
    """A UUIDv7 as text: sortable by time, unique by 74 bits of `chance` (10 bytes).

    >>> time_ordered_id(1, bytes(10))
    '00000000-0001-7000-8000-000000000000'
    """
    return id_start(time_ms) + id_ends(chance)[0]


def id_start(time_ms: int) -> str:
    """The first part of the time-ordered ids of a millisecond."""
    text = f"{time_ms:012x}"
    return f"{text[:8]}-{text[8:]}-"


def id_ends(chance: bytes) -> list[str]:
    """The second parts, one for every ten random bytes. Two operations on one large number set the
    version bits of all of them, at a quarter of the cost of single ids.
    """
    count = len(chance) // CHANCE_BYTES
    kept = int.from_bytes(_RANDOM_MASK * count, "big") & int.from_bytes(chance, "big")
    digits = f"{kept | int.from_bytes(_VERSION_BITS * count, 'big'):x}"
    return [
        f"{digits[at : at + 4]}-{digits[at + 4 : at + 8]}-{digits[at + 8 : at + 20]}"
        for at in range(0, len(digits), 2 * CHANCE_BYTES)
    ]


class RowIds:
    """Ids for the rows of a file, derived from all rows up to each one: the same ids in a copy of
    the file and after rows were appended, different ids for equal rows.

    >>> ids, appended = RowIds(), RowIds()
    >>> first = [ids.next(b"a"), ids.next(b"a")]
    >>> first[0] != first[1], first == [appended.next(b"a"), appended.next(b"a")]
    (True, True)
    """

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=_ID_BYTES)
        self._number = 0

    def next(self, row: bytes) -> str:
        """The id of the next row: a digest of the rows up to it, and its number from 1."""
        self._number += 1
        self._digest.update(len(row).to_bytes(8, "big"))
        self._digest.update(row)
        return f"{self._digest.hexdigest()}:{self._number}"


def content_id(*parts: str) -> str:
    """A 128-bit id that depends on nothing but `parts`, so a repeated action gets the same id.

    >>> content_id("a", "bc") == content_id("ab", "c")
    False
    """
    digest = hashlib.blake2b(digest_size=_ID_BYTES)
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(8, "big"))
        digest.update(raw)
    return digest.hexdigest()
