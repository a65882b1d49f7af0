"""The channels of a node on a LogStore and a RecordStore, and what they share: writer, threads,
block cache, rules, indexes. [CH-13]
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cached_property, partial
from typing import TypeVar

import msgspec

from rapport.channel.access.signatures import OwnSigner
from rapport.channel.config import ChannelRules, ChannelsConfig
from rapport.channel.interceptors.registry import Interceptors
from rapport.channel.log.dedupe import DEDUPE_WINDOW
from rapport.channel.log.indexes import (
    LAG_EVENTS,
    BackgroundFeed,
    FieldFeed,
    FieldFinder,
    HistoryFeed,
)
from rapport.channel.log.logged_channel import (
    Cursor,
    DecodedBlocks,
    LoggedChannel,
    LoggedSubscription,
    cursor_change,
    load_cursor,
)
from rapport.channel.log.writer import Writer, channel_error, closed_error
from rapport.channel.query.index_plan import Finder, explain_query, index_path
from rapport.channel.query.query_kinds import Query
from rapport.channel.requests.source import MessageSource
from rapport.channel.retention.limits import FINENESS
from rapport.channel.retention.sweeper import Sweeper
from rapport.channel.validation import (
    KEEP_AS_LONG_AS_POSSIBLE,
    LARGEST_DATA_BYTES,
    MAX_DATA_BYTES,
    check_channel_name,
    check_reader_name,
)
from rapport.core.errors import Corrupt, InvalidInput, StoreUnavailable
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import Clock, ClockJumpGuard
from rapport.kernel.telemetry import get_logger
from rapport.store.base import (
    Change,
    DamagedLogs,
    LimitedPieces,
    LogStore,
    RecordStore,
    as_shared_log,
    is_side_log,
)
from rapport.store.field_index import SqliteFieldIndex
from rapport.store.history_index import HistoryIndex

_log = get_logger(__name__)
T = TypeVar("T")
_LAG_WHEN_SEARCHED = 256
"""Events that an index may lag behind when it is searched."""


class LogParts(msgspec.Struct, kw_only=True):
    """The components of channels; a back end chooses them."""

    clock: Clock
    log: LogStore
    records: RecordStore
    history: HistoryIndex
    writer: Writer
    pool: ThreadPoolExecutor | None
    """Threads for calls that wait for a disk; None when the stores never do."""
    dedupe_window: int = DEDUPE_WINDOW
    max_data_bytes: int = MAX_DATA_BYTES
    fields: SqliteFieldIndex | None = None
    """Index of declared fields beside the log; None without one."""
    finder: Callable[[Callable[[str], Sequence[str]]], Finder] | None = None
    """Makes the finder that evaluates queries in the log's own store, given a function that returns
    the indexed fields of a channel; None: `fields` or reading answers queries.
    """
    finds_itself: Callable[[str], bool] = lambda _log: True
    """With both: whether `finder` is for a log, else `fields` is."""


class LoggedChannels:
    """See Channels. `records` is shared with timers and other low-rate state of the node."""

    def __init__(self, parts: LogParts) -> None:
        if not 0 < parts.max_data_bytes <= LARGEST_DATA_BYTES:
            raise InvalidInput(
                f"the largest data of an event cannot be {parts.max_data_bytes} bytes",
                code="channel.bad_limit",
                hint=f"1 to {LARGEST_DATA_BYTES}",
            )
        self.parts, self.log, self.records = parts, parts.log, parts.records
        self.clock = parts.clock
        self.time = ClockJumpGuard(parts.clock)
        """The clock that decides whether an event is too old."""
        self.closed = False
        """Whether `close` was called."""
        self.decoded = DecodedBlocks()
        self.chains: Interceptors | None = None
        """None while there is no interceptor: then an append pays one look at this."""
        self.signer: OwnSigner | None = None
        """None where the site does not sign."""
        self.side_reach: dict[str, int] = {}
        """Last known positions of side logs that other processes write as well."""
        self.skipped: Counter[tuple[str, str]] = Counter()
        """Events that (channel, reader) passed over, because they were gone or past their time."""
        self.after_trim: list[Callable[[str, int], None]] = []
        """Called off the loop with (channel, first position kept) when a channel was trimmed."""
        self._channels: dict[str, LoggedChannel] = {}
        self._background: dict[str, BackgroundFeed] = {}
        self._fed_until: dict[str, int] = {}
        """The position of each log at which the background feeds were last woken."""
        self._declared = ChannelsConfig()
        self._rules: dict[str, ChannelRules] = {}
        self._indexed: dict[str, tuple[str, ...]] = {}
        self.feed = HistoryFeed(parts.log, parts.history, self.decoded)
        self._own_finder = parts.finder(self.indexed_fields) if parts.finder else None
        self._beside: FieldFinder | None = None
        self.field_feed: FieldFeed | None = None
        if parts.fields is not None:
            self.field_feed = FieldFeed(parts.log, parts.fields, self._fields_beside)
            self._beside = FieldFinder(parts.log, parts.fields, self.field_feed)
            self.after_trim.append(self.field_feed.prune)
        shared_log = as_shared_log(parts.log)
        if shared_log is not None:
            shared_log.watch(self._grown)
        for name in parts.log.logs():
            self._take_in(name)
        self._background = self._start_feeds()

    def _start_feeds(self) -> dict[str, BackgroundFeed]:
        """Threads that feed the indexes; none when the stores never wait for a disk."""
        feeds = {"history-index": self.feed, "field-index": self.field_feed}
        return {
            name: BackgroundFeed(feed, name=name)
            for name, feed in feeds.items()
            if feed is not None and self.parts.pool is not None
        }

    # --- channels and readers ---------------------------------------------------------------------

    def channel(self, name: str) -> LoggedChannel:
        if name not in self._channels:
            check_channel_name(name)
            if self.closed:
                raise closed_error()
            # All logs there were have been taken in at the start, so this one is empty, or another
            # process has just created it and `_grown` reports it.
            self._channels.setdefault(name, LoggedChannel(name, self, last=0))
        return self._channels[name]

    def names(self) -> list[str]:
        return sorted(
            name for name, channel in list(self._channels.items()) if channel.last_position() > 0
        )

    def holds(self, name: str) -> bool:
        """Whether a channel has, or ever had, events; does not create it."""
        found = self._channels.get(name)
        return found is not None and found.last_position() > 0

    async def subscribe(
        self, channel: str, reader: str, *, from_start: bool = True
    ) -> LoggedSubscription:
        """See Channels. A new reader's cursor is saved at once."""
        check_reader_name(reader)
        source = self.channel(channel)
        cursor = await self.off_loop(lambda: load_cursor(self.records, channel, reader))
        if cursor is None:
            # Saved at once: retention keeps what a known reader has not read.
            cursor = Cursor(0 if from_start else source.last_position())
            await self.apply((cursor_change(channel, reader, cursor),))
        return LoggedSubscription(
            source,
            reader,
            cursor,
            self.apply,
            report_skipped=partial(self._note_skipped, source, reader),
            deliver=partial(self.delivered, channel, reader),
        )

    def _note_skipped(
        self, source: LoggedChannel, reader: str, position: int, reached: int, skipped: int
    ) -> None:
        self.skipped[source.name, reader] += skipped
        for gap in source.gaps_between(position, reached):
            _log.warning(
                "reader passed over unreadable events",
                channel=source.name,
                reader=reader,
                first=gap.first,
                last=gap.last,
                reason=gap.reason,
            )
        if position + 1 < source.first_position():
            _log.warning("reader came too late", channel=source.name, reader=reader, lost=skipped)

    @cached_property
    def source(self) -> MessageSource:
        """Where requests by query and token are answered, one for all channels."""
        return MessageSource(self)

    # --- interceptors and signatures --------------------------------------------------------------

    @cached_property
    def interceptors(self) -> Interceptors:
        """The interceptors of all channels; stored ones are loaded by its `start`."""
        return Interceptors(self, self.clock, engage=self._engage)

    def _engage(self, chains: Interceptors | None) -> None:
        self.chains = chains

    def delivered(
        self, channel: str, reader: str, events: Sequence[StoredEvent]
    ) -> list[StoredEvent]:
        return list(events) if self.chains is None else self.chains.deliver(channel, reader, events)

    def intercepts_delivery(self, name: str) -> bool:
        """Whether an interceptor changes or hides events of a channel on delivery."""
        return self.chains is not None and self.chains.intercepts_delivery(name)

    def may_hide(self, name: str) -> bool:
        """Whether readers of a channel may receive something other than the stored events."""
        return self.chains is not None and self.chains.may_hide(name)

    def sign_with(self, signer: OwnSigner) -> None:
        """Signs the node's own events from now on."""
        self.signer = signer
        self.interceptors.seal = signer.changed

    # --- rules ------------------------------------------------------------------------------------

    def use_rules(self, declared: ChannelsConfig) -> None:
        """Applies retention, indexing and other rules; before the first call everything is kept.
        Newly declared fields are indexed in the background. Raises InvalidInput for a field that
        cannot be.
        """
        for rule in (declared.common, *declared.rules):
            for text in rule.index or ():
                index_path(text)
        self._declared, self._rules, self._indexed = declared, {}, {}
        if isinstance(self.log, LimitedPieces):
            self.log.limit_pieces(lambda name: (self.rules_for(name).keep_bytes or 0) // FINENESS)
        if self.field_feed is not None:
            self.field_feed.rules_changed()
        self.wake_index()

    def rules_for(self, name: str) -> ChannelRules:
        if name not in self._rules:
            self._rules[name] = self._declared.rules_for(name)
        return self._rules[name]

    def ttl_of(self, name: str) -> int:
        """The channel's time to live in ms; -1 without one, 0 for delivery once."""
        ttl_ms = self.rules_for(name).ttl_ms
        return KEEP_AS_LONG_AS_POSSIBLE if ttl_ms is None else ttl_ms

    @cached_property
    def sweeper(self) -> Sweeper:
        """Carries out retention; the node starts it."""
        return Sweeper(self, self.source.taker)

    # --- indexes ----------------------------------------------------------------------------------

    def indexed_fields(self, name: str) -> tuple[str, ...]:
        if name not in self._indexed:
            fields = self.rules_for(name).index or ()
            self._indexed[name] = tuple(index_path(text) for text in fields)
        return self._indexed[name]

    def _finds_itself(self, name: str) -> bool:
        return self.parts.finder is not None and self.parts.finds_itself(name)

    def finder_of(self, name: str) -> Finder | None:
        """Finds events of a channel: in its own store, else by the index beside the log."""
        return self._own_finder if self._finds_itself(name) else self._beside

    def _fields_beside(self, name: str) -> tuple[str, ...]:
        """The indexed fields of a channel that are in the index beside the log."""
        return () if self._finds_itself(name) else self.indexed_fields(name)

    def explain_query(self, name: str, query: Query) -> str:
        """One sentence for people: which part of a query uses an index, or why the log is read."""
        self.channel(name)
        if self.intercepts_delivery(name):
            return "answered by reading: interceptors decide what readers of the channel see"
        explained = explain_query(query, self.indexed_fields(name))
        if query.condition is None or not self._finds_itself(name):
            return explained if self.finder_of(name) else "answered by reading: there is no index"
        return f"evaluated where the events are kept; {explained.removeprefix('answered ')}"

    def wake_index(self) -> None:
        """Feeds the index of declared fields now, in the background, however little there is."""
        if "field-index" in self._background:
            self._background["field-index"].wake()

    def before_search(self, name: str, last: int) -> None:
        """Feeds the field index in the background when it lags by more than a few events."""
        feed = self.field_feed
        if feed is not None and feed.lag(name, last) >= _LAG_WHEN_SEARCHED:
            self.wake_index()

    def appended(self, name: str, last: int) -> None:
        """Called by a channel when it has grown."""
        if last - self._fed_until.get(name, 0) >= LAG_EVENTS:
            self._fed_until[name] = last
            for background in self._background.values():
                background.wake()

    async def find_event(self, event_id: str) -> list[tuple[str, StoredEvent]]:
        """See Channels. The index is brought up to date first, so nothing is missed."""

        def find() -> list[tuple[str, StoredEvent]]:
            self.feed.catch_up()
            found = []
            for name, position in self.parts.history.find(event_id):
                channel = self._channels.get(name)
                stored = channel.event_at(position) if channel else None
                if stored is not None and stored.event.id == event_id:
                    found.append((name, stored))
            return found

        return await self.off_loop(find)

    async def holding(self, name: str, events: Sequence[Event]) -> set[tuple[str, str]]:
        """Those identities (source, id) of the events that the channel holds, however long ago
        they were stored; one look into the history index each.
        """
        channel = self.channel(name)

        def find() -> set[tuple[str, str]]:
            self.feed.catch_up()
            return {(event.source, event.id) for event in events if channel.position_of(event) > 0}

        return await self.off_loop(find)

    # --- stores -----------------------------------------------------------------------------------

    async def off_loop(self, work: Callable[[], T]) -> T:
        """Runs work that may wait for a disk; raises ChannelUnavailable when the disk refuses."""
        if self.closed:
            raise closed_error()
        try:
            if self.parts.pool is None:
                return work()
            return await asyncio.get_running_loop().run_in_executor(self.parts.pool, work)
        except StoreUnavailable as error:
            raise channel_error(error) from error

    async def look(self, find: Callable[[RecordStore], T]) -> T:
        """Reads records off the loop; raises ChannelUnavailable when the store fails."""
        return await self.off_loop(partial(find, self.records))

    async def apply(self, changes: Sequence[Change]) -> None:
        """Changes records, all or none; durable when it returns."""
        await self.off_loop(partial(self.records.apply, changes))

    def damage(self) -> list[Corrupt]:
        """Known damaged or missing ranges of the logs, vanished files included. Lists directories,
        so call it off the loop.
        """
        return self.log.find_damage() if isinstance(self.log, DamagedLogs) else []

    def _take_in(self, name: str) -> None:
        if is_side_log(name):
            return
        try:
            check_channel_name(name)
        except InvalidInput as error:
            _log.warning("log left alone", log=name, error=error.message)
            return
        last = self.log.last_position(name)
        self._channels.setdefault(name, LoggedChannel(name, self, last=last)).grown(last)

    def _grown(self, name: str, last: int) -> None:
        """Callback of a log that several processes write; runs in the store's thread."""
        if is_side_log(name):
            self.side_reach[name] = last
            return
        if name not in self._channels:
            try:
                check_channel_name(name)
            except InvalidInput:
                return  # not a channel's log; reported once at the start
            self._channels.setdefault(name, LoggedChannel(name, self, last=0))
        self._channels[name].grown(last)

    async def close(self) -> None:
        """See Channels; a second call is no error."""
        if self.closed:
            return
        self.closed = True
        for channel in self._channels.values():
            channel.notifier.notify()
        pool = self.parts.pool
        if pool is None:
            self._close_parts()
            return
        try:
            await asyncio.get_running_loop().run_in_executor(pool, self._close_parts)
        finally:
            pool.shutdown(wait=False)

    def _close_parts(self) -> None:
        with ExitStack() as closing:  # in reverse order, each even when another one fails
            closing.callback(self.log.close)
            closing.callback(self.records.close)
            closing.callback(self.parts.history.close)
            if self.parts.fields is not None:
                closing.callback(self.parts.fields.close)
            for background in self._background.values():
                closing.callback(background.stop)
            closing.callback(self.parts.writer.stop)
