"""Channels on a LogStore and a RecordStore: the one implementation behind the memory and the embedded back end. [CH-1, CH-6, CH-13]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TypeVar

import msgspec
import structlog

from rapport.channel.channel import Appended
from rapport.channel.checking import (
    MAX_DATA_BYTES,
    check_channel_name,
    check_events,
    check_reader_name,
)
from rapport.channel.decoded import DecodedBlock, DecodedBlocks
from rapport.channel.grouping import cut_blocks, plan_group
from rapport.channel.history_feed import BackgroundFeed, HistoryFeed
from rapport.channel.seen import (
    DEDUPE_WINDOW,
    SeenWindow,
    decode_identities,
    identity_keys,
)
from rapport.channel.subscriptions import (
    Cursor,
    LoggedSubscription,
    cursor_change,
    load_cursor,
)
from rapport.channel.waiting import Bell
from rapport.channel.writer import Writer, as_channel_error, closed_error
from rapport.core.codec import decode_block
from rapport.core.errors import Corrupt, InvalidInput, StoreUnavailable
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import Clock
from rapport.store.base import Block, Change, LogStore, RecordStore
from rapport.store.history import HistoryIndex

_log = structlog.get_logger(__name__)
T = TypeVar("T")

_REBUILD_RECORDS = 50_000


class Parts(msgspec.Struct, kw_only=True):
    """What channels are made of; a back end chooses them."""

    clock: Clock
    log: LogStore
    records: RecordStore
    history: HistoryIndex
    writer: Writer
    pool: ThreadPoolExecutor | None
    """Threads for calls that wait for a disk; None when the stores never do."""
    dedupe_window: int = DEDUPE_WINDOW
    max_data_bytes: int = MAX_DATA_BYTES


class LoggedChannels:
    """See Channels. `records` is shared with timers and other low-rate state of the node."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.records = parts.records
        self.decoded = DecodedBlocks()
        self.closed = False
        self._feed = HistoryFeed(parts.log, parts.history)
        self._background = BackgroundFeed(self._feed) if parts.pool else None
        self._channels: dict[str, LoggedChannel] = {}
        for name in parts.log.logs():
            self.channel(name)

    def channel(self, name: str) -> LoggedChannel:
        """See Channels."""
        if name not in self._channels:
            check_channel_name(name)
            if self.closed:
                raise closed_error()
            self._channels[name] = LoggedChannel(name, self)
        return self._channels[name]

    def names(self) -> list[str]:
        """See Channels."""
        return sorted(
            name for name, channel in self._channels.items() if channel.last_position() > 0
        )

    async def subscribe(
        self, channel: str, reader: str, *, from_start: bool = True
    ) -> LoggedSubscription:
        """See Channels. Where a reader that does not start at the beginning stands is saved at once."""
        check_reader_name(reader)
        source = self.channel(channel)
        cursor = await self.off_loop(lambda: load_cursor(self.records, channel, reader))
        if cursor is None:
            cursor = Cursor(0 if from_start else source.last_position())
            if not from_start:
                await self._apply((cursor_change(channel, reader, cursor),))
        return LoggedSubscription(source, reader, cursor, self._apply)

    async def find_event(self, event_id: str) -> list[tuple[str, StoredEvent]]:
        """See Channels. Feeds what the index has not seen yet first, so nothing durable is missed."""

        def find() -> list[tuple[str, StoredEvent]]:
            self._feed.catch_up()
            found = []
            for name, position in self.parts.history.find(event_id):
                stored = self.channel(name).event_at(position)
                if stored is not None and stored.event.id == event_id:
                    found.append((name, stored))
            return found

        return await self.off_loop(find)

    async def close(self) -> None:
        """See Channels; a second call is no error."""
        if self.closed:
            return
        self.closed = True
        for channel in self._channels.values():
            channel.bell.ring()
        pool = self.parts.pool
        if pool is None:
            self._close_parts()
            return
        try:
            await asyncio.get_running_loop().run_in_executor(pool, self._close_parts)
        finally:
            pool.shutdown(wait=False)

    async def off_loop(self, work: Callable[[], T]) -> T:
        """Runs work that may wait for a disk; raises ChannelUnavailable when the disk does not answer well."""
        if self.closed:
            raise closed_error()
        try:
            if self.parts.pool is None:
                return work()
            return await asyncio.get_running_loop().run_in_executor(self.parts.pool, work)
        except StoreUnavailable as error:
            raise as_channel_error(error) from error

    def appended(self, name: str, last: int) -> None:
        """Told by a channel when it has grown."""
        if self._background is not None:
            self._background.appended(name, last)

    async def _apply(self, changes: Sequence[Change]) -> None:
        await self.off_loop(lambda: self.records.apply(changes))

    def _close_parts(self) -> None:
        with ExitStack() as closing:  # in reverse order, each even when another one fails
            closing.callback(self.parts.log.close)
            closing.callback(self.records.close)
            closing.callback(self.parts.history.close)
            if self._background is not None:
                closing.callback(self._background.stop)
            closing.callback(self.parts.writer.stop)


