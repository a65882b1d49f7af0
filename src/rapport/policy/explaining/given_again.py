"""Readings of a time that were released, corrected or imported long after it, by what is on record
in `releases`. [PO-11, ME-16]
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import TypeVar

from rapport.channel.channel import Channels
from rapport.channel.stretches import pages_of
from rapport.core.event import StoredEvent
from rapport.core.release import BATCH_DONE, DONE, HISTORY, RELEASES, BatchDone, ReleaseDone, Span
from rapport.policy.explaining.reach import NeededRange

S = TypeVar("S", bound=Span)
_PAGE = 1_000
_MOST_RELEASED = 500
"""Of one release; more readings of a few windows are rare."""


async def released_readings(
    channels: Channels, kept: Collection[str], streams: Collection[str], reach: NeededRange
) -> list[StoredEvent]:
    """What releases and imports that touch the reach appended, whenever that was; a correction may
    have another time. Costs a look at the channel `releases`, one by id for each reading that was
    released, and a reading of the imports.
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
    """The readings of an import in the reach."""
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
    """What is on record of a type about readings around the time."""
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
    """Those of the corrections, and of readings that have the ids of their raw events."""
    ids = list(done.corrected.values())
    channel = channels.channel(done.channel)
    for position in islice([*done.released, *done.mended_readings], _MOST_RELEASED):
        raw = await channel.read_after(position - 1, limit=1)
        if raw and raw[0].position == position:
            ids.append(raw[0].event.id)
    return ids
