"""The slice of a node's history that a question needs, found by time and not by reading all of it.
[PO-11]
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping

import msgspec

from rapport.channel.by_time import position_before
from rapport.channel.channel import Channel, Channels
from rapport.core.detection import DETECTED, Detection
from rapport.core.event import StoredEvent
from rapport.core.release import CORRECTS, RELEASED
from rapport.policy.engine_events import LATE_TYPE
from rapport.policy.explaining.reach import Reach
from rapport.policy.explaining.verdict import Note
from rapport.policy.explaining.world import Reading, readings_of
from rapport.policy.ontology import Ontology
from rapport.policy.readings import split_events

_PAGE = 5_000
_SLACK_MS = 600_000
"""How long after its time a reading is still looked for where events come as they happen."""
_MOST_HELD = 8


class Past(msgspec.Struct, kw_only=True):
    """Readings that counted, and what was around them."""

    readings: list[Reading]
    events: dict[str, StoredEvent]
    """The events behind the readings, by id."""
    reported: list[Detection]
    notes: list[Note]
    looked_at: int
    """How many events were read to find them."""


async def read_past(
    channels: Channels,
    ontology: Ontology,
    policy: str,
    streams: Collection[str],
    reach: Reach,
    *,
    told_since: int,
) -> Past:
    """The readings of some streams with times in the reach. Costs about what was received around
    that time; a log that was filled later (imported) is read as a whole.
    """
    kept = {name for name in channels.names()}
    late, reported = await _from_detections(channels, kept, policy, reach, told_since)
    stored, looked_at = await _stored(channels, kept, streams, reach)
    counted = _uncorrected(stored)
    notes = [_late_note(one) for one in counted if _is_late(one, late)]
    usable = [one.event for one in counted if not _is_late(one, late)]
    batch, _rejected = split_events(usable, ontology)
    notes += await _held(channels, kept, ontology, streams, reach)
    return Past(
        readings=readings_of(batch, ontology),
        events={one.event.id: one for one in counted},
        reported=reported,
        notes=notes,
        looked_at=looked_at,
    )


async def _stored(
    channels: Channels, kept: Collection[str], streams: Collection[str], reach: Reach
) -> tuple[list[StoredEvent], int]:
    if "events" not in kept:
        return [], 0
    channel = channels.channel("events")
    found: list[StoredEvent] = []
    looked_at = 0
    for until in (reach.end + _SLACK_MS, None):
        # The second round, over all that came later: nothing was received as it happened.
        found, looked_at = [], 0
        async for one in _received(channel, reach.start, until):
            looked_at += 1
            if one.event.type in streams and reach.start <= one.event.time <= reach.end:
                found.append(one)
        if found:
            break
    return found, looked_at


async def _received(channel: Channel, start: int, until: int | None) -> AsyncIterator[StoredEvent]:
    """What was received from a time on, until another one."""
    position = await position_before(channel, start)
    while batch := await channel.read_after(position, limit=_PAGE):
        for stored in batch:
            yield stored
        position = batch[-1].position
        if until is not None and batch[-1].received > until:
            return


def _uncorrected(stored: list[StoredEvent]) -> list[StoredEvent]:
    """Of a corrected reading only the newest correction."""
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
    """A released one is late too, but a second look counted it."""
    return stored.event.id in late and RELEASED not in stored.event.headers


def _late_note(stored: StoredEvent) -> Note:
    event = stored.event
    after = stored.received - event.time
    text = f"the {event.type.partition('.')[2]} of {event.subject} came {after} ms after its time"
    return Note(kind="late", text=f"{text}, too late to count", time=event.time, event=event.id)


async def _from_detections(
    channels: Channels, kept: Collection[str], policy: str, reach: Reach, told_since: int
) -> tuple[set[str], list[Detection]]:
    """Ids of late readings, and what the policy told in the time."""
    late: set[str] = set()
    reported: list[Detection] = []
    if "detections" not in kept:
        return late, reported
    start = min(reach.start, told_since)
    async for one in _received(channels.channel("detections"), start, reach.end + _SLACK_MS):
        event = one.event
        if event.type == LATE_TYPE:
            late.add(str(event.payload()["id"]))
        elif event.type == DETECTED and event.subject == f"policy/{policy}":
            reported.append(Detection.from_event(event))
    return late, reported


async def _held(
    channels: Channels,
    kept: Collection[str],
    ontology: Ontology,
    streams: Collection[str],
    reach: Reach,
) -> list[Note]:
    """What was held back of the sources that the policy listens to, or of unknown ones."""
    if "quarantine" not in kept:
        return []
    others = {name for name, one in ontology.sources.items() if one.streams.isdisjoint(streams)}
    notes: list[Note] = []
    async for one in _received(channels.channel("quarantine"), reach.start, reach.end + _SLACK_MS):
        data = one.event.payload()
        if not reach.start <= one.event.time <= reach.end or not isinstance(data, Mapping):
            continue
        source = str(data.get("source", ""))
        if source not in others and len(notes) < _MOST_HELD:
            said = f"{source or one.event.subject}: {data.get('message', data.get('reason', ''))}"
            notes.append(
                Note(
                    kind="quarantined",
                    text=f"held back, {said}",
                    time=one.event.time,
                    event=one.event.id,
                )
            )
    return notes
