"""Readings of a time that were released or corrected long after it, by what is on record about
releases. [PO-11, ME-16]
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

from rapport.channel.channel import Channels
from rapport.core.event import StoredEvent
from rapport.core.release import BATCH_DONE, RELEASES, BatchDone
from rapport.policy.explaining.reach import Reach

_PAGE = 1_000
_MOST = 500
"""Of one release; more readings of a few windows are rare."""


async def readings_given_again(
    channels: Channels, kept: Collection[str], streams: Collection[str], reach: Reach
) -> list[StoredEvent]:
    """What releases that touch the reach appended, whenever that was; a correction may have another
    time. Costs a look at the channel `releases`, and one by id for each reading.
    """
    found: dict[int, StoredEvent] = {}
    for done in await _releases(channels, kept, reach):
        for id in islice(await _ids(channels, done), _MOST):
            for name, one in await channels.find_event(id):
                if name == "events" and one.event.type in streams:
                    found[one.position] = one
    return list(found.values())


async def _releases(channels: Channels, kept: Collection[str], reach: Reach) -> list[BatchDone]:
    """What releases did to readings around the time."""
    found: list[BatchDone] = []
    if RELEASES not in kept:
        return found
    channel, position = channels.channel(RELEASES), 0
    while batch := await channel.read_after(position, limit=_PAGE):
        position = batch[-1].position
        for one in batch:
            if one.event.type == BATCH_DONE:
                done: BatchDone = one.event.payload_as(BatchDone)
                if _touches(done, reach):
                    found.append(done)
    return found


def _touches(done: BatchDone, reach: Reach) -> bool:
    if done.first_ms is None or done.last_ms is None:
        return False
    return done.first_ms <= reach.end and done.last_ms >= reach.start


async def _ids(channels: Channels, done: BatchDone) -> list[str]:
    """Those of the corrections, and of readings that have the ids of their raw events."""
    ids = list(done.corrected.values())
    channel = channels.channel(done.channel)
    for position in islice([*done.released, *done.mended_readings], _MOST):
        raw = await channel.read_after(position - 1, limit=1)
        if raw and raw[0].position == position:
            ids.append(raw[0].event.id)
    return ids
