"""Carried readings that came too late for the policies: they look again, and decide by the time of
the readings. [EN-14, PO-7]

The policy engine notes every reading that is too late. For those that were carried it is noted in
`releases` as if they had been held back and released now, and the second look that follows any
release does the rest: what it finds has the time of the reading and is marked late.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

import msgspec

from rapport.channel.channel import Channels
from rapport.core.event import CAUSE, Event, StoredEvent, cause_text, make_event
from rapport.core.ids import content_id
from rapport.core.release import (
    BATCH_RELEASED,
    CARRIED,
    RELEASE_DONE,
    RELEASES,
    ReleasedBatch,
    ReleaseDone,
    TouchedReadings,
)
from rapport.kernel.clock import Clock
from rapport.mediation.lane import RAW_POSITION
from rapport.policy.engine.stream_steps import LATE_TYPE

READER = "ensemble-late"
SOURCE = "ensemble"
S = TypeVar("S", bound=TouchedReadings)
_MOST_CAUSES = 50
_GATHER_MS = 200
"""Readings that come together are looked at together: each look reads a stretch of the log."""


class LateLook:
    """Follows `detections` for late readings; its place is durable, so none is forgotten."""

    def __init__(self, channels: Channels, clock: Clock, sources: Collection[str]) -> None:
        """`sources`: those whose readings are carried."""
        self._channels, self._clock, self._sources = channels, clock, sources
        self.looks = 0

    async def run(self) -> None:
        """Works until cancelled."""
        subscription = await self._channels.subscribe("detections", READER)
        while True:
            batch = await subscription.next_batch()
            if any(stored.event.type == LATE_TYPE for stored in batch):
                await self._clock.sleep(_GATHER_MS)
                batch = [*batch, *await subscription.next_batch(timeout_ms=0)]
            await self.look(batch)
            await subscription.commit(batch[-1].position)

    async def look(self, batch: Sequence[StoredEvent]) -> None:
        """Has policies look again at the carried readings among these; the same batch again asks
        for the same look.
        """
        late = [stored.event for stored in batch if stored.event.type == LATE_TYPE]
        readings = [reading for event in late for reading in await self._carried(event)]
        if not readings:
            return
        await self._channels.channel(RELEASES).append(_released(readings, self._clock.now_ms()))
        self.looks += 1

    async def _carried(self, late: Event) -> list[StoredEvent]:
        found = await self._channels.find_event(str(late.payload()["id"]))
        return [
            stored
            for channel, stored in found
            if channel == "events"
            and CARRIED in stored.event.headers
            and stored.event.source in self._sources
        ]


def _released(readings: Sequence[StoredEvent], now_ms: int) -> list[Event]:
    """What a release of these readings would have noted: they are in `events` already."""
    release = content_id("carried late", *sorted(one.event.id for one in readings))
    by_channel: dict[str, list[StoredEvent]] = {}
    for stored in readings:
        by_channel.setdefault(stored.event.headers.get("rawchannel", ""), []).append(stored)
    batches = [
        _touched(_batch(release, channel, found), found)
        for channel, found in sorted(by_channel.items())
        if channel
    ]
    done = _touched(ReleaseDone(release=release, released=len(readings)), readings)
    causes = cause_text(*(one.event.id for one in readings[:_MOST_CAUSES]))
    parts = [content_id(BATCH_RELEASED, release, one.channel) for one in batches]
    return [
        *(_noted(*one, release, now_ms) for one in zip(parts, batches, strict=True)),
        msgspec.structs.replace(_noted(release, done, release, now_ms), headers={CAUSE: causes}),
    ]


def _noted(id: str, data: ReleasedBatch | ReleaseDone, release: str, now_ms: int) -> Event:
    return make_event(
        source=SOURCE,
        id=id,
        type=RELEASE_DONE if isinstance(data, ReleaseDone) else BATCH_RELEASED,
        subject=f"release/{release}",
        time=now_ms,
        data=data,
        headers={CAUSE: cause_text(release)},
    )


def _batch(release: str, channel: str, readings: Sequence[StoredEvent]) -> ReleasedBatch:
    places = sorted({int(one.event.headers[RAW_POSITION]) for one in readings})
    return ReleasedBatch(release=release, channel=channel, upto=places[-1], released=places)


def _touched(span: S, readings: Sequence[StoredEvent]) -> S:
    for stored in readings:
        span.touch(stored.event.type, stored.event.time)
        span.through = max(span.through, stored.position)
    return span
