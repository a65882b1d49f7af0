"""The part of a node's log that an explanation needs, found by time: readings, late and released
ones, emitted detections, quarantined events, gaps, and the raw data behind readings. [PO-11, ME-16]
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from itertools import islice
from typing import TypeVar

import msgspec

from rapport.channel.channel import Channel, Channels, gaps_between
from rapport.channel.finding.by_time import position_before
from rapport.channel.stretches import pages_of
from rapport.core.detection import DETECTED, Detection
from rapport.core.event import Event, StoredEvent
from rapport.core.release import (
    BATCH_DONE,
    CARRIED,
    CORRECTS,
    DONE,
    HISTORY,
    RELEASED,
    RELEASES,
    BatchDone,
    ReleaseDone,
    Span,
)
from rapport.core.times import format_time, rough_duration
from rapport.policy.engine.engine import ALLOWED_SKEW_MS
from rapport.policy.engine.stream_steps import LATE_TYPE, TIME_TYPE
from rapport.policy.explain.answer import AnswerNote, Candidate, ConditionNode
from rapport.policy.explain.evidence import LateReading, NeededRange, Reading, readings_of
from rapport.policy.ontology import Ontology
from rapport.policy.readings import split_events

S = TypeVar("S", bound=Span)
_PAGE = 1_000
_MOST_RELEASED = 500
"""Per release; more readings within a few windows are rare."""
_EVENTS_PER_PAGE = 5_000
_SLACK_MS = 600_000
"""How long after its time a reading is still searched for."""
_MOST_HELD = 8
_MOST_LATE = 200
_LONGEST = 200
_MOST_RAW = 60


async def released_readings(
    channels: Channels, kept: Collection[str], streams: Collection[str], reach: NeededRange
) -> list[StoredEvent]:
    """The readings that releases and imports of the range appended, at any later time; a correction
    may have another time. Costs a scan of `releases`, a lookup per released reading, and the
    imported positions.
    """
    found: dict[int, StoredEvent] = {}
    for imported in await _touching(channels, kept, reach, DONE, ReleaseDone):
        if imported.history:
            for one in await _imported(channels, imported, reach):
                if one.event.type in streams:
                    found[one.position] = one
    for done in await _touching(channels, kept, reach, BATCH_DONE, BatchDone):
        for id in islice(await _released_ids(channels, done), _MOST_RELEASED):
            for name, one in await channels.find_event(id):
                if name == "events" and one.event.type in streams:
                    found[one.position] = one
    return list(found.values())


async def _imported(channels: Channels, done: ReleaseDone, reach: NeededRange) -> list[StoredEvent]:
    events, found = channels.channel("events"), []
    async for page in pages_of(
        events, done.since - 1, limit=done.through - done.since + 1, last=done.through
    ):
        found += [
            one
            for one in page
            if HISTORY in one.event.headers and reach.start <= one.event.time <= reach.end
        ]
    return found


async def _touching(
    channels: Channels, kept: Collection[str], reach: NeededRange, type: str, kind: type[S]
) -> list[S]:
    """The records of one type that concern the range."""
    found: list[S] = []
    if RELEASES not in kept:
        return found
    channel, position = channels.channel(RELEASES), 0
    while batch := await channel.read_after(position, limit=_PAGE):
        position = batch[-1].position
        for one in batch:
            if one.event.type == type:
                done: S = one.event.payload_as(kind)
                if _touches(done, reach):
                    found.append(done)
    return found


def _touches(done: Span, reach: NeededRange) -> bool:
    if done.first_ms is None or done.last_ms is None:
        return False
    return done.first_ms <= reach.end and done.last_ms >= reach.start


async def _released_ids(channels: Channels, done: BatchDone) -> list[str]:
    """Ids of corrections, and of released readings, which have the ids of their raw events."""
    ids = list(done.corrected.values())
    channel = channels.channel(done.channel)
    for position in islice([*done.released, *done.mended_readings], _MOST_RELEASED):
        raw = await channel.read_after(position - 1, limit=1)
        if raw and raw[0].position == position:
            ids.append(raw[0].event.id)
    return ids


class PastReadings(msgspec.Struct, kw_only=True):
    """The readings that counted, and the events around them."""

    readings: list[Reading]
    events: dict[str, StoredEvent]
    """The events of the readings, by id."""
    reported: list[Detection]
    notes: list[AnswerNote]
    looked_at: int
    """Number of events read."""
    reached: int
    """The time that the stream had reached, by readings or the clock, as far as it was read."""
    is_whole: bool = False
    """Whether `detections` was read to its end."""
    late: list[LateReading] = []
    """Readings of the range that arrived too late to count."""
    gaps: list[AnswerNote] = []
    """Parts of the log that should have been read and are damaged or missing."""


async def read_past(
    channels: Channels,
    ontology: Ontology,
    policy: str,
    streams: Collection[str],
    reach: NeededRange,
    *,
    told_since: int,
    lateness_ms: int = 0,
    to_the_end: bool = False,
    as_corrected: bool = True,
) -> PastReadings:
    """The readings of some streams in the range, as corrected or as first received, and the
    policy's detections.

    Reads the events received from the range's start until stream time had passed its end, plus ten
    minutes; `detections` and `quarantine` over the same time of arrival. With no readings, or with
    `to_the_end`, these two are read to their ends.
    """
    kept = frozenset(channels.names())
    gaps: list[AnswerNote] = []
    stored, looked_at, reached = await _stored(channels, kept, streams, reach, lateness_ms, gaps)
    came = max([reach.end, *(one.received for one in stored)])
    until = None if to_the_end or not stored else came + _SLACK_MS
    late, reported, moved_to = await _from_detections(
        channels, kept, policy, reach, told_since, until, gaps
    )
    unseen = late.keys() - {one.event.id for one in stored}
    stored += await _late_ones(channels, [id for id in late if id in unseen], streams)
    if as_corrected:
        again = await released_readings(channels, kept, streams, reach)
        standing = _uncorrected(_in_order([*stored, *again]))
        counted = [one for one in standing if reach.start <= one.event.time <= reach.end]
    else:
        counted = [one for one in stored if CORRECTS not in one.event.headers]
    too_late = [one for one in counted if _is_late(one, late)]
    notes = [_late_note(one) for one in too_late]
    usable = [one.event for one in counted if not _is_late(one, late)]
    batch, _rejected = split_events(usable, ontology)
    notes += await _held(channels, kept, ontology, streams, reach, until, gaps)
    return PastReadings(
        readings=readings_of(batch, ontology),
        events={one.event.id: one for one in counted},
        reported=reported,
        notes=notes,
        looked_at=looked_at,
        reached=max(reached, moved_to),
        is_whole=until is None,
        late=_late_readings(too_late, ontology),
        gaps=gaps,
    )


async def _stored(
    channels: Channels,
    kept: Collection[str],
    streams: Collection[str],
    reach: NeededRange,
    lateness_ms: int,
    gaps: list[AnswerNote],
) -> tuple[list[StoredEvent], int, int]:
    """The readings in the range, the number of events read, and the largest reading time among
    them. Stops where further readings of the range would be late.
    """
    found: list[StoredEvent] = []
    looked_at, reached = 0, reach.start
    if "events" not in kept:
        return found, looked_at, reached
    newest = await _newest(channels.channel("events"))
    async for one in _received(channels.channel("events"), reach.start, gaps):
        looked_at += 1
        time = one.event.time
        if one.event.type in streams:
            if time <= one.received + ALLOWED_SKEW_MS and one.received <= newest:
                reached = max(reached, min(time, one.received))
            if reach.start <= time <= reach.end:
                found.append(one)
        if reached - lateness_ms > reach.end and reach.end + _SLACK_MS < one.received <= newest:
            break
    return found, looked_at, reached


async def _received(
    channel: Channel, start: int, gaps: list[AnswerNote]
) -> AsyncIterator[StoredEvent]:
    """Yields the events received from a time on; adds each gap of the log before the next event to
    `gaps`.
    """
    position = await position_before(channel, start)
    before: StoredEvent | None = None
    while batch := await channel.read_after(position, limit=_EVENTS_PER_PAGE):
        for stored in batch:
            if stored.position > position + 1:
                gaps += _gap_notes(channel, position, before, stored)
            position, before = stored.position, stored
            yield stored
    gaps += _gap_notes(channel, position, before, None)


def _gap_notes(
    channel: Channel, position: int, before: StoredEvent | None, after: StoredEvent | None
) -> list[AnswerNote]:
    """Describes the gaps between two events that were read one after the other."""
    through = channel.last_position() if after is None else after.position - 1
    since = "" if before is None else format_time(before.received)
    until = "" if after is None else format_time(after.received)
    span = f"between {since} and {until}" if since and until else f"after {since}"
    span = span if since else f"before {until}" if until else "of this time"
    return [
        AnswerNote(
            kind="gap",
            text=f"events {span} are missing: segment {gap.reason} "
            f"(channel {channel.name}, positions {gap.first} to {gap.last})",
            channel=channel.name,
            gap=gap,
        )
        for gap in gaps_between(channel, position, through)
    ]


async def _newest(channel: Channel) -> int:
    """When the last event was received. Events received later than that come from a clock that was
    ahead and was set back; they end no search and prove nothing about stream time.
    """
    last = await channel.read_after(max(channel.last_position() - 1, 0), limit=1)
    return last[0].received if last else 0


async def _late_ones(
    channels: Channels, late: Collection[str], streams: Collection[str]
) -> list[StoredEvent]:
    """Late readings, found by id; at most `_MOST_LATE`."""
    found: list[StoredEvent] = []
    for id in islice(late, _MOST_LATE):
        found += [
            one
            for name, one in await channels.find_event(id)
            if name == "events" and one.event.type in streams
        ]
    return found


def _in_order(stored: list[StoredEvent]) -> list[StoredEvent]:
    """By position, without duplicates."""
    return list(
        {one.position: one for one in sorted(stored, key=lambda one: one.position)}.values()
    )


def _uncorrected(stored: list[StoredEvent]) -> list[StoredEvent]:
    """Keeps only the newest correction of a corrected reading."""
    stands_in: dict[tuple[str, str], str] = {}
    for one in stored:
        if CORRECTS in one.event.headers:
            stands_in[one.event.source, one.event.headers[CORRECTS]] = one.event.id
    return [
        one
        for one in stored
        if stands_in.get(
            (one.event.source, one.event.headers.get(CORRECTS, one.event.id)), one.event.id
        )
        == one.event.id
    ]


def _is_late(stored: StoredEvent, late: Collection[str]) -> bool:
    """A released or carried reading is late too, but the re-evaluation counted it."""
    headers = stored.event.headers
    return stored.event.id in late and RELEASED not in headers and CARRIED not in headers


def _late_note(stored: StoredEvent) -> AnswerNote:
    event = stored.event
    delay = rough_duration(stored.received - event.time)
    text = f"the {event.type.partition('.')[2]} of {event.subject} was received "
    text += f"{format_time(stored.received)}, {delay} late: too late to count"
    return AnswerNote(kind="late", text=text, time=event.time, event=event.id)


def _late_readings(stored: list[StoredEvent], ontology: Ontology) -> list[LateReading]:
    batch, _rejected = split_events([one.event for one in stored], ontology)
    received = {one.event.id: one.received for one in stored}
    return [
        LateReading(one.time, one.stream, one.key, received[one.id])
        for one in readings_of(batch, ontology)
    ]


async def _from_detections(
    channels: Channels,
    kept: Collection[str],
    policy: str,
    reach: NeededRange,
    told_since: int,
    until: int | None,
    gaps: list[AnswerNote],
) -> tuple[dict[str, None], list[Detection], int]:
    """Ids of late readings of the range, the policy's detections, and the time that the clock
    reached.
    """
    late: dict[str, None] = {}
    reported: list[Detection] = []
    moved_to = reach.start
    if "detections" not in kept:
        return late, reported, moved_to
    start, subject = min(reach.start, told_since), f"policy/{policy}"
    newest = await _newest(channels.channel("detections"))
    async for one in _received(channels.channel("detections"), start, gaps):
        event = one.event
        if until is not None and until < one.received <= newest:
            break
        if event.type == LATE_TYPE and reach.start <= event.time <= reach.end:
            late[str(event.payload()["id"])] = None
        elif event.type == TIME_TYPE and one.received <= newest:
            moved_to = max(moved_to, event.time)
        elif (
            event.type == DETECTED
            and event.subject == subject
            and (start <= event.time <= reach.end)
        ):
            reported.append(Detection.from_event(event))
    return late, reported, moved_to


async def _held(
    channels: Channels,
    kept: Collection[str],
    ontology: Ontology,
    streams: Collection[str],
    reach: NeededRange,
    until: int | None,
    gaps: list[AnswerNote],
) -> list[AnswerNote]:
    """Notes about quarantined events of the policy's sources or of unknown ones."""
    if "quarantine" not in kept:
        return []
    others = {name for name, one in ontology.sources.items() if one.streams.isdisjoint(streams)}
    notes: list[AnswerNote] = []
    async for one in _received(channels.channel("quarantine"), reach.start, gaps):
        if len(notes) >= _MOST_HELD or (until is not None and one.received > until):
            break
        if reach.start <= one.event.time <= reach.end:
            notes += _held_note(one.event, others)
    return notes


