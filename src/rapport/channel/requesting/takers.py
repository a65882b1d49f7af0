"""Taking messages: one taker at a time per channel, durable before anything is handed out. [CH-2]

A kill before the records are written hands the messages out to whoever asks next; a kill after it
leaves them to the token that took them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

from rapport.channel.delivering import DeliveringChannels
from rapport.channel.logged.foreign import shared_log_of
from rapport.channel.logged.shared import Parts
from rapport.channel.logged.writer import as_channel_error
from rapport.channel.requesting.message_leases import MessageLease
from rapport.channel.requesting.taking import Take, Taken, load_taken, rows_before, runs_of
from rapport.channel.requesting.taking_shared import (
    AnyRecord,
    LeaseRecord,
    SharedTakes,
    TookRecord,
    summary_of,
)
from rapport.channel.requesting.tokens import token_digest
from rapport.core.errors import ChannelUnavailable, StoreUnavailable
from rapport.core.event import StoredEvent
from rapport.kernel.clock import ClockJumpGuard
from rapport.store.base import AppendConflict, Change, RecordStore

_MINUTE_MS = 60_000
_ROWS_AT_ONCE = 100
T = TypeVar("T")


class SourceChannels(DeliveringChannels, Protocol):
    """What the source side needs of open channels."""

    parts: Parts
    records: RecordStore

    @property
    def side_reach(self) -> Mapping[str, int]:
        """How far logs beside channels are known to reach."""

    def ttl_of(self, name: str) -> int:
        """The channel's time to live; -1 when it sets none."""


