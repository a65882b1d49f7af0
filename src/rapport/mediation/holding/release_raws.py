"""The raw events of a release, a batch at a time: from where they lie, or their copies. [ME-16]"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from rapport.channel.channel import Channels
from rapport.channel.event_lookup import position_before
from rapport.core.event import Event, StoredEvent
from rapport.core.release import ReleasedBatch, ReleaseDone, ReleaseRequest
from rapport.mediation.binding import RAW_PREFIX
from rapport.mediation.holding.giving_again import GONE
from rapport.mediation.holding.held import Held
from rapport.mediation.holding.quarantine import QUARANTINE, SOURCE, raw_of_copy

_BATCH = 500
_PAGE = 1_000

RawBatch = tuple[str, list[StoredEvent]]
"""A raw channel and some of its events, in order."""


class Progress:
    """What of a release is done."""

    def __init__(self) -> None:
        self.done: dict[str, int] = {}
        """Of each raw channel the last position: they are done in order."""
        self.upto = 0
        self.is_done = False
        self._total = ReleaseDone(release="", notify=True)

    def take(self, batch: ReleasedBatch) -> None:
        places = (*batch.released, *batch.rejected)
        self.done[batch.channel] = max(self.done.get(batch.channel, 0), *places, 0)
        self.upto = max(self.upto, batch.upto)
        self._total.released += len(batch.released)
        self._total.rejected += len(batch.rejected)
        self._total.corrected += len(batch.corrected)
        self._total.unchanged += batch.unchanged
        self._total.merge(batch)

    def total(self, release: str) -> ReleaseDone:
        self._total.release = release
        return self._total


class RawEvents:
    """Reads the raw events that a release is about."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels

    async def held(
        self, chosen: AsyncIterator[list[Held]], progress: Progress
    ) -> AsyncIterator[RawBatch]:
        """Those that are held back, which come by channel and position, without those that are
        done.
        """
        before = dict(progress.done)
        batch: list[Held] = []
        async for page in chosen:
            for one in page:
                if one.raw_position <= before.get(one.channel, 0):
                    continue
                if batch and (len(batch) == _BATCH or batch[0].channel != one.channel):
                    yield batch[0].channel, await self._raw_events(batch[0].channel, batch)
                    batch = []
                batch.append(one)
        if batch:
            yield batch[0].channel, await self._raw_events(batch[0].channel, batch)

    async def again(self, asked: ReleaseRequest, progress: Progress) -> AsyncIterator[RawBatch]:
        """Those of a source that were received in a time, after what is done."""
        name = RAW_PREFIX + asked.source
        channel = self._channels.channel(name)
        position = max(await position_before(channel, asked.since_ms), progress.upto)
        while batch := await channel.read_after(position, limit=_BATCH):
            position = batch[-1].position
            wanted = [
                stored
                for stored in batch
                if asked.since_ms <= stored.received < asked.until_ms
                and stored.position <= asked.through
            ]
            if wanted:
                yield name, wanted
            if position >= asked.through:
                return

    async def _raw_events(self, channel: str, held: Sequence[Held]) -> list[StoredEvent]:
        """The raw events where they lie, or their copies where retention has taken them."""
        wanted = {one.raw_position for one in held}
        found: dict[int, StoredEvent] = {}
        source, after = self._channels.channel(channel), min(wanted) - 1
        while after < max(wanted) and (batch := await source.read_after(after, limit=_PAGE)):
            found |= {one.position: one for one in batch if one.position in wanted}
            rest = [position for position in wanted if position > batch[-1].position]
            after = max(batch[-1].position, min(rest, default=0) - 1)
        for one in held:
            if one.raw_position not in found:
                found[one.raw_position] = await self._copy(one)
        return [found[position] for position in sorted(wanted)]

    async def _copy(self, held: Held) -> StoredEvent:
        for stored in await self._channels.channel(QUARANTINE).read_after(held.first - 1, limit=1):
            raw = raw_of_copy(stored.event) if stored.position == held.first else None
            if raw is not None:
                return StoredEvent(held.raw_position, held.received, raw)
        gone = Event(SOURCE, held.id, GONE, "", held.time)
        return StoredEvent(held.raw_position, held.received, gone)
