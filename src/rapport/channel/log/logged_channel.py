"""One channel on a LogStore: append in groups, read, wait, subscribe. [CH-1, CH-6, CH-9, CH-13]

`DecodedBlocks` is the cache of blocks that several readers share, bounded by their bytes; `Horizon`
follows a log that other processes write as well. `LoggedSubscription` is a reader with a durable
cursor; cursor and state move in one transaction.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from rapport.channel.channel import AppendResult, Channel, HeaderlessReader
from rapport.channel.log.dedupe import (
    DedupeWindow,
    cut_blocks,
    decode_identities,
    identity_keys,
    plan_group,
)
from rapport.channel.log.sequences import SequenceStore
from rapport.channel.log.writer import Notifier, closed_error
from rapport.channel.query.index_plan import IndexMatches
from rapport.channel.query.query_kinds import Query
from rapport.channel.validation import (
    TTL,
    check_events,
    check_read_range,
    have_ttl,
    snapshot_events,
    unexpired,
)
from rapport.core.codec import decode_bare_block, decode_block
from rapport.core.errors import ChannelUnavailable, Corrupt, InvalidInput, StoreUnavailable
from rapport.core.event import BareStoredEvent, Event, Gap, StoredEvent
from rapport.core.event_columns import BlockEvents, decode_block_events
from rapport.core.release import HISTORY
from rapport.kernel.telemetry import get_logger
from rapport.store.base import (
    READ_BYTES,
    AppendConflict,
    Block,
    Change,
    Put,
    RecordStore,
    all_blocks,
    all_records,
    as_shared_log,
    decode_record,
)
from rapport.store.gaps import LogGaps

if TYPE_CHECKING:
    from rapport.channel.log.channels import LoggedChannels

ATTEMPTS = 200
"""Attempts to append before giving up; each failure means that another process appended."""
_READ_RECORDS = 50_000
_log = get_logger(__name__)

_HEADERS_THAT_MATTER = (TTL.encode(), HISTORY.encode())
"""Events with one of these are read whole by every reader."""
_LOOK_AHEAD = 256
"""Events decoded when one is requested: a publisher that repeats one event repeats the next."""
CURSORS = "cursors"
"""Table of the record store that holds one entry per channel and reader."""

Apply = Callable[[Sequence[Change]], Awaitable[None]]
Deliver = Callable[[list[StoredEvent]], list[StoredEvent]]
"""Applies delivery interceptors to a batch."""
ReportSkipped = Callable[[int, int, int], None]
"""(position before, position reached, how many): events that a reader skipped."""
CACHE_BYTES = 16 * 1024 * 1024
_MANY_EVENTS = 500
"""From so many events on, columns are worth their preparation."""


class DecodedBlock:
    """The events of one block; StoredEvents are built for the first reader."""

    __slots__ = ("_events", "_has_ttl", "_stored", "first", "last", "received", "size")

    def __init__(
        self,
        first: int,
        received: int,
        events: Sequence[Event],
        size: int,
    ) -> None:
        self.first, self.last, self.size = first, first + len(events) - 1, size
        self.received, self._events = received, events
        self._stored: list[StoredEvent] | None = None
        self._has_ttl: bool | None = None

    @property
    def has_ttl(self) -> bool:
        """Whether an event has a time to live of its own; computed for the first reader."""
        if self._has_ttl is None:
            self._has_ttl = have_ttl(self._events)
        return self._has_ttl

    def ids(self) -> Sequence[str]:
        return [event.id for event in self._events]

    def after(self, position: int, limit: int) -> list[StoredEvent]:
        if self._stored is None:
            received = self.received
            self._stored = [
                StoredEvent(place, received, event)
                for place, event in enumerate(self._events, start=self.first)
            ]
        start = max(position - self.first + 1, 0)
        return self._stored[start : start + limit]


class DecodedBlocks:
    """The least recently used blocks leave first. Safe to call from any thread."""

    def __init__(self, limit_bytes: int = CACHE_BYTES) -> None:
        self._limit, self._size = limit_bytes, 0
        self._guard = threading.Lock()
        self._blocks: OrderedDict[tuple[str, int], DecodedBlock] = OrderedDict()
        self._firsts: dict[str, list[int]] = {}

    def put(self, channel: str, block: DecodedBlock) -> None:
        """Keeps a block until others push it out."""
        key = (channel, block.first)
        with self._guard:
            if key in self._blocks or block.size > self._limit // 2:
                return
            self._blocks[key] = block
            firsts = self._firsts.setdefault(channel, [])
            if not firsts or firsts[-1] < block.first:
                firsts.append(block.first)
            else:
                insort(firsts, block.first)
            self._size += block.size
            while self._size > self._limit:
                self._drop_oldest()

    def holding(self, channel: str, position: int) -> DecodedBlock | None:
        with self._guard:
            firsts = self._firsts.get(channel)
            if not firsts:
                return None
            number = bisect_right(firsts, position) - 1
            if number < 0:
                return None
            key = (channel, firsts[number])
            block = self._blocks[key]
            if block.last < position:
                return None
            self._blocks.move_to_end(key)
            return block

    def drop_before(self, channel: str, position: int) -> None:
        with self._guard:
            firsts = self._firsts.get(channel, [])
            while firsts and self._blocks[(channel, firsts[0])].last < position:
                self._size -= self._blocks.pop((channel, firsts.pop(0))).size

    def clear(self) -> None:
        """Empties the cache; for benchmarks of uncached reads."""
        with self._guard:
            self._blocks.clear()
            self._firsts.clear()
            self._size = 0

    def _drop_oldest(self) -> None:
        (channel, first), block = self._blocks.popitem(last=False)
        self._size -= block.size
        firsts = self._firsts[channel]
        del firsts[bisect_right(firsts, first) - 1]


def bare_events(blocks: Sequence[Block], position: int) -> Sequence[BareStoredEvent]:
    """The events after a position without headers, up to the first unreadable block: reading whole
    events reports that one.
    """
    if sum(block.count for block in blocks) >= _MANY_EVENTS:
        found = decode_block_events([(block.first, block.received, block.body) for block in blocks])
        if found is not None:
            return _after(found, position)
    return _one_by_one(blocks, position)


def _after(events: BlockEvents, position: int) -> BlockEvents:
    return events[int(events.positions.searchsorted(position, side="right")) :]


def _one_by_one(blocks: Sequence[Block], position: int) -> list[BareStoredEvent]:
    found: list[BareStoredEvent] = []
    for block in blocks:
        try:
            events = decode_bare_block(block.body)
        except Corrupt:
            break
        received = block.received
        found += [
            BareStoredEvent(place, received, event)
            for place, event in enumerate(events, start=block.first)
            if place > position
        ]
    return found


class Horizon:
    """The last position that readers of a channel see, moved by the writing thread and by the
    thread that watches other processes.

    While this process writes, reported growth is deferred: it may be our own append, which readers
    should find in the cache.
    """

    def __init__(self, last: int) -> None:
        self.last = last
        self._guard = threading.Lock()
        self._reported = last
        self._is_writing = False

    def begin(self) -> None:
        with self._guard:
            self._is_writing = True

    def end(self, last: int) -> bool:
        """Ends an append; the log is known up to `last`. True when readers see more."""
        with self._guard:
            self._is_writing = False
            return self._move(max(last, self._reported))

    def report(self, last: int) -> bool:
        """Reports that the log reaches `last`; True when readers see more."""
        with self._guard:
            self._reported = max(self._reported, last)
            return not self._is_writing and self._move(self._reported)

    def _move(self, last: int) -> bool:
        is_further = last > self.last
        self.last = max(last, self.last)
        return is_further


class LoggedChannel:
    """See Channel. The writing thread calls `commit` and `event_at`, event loops the rest."""

    def __init__(self, name: str, channels: LoggedChannels, *, last: int) -> None:
        self.name = name
        self.notifier = Notifier()
        self._channels, self._parts = channels, channels.parts
        self._horizon = Horizon(last)
        self._known = last
        """The last position that the writing thread has processed; all, unless others write too."""
        self._shared_log = as_shared_log(self._parts.log)
        self._seen: DedupeWindow | None = None
        self._sequences = SequenceStore(
            name, self._parts.log, self._parts.records, self.position_of
        )
        self._unreadable = (0, 0)
        self._gaps = LogGaps(self._parts.log, name)
        self._bare_left: Sequence[BareStoredEvent] = ()

    async def append(self, events: Sequence[Event]) -> AppendResult:
        if self._channels.closed:
            raise closed_error()
        chains = self._channels.chains
        if chains is not None:
            given = snapshot_events(events)
            check_events(given, self._parts.max_data_bytes)
            return await chains.append(self, given, self.append_unintercepted)
        return await self.append_unintercepted(events)

    async def append_unintercepted(self, events: Sequence[Event]) -> AppendResult:
        held = snapshot_events(events)  # the caller's list may change while we wait
        data_bytes = check_events(held, self._parts.max_data_bytes)
        if not held:
            return AppendResult((), 0)
        if self._channels.signer is not None:
            held = tuple(await self._channels.signer.sign(self.name, held))
        return await self._parts.writer.write(self, held, data_bytes)

    async def read_after(self, position: int, *, limit: int = 1000) -> list[StoredEvent]:
        """See Channel. Recent events come from the block cache, decoded once for all readers."""
        check_read_range(position, limit)
        if self._channels.closed:
            raise closed_error()
        start, ttl_ms = position, self._channels.ttl_of(self.name)
        while position < self._last:
            found, has_ttl = self._from_memory(position, limit)
            if found and not has_ttl and ttl_ms <= 0:
                return found
            if not found:
                found = await self._channels.off_loop(partial(self._from_log, position, limit))
            if not found:
                return []
            alive = unexpired(found, ttl_ms, self._channels.time.now_ms())
            if alive:
                return alive
            position = found[-1].position
            self._unreadable = (start, position)
        return []

    def gaps_between(self, after: int, through: int) -> Sequence[Gap]:
        return self._gaps.between(after, through)

    async def read_bare_after(
        self, position: int, *, limit: int = 1000
    ) -> Sequence[BareStoredEvent]:
        """See HeaderlessReader. Headers matter to interceptors, times to live and history."""
        channels = self._channels
        if channels.chains is not None or channels.ttl_of(self.name) >= 0 or channels.closed:
            return []
        if position >= self._last or channels.decoded.holding(self.name, position + 1) is not None:
            return []
        return await channels.off_loop(partial(self._bare, position, limit))

    async def find_after(
        self, query: Query, position: int, *, until: int, limit: int, read: int | None = None
    ) -> IndexMatches | None:
        """Events that may match, by index; see Finder. None when there is no index that helps."""
        finder = self._channels.finder_of(self.name)
        if finder is None or query.condition is None:
            return None
        self._channels.before_search(self.name, self._last)
        if self._channels.ttl_of(self.name) > 0:
            read = None  # whether an event still lives is not in the index
        find = partial(finder.find, self.name, query, after=position, until=until, limit=limit)
        found = await self._channels.off_loop(partial(find, read=read))
        if found is None:
            return None
        if found.unread:
            await self._channels.off_loop(partial(self._note_unread, found.unread))
        if not found.events:
            return found
        return msgspec.structs.replace(found, events=self._unexpired(found.events))

    async def fetch(self, positions: Sequence[int]) -> list[StoredEvent] | None:
        """The events at positions, by index; None when there is none."""
        finder = self._channels.finder_of(self.name)
        if finder is None or not self._channels.indexed_fields(self.name):
            return None
        found = await self._channels.off_loop(partial(finder.fetch, self.name, positions))
        return self._unexpired(found)

    def _note_unread(self, positions: Sequence[int]) -> None:
        """Reads positions that the index knows and the log did not return, to record gaps."""
        for position in positions:
            if not self._gaps.between(position - 1, position):
                self._from_log(position - 1, 1)

    def _unexpired(self, events: list[StoredEvent]) -> list[StoredEvent]:
        return unexpired(events, self._channels.ttl_of(self.name), self._channels.time.now_ms())

    async def wait_after(self, position: int, *, timeout_ms: int | None = None) -> bool:
        return await self.notifier.wait_until(
            lambda: self._has_after(position), self._parts.clock, timeout_ms
        )

    def last_position(self) -> int:
        return self._last

    def grown(self, last: int) -> None:
        """Reports from any thread that the log reaches `last`."""
        if self._horizon.report(last):
            self._notify_readers()

    @property
    def _last(self) -> int:
        return self._horizon.last

    def _notify_readers(self) -> None:
        self.notifier.notify()
        self._channels.appended(self.name, self._last)

    def first_position(self) -> int:
        """Position of the oldest event still kept; last + 1 when there is none."""
        return self._parts.log.first_position(self.name)

    # --- called by the writer ---------------------------------------------------------------------

    def commit(self, appends: Sequence[Sequence[Event]]) -> list[AppendResult]:
        """Makes appends durable with one sync; see AppendTarget. When another process was faster,
        reads its events and plans again.
        """
        self._horizon.begin()
        try:
            for _again in range(ATTEMPTS - 1):
                try:
                    return self._commit(appends)
                except AppendConflict:
                    self._read_on()
            return self._commit(appends)
        finally:
            if self._horizon.end(self._known):
                self._notify_readers()

    def _commit(self, appends: Sequence[Sequence[Event]]) -> list[AppendResult]:
        seen = self._seen_window()
        draft = self._sequences.draft(appends, self._known)
        group = plan_group(appends, self._known + 1, seen.find, self._is_same, draft)
        if group.fresh:
            pieces = cut_blocks(group.fresh)
            blocks = self._append([(len(events), body) for events, body in pieces])
            seen.add(group.keys, blocks[0].first)
            for block, (events, body) in zip(blocks, pieces, strict=True):
                decoded = DecodedBlock(block.first, block.received, events, len(body))
                self._channels.decoded.put(self.name, decoded)
            self._known = blocks[-1].last
            if draft is not None:
                draft.keep(self._known)
        return group.answers

    def _append(self, blocks: Sequence[tuple[int, bytes]]) -> list[Block]:
        received = self._parts.clock.now_ms()
        if self._shared_log is None:
            return self._parts.log.append(self.name, blocks, received)
        return self._shared_log.append_after(self.name, self._known, blocks, received)

    def _read_on(self) -> None:
        seen, log = self._seen_window(), self._parts.log
        last = log.last_position(self.name)
        for block in all_blocks(log, self.name, self._known, max_records=_READ_RECORDS):
            self._remember(seen, block)
            self._sequences.take_in(block.first, block.body)
            last = max(last, block.last)
        self._known = max(last, self._known)

    def trim(self, before: int) -> None:
        """Trims the log before a position, as far as whole pieces allow; runs in the writing
        thread. The publishers' marks are made durable first, so repetitions are still recognised.
        """
        if self._shared_log is not None:
            self._read_on()  # marks of events that others appended are saved as well
        self._sequences.save(self._known)
        self._parts.log.trim(self.name, before)
        self._bare_left = ()
        first = self.first_position()
        self._gaps.forget_before(first)
        self._channels.decoded.drop_before(self.name, first)

    def event_at(self, position: int) -> StoredEvent | None:
        """The event at a position; None when it is trimmed or damaged."""
        found, _ = self._from_memory(position - 1, 1)
        found = found or self._from_log(position - 1, _LOOK_AHEAD)
        return found[0] if found and found[0].position == position else None

    def _is_same(self, event: Event, position: int) -> bool:
        """Whether a suspected repetition is one. An unreadable event counts as one: the suspicion
        is wrong once in 10^13 events.
        """
        stored = self.event_at(position)
        if stored is None:
            return True
        return (stored.event.source, stored.event.id) == (event.source, event.id)

    def position_of(self, event: Event) -> int:
        """The position of an event that its number calls old and the window has forgotten; 0 when
        the history index does not have it.
        """
        try:
            places = self._parts.history.find(event.id)
        except (StoreUnavailable, Corrupt) as error:
            _log.warning("history index unavailable", channel=self.name, why=error.message)
            return 0
        for name, position in places:
            stored = self.event_at(position) if name == self.name else None
            if stored and (stored.event.source, stored.event.id) == (event.source, event.id):
                return position
        return 0

    def _seen_window(self) -> DedupeWindow:
        """The window of identities, filled from the log at the first append after a start."""
        if self._seen is None:
            window = DedupeWindow(self._parts.dedupe_window)
            after = max(self._known - self._parts.dedupe_window, 0)
            log, last = self._parts.log, self._known
            for block in all_blocks(log, self.name, after, last=last, max_records=_READ_RECORDS):
                self._remember(window, block)
            self._seen = window
        return self._seen

    def _remember(self, window: DedupeWindow, block: Block) -> None:
        try:
            window.add(identity_keys(decode_identities(block.body)), block.first)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            _log.warning(
                "block unreadable", channel=self.name, position=block.first, why=str(error)
            )

    # --- reading ----------------------------------------------------------------------------------

    def _from_memory(self, position: int, limit: int) -> tuple[list[StoredEvent], bool]:
        """Contiguous events from the cache, and whether some may have a time to live."""
        found: list[StoredEvent] = []
        has_ttl = False
        while len(found) < limit:
            block = self._channels.decoded.holding(self.name, position + 1)
            if block is None:
                break
            part = block.after(position, limit - len(found))
            position = part[-1].position
            found += part
            has_ttl = has_ttl or block.has_ttl
        return found, has_ttl

    def _from_log(self, position: int, limit: int) -> list[StoredEvent]:
        last = max(self._last, self._known)
        found: list[StoredEvent] = []
        place, size = position, 0
        while len(found) < limit and size < READ_BYTES // 2 and place < last:
            blocks = self._parts.log.read_after(self.name, place, max_records=limit - len(found))
            through, readable = blocks[-1].last if blocks else last, blocks
            for block in blocks:
                decoded = self._decode(block)
                if decoded is None:
                    readable = [one for one in readable if one is not block]
                else:
                    part = decoded.after(position, limit - len(found))
                    found += part
                    size += sum([len(stored.event.data) for stored in part])
            self._gaps.note(place, through, readable)
            place = through
        if not found:
            self._unreadable = (position, last)
        return found

    def _bare(self, position: int, limit: int) -> Sequence[BareStoredEvent]:
        """Headerless events from the log, up to a block that must be read whole. Events beyond the
        limit are kept for the next call, unless they are few.
        """
        left = self._bare_left
        if left and 2 * len(left) >= limit and left[0].position == position + 1:
            found = left
        else:
            blocks = self._parts.log.read_after(self.name, position, max_records=limit)
            if blocks:
                self._gaps.note(position, blocks[-1].last, blocks)
            whole = (
                place
                for place, one in enumerate(blocks)
                if any(name in one.body for name in _HEADERS_THAT_MATTER)
            )
            found = bare_events(blocks[: next(whole, None)], position)
        self._bare_left = found[limit:]
        return found[:limit]

    def _decode(self, block: Block) -> DecodedBlock | None:
        held = self._channels.decoded.holding(self.name, block.first)
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
        self._channels.decoded.put(self.name, decoded)
        return decoded

    # --- waiting ----------------------------------------------------------------------------------

    def _has_after(self, position: int) -> bool:
        if self._channels.closed:
            raise closed_error()
        unreadable_from, unreadable_to = self._unreadable
        if unreadable_from <= position < unreadable_to:
            # Nothing but damage was found there: waiting for it would spin for ever.
            position = unreadable_to
        return self._last > position


# --- readers with a cursor ------------------------------------------------------------------------


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """The stored cursor of a reader; new fields go at the end with a default."""

    position: int
    state: bytes = b""


def cursor_key(channel: str, reader: str) -> str:
    """Key of a reader's cursor; channel names hold no slash."""
    return f"{channel}/{reader}"


