"""The quarantine index: what is quarantined now, by event and grouped for people. [ME-11, ME-16]

It is derived from the channels `quarantine` and `releases` and updated by `refresh`; nothing is
stored permanently. Memory is bounded: the records are in an unnamed SQLite database, which is in
memory while it is small.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import lru_cache
from typing import Any, Literal

import msgspec

from rapport.channel.channel import Channels
from rapport.core.errors import InvalidInput
from rapport.core.event import Event, StoredEvent
from rapport.core.release import BATCH_RELEASED, RELEASES, ReleasedBatch
from rapport.mediation.plausibility import plausible_unit
from rapport.mediation.quarantine.rejection_events import QUARANTINE, REJECTED_TYPE, raw_event_of
from rapport.mediation.source_bindings import RAW_PREFIX
from rapport.store.base import Delete, Put
from rapport.store.sqlite import SqliteRecordStore

QuarantineState = Literal["held", "rejected again", "released"]
_PAGE = 500
_GROUP_PAGE = 1_000
_MOST_RELEASED = 10_000
"""Released events kept individually; older ones are only counted."""

_HELD, _READINGS, _IDS, _CORRECTIONS = "held", "readings", "ids", "corrections"

RawKey = tuple[str, int]
"""Channel and position of a raw event."""


class QuarantinedEvent(msgspec.Struct, gc=False, kw_only=True):
    """A rejected raw event, or a reading that policies cannot use."""

    id: str
    """The id of its first event in `quarantine`."""
    source: str
    channel: str
    """The raw channel."""
    raw_position: int
    reason: str
    message: str
    hint: str
    time: int
    received: int
    """When it was quarantined first."""
    first: int
    """Position of its first event in `quarantine`."""
    position: int
    """Position of its newest event in `quarantine`."""
    attempts: int = 1
    state: QuarantineState = "held"
    release: str = ""
    is_reading: bool = False
    """Quarantined by policies; only reprocessing its raw event can change it."""


class QuarantineFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects quarantined events; empty fields match any."""

    source: str = ""
    reason: str = ""
    since_ms: int = 0
    ids: tuple[str, ...] = ()

    def fits(self, held: QuarantinedEvent) -> bool:
        return (
            self.source in ("", held.source)
            and self.reason in ("", held.reason)
            and self.since_ms <= held.received
            and (not self.ids or held.id in self.ids)
        )


class _RejectionData(msgspec.Struct):
    """The payload of an event in `quarantine`, without the raw form."""

    reason: str = ""
    message: str = ""
    hint: str = ""
    source: str = ""
    event: _ReadingOrigin | None = None


class _ReadingOrigin(msgspec.Struct):
    source: str = ""
    rawchannel: str = ""
    rawposition: str = "0"


_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder(QuarantinedEvent).decode


