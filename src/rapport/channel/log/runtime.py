"""What all channels of a node share: stores, writer, threads, block cache, rules. [CH-13]"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Protocol, TypeVar

import msgspec

from rapport.channel.channel import AppendResult, Channel
from rapport.channel.config import ChannelRules, ChannelsConfig
from rapport.channel.log.block_cache import DecodedBlocks
from rapport.channel.log.dedupe import DEDUPE_WINDOW
from rapport.channel.log.indexes import (
    BackgroundFeed,
    FieldFeed,
    FieldFinder,
    HistoryFeed,
    MixedFinder,
)
from rapport.channel.log.writer import Writer, channel_error, closed_error
from rapport.channel.query.index_plan import Finder, explain_query, index_path
from rapport.channel.query.query_kinds import Query
from rapport.channel.retention.limits import FINENESS
from rapport.channel.validation import LARGEST_DATA_BYTES, MAX_DATA_BYTES
from rapport.core.errors import InvalidInput, StoreUnavailable
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import Clock, ClockJumpGuard
from rapport.store.base import Change, LimitedPieces, LogStore, RecordStore
from rapport.store.field_index import FieldIndex
from rapport.store.history_index import HistoryIndex

T = TypeVar("T")
_LAG_WHEN_ASKED = 256


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
    fields: FieldIndex | None = None
    """Index of declared fields beside the log; None without one."""
    finder: Callable[[Callable[[str], Sequence[str]]], Finder] | None = None
    """Makes the finder that evaluates queries in the log's own store, given a function that returns
    the indexed fields of a channel; None: `fields` or reading answers queries.
    """
    finds_itself: Callable[[str], bool] = lambda _log: True
    """With both: whether `finder` is for a log, else `fields` is."""


class InterceptorChains(Protocol):
    """The interceptors of all channels, when there are any; see intercept/."""

    async def append(
        self,
        channel: Channel,
        events: Sequence[Event],
        plain: Callable[[Sequence[Event]], Awaitable[AppendResult]],
    ) -> AppendResult:
        """An append through the chain of a channel."""

    def intercepts_delivery(self, channel: str) -> bool:
        """Whether an interceptor changes or hides events of a channel on delivery."""

    def may_hide(self, channel: str) -> bool:
        """Whether `deliver` may return anything but its input."""

    def deliver(
        self, channel: str, reader: str, events: Sequence[StoredEvent]
    ) -> list[StoredEvent]:
        """The events that a reader receives."""


class EventSigner(Protocol):
    """Signs the node's events where the site demands it; see access/signatures.py."""

    async def sign(self, channel: str, events: Sequence[Event]) -> Sequence[Event]:
        """The events as they go into the log: those that the node made are signed."""