def load_cursor(records: RecordStore, channel: str, reader: str) -> Cursor | None:
    """The reader's last commit; None when it never made one."""
    raw = records.get(CURSORS, cursor_key(channel, reader))
    if raw is None:
        return None
    return decode_record(
        raw,
        Cursor,
        f"the cursor of {reader!r} in channel {channel!r}",
        code="channel.bad_cursor",
        hint="the reader must be set to a position again; its events are all still there",
    )


def cursor_change(channel: str, reader: str, cursor: Cursor) -> Put:
    return Put(CURSORS, cursor_key(channel, reader), msgspec.msgpack.encode(cursor))


def reader_positions(records: RecordStore, channel: str) -> dict[str, int]:
    """The committed position of every named reader of a channel; raises Corrupt."""
    prefix = cursor_key(channel, "")
    found: dict[str, int] = {}
    for key, _raw in all_records(records, CURSORS, prefix=prefix):
        reader = key.removeprefix(prefix)
        cursor = load_cursor(records, channel, reader)
        if cursor is not None:
            found[reader] = cursor.position
    return found


class LoggedSubscription:
    """See Subscription; reading runs ahead of the committed `position` and `state`."""

    def __init__(
        self,
        source: Channel,
        reader: str,
        cursor: Cursor,
        apply: Apply,
        *,
        report_skipped: ReportSkipped | None = None,
        deliver: Deliver | None = None,
    ) -> None:
        self.channel, self.reader = source.name, reader
        self.position, self.state = cursor.position, cursor.state
        self._source, self._apply = source, apply
        self._read = self._delivered = cursor.position
        self._committing = asyncio.Lock()
        self._report_skipped, self._deliver = report_skipped, deliver
        self.skipped = 0
        """Events skipped since it was opened: trimmed, past their time to live, or damaged."""

    async def next_batch(
        self, *, limit: int = 1000, timeout_ms: int | None = None
    ) -> list[StoredEvent]:
        while await self._source.wait_after(self._read, timeout_ms=timeout_ms):
            batch = await self._source.read_after(self._read, limit=limit)
            if batch:
                # First, as it may be refused: then the same events are read the next time.
                delivered = batch if self._deliver is None else self._deliver(batch)
                self._note_skipped(batch)
                self._read = batch[-1].position
                if delivered:
                    self._delivered = delivered[-1].position
                    return delivered
                await self._pass_over(batch[-1].position)
        return []

    async def next_bare_batch(
        self, *, limit: int = 1000, timeout_ms: int | None = None
    ) -> Sequence[StoredEvent | BareStoredEvent]:
        source = self._source
        if isinstance(source, HeaderlessReader) and source.last_position() > self._read:
            bare = await source.read_bare_after(self._read, limit=limit)
            if bare:
                self._note_skipped(bare)
                self._read = self._delivered = bare[-1].position
                return bare
        return await self.next_batch(limit=limit, timeout_ms=timeout_ms)

    async def _pass_over(self, position: int) -> None:
        """Interceptors hid everything up to here. The cursor is committed here, else retention
        would wait for this reader for ever; not before delivered events are committed.
        """
        if self._delivered <= self.position < position:
            with suppress(ChannelUnavailable):  # then with the next ones
                await self.commit(position)

    def _note_skipped(self, batch: Sequence[StoredEvent | BareStoredEvent]) -> None:
        skipped = batch[-1].position - self._read - len(batch)
        if skipped > 0:
            self.skipped += skipped
            if self._report_skipped is not None:
                self._report_skipped(self._read, batch[-1].position, skipped)

    async def commit(
        self, position: int, state: bytes | None = None, *, changes: Sequence[Change] = ()
    ) -> None:
        """See Subscription. `changes` of other records go into the same transaction.

        A position before the present one moves the reader back for its next start.
        """
        if not 0 <= position <= self._source.last_position():
            raise InvalidInput(
                f"channel {self.channel!r} has no position {position}",
                code="channel.bad_position",
                hint=f"the last one is {self._source.last_position()}",
            )
        async with self._committing:  # the state of a pending commit must not be undone
            cursor = Cursor(position, self.state if state is None else state)
            await self._apply((*changes, cursor_change(self.channel, self.reader, cursor)))
            self.position, self.state = cursor.position, cursor.state