class Taker:
    """What was taken from every channel of a node. All calls belong to one event loop.

    Where several nodes write a log, what was taken stands in a log beside it, which all of them
    read; elsewhere in the node's records.
    """

    def __init__(self, channels: SourceChannels) -> None:
        self._channels = channels
        self._time = ClockJumpGuard(channels.parts.clock)
        self._taken: dict[str, Taken] = {}
        self._shared: dict[str, SharedTakes] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._returned: dict[str, asyncio.Event] = {}

    def alone(self, channel: str) -> asyncio.Lock:
        """While held, nobody else of this node takes from the channel."""
        return self._locks.setdefault(channel, asyncio.Lock())

    async def taken(self, channel: str) -> Taken:
        """What was taken from a channel, by whomever. The records are read once; what other nodes
        took is known a moment after they did.
        """
        if channel not in self._taken:
            loaded = await self.off_loop(lambda: load_taken(self._channels.records, channel))
            self._taken.setdefault(channel, loaded)
            log = shared_log_of(self._channels.parts.log, channel)
            if log is not None and channel not in self._shared:
                self._shared[channel] = SharedTakes(log, channel)
                await self._read_on(channel)
                await self._bring_along(channel)
        shared = self._shared.get(channel)
        if shared is not None and self._channels.side_reach.get(shared.name, 0) > shared.known:
            await self._read_on(channel)
        return self._taken[channel]

    async def taken_now(self, channel: str) -> Taken:
        """The same, as sure as can be: another node is asked. For who is about to take."""
        taken = await self.taken(channel)
        await self._read_on(channel)
        return taken

    async def positions_of(self, channel: str, token: str) -> tuple[int, ...] | None:
        """What a token took; None when it took nothing that is remembered."""
        take = (await self.taken(channel)).take_of(token_digest(token))
        return None if take is None else tuple(take.positions())

    async def has_taken(self, channel: str, token: str) -> bool:
        """Whether a token took its messages before."""
        return (await self.taken(channel)).take_of(token_digest(token)) is not None

    async def take(
        self, channel: str, events: Sequence[StoredEvent], token: str, minutes: int
    ) -> bool:
        """Takes messages for a token; durable when it returns. False when another node took
        something meanwhile: then nothing is taken, and the caller chooses anew. It holds `alone`.

        The lock is kept until the store has answered, even when the caller goes away meanwhile.
        """
        taken = self._taken[channel]
        positions, digest = [stored.position for stored in events], token_digest(token)
        now_ms = self._time.now_ms()
        take = Take(now_ms + minutes * _MINUTE_MS, runs_of(positions))
        return await self._make_durable(
            channel,
            TookRecord(digest, take),
            partial(taken.changes, positions, digest, take, now_ms),
            partial(taken.confirm, positions, digest, take),
        )

    async def lease(
        self, channel: str, leases: Mapping[int, MessageLease], done: Sequence[int] = ()
    ) -> bool:
        """Leases messages or gives them back, and takes those that are done for good; durable when
        it returns. False as `take` says it. The caller holds `alone`.
        """
        if not leases and not done:
            return True
        taken = self._taken[channel]
        written = await self._make_durable(
            channel,
            LeaseRecord(dict(leases), tuple(done)),
            partial(taken.lease_changes, leases, done),
            partial(taken.confirm_leases, leases, done),
        )
        if written and any(not lease.lease for lease in leases.values()):
            self._returned.pop(channel, asyncio.Event()).set()
        return written

    def returned(self, channel: str) -> asyncio.Event:
        """Set when a message of a channel is given back next, by a worker at this node."""
        return self._returned.setdefault(channel, asyncio.Event())

    def now_ms(self) -> int:
        """The time that leases count in."""
        return self._time.now_ms()

    def is_shared(self, channel: str) -> bool:
        """Whether other nodes take from the channel as well."""
        return channel in self._shared

    async def _make_durable(
        self,
        channel: str,
        record: TookRecord | LeaseRecord,
        changes: Callable[[], Sequence[Change]],
        confirm: Callable[[], None],
    ) -> bool:
        """Writes what is taken where it is kept, to its end even when the caller goes away; False
        when another node was faster.
        """
        shared = self._shared.get(channel)
        if shared is not None:
            writing = asyncio.ensure_future(self._append(channel, record, self._time.now_ms()))
        else:
            writing = asyncio.ensure_future(self._write(changes()))
        cancelled = await _outlast(writing)
        if not writing.cancelled() and writing.exception() is None and shared is None:
            confirm()
        if cancelled:
            raise asyncio.CancelledError
        if writing.result():
            await self._sum_up(channel)
        return writing.result()

    # --- shared with other nodes ------------------------------------------------------------------

    async def _read_on(self, channel: str) -> None:
        shared = self._shared.get(channel)
        if shared is not None:
            shared.take_in(self._taken[channel], await self.off_loop(shared.read))
            self._taken[channel].expire(self._time.now_ms())

    async def _append(self, channel: str, record: AnyRecord, now_ms: int) -> bool:
        """Whether it was appended and is known; not when another node was faster."""
        shared = self._shared[channel]
        try:
            blocks = await self.off_loop(lambda: shared.append(record, now_ms))
        except ChannelUnavailable as error:
            if error.code != AppendConflict.code:
                raise
            return False
        shared.take_in(self._taken[channel], blocks)
        return True

    async def _sum_up(self, channel: str) -> None:
        """Shortens a long log of takes; another node that was faster has done so, or will."""
        shared = self._shared.get(channel)
        if shared is None or not shared.is_long:
            return
        now_ms = self._time.now_ms()
        if await self._append(channel, summary_of(self._taken[channel], now_ms), now_ms):
            await self.off_loop(shared.let_go)

    async def _bring_along(self, channel: str) -> None:
        """A channel that was moved here: what its node took before is told to the others once."""
        own, shared = self._taken[channel], self._shared[channel]
        if own.is_untouched():
            return
        told, anew = Taken(channel), SharedTakes(shared.log, channel)
        anew.take_in(told, await self.off_loop(anew.read))
        await self._read_on(channel)
        if not told.covers(own):
            now_ms = self._time.now_ms()
            if not await self._append(channel, summary_of(own, now_ms), now_ms):
                await self._bring_along(channel)

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

    async def _write(self, changes: Sequence[Change]) -> bool:
        await self.off_loop(lambda: self._channels.records.apply(changes))
        return True


async def _outlast(work: asyncio.Future[bool]) -> bool:
    """Returns when the work has ended, however often the caller is cancelled; whether it was."""
    cancelled = False
    while not work.done():
        try:
            await asyncio.wait((work,))
        except asyncio.CancelledError:
            cancelled = True
    return cancelled
