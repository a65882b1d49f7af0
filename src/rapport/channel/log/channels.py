"""Channels on a LogStore and a RecordStore, for the memory and the embedded back end. [CH-13]"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TypeVar

from rapport.channel.access.signatures import OwnSigner
from rapport.channel.config import ChannelsConfig
from rapport.channel.interceptors.reader_view import ReaderChannels
from rapport.channel.interceptors.registry import Interceptors
from rapport.channel.log.logged_channel import LoggedChannel, as_shared_log
from rapport.channel.log.runtime import LogParts, LogRuntime
from rapport.channel.log.writer import closed_error
from rapport.channel.query.query_kinds import Query
from rapport.channel.requests.source import MessageSource
from rapport.channel.retention.sweeper import Sweeper
from rapport.channel.subscriptions import Cursor, LoggedSubscription, cursor_change, load_cursor
from rapport.channel.validation import check_channel_name, check_reader_name
from rapport.core.errors import Corrupt, InvalidInput
from rapport.core.event import Event, StoredEvent
from rapport.kernel.telemetry import get_logger
from rapport.store.base import Change, DamagedLogs, RecordStore, is_side_log

_log = get_logger(__name__)
T = TypeVar("T")


class LoggedChannels:
    """See Channels. `records` is shared with timers and other low-rate state of the node."""

    def __init__(self, parts: LogParts) -> None:
        self.parts, self.records = parts, parts.records
        self._shared = LogRuntime(parts)
        self.decoded = self._shared.decoded
        self._channels: dict[str, LoggedChannel] = {}
        shared_log = as_shared_log(parts.log)
        if shared_log is not None:
            shared_log.watch(self._grown)
        for name in parts.log.logs():
            self._take_in(name)
        self._shared.start()

    def channel(self, name: str) -> LoggedChannel:
        if name not in self._channels:
            check_channel_name(name)
            if self._shared.closed:
                raise closed_error()
            # All logs there were have been taken in at the start, so this one is empty, or another
            # process has just created it and `_grown` reports it.
            self._channels.setdefault(name, LoggedChannel(name, self._shared, last=0))
        return self._channels[name]

    @cached_property
    def source(self) -> MessageSource:
        """Where requests by query and token are answered, one for all channels."""
        return MessageSource(self)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._shared.closed

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
        cursor = await self._shared.off_loop(lambda: load_cursor(self.records, channel, reader))
        if cursor is None:
            # Saved at once: retention keeps what a known reader has not read.
            cursor = Cursor(0 if from_start else source.last_position())
            await self._shared.apply((cursor_change(channel, reader, cursor),))
        return LoggedSubscription(
            source,
            reader,
            cursor,
            self._shared.apply,
            tell_skipped=partial(self._note_skipped, source, reader),
            deliver=partial(self.delivered, channel, reader),
        )

    def delivered(
        self, channel: str, reader: str, events: Sequence[StoredEvent]
    ) -> list[StoredEvent]:
        """The events that interceptors leave for a reader; all of them without interceptors."""
        chains = self._shared.chains
        return list(events) if chains is None else chains.deliver(channel, reader, events)

    def intercepts_delivery(self, name: str) -> bool:
        """Whether an interceptor changes or hides events of a channel on delivery."""
        chains = self._shared.chains
        return chains is not None and chains.intercepts_delivery(name)

    def may_hide(self, name: str) -> bool:
        """Whether readers of a channel may receive something other than the stored events."""
        chains = self._shared.chains
        return chains is not None and chains.may_hide(name)

    def seen_by(self, identity: str) -> ReaderChannels:
        """The channels as an identity sees them, through interceptors; only to be read."""
        return ReaderChannels(self, identity)

    async def look(self, find: Callable[[RecordStore], T]) -> T:
        """Reads records off the loop; raises ChannelUnavailable when the store fails."""
        return await self._shared.off_loop(partial(find, self.records))

    async def apply(self, changes: Sequence[Change]) -> None:
        """Changes records, all or none; durable when it returns."""
        await self._shared.apply(changes)

    def damage(self) -> list[Corrupt]:
        """Known damaged or missing ranges of the logs, vanished files included. Lists directories,
        so call it off the loop.
        """
        log = self.parts.log
        return log.find_damage() if isinstance(log, DamagedLogs) else []

    def use_rules(self, declared: ChannelsConfig) -> None:
        """Applies retention, indexing and other rules; before the first call everything is kept."""
        self._shared.use_rules(declared)

    def explain_query(self, name: str, query: Query) -> str:
        """One sentence for people: which part of a query uses an index, or why the log is read."""
        self.channel(name)
        return self._shared.explain(name, query)

    def wake_index(self) -> None:
        """Feeds the index of declared fields now, in the background, however little there is."""
        self._shared.wake_index()

    def ttl_of(self, name: str) -> int:
        """The channel's time to live in ms; -1 without one, 0 for delivery once."""
        return self._shared.ttl_of(name)

    @cached_property
    def interceptors(self) -> Interceptors:
        """The interceptors of all channels; stored ones are loaded by its `start`."""
        return Interceptors(self, self.parts.clock, engage=self._engage)

    def sign_with(self, signer: OwnSigner) -> None:
        """Signs the node's own events from now on."""
        self._shared.signer = signer
        self.interceptors.seal = signer.changed

    def _engage(self, chains: Interceptors | None) -> None:
        self._shared.chains = chains

    @cached_property
    def sweeper(self) -> Sweeper:
        """Carries out retention; the node starts it."""
        return Sweeper(self, self._shared, self.source.taker)

    @property
    def skipped(self) -> Mapping[tuple[str, str], int]:
        """How many events each (channel, reader) passed over since the start."""
        return self._shared.skipped

    def _note_skipped(
        self, source: LoggedChannel, reader: str, position: int, reached: int, skipped: int
    ) -> None:
        self._shared.skipped[source.name, reader] += skipped
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

    async def find_event(self, event_id: str) -> list[tuple[str, StoredEvent]]:
        """See Channels. The index is brought up to date first, so nothing is missed."""

        def find() -> list[tuple[str, StoredEvent]]:
            self._shared.feed.catch_up()
            found = []
            for name, position in self.parts.history.find(event_id):
                channel = self._channels.get(name)
                stored = channel.event_at(position) if channel else None
                if stored is not None and stored.event.id == event_id:
                    found.append((name, stored))
            return found

        return await self._shared.off_loop(find)

    async def holding(self, name: str, events: Sequence[Event]) -> set[tuple[str, str]]:
        """Those identities (source, id) of the events that the channel holds, however long ago
        they were stored; one look into the history index each.
        """
        channel = self.channel(name)

        def find() -> set[tuple[str, str]]:
            self._shared.feed.catch_up()
            return {(event.source, event.id) for event in events if channel.position_of(event) > 0}

        return await self._shared.off_loop(find)

    async def close(self) -> None:
        """See Channels; a second call is no error."""
        if self._shared.closed:
            return
        self._shared.closed = True
        for channel in self._channels.values():
            channel.notifier.notify()
        await self._shared.close()

    @property
    def side_reach(self) -> Mapping[str, int]:
        """Last known positions of side logs that other processes write as well."""
        return self._shared.side_reach

    def _take_in(self, name: str) -> None:
        if is_side_log(name):
            return
        try:
            check_channel_name(name)
        except InvalidInput as error:
            _log.warning("log left alone", log=name, error=error.message)
            return
        last = self.parts.log.last_position(name)
        channel = LoggedChannel(name, self._shared, last=last)
        self._channels.setdefault(name, channel).grown(last)

    def _grown(self, name: str, last: int) -> None:
        """Callback of a log that several processes write; runs in the store's thread."""
        if is_side_log(name):
            self._shared.side_reach[name] = last
            return
        if name not in self._channels:
            try:
                check_channel_name(name)
            except InvalidInput:
                return  # not a channel's log; reported once at the start
            self._channels.setdefault(name, LoggedChannel(name, self._shared, last=0))
        self._channels[name].grown(last)