def _held_note(event: Event, others: Collection[str]) -> list[AnswerNote]:
    data = event.payload()
    source = str(data.get("source", "")) if isinstance(data, Mapping) else ""
    if not isinstance(data, Mapping) or source in others:
        return []
    said = f"{source or event.subject}: {data.get('message', data.get('reason', ''))}"
    return [
        AnswerNote(kind="quarantined", text=f"quarantined, {said}", time=event.time, event=event.id)
    ]


class RawValues:
    """Looks up raw data, once per reading, in the channels that the caller may read."""

    def __init__(
        self,
        channels: Channels,
        events: Mapping[str, StoredEvent],
        may_read: Callable[[str], bool] | None,
    ) -> None:
        self._channels, self._events = channels, events
        self._may_read = may_read or (lambda _channel: True)
        self._found: dict[str, str] = {}

    async def filled(self, candidate: Candidate) -> Candidate:
        """The candidate with the raw data of its readings."""
        for id in _reading_ids(candidate):
            if id not in self._found and id in self._events and len(self._found) < _MOST_RAW:
                self._found[id] = await self._raw(self._events[id])
        clauses = tuple(self._node(one) for one in candidate.clauses)
        return msgspec.structs.replace(candidate, clauses=clauses)

    async def _raw(self, stored: StoredEvent) -> str:
        headers = stored.event.headers
        channel, position = headers.get("rawchannel", ""), headers.get("rawposition", "")
        if not channel or not position.isdigit() or not self._may_read(channel):
            return ""
        found = await self._channels.channel(channel).read_after(int(position) - 1, limit=1)
        if not found or found[0].position != int(position):
            return "no longer in the log"
        return found[0].event.data[:_LONGEST].decode("utf-8", "replace")

    def _node(self, node: ConditionNode) -> ConditionNode:
        return msgspec.structs.replace(
            node,
            readings=tuple(
                msgspec.structs.replace(one, raw=self._found.get(one.id, ""))
                for one in node.readings
            ),
            children=tuple(self._node(child) for child in node.children),
        )


def _reading_ids(candidate: Candidate) -> Iterator[str]:
    nodes = list(candidate.clauses)
    while nodes:
        node = nodes.pop()
        nodes += node.children
        yield from (reading.id for reading in node.readings)