class LoggedChannel:
    """See Channel. `commit` and `event_at` may be called from the writing thread, the rest from event loops."""

    def __init__(self, name: str, owner: LoggedChannels) -> None:
        self.name = name
        self.bell = Bell()
        self._owner, self._parts = owner, owner.parts
        self._last = owner.parts.log.last_position(name)
        self._seen: SeenWindow | None = None
        self._unreadable = (0, 0)

    async def append(self, events: Sequence[Event]) -> Appended:
        """See Channel."""
        if self._owner.closed:
            raise closed_error()
        data_bytes = check_events(events, self._parts.max_data_bytes)
        if not events:
            return Appended((), 0)
        return await self._parts.writer.write(self, events, data_bytes)

    async def read_after(self, position: int, *, limit: int = 1000) -> list[StoredEvent]:
        """See Channel. Recent events come from memory, decoded once for all readers."""
        if limit < 1 or position < 0:
            raise InvalidInput(
                f"cannot read {limit} events after position {position}", code="channel.bad_position"
            )
        if self._owner.closed:
            raise closed_error()
        if position >= self._last:
            return []
        found = self._from_memory(position, limit)
        if found:
            return found
        return await self._owner.off_loop(lambda: self._from_log(position, limit))

    async def wait_after(self, position: int, *, timeout_ms: int | None = None) -> bool:
        """See Channel."""
        if self._has_after(position):
            return True
        if timeout_ms is None:
            while not self._has_after(position):
                await self._next_ring(position)
            return True
        return await self._wait_until(position, timeout_ms)

    def last_position(self) -> int:
        """See Channel."""
        return self._last

    # --- called by the writer ------------------------------------------------------------------------------

    def commit(self, appends: Sequence[Sequence[Event]]) -> list[Appended]:
        """Makes appends durable with one sync; see writer.Target."""
        seen = self._seen_window()
        group = plan_group(appends, self._last + 1, seen.find, self._is_same)
        if group.fresh:
            pieces = cut_blocks(group.fresh)
            blocks = self._parts.log.append(
                self.name,
                [(len(events), body) for events, body in pieces],
                self._parts.clock.now_ms(),
            )
            seen.add(group.keys, blocks[0].first)
            for block, (events, body) in zip(blocks, pieces, strict=True):
                decoded = DecodedBlock(block.first, block.received, events, len(body))
                self._owner.decoded.put(self.name, decoded)
            self._last = blocks[-1].last
            self.bell.ring()
            self._owner.appended(self.name, self._last)
        return group.answers

    def event_at(self, position: int) -> StoredEvent | None:
        """The event at a position; None when it is trimmed or damaged."""
        found = self._from_memory(position - 1, 1) or self._from_log(position - 1, 1)
        return found[0] if found and found[0].position == position else None

    def _is_same(self, event: Event, position: int) -> bool:
        """Whether a suspected repetition is one; what cannot be read any more is taken for it (1 in 10^13)."""
        stored = self.event_at(position)
        if stored is None:
            return True
        return (stored.event.source, stored.event.id) == (event.source, event.id)

    def _seen_window(self) -> SeenWindow:
        """The window of identities, filled from the log when the channel is first written after a start."""
        if self._seen is None:
            window = SeenWindow(self._parts.dedupe_window)
            position = max(self._last - self._parts.dedupe_window, 0)
            while position < self._last:
                blocks = self._parts.log.read_after(
                    self.name, position, max_records=_REBUILD_RECORDS
                )
                for block in blocks:
                    self._remember(window, block)
                position = blocks[-1].last if blocks else self._last
            self._seen = window
        return self._seen

    def _remember(self, window: SeenWindow, block: Block) -> None:
        try:
            window.add(identity_keys(decode_identities(block.body)), block.first)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            _log.warning(
                "block unreadable", channel=self.name, position=block.first, why=str(error)
            )

    # --- reading --------------------------------------------------------------------------------------------

    def _from_memory(self, position: int, limit: int) -> list[StoredEvent]:
        found: list[StoredEvent] = []
        while len(found) < limit:
            block = self._owner.decoded.holding(self.name, position + 1)
            if block is None:
                break
            part = block.after(position, limit - len(found))
            position = part[-1].position
            found = found + part if found else part
        return found

    def _from_log(self, position: int, limit: int) -> list[StoredEvent]:
        last = self._last
        found: list[StoredEvent] = []
        place = position
        while len(found) < limit and place < last:
            blocks = self._parts.log.read_after(self.name, place, max_records=limit - len(found))
            if not blocks:
                break
            for block in blocks:
                decoded = self._decode(block)
                if decoded is not None:
                    found += decoded.after(position, limit - len(found))
            place = blocks[-1].last
        if not found:
            self._unreadable = (position, last)
        return found

    def _decode(self, block: Block) -> DecodedBlock | None:
        held = self._owner.decoded.holding(self.name, block.first)
        if held is not None:
            return held
        try:
            events = decode_block(block.body)
        except Corrupt as error:
            _log.warning(
                "block unreadable", channel=self.name, position=block.first, why=str(error)
            )
            return None
        decoded = DecodedBlock(block.first, block.received, events, len(block.body))
        self._owner.decoded.put(self.name, decoded)
        return decoded

    # --- waiting --------------------------------------------------------------------------------------------

    def _has_after(self, position: int) -> bool:
        if self._owner.closed:
            raise closed_error()
        unreadable_from, unreadable_to = self._unreadable
        if unreadable_from <= position < unreadable_to:
            # Nothing but damage was found there: waiting for it would spin for ever.
            position = unreadable_to
        return self._last > position

    async def _next_ring(self, position: int) -> None:
        ring = self.bell.listen()
        if not self._has_after(position):  # the ring may have come before we listened
            await ring

    async def _wait_until(self, position: int, timeout_ms: int) -> bool:
        clock = self._parts.clock
        pause = asyncio.ensure_future(clock.sleep(timeout_ms))
        try:
            while not self._has_after(position):
                ring = self.bell.listen()
                if self._has_after(position):
                    return True
                await asyncio.wait((ring, pause), return_when=asyncio.FIRST_COMPLETED)
                if pause.done():
                    return self._has_after(position)
            return True
        finally:
            pause.cancel()