class QuarantineIndex:
    """The state of everything in quarantine. For one event loop."""

    def __init__(self, channels: Channels) -> None:
        self._quarantine = channels.channel(QUARANTINE)
        self._releases = channels.channel(RELEASES)
        self._read_to = self._released_to = 0
        self._records = SqliteRecordStore(None)
        self._fresh: dict[tuple[str, str], bytes | None] = {}
        """Records of the page in progress; None: deleted."""
        self._released: dict[RawKey, QuarantinedEvent] = {}
        self._counts: dict[str, int] = {}
        self._by_reason: Counter[tuple[str, str]] = Counter()
        self._turn = asyncio.Lock()

    async def refresh(self) -> None:
        """Processes events appended since the last call."""
        async with self._turn:
            # Releases up to here refer to events that are in quarantine already.
            last = self._releases.last_position()
            while batch := await self._quarantine.read_after(self._read_to, limit=_PAGE):
                for stored in batch:
                    self._add_rejection(stored)
                self._read_to = batch[-1].position
                self._flush()
            while self._released_to < last:
                batch = await self._releases.read_after(self._released_to, limit=_PAGE)
                for stored in batch:
                    if stored.position <= last and stored.event.type == BATCH_RELEASED:
                        self._add_release(stored.event)
                        self._flush()
                self._released_to = min(batch[-1].position, last) if batch else last

    async def pages(
        self, wanted: QuarantineFilter | None = None
    ) -> AsyncIterator[list[QuarantinedEvent]]:
        """Quarantined events in pages, by raw channel and position, readings last. May
        include events released meanwhile.
        """
        for table in (_HELD, _READINGS):
            after = ""
            while found := await asyncio.to_thread(
                self._records.find, table, after=after, limit=_GROUP_PAGE
            ):
                after = found[-1][0]
                page = [_DECODE(value) for _, value in found]
                if chosen := [one for one in page if wanted is None or wanted.fits(one)]:
                    yield chosen

    async def held(self, wanted: QuarantineFilter | None = None) -> list[QuarantinedEvent]:
        """All of them at once; only for small numbers."""
        return [one async for page in self.pages(wanted) for one in page]

    def one(self, id: str) -> QuarantinedEvent | None:
        """The quarantined event of an event in `quarantine`, in any state."""
        place = self._get(_IDS, id)
        if place is not None:
            table, _, key = place.decode().partition(" ")
            return self._at(table, key)
        return next((one for one in self._released.values() if one.id == id), None)

    def at(self, channel: str, position: int) -> QuarantinedEvent | None:
        """The quarantined raw event at a position, if any."""
        return self._at(_HELD, _key((channel, position)))

    def newest(self, stored: StoredEvent) -> QuarantinedEvent | None:
        """The quarantined event whose newest event in `quarantine` is this one."""
        entry = _entry_of(stored.event)
        found = self._at(entry[2], _key(entry[1])) if entry is not None else None
        return found if found is not None and found.position == stored.position else None

    def correction(self, channel: str, id: str) -> str:
        """The id of the newest correction of a reading; its own id if there is none."""
        found = self._get(_CORRECTIONS, f"{channel}/{id}")
        return id if found is None else found.decode()

    def counts(self) -> Counter[tuple[str, str]]:
        """Number of quarantined events by source and reason, at constant cost."""
        return +self._by_reason

    def released(self) -> dict[str, int]:
        """Number of released raw events by source."""
        return dict(sorted(self._counts.items()))

    # --- taking in --------------------------------------------------------------------------------

    def _add_rejection(self, stored: StoredEvent) -> None:
        entry = _entry_of(stored.event)
        if entry is None:
            return  # foreign event
        data, place, table = entry
        key = _key(place)
        known = self._at(table, key)
        if known is None:
            known = _quarantined(stored, data, place, table == _READINGS)
            self._fresh[_IDS, known.id] = f"{table} {key}".encode()
        else:
            self._by_reason[known.source, known.reason] -= 1
            known.reason, known.position = data.reason, stored.position
            known.message, known.hint = data.message, data.hint
            known.attempts += 1
            known.state = "rejected again"
        self._by_reason[known.source, known.reason] += 1
        self._fresh[table, key] = _ENCODE(known)

    def _add_release(self, event: Event) -> None:
        done: ReleasedBatch = event.payload_as(ReleasedBatch)
        source = done.channel.removeprefix(RAW_PREFIX)
        for position in done.released:
            held = self._remove(_HELD, (done.channel, position))
            if held is not None:
                held.state, held.release = "released", done.release
                self._released[done.channel, position] = held
        for position in done.mended_readings:
            self._remove(_READINGS, (done.channel, position))
        for id, stands_in in done.corrected.items():
            self._fresh[_CORRECTIONS, f"{done.channel}/{id}"] = stands_in.encode()
        self._counts[source] = self._counts.get(source, 0) + len(done.released)
        while len(self._released) > _MOST_RELEASED:
            del self._released[next(iter(self._released))]

    def _remove(self, table: str, place: RawKey) -> QuarantinedEvent | None:
        key = _key(place)
        found = self._at(table, key)
        if found is not None:
            self._by_reason[found.source, found.reason] -= 1
            self._fresh[table, key] = self._fresh[_IDS, found.id] = None
        return found

    # --- records ----------------------------------------------------------------------------------

    def _at(self, table: str, key: str) -> QuarantinedEvent | None:
        found = self._get(table, key)
        return None if found is None else _DECODE(found)

    def _get(self, table: str, key: str) -> bytes | None:
        if (table, key) in self._fresh:
            return self._fresh[table, key]
        return self._records.get(table, key)

    def _flush(self) -> None:
        if self._fresh:
            self._records.apply(
                [
                    Delete(table, key) if value is None else Put(table, key, value)
                    for (table, key), value in self._fresh.items()
                ]
            )
            self._fresh.clear()


def _entry_of(event: Event) -> tuple[_RejectionData, RawKey, str] | None:
    """The payload, the raw event and the table of an event of `quarantine`; None for others."""
    try:
        data: _RejectionData = event.payload_as(_RejectionData)
        place = _place_of(event, data)
    except (InvalidInput, ValueError):
        return None
    return data, place, _HELD if event.type == REJECTED_TYPE else _READINGS


def _key(place: RawKey) -> str:
    """Sorts by channel, then position."""
    return f"{place[0]}/{place[1]:020d}"


def _place_of(event: Event, data: _RejectionData) -> RawKey:
    if event.type == REJECTED_TYPE:
        return event.headers.get("rawchannel", ""), int(event.headers.get("rawposition", "0"))
    if data.event is None or not data.reason:
        raise ValueError("neither a raw event nor a reading")
    # A reading without a raw event is its own key.
    return data.event.rawchannel or event.id, int(data.event.rawposition)


def _quarantined(
    stored: StoredEvent, data: _RejectionData, place: RawKey, is_reading: bool
) -> QuarantinedEvent:
    channel, raw_position = place
    source = data.source or channel.removeprefix(RAW_PREFIX)
    if is_reading and data.event is not None and not data.event.rawchannel:
        source = data.event.source
    return QuarantinedEvent(
        id=stored.event.id,
        source=source,
        channel=channel,
        raw_position=raw_position,
        reason=data.reason,
        message=data.message,
        hint=data.hint,
        time=stored.event.time,
        received=stored.received,
        first=stored.position,
        position=stored.position,
        is_reading=is_reading,
    )


