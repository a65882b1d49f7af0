"""Channels on a LogStore and a RecordStore, for the memory and the embedded back end. [CH-13]"""

from __future__ import annotations

from functools import cached_property

from rapport.channel.checking import check_channel_name, check_reader_name
from rapport.channel.logged_channel import LoggedChannel
from rapport.channel.requests import MessageSource
from rapport.channel.shared import Parts, Shared
from rapport.channel.subscriptions import Cursor, LoggedSubscription, cursor_change, load_cursor
from rapport.channel.writer import closed_error
from rapport.core.errors import InvalidInput
from rapport.core.event import StoredEvent
from rapport.kernel.telemetry import get_logger

_log = get_logger(__name__)


class LoggedChannels:
    """See Channels. `records` is shared with timers and other low-rate state of the node."""

    def __init__(self, parts: Parts) -> None:
        self.parts, self.records = parts, parts.records
        self._shared = Shared(parts)
        self.decoded = self._shared.decoded
        self._channels: dict[str, LoggedChannel] = {}
        for name in parts.log.logs():
            self._take_in(name)
        self._shared.start()

    def channel(self, name: str) -> LoggedChannel:
        """See Channels."""
        if name not in self._channels:
            check_channel_name(name)
            if self._shared.closed:
                raise closed_error()
            # All logs there were have been taken in at the start, so this one is empty.
            self._channels[name] = LoggedChannel(name, self._shared, last=0)
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
        """See Channels."""
        return sorted(
            name for name, channel in self._channels.items() if channel.last_position() > 0
        )

    async def subscribe(
        self, channel: str, reader: str, *, from_start: bool = True
    ) -> LoggedSubscription:
        """See Channels. A reader that begins with the next event has its place saved at once."""
        check_reader_name(reader)
        source = self.channel(channel)
        cursor = await self._shared.off_loop(lambda: load_cursor(self.records, channel, reader))
        if cursor is None:
            cursor = Cursor(0 if from_start else source.last_position())
            if not from_start:
                await self._shared.apply((cursor_change(channel, reader, cursor),))
        return LoggedSubscription(source, reader, cursor, self._shared.apply)

    async def find_event(self, event_id: str) -> list[tuple[str, StoredEvent]]:
        """See Channels. What the index has not seen yet is fed first, so nothing is missed."""

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

    async def close(self) -> None:
        """See Channels; a second call is no error."""
        if self._shared.closed:
            return
        self._shared.closed = True
        for channel in self._channels.values():
            channel.bell.ring()
        await self._shared.close()

    def _take_in(self, name: str) -> None:
        try:
            check_channel_name(name)
        except InvalidInput as error:
            _log.warning("log left alone", log=name, error=error.message)
            return
        last = self.parts.log.last_position(name)
        self._channels[name] = LoggedChannel(name, self._shared, last=last)
