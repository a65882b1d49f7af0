"""The part of a node's log that an explanation needs, found by time: readings, late and released
ones, emitted detections, quarantined events, gaps, and the raw data behind readings. [PO-11, ME-16]
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from itertools import islice

import msgspec

from rapport.channel.channel import Channel, Channels, gaps_between, pages_of
from rapport.channel.event_lookup import position_before
from rapport.core.detection import DETECTED, Detection
from rapport.core.event import Event, StoredEvent
from rapport.core.release import (
    BATCH_RELEASED,
    CARRIED,
    CORRECTS,
    HISTORY,
    RELEASE_DONE,
    RELEASED,
    RELEASES,
    ReleasedBatch,
    ReleaseDone,
    TouchedReadings,
)
from rapport.core.times import format_time, rough_duration
from rapport.policy.engine.engine import ALLOWED_SKEW_MS
from rapport.policy.engine.stream_steps import LATE_TYPE, TIME_TYPE
from rapport.policy.explain.answer import AnswerNote, Candidate, ConditionNode
from rapport.policy.explain.evidence import LateReading, NeededRange, Reading, readings_of
from rapport.policy.ontology import Ontology
from rapport.policy.readings import split_events

_MOST_RELEASED = 500
"""Per release; more readings within a few windows are rare."""
_EVENTS_PER_PAGE = 5_000
_SLACK_MS = 600_000
"""How long after its time a reading is still searched for."""
_MOST_QUARANTINED = 8
_MOST_LATE = 200
_LONGEST = 200
_MOST_RAW = 60


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
    emitted_since: int,
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
    log = _LogRange(channels, ontology, streams, reach)
    stored, looked_at, reached = await log.readings(lateness_ms)
    came = max([reach.end, *(one.received for one in stored)])
    until = None if to_the_end or not stored else came + _SLACK_MS
    late, reported, moved_to = await log.detections(policy, emitted_since, until)
    unseen = late.keys() - {one.event.id for one in stored}
    for id in islice((id for id in late if id in unseen), _MOST_LATE):
        stored += await log.find(id)
    if as_corrected:
        standing = _uncorrected(_in_order([*stored, *await log.released()]))
        counted = [one for one in standing if reach.start <= one.event.time <= reach.end]
    else:
        counted = [one for one in stored if CORRECTS not in one.event.headers]
    too_late = [one for one in counted if _is_late(one, late)]
    usable = [one.event for one in counted if not _is_late(one, late)]
    batch, _rejected = split_events(usable, ontology)
    return PastReadings(
        readings=readings_of(batch, ontology),
        events={one.event.id: one for one in counted},
        reported=reported,
        notes=[*map(_late_note, too_late), *await log.quarantined(until)],
        looked_at=looked_at,
        reached=max(reached, moved_to),
        is_whole=until is None,
        late=_late_readings(too_late, ontology),
        gaps=log.gaps,
    )


class _LogRange:
    """The events of a node's channels that concern some streams in a range of time."""

    def __init__(
        self,
        channels: Channels,
        ontology: Ontology,
        streams: Collection[str],
        reach: NeededRange,
    ) -> None:
        self._channels, self._ontology = channels, ontology
        self._streams, self._reach = streams, reach
        self._names = frozenset(channels.names())
        self.gaps: list[AnswerNote] = []

    async def readings(self, lateness_ms: int) -> tuple[list[StoredEvent], int, int]:
        """The readings in the range, the number of events read, and the largest reading time among
        them. Stops where further readings of the range would be late.
        """
        found: list[StoredEvent] = []
        start, end = self._reach
        looked_at, reached = 0, start
        newest = await self._newest("events")
        async for one in self._received("events", start):
            looked_at += 1
            time = one.event.time
            if one.event.type in self._streams:
                if time <= one.received + ALLOWED_SKEW_MS and one.received <= newest:
                    reached = max(reached, min(time, one.received))
                if start <= time <= end:
                    found.append(one)
            if reached - lateness_ms > end and end + _SLACK_MS < one.received <= newest:
                break
        return found, looked_at, reached

    async def detections(
        self, policy: str, emitted_since: int, until: int | None
    ) -> tuple[dict[str, None], list[Detection], int]:
        """Ids of late readings of the range, the policy's detections, and the time that the clock
        reached.
        """
        late: dict[str, None] = {}
        reported: list[Detection] = []
        moved_to = self._reach.start
        start, subject = min(self._reach.start, emitted_since), f"policy/{policy}"
        newest = await self._newest("detections")
        async for one in self._received("detections", start):
            event = one.event
            if until is not None and until < one.received <= newest:
                break
            if event.type == LATE_TYPE and self._covers(event.time):
                late[str(event.payload()["id"])] = None
            elif event.type == TIME_TYPE and one.received <= newest:
                moved_to = max(moved_to, event.time)
            elif (
                event.type == DETECTED
                and event.subject == subject
                and start <= event.time <= self._reach.end
            ):
                reported.append(Detection.from_event(event))
        return late, reported, moved_to

    async def quarantined(self, until: int | None) -> list[AnswerNote]:
        """Notes about quarantined events of the streams' sources or of unknown ones."""
        sources = self._ontology.sources
        others = {name for name, one in sources.items() if one.streams.isdisjoint(self._streams)}
        notes: list[AnswerNote] = []
        async for one in self._received("quarantine", self._reach.start):
            if len(notes) >= _MOST_QUARANTINED or (until is not None and one.received > until):
                break
            if self._covers(one.event.time):
                notes += _quarantine_note(one.event, others)
        return notes

    async def released(self) -> list[StoredEvent]:
        """The readings that releases and imports of the range appended, at any later time; a
        correction may have another time. Costs a scan of `releases`, a lookup per released reading,
        and the imported positions.
        """
        found: list[StoredEvent] = []
        if RELEASES not in self._names:
            return found
        channel, position = self._channels.channel(RELEASES), 0
        while page := await channel.read_after(position, limit=_EVENTS_PER_PAGE):
            position = page[-1].position
            for event in (one.event for one in page):
                if event.type == RELEASE_DONE:
                    done: ReleaseDone = event.payload_as(ReleaseDone)
                    if done.history and self._is_touched_by(done):
                        found += await self._imported(done)
                elif event.type == BATCH_RELEASED:
                    batch: ReleasedBatch = event.payload_as(ReleasedBatch)
                    if self._is_touched_by(batch):
                        for id in islice(await self._released_ids(batch), _MOST_RELEASED):
                            found += await self.find(id)
        return found

    async def find(self, id: str) -> list[StoredEvent]:
        """The readings of the streams with an id."""
        return [
            one
            for name, one in await self._channels.find_event(id)
            if name == "events" and one.event.type in self._streams
        ]

    async def _imported(self, done: ReleaseDone) -> list[StoredEvent]:
        events, found = self._channels.channel("events"), []
        count = done.through - done.since + 1
        async for page in pages_of(events, done.since - 1, limit=count, last=done.through):
            found += [
                one
                for one in page
                if HISTORY in one.event.headers
                and self._covers(one.event.time)
                and one.event.type in self._streams
            ]
        return found

    async def _released_ids(self, done: ReleasedBatch) -> list[str]:
        """Ids of corrections, and of released readings, which have the ids of their raw events."""
        ids = list(done.corrected.values())
        channel = self._channels.channel(done.channel)
        for position in islice([*done.released, *done.mended_readings], _MOST_RELEASED):
            raw = await channel.read_after(position - 1, limit=1)
            if raw and raw[0].position == position:
                ids.append(raw[0].event.id)
        return ids

    def _covers(self, time: int) -> bool:
        return self._reach.start <= time <= self._reach.end

    def _is_touched_by(self, done: TouchedReadings) -> bool:
        if done.first_ms is None or done.last_ms is None:
            return False
        return done.first_ms <= self._reach.end and done.last_ms >= self._reach.start

    async def _received(self, name: str, start: int) -> AsyncIterator[StoredEvent]:
        """Yields the events received from a time on; adds each gap of the log before the next event
        to `gaps`.
        """
        if name not in self._names:
            return
        channel = self._channels.channel(name)
        position = await position_before(channel, start)
        before: StoredEvent | None = None
        while page := await channel.read_after(position, limit=_EVENTS_PER_PAGE):
            for stored in page:
                if stored.position > position + 1:
                    self.gaps += _gap_notes(channel, position, before, stored)
                position, before = stored.position, stored
                yield stored
        self.gaps += _gap_notes(channel, position, before, None)

    async def _newest(self, name: str) -> int:
        """When the last event was received. Events received later than that come from a clock that
        was ahead and was set back; they end no search and prove nothing about stream time.
        """
        if name not in self._names:
            return 0
        channel = self._channels.channel(name)
        last = await channel.read_after(max(channel.last_position() - 1, 0), limit=1)
        return last[0].received if last else 0


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


def _quarantine_note(event: Event, others: Collection[str]) -> list[AnswerNote]:
    data = event.payload()
    source = str(data.get("source", "")) if isinstance(data, Mapping) else ""
    if not isinstance(data, Mapping) or source in others:
        return []
    text = f"{source or event.subject}: {data.get('message', data.get('reason', ''))}"
    return [
        AnswerNote(kind="quarantined", text=f"quarantined, {text}", time=event.time, event=event.id)
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
