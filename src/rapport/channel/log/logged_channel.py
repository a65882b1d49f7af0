"""One channel on a LogStore: append in groups, read, wait. [CH-1, CH-6, CH-13]

`Horizon` and `read_on` follow a log that other processes write as well. `SequenceStore` saves the
publishers' sequence marks; the events carry their numbers, so the saved marks only shorten the
first append after a start.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import cast

import msgspec

from rapport.channel.channel import AppendResult
from rapport.channel.log.block_cache import DecodedBlock, bare_events, may_hold
from rapport.channel.log.dedupe import (
    DedupeWindow,
    cut_blocks,
    decode_identities,
    identity_keys,
    plan_group,
)
from rapport.channel.log.runtime import LogParts, LogRuntime
from rapport.channel.log.sequences import (
    SEQUENCED_IN,
    Locate,
    MarksDraft,
    PublisherMarks,
    SequenceMarks,
    stamp_in,
)
from rapport.channel.log.writer import Notifier, closed_error
from rapport.channel.query.index_plan import IndexMatches
from rapport.channel.query.query_kinds import Query
from rapport.channel.retention.ttl import TTL, unexpired
from rapport.channel.validation import check_events, check_read_range, snapshot_events
from rapport.core.codec import TRUSTED_BATCHES, decode_block, have_no_headers
from rapport.core.errors import Corrupt, StoreUnavailable
from rapport.core.event import BareStoredEvent, Event, Gap, StoredEvent
from rapport.core.release import HISTORY
from rapport.kernel.telemetry import get_logger
from rapport.store.base import (
    READ_BYTES,
    AppendConflict,
    Block,
    Change,
    Delete,
    LogStore,
    Put,
    SharedLogStore,
)
from rapport.store.gaps import LogGaps

ATTEMPTS = 200
"""Attempts to append before giving up; each failure means that another process appended."""
_READ_RECORDS = 50_000
_log = get_logger(__name__)
MARKS_TABLE, SAVED_TABLE = "sequence_marks", "sequences_saved"
SAVE_EVERY = 100_000
"""Positions between two saves; bounds what the first append after a start has to read."""
_MARK_READ_RECORDS = 50_000
_MARKER = SEQUENCED_IN.encode()
_REBUILD_RECORDS = 50_000
_HEADERS_THAT_MATTER = (TTL.encode(), HISTORY.encode())
"""Events with one of these are read whole by every reader."""
_LOOK_AHEAD = 256
"""Events decoded when one is requested: a publisher that repeats one event repeats the next."""


def as_shared_log(log: LogStore) -> SharedLogStore | None:
    """The store as one that several processes may write; None when it is not."""
    return cast(SharedLogStore, log) if hasattr(log, "append_after") else None


def shared_log_of(log: LogStore, channel: str) -> SharedLogStore | None:
    """The store, when several processes may write the log of this channel in it; else None."""
    home = log.store_of(channel) if hasattr(log, "store_of") else log
    return as_shared_log(log) if hasattr(home, "append_after") else None


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
        """This process begins to append."""
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


def read_on(log: LogStore, name: str, known: int, take_in: Callable[[Block], None]) -> int:
    """Passes every block after `known` to `take_in`, in order; returns the position reached."""
    last = log.last_position(name)
    while known < last:
        blocks = log.read_after(name, known, max_records=_READ_RECORDS)
        for block in blocks:
            take_in(block)
        known = blocks[-1].last if blocks else last
    return known


class SequenceStore:
    """The sequence marks of one channel; every call comes from the writing thread.

    A channel without numbered events costs one look at the headers of each event, and a small
    record every 100,000 positions.
    """

    def __init__(self, channel: str, parts: LogParts, position_of: Locate) -> None:
        self._channel, self._log, self._records = channel, parts.log, parts.records
        self._position_of = position_of
        self._marks: SequenceMarks | None = None
        self._save_at = 0

    def draft(self, appends: Sequence[Sequence[Event]], last: int) -> MarksDraft | None:
        """The draft that decides about numbered events of a group; None without any. The log ends
        at `last`. Loads the marks on first use; raises StoreUnavailable.
        """
        name = self._channel
        if self._marks is None:
            self._marks = self._load(last)
        elif last >= self._save_at:
            self._save_if_possible(self._marks, last)
        if any(
            event.headers and event.headers.get(SEQUENCED_IN) == name
            for append in appends
            for event in (
                () if type(append) in TRUSTED_BATCHES or have_no_headers(append) else append
            )
        ):
            return MarksDraft(name, self._marks, self._position_of)
        return None

    def save(self, last: int) -> None:
        """Saves all marks as of `last`, so that repetitions of trimmed events are recognised after
        a restart. Raises StoreUnavailable.
        """
        if self._marks is None:
            self._marks = self._load(last)
        self._save(self._marks, last)
        self._save_at = last + SAVE_EVERY

    def take_in(self, first: int, body: bytes) -> None:
        """A block that another process appended; not needed before the marks are loaded."""
        if self._marks is not None:
            self._take_in(self._marks, first, body)

    def _save_if_possible(self, marks: SequenceMarks, position: int) -> None:
        """Raises nothing: the log has it all, and the next time may go better."""
        self._save_at = position + SAVE_EVERY
        try:
            self._save(marks, position)
        except StoreUnavailable as error:
            _log.warning("marks not saved", channel=self._channel, why=error.message)

    def _save(self, marks: SequenceMarks, position: int) -> None:
        """Saves the changed marks together with their position."""
        changes: list[Change] = [
            Put(MARKS_TABLE, self._key(publisher), msgspec.msgpack.encode(marks.of(publisher)))
            for publisher in sorted(marks.changed)
        ]
        changes += [
            Delete(MARKS_TABLE, self._key(publisher)) for publisher in sorted(marks.forgotten)
        ]
        changes.append(Put(SAVED_TABLE, self._channel, str(position).encode()))
        self._records.apply(changes)
        marks.changed.clear()
        marks.forgotten.clear()

    def _key(self, publisher: str) -> str:
        return f"{self._channel}/{publisher}"

    def _load(self, last: int) -> SequenceMarks:
        marks = SequenceMarks()
        saved = self._records.get(SAVED_TABLE, self._channel)
        position = int(saved) if saved is not None and saved.isdigit() else 0
        if position > last and position > self._log.last_position(self._channel):
            # The log was put back to an older state; the marks go with it. (It is longer than we
            # know when another process that shares the records appended meanwhile.)
            marks.forgotten.update(publisher for publisher, _marks in self._read_saved())
            position = 0
        else:
            marks.restore(self._read_saved())
        self._save_at = position + SAVE_EVERY
        while position < last:
            blocks = self._log.read_after(self._channel, position, max_records=_MARK_READ_RECORDS)
            for block in blocks:
                self._take_in(marks, block.first, block.body)
            position = blocks[-1].last if blocks else last
        return marks

    def _read_saved(self) -> Iterator[tuple[str, PublisherMarks]]:
        prefix, after = self._key(""), ""
        while found := self._records.find(MARKS_TABLE, prefix=prefix, after=after):
            for key, value in found:
                yield key.removeprefix(prefix), msgspec.msgpack.decode(value, type=PublisherMarks)
            after = found[-1][0]

    def _take_in(self, marks: SequenceMarks, first: int, body: bytes) -> None:
        if _MARKER not in body:
            return  # most blocks of most channels; looking is a hundred times cheaper than decoding
        try:
            events = decode_block(body)
        except Corrupt as error:
            _log.warning(
                "block unreadable", channel=self._channel, position=first, why=error.message
            )
            return
        for position, event in enumerate(events, start=first):
            stamp = stamp_in(self._channel, event)
            if stamp is not None:
                marks.raise_to(stamp, position)


class LoggedChannel:
    """See Channel. The writing thread calls `commit` and `event_at`, event loops the rest."""

    def __init__(self, name: str, shared: LogRuntime, *, last: int) -> None:
        self.name = name
        self.notifier = Notifier()
        self._shared, self._parts = shared, shared.parts
        self._horizon = Horizon(last)
        self._known = last
        """The last position that the writing thread has processed; all, unless others write too."""
        self._shared_log = as_shared_log(self._parts.log)
        self._seen: DedupeWindow | None = None
        self._sequences = SequenceStore(name, self._parts, self.position_of)
        self._unreadable = (0, 0)
        self._gaps = LogGaps(self._parts.log, name)
        self._bare_left: Sequence[BareStoredEvent] = ()

    async def append(self, events: Sequence[Event]) -> AppendResult:
        if self._shared.closed:
            raise closed_error()
        chains = self._shared.chains
        if chains is not None:
            given = snapshot_events(events)
            check_events(given, self._parts.max_data_bytes)
            return await chains.append(self, given, self.append_unintercepted)
        return await self.append_unintercepted(events)

    async def append_unintercepted(self, events: Sequence[Event]) -> AppendResult:
        """Appends the events that interceptors have left."""
        held = snapshot_events(events)  # the caller's list may change while we wait
        data_bytes = check_events(held, self._parts.max_data_bytes)
        if not held:
            return AppendResult((), 0)
        if self._shared.signer is not None:
            held = tuple(await self._shared.signer.sign(self.name, held))
        return await self._parts.writer.write(self, held, data_bytes)

    async def read_after(self, position: int, *, limit: int = 1000) -> list[StoredEvent]:
        """See Channel. Recent events come from the block cache, decoded once for all readers."""
        check_read_range(position, limit)
        if self._shared.closed:
            raise closed_error()
        start, ttl_ms = position, self._shared.ttl_of(self.name)
        while position < self._last:
            found, has_ttl = self._from_memory(position, limit)
            if found and not has_ttl and ttl_ms <= 0:
                return found
            if not found:
                found = await self._shared.off_loop(partial(self._from_log, position, limit))
            if not found:
                return []
            alive = unexpired(found, ttl_ms, self._shared.time.now_ms())
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
        shared = self._shared
        if shared.chains is not None or shared.ttl_of(self.name) >= 0 or shared.closed:
            return []
        if position >= self._last or shared.decoded.holding(self.name, position + 1) is not None:
            return []
        return await shared.off_loop(partial(self._bare, position, limit))

    async def find_after(
        self, query: Query, position: int, *, until: int, limit: int, read: int | None = None
    ) -> IndexMatches | None:
        """Events that may match, by index; see Finder. None when there is no index that helps."""
        finder = self._shared.finder
        if finder is None or query.condition is None:
            return None
        self._shared.field_index_asked(self.name, self._last)
        if self._shared.ttl_of(self.name) > 0:
            read = None  # whether an event still lives is not in the index
        asked = partial(finder.find, self.name, query, after=position, until=until, limit=limit)
        found = await self._shared.off_loop(partial(asked, read=read))
        if found is None:
            return None
        if found.unread:
            await self._shared.off_loop(partial(self._note_unread, found.unread))
        if not found.events:
            return found
        return msgspec.structs.replace(found, events=self._unexpired(found.events))

    async def fetch(self, positions: Sequence[int]) -> list[StoredEvent] | None:
        """The events at positions, by index; None when there is none."""
        finder = self._shared.finder
        if finder is None or not self._shared.indexed_fields(self.name):
            return None
        found = await self._shared.off_loop(partial(finder.fetch, self.name, positions))
        return self._unexpired(found)

    def _note_unread(self, positions: Sequence[int]) -> None:
        """Reads positions that the index knows and the log did not return, to record gaps."""
        for position in positions:
            if not self._gaps.between(position - 1, position):
                self._from_log(position - 1, 1)

    def _unexpired(self, events: list[StoredEvent]) -> list[StoredEvent]:
        return unexpired(events, self._shared.ttl_of(self.name), self._shared.time.now_ms())

    async def wait_after(self, position: int, *, timeout_ms: int | None = None) -> bool:
        if self._has_after(position):
            return True
        if timeout_ms is None:
            while not self._has_after(position):
                await self._wait_for_notify(position)
            return True
        return await self._wait_until(position, timeout_ms)

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
        self._shared.appended(self.name, self._last)

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
                self._shared.decoded.put(self.name, self._as_decoded(block, events, body))
            self._known = blocks[-1].last
            if draft is not None:
                draft.keep(self._known)
        return group.answers

    def _as_decoded(self, block: Block, events: Sequence[Event], body: bytes) -> DecodedBlock:
        """The cached form of a new block for its first readers."""
        size, keyed = len(body), self._parts.history.needs_feeding
        return DecodedBlock(block.first, block.received, events, size, keyed=keyed)

    def _append(self, blocks: Sequence[tuple[int, bytes]]) -> list[Block]:
        received = self._parts.clock.now_ms()
        if self._shared_log is None:
            return self._parts.log.append(self.name, blocks, received)
        return self._shared_log.append_after(self.name, self._known, blocks, received)

    def _read_on(self) -> None:
        """Processes the events that other processes appended."""
        seen = self._seen_window()

        def take_in(block: Block) -> None:
            self._remember(seen, block)
            self._sequences.take_in(block.first, block.body)

        self._known = read_on(self._parts.log, self.name, self._known, take_in)

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
        self._shared.decoded.drop_before(self.name, first)

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
            position = max(self._known - self._parts.dedupe_window, 0)
            while position < self._known:
                blocks = self._parts.log.read_after(
                    self.name, position, max_records=_REBUILD_RECORDS
                )
                for block in blocks:
                    self._remember(window, block)
                position = blocks[-1].last if blocks else self._known
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
            block = self._shared.decoded.holding(self.name, position + 1)
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
                if any(may_hold(one.body, name) for name in _HEADERS_THAT_MATTER)
            )
            found = bare_events(blocks[: next(whole, None)], position)
        self._bare_left = found[limit:]
        return found[:limit]

    def _decode(self, block: Block) -> DecodedBlock | None:
        held = self._shared.decoded.holding(self.name, block.first)
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
        self._shared.decoded.put(self.name, decoded)
        return decoded

    # --- waiting ----------------------------------------------------------------------------------

    def _has_after(self, position: int) -> bool:
        if self._shared.closed:
            raise closed_error()
        unreadable_from, unreadable_to = self._unreadable
        if unreadable_from <= position < unreadable_to:
            # Nothing but damage was found there: waiting for it would spin for ever.
            position = unreadable_to
        return self._last > position

    async def _wait_for_notify(self, position: int) -> None:
        notified = self.notifier.listen()
        if not self._has_after(position):  # the notification may have come before we listened
            await notified

    async def _wait_until(self, position: int, timeout_ms: int) -> bool:
        clock = self._parts.clock
        pause = asyncio.ensure_future(clock.sleep(timeout_ms))
        try:
            while not self._has_after(position):
                notified = self.notifier.listen()
                if self._has_after(position):
                    return True
                await asyncio.wait((notified, pause), return_when=asyncio.FIRST_COMPLETED)
                if pause.done():
                    return self._has_after(position)
            return True
        finally:
            pause.cancel()
