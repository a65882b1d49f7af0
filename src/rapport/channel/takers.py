"""Taking messages: one taker at a time per channel, durable before anything is handed out. [CH-2]

A kill before the records are written hands the messages out to whoever asks next; a kill after it
leaves them to the token that took them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from rapport.channel.channel import Channel
from rapport.channel.shared import Parts
from rapport.channel.taking import Take, Taken, load_taken, rows_before, runs_of
from rapport.channel.tokens import token_digest
from rapport.channel.writer import as_channel_error
from rapport.core.errors import StoreUnavailable
from rapport.core.event import StoredEvent
from rapport.kernel.believed_time import BelievedTime
from rapport.store.base import Change, RecordStore

_MINUTE_MS = 60_000
_ROWS_AT_ONCE = 100
T = TypeVar("T")


class SourceChannels(Protocol):
    """What the source side needs of open channels."""

    parts: Parts
    records: RecordStore

    def channel(self, name: str) -> Channel:
        """See Channels."""

    def ttl_of(self, name: str) -> int:
        """The channel's time to live; -1 when it sets none."""

    def delivered(
        self, channel: str, reader: str, events: Sequence[StoredEvent]
    ) -> Sequence[StoredEvent]:
        """What a reader is given of events."""


class Taker:
    """What was taken from every channel of a node. All calls belong to one event loop."""

    def __init__(self, channels: SourceChannels) -> None:
        self._channels = channels
        self._time = BelievedTime(channels.parts.clock)
        self._taken: dict[str, Taken] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def alone(self, channel: str) -> asyncio.Lock:
        """While held, nobody else takes from the channel."""
        return self._locks.setdefault(channel, asyncio.Lock())

    async def taken(self, channel: str) -> Taken:
        """What was taken from a channel; read from the records once."""
        if channel not in self._taken:
            loaded = await self.off_loop(lambda: load_taken(self._channels.records, channel))
            self._taken.setdefault(channel, loaded)
        return self._taken[channel]

    async def positions_of(self, channel: str, token: str) -> tuple[int, ...] | None:
        """What a token took; None when it took nothing that is remembered."""
        take = (await self.taken(channel)).take_of(token_digest(token))
        return None if take is None else tuple(take.positions())

    async def has_taken(self, channel: str, token: str) -> bool:
        """Whether a token took its messages before."""
        return (await self.taken(channel)).take_of(token_digest(token)) is not None

    async def take(
        self, channel: str, events: Sequence[StoredEvent], token: str, minutes: int
    ) -> None:
        """Takes messages for a token; durable when it returns. The caller holds `alone`.

        The lock is kept until the records have answered, even when the caller goes away meanwhile.
        """
        taken = await self.taken(channel)
        positions, digest = [stored.position for stored in events], token_digest(token)
        now_ms = self._time.now_ms()
        take = Take(now_ms + minutes * _MINUTE_MS, runs_of(positions))
        writing = asyncio.ensure_future(self._write(taken.changes(positions, digest, take, now_ms)))
        cancelled = await _outlast(writing)
        if not writing.cancelled() and writing.exception() is None:
            taken.confirm(positions, digest, take)
        if cancelled:
            raise asyncio.CancelledError
        writing.result()

    async def forget_before(self, channel: str, position: int) -> None:
        """Drops what is known of messages that are no longer kept, a bounded number at a time."""
        if channel in self._taken:
            self._taken[channel].forget_before(position)
        records = self._channels.records
        while changes := await self.off_loop(
            lambda: rows_before(records, channel, position, _ROWS_AT_ONCE)
        ):
            await self._write(changes)

    async def off_loop(self, work: Callable[[], T]) -> T:
        """Runs work that may wait for a disk; raises ChannelUnavailable when the disk refuses."""
        try:
            if self._channels.parts.pool is None:
                return work()
            return await asyncio.to_thread(work)
        except StoreUnavailable as error:
            raise as_channel_error(error) from error

    async def _write(self, changes: Sequence[Change]) -> None:
        await self.off_loop(lambda: self._channels.records.apply(changes))


async def _outlast(work: asyncio.Future[None]) -> bool:
    """Returns when the work has ended, however often the caller is cancelled; whether it was."""
    cancelled = False
    while not work.done():
        try:
            await asyncio.wait((work,))
        except asyncio.CancelledError:
            cancelled = True
    return cancelled