_DEEPEST = 20
_UNITS = "unit."
"""Prefix of reasons about units, for which all values are inspected."""
_Key = tuple[str, str]
"""Source and reason."""


class FieldValues(msgspec.Struct, kw_only=True):
    """The range of numbers in a field of quarantined events."""

    field: str
    count: int
    low: float
    high: float
    hint: str = ""


class QuarantineGroup(msgspec.Struct, kw_only=True):
    """All quarantined events of one source and reason."""

    source: str
    reason: str
    count: int = 0
    rejected_again: int = 0
    """Events that a release did not help."""
    first_ms: int = 0
    """When the oldest was quarantined."""
    last_ms: int = 0
    message: str = ""
    """Of the newest event."""
    hint: str = ""
    fields: list[FieldValues] = []
    is_reading: bool = False


async def group_quarantined(
    channels: Channels, index: QuarantineIndex, wanted: QuarantineFilter | None = None
) -> list[QuarantineGroup]:
    """Groups by source and reason; reads the copies of events quarantined because of a unit.
    Memory is bounded by the groups.
    """
    groups: dict[_Key, QuarantineGroup] = {}
    places: list[int] = []
    async for page in index.pages(wanted):
        for one in page:
            key = one.source, one.reason
            _add_to_group(
                groups.setdefault(key, QuarantineGroup(source=one.source, reason=one.reason)), one
            )
        of_units = [one.position for one in page if one.reason.startswith(_UNITS)]
        if of_units:
            places = [min(of_units + places[:1]), max(of_units + places[1:])]
    if places:
        found = await _field_values(channels, index, wanted, *places)
        for key, fields in found.items():
            if key in groups:
                groups[key].fields = fields
                hints = "; ".join(one.hint for one in fields if one.hint)
                groups[key].hint = hints or groups[key].hint
    return [groups[key] for key in sorted(groups)]


def _add_to_group(group: QuarantineGroup, one: QuarantinedEvent) -> None:
    group.count += 1
    group.rejected_again += one.state == "rejected again"
    group.first_ms = min(group.first_ms or one.received, one.received)
    if one.received >= group.last_ms:
        group.last_ms, group.message, group.hint = one.received, one.message, one.hint
    group.is_reading = one.is_reading


async def _field_values(
    channels: Channels,
    index: QuarantineIndex,
    wanted: QuarantineFilter | None,
    first: int,
    last: int,
) -> dict[_Key, list[FieldValues]]:
    """The ranges of fields that unit reasons name, over all events between two positions of
    `quarantine`.
    """
    found: dict[_Key, dict[str, FieldValues]] = {}
    channel, position = channels.channel(QUARANTINE), first - 1
    while position < last and (batch := await channel.read_after(position, limit=_GROUP_PAGE)):
        position = batch[-1].position
        for stored in batch:
            one = index.newest(stored)
            if one is None or not one.reason.startswith(_UNITS):
                continue
            if wanted is not None and not wanted.fits(one):
                continue
            raw = raw_event_of(stored.event)
            payload = _payload(raw.data) if raw is not None else None
            for field, value in _numbers(payload):
                if _names(one.message, field):
                    _note(found.setdefault((one.source, one.reason), {}), field, value)
    for fields in found.values():
        for each in fields.values():
            each.hint = range_hint(each)
    return {key: sorted(each.values(), key=lambda one: one.field) for key, each in found.items()}


def range_hint(values: FieldValues) -> str:
    """What unit all values of a field together make likely.

    >>> range_hint(FieldValues(field="relativeHumidity", count=90, low=0.15, high=0.97))
    '90 values of relativeHumidity, always within 0.15..0.97: \
a ratio within 0..1 looks like a fraction: unit = "1"'
    """
    low, high = (plausible_unit(values.field, end) for end in (values.low, values.high))
    summary = f"{values.count} values of {values.field}"
    if _unit(low) == _unit(high):
        within = f"always within {values.low:g}..{values.high:g}"
        return f"{summary}, {within}: {high}" if high else ""
    # If both ends differ, the greater one decides: a percentage may be small.
    return f"{summary}, up to {values.high:g}: {high}" if high else ""


def _unit(hint: str) -> str:
    return hint.rpartition("unit = ")[2]


@lru_cache(maxsize=4_096)
def _names(message: str, field: str) -> bool:
    """Whether a message names a field."""
    return re.search(rf"(?<![\w.]){re.escape(field)}(?![\w.])", message) is not None


def _note(found: dict[str, FieldValues], field: str, value: float) -> None:
    known = found.get(field)
    if known is None:
        found[field] = FieldValues(field=field, count=1, low=value, high=value)
        return
    known.count += 1
    known.low, known.high = min(known.low, value), max(known.high, value)


def _payload(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _numbers(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, float]]:
    """Every number of a payload with its dotted path."""
    if isinstance(value, dict) and depth < _DEEPEST:
        for name, part in value.items():
            yield from _numbers(part, f"{path}.{name}" if path else str(name), depth + 1)
    elif value.__class__ in (int, float):
        yield path, float(value)
