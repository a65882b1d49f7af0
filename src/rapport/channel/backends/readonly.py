"""Channels of a directory that another process may write: reading only, no lock. [CH-13]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from rapport.channel.channel import AppendResult
from rapport.channel.log.indexes import HistoryFeed
from rapport.channel.log.logged_channel import LoggedSubscription
from rapport.channel.validation import check_channel_name, check_read_range, unexpired
from rapport.core.codec import decode_block
from rapport.core.errors import Corrupt, UnknownName, Unsupported
from rapport.core.event import Event, Gap, StoredEvent
from rapport.kernel.clock import Clock
from rapport.store.base import Block, LogReader
from rapport.store.gaps import LogGaps
from rapport.store.history_index import SqliteHistory
from rapport.store.segment_store import SegmentLogReader

_LOOK_EVERY_MS = 100
_PASSED_AT_ONCE = 1_000
"""Expired events read at once, however few are requested."""

TtlRule = Callable[[str], int]
"""The time to live of a channel's events in ms; -1 = as long as possible."""


def no_ttl(_channel: str) -> int:
    """No channel ends its events' time."""
    return -1


def open_readonly(directory: Path, clock: Clock, ttl_rule: TtlRule = no_ttl) -> ReadOnlyChannels:
    """The channels as they are and grow; raises UnknownName when there are none yet."""
    if not directory.is_dir():
        raise UnknownName("log directory", str(directory), code="channel.no_log")
    return ReadOnlyChannels(directory, clock, ttl_rule=ttl_rule)


class ReadOnlyChannels:
    """See Channels; writes are refused with Unsupported, expired events are left out."""

    def __init__(
        self,
        directory: Path,
        clock: Clock,
        log: LogReader | None = None,
        *,
        ttl_rule: TtlRule = no_ttl,
    ) -> None:
        self._directory, self._clock, self._ttl_rule = directory, clock, ttl_rule
        self._log: LogReader = log or SegmentLogReader(directory)
        self._history: SqliteHistory | None = None

    @property
    def log(self) -> LogReader:
        return self._log

    def channel(self, name: str) -> ReadOnlyChannel:
        check_channel_name(name)
        return ReadOnlyChannel(name, self._log, self._clock, self._ttl_rule(name))

    def names(self) -> list[str]:
        return [name for name in self._log.logs() if self._log.last_position(name)]

    async def subscribe(
        self, channel: str, reader: str, *, from_start: bool = True
    ) -> LoggedSubscription:
        """Refused: only the writing process stores cursors."""
        raise Unsupported("a subscription", "a read-only log", hint="use read_after")

    async def find_event(self, event_id: str) -> list[tuple[str, StoredEvent]]:
        """See Channels. Shares the index with the writer; feeding it twice is harmless."""
        return await asyncio.to_thread(self._find, event_id)

    async def close(self) -> None:
        """Ends; a second call is no error."""
        self._log.close()
        if self._history is not None:
            self._history.close()

    def _find(self, event_id: str) -> list[tuple[str, StoredEvent]]:
        if self._history is None:
            self._history = SqliteHistory(self._directory / "history.sqlite")
        HistoryFeed(self._log, self._history).catch_up()  # type: ignore[arg-type]
        found = []
        for name, position in self._history.find(event_id):
            stored = self.channel(name).read_now(position - 1, 1)
            if stored and stored[0].event.id == event_id:
                found.append((name, stored[0]))
        return found


class ReadOnlyChannel:
    """See Channel."""

    def __init__(self, name: str, log: LogReader, clock: Clock, ttl_ms: int = -1) -> None:
        self.name, self._log, self._clock, self._ttl_ms = name, log, clock, ttl_ms
        self._gaps = LogGaps(log, name)
        self._passed = (0, 0)
        """After the first position and up to the second all are past their time."""

    async def append(self, events: Sequence[Event]) -> AppendResult:
        """Refused: publish to the node that writes."""
        raise Unsupported("appending", "a read-only log", hint="use rapport publish")

    async def read_after(self, position: int, *, limit: int = 1000) -> list[StoredEvent]:
        check_read_range(position, limit)
        return await asyncio.to_thread(self.read_now, position, limit)

    def read_now(self, position: int, limit: int) -> list[StoredEvent]:
        start, most = position, limit
        while found := self._read(position, most):
            alive = unexpired(found, self._ttl_ms, self._clock.now_ms())
            if alive:
                return alive[:limit]
            position, most = found[-1].position, max(limit, _PASSED_AT_ONCE)
            self._passed = (start, position)
        return []

    def _read(self, position: int, limit: int) -> list[StoredEvent]:
        """The next events; past blocks that cannot be read, which are noted as gaps."""
        last, found = self._log.last_position(self.name), list[StoredEvent]()
        while not found and position < last:
            blocks = self._log.read_after(self.name, position, max_records=limit)
            through, readable = blocks[-1].last if blocks else last, list[Block]()
            for block in blocks:
                try:
                    events = decode_block(block.body)
                except Corrupt:
                    continue
                readable.append(block)
                for place, event in enumerate(events, start=block.first):
                    if place > position and len(found) < limit:
                        found.append(StoredEvent(place, block.received, event))
            self._gaps.note(position, through, readable)
            position = through
        return found

    def gaps_between(self, after: int, through: int) -> Sequence[Gap]:
        return self._gaps.between(after, through)

    async def wait_after(self, position: int, *, timeout_ms: int | None = None) -> bool:
        """See Channel; looks ten times a second."""
        passed_from, passed_to = self._passed
        if passed_from <= position < passed_to:
            position = passed_to  # nothing there is delivered, so it is not waited for
        waited = 0
        while await asyncio.to_thread(self.last_position) <= position:
            if timeout_ms is not None and waited >= timeout_ms:
                return False
            await self._clock.sleep(_LOOK_EVERY_MS)
            waited += _LOOK_EVERY_MS
        return True

    def last_position(self) -> int:
        return self._log.last_position(self.name)