class LogRuntime:
    """The parts at work, and whether they still are."""

    def __init__(self, parts: LogParts) -> None:
        if not 0 < parts.max_data_bytes <= LARGEST_DATA_BYTES:
            raise InvalidInput(
                f"the largest data of an event cannot be {parts.max_data_bytes} bytes",
                code="channel.bad_limit",
                hint=f"1 to {LARGEST_DATA_BYTES}",
            )
        self.parts = parts
        self.time = ClockJumpGuard(parts.clock)
        """The clock that decides whether an event is too old."""
        self.decoded = DecodedBlocks()
        self.feed = HistoryFeed(parts.log, parts.history, self.decoded)
        self.closed = False
        self.rules = ChannelsConfig()
        self._rules: dict[str, ChannelRules] = {}
        self.chains: InterceptorChains | None = None
        """None while there is no interceptor: then an append pays one look at this."""
        self.signer: EventSigner | None = None
        """None where the site does not sign."""
        self.side_reach: dict[str, int] = {}
        """Last known positions of side logs (store/base.py)."""
        self.after_trim: list[Callable[[str, int], None]] = []
        """Called off the loop with (channel, first position kept) when a channel was trimmed."""
        self.skipped: Counter[tuple[str, str]] = Counter()
        """Events that (channel, reader) passed over, because they were gone or past their time."""
        self._background: BackgroundFeed | None = None
        self._fields_background: BackgroundFeed | None = None
        self._indexed: dict[str, tuple[str, ...]] = {}
        self.finder: Finder | None = parts.finder(self.indexed_fields) if parts.finder else None
        self.field_feed: FieldFeed | None = None
        if parts.fields is not None:
            self.field_feed = FieldFeed(parts.log, parts.fields, self._fields_beside)
            beside = FieldFinder(parts.log, parts.fields, self.field_feed)
            own, is_own = self.finder, parts.finds_itself
            self.finder = beside if own is None else MixedFinder(own, beside, is_own)
            self.after_trim.append(self.field_feed.prune)

    def _piece_limit(self, name: str) -> int:
        return (self.rules_for(name).keep_bytes or 0) // FINENESS

    def use_rules(self, declared: ChannelsConfig) -> None:
        """From now on channels follow these rules; fields that are newly declared as indexed are
        indexed in the background. Raises InvalidInput for a field that cannot be.
        """
        for rule in (declared.common, *declared.rules):
            for text in rule.index or ():
                index_path(text)
        self.rules, self._rules, self._indexed = declared, {}, {}
        if isinstance(self.parts.log, LimitedPieces):
            self.parts.log.limit_pieces(self._piece_limit)
        if self.field_feed is not None:
            self.field_feed.rules_changed()
        if self._fields_background is not None:
            self._fields_background.wake()

    def indexed_fields(self, name: str) -> tuple[str, ...]:
        """The fields of a channel that are declared as indexed."""
        if name not in self._indexed:
            fields = self.rules_for(name).index or ()
            self._indexed[name] = tuple(index_path(text) for text in fields)
        return self._indexed[name]

    def _fields_beside(self, name: str) -> tuple[str, ...]:
        """Those of them that are in the index beside the log."""
        is_elsewhere = self.parts.finder is not None and self.parts.finds_itself(name)
        return () if is_elsewhere else self.indexed_fields(name)

    def explain(self, name: str, query: Query) -> str:
        """One sentence for people: how a query of a channel is answered."""
        if self.chains is not None and self.chains.intercepts_delivery(name):
            return "answered by reading: interceptors decide what readers of the channel see"
        told = explain_query(query, self.indexed_fields(name))
        is_own = self.parts.finder is not None and self.parts.finds_itself(name)
        if query.condition is None or not is_own:
            return told if self.finder is not None else "answered by reading: there is no index"
        return f"evaluated where the events are kept; {told.removeprefix('answered ')}"

    def wake_index(self) -> None:
        """Feeds the index of declared fields now, in the background."""
        if self._fields_background is not None:
            self._fields_background.wake()

    def field_index_asked(self, name: str, last: int) -> None:
        """Called before a search: an index that lags by more than a few events is fed in the
        background.
        """
        feed, background = self.field_feed, self._fields_background
        if feed is not None and background is not None and feed.lag(name, last) >= _LAG_WHEN_ASKED:
            background.wake()

    def rules_for(self, name: str) -> ChannelRules:
        """The rules of a channel, cached."""
        if name not in self._rules:
            self._rules[name] = self.rules.rules_for(name)
        return self._rules[name]

    def ttl_of(self, name: str) -> int:
        """The channel's time to live; -1 when it sets none."""
        return self.rules_for(name).lives_ms

    def start(self) -> None:
        """Begins to feed the history index in the background, if there are threads to use."""
        if self.parts.pool is not None:
            self._background = BackgroundFeed(self.feed)
            if self.field_feed is not None:
                self._fields_background = BackgroundFeed(self.field_feed, name="field-index")

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

    async def apply(self, changes: Sequence[Change]) -> None:
        """Changes records, all or none; durable when it returns."""
        await self.off_loop(lambda: self.parts.records.apply(changes))

    def appended(self, name: str, last: int) -> None:
        """Called by a channel when it has grown."""
        if self._background is not None:
            self._background.appended(name, last)
        if self._fields_background is not None:
            self._fields_background.appended(name, last)

    async def close(self) -> None:
        """Finishes pending work and closes the stores; the caller has set `closed`."""
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
            closing.callback(self.parts.log.close)
            closing.callback(self.parts.records.close)
            closing.callback(self.parts.history.close)
            if self.parts.fields is not None:
                closing.callback(self.parts.fields.close)
            if self._fields_background is not None:
                closing.callback(self._fields_background.stop)
            if self._background is not None:
                closing.callback(self._background.stop)
            closing.callback(self.parts.writer.stop)
