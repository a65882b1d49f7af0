"""A reader's durable cursor in a channel; cursor and state move in one transaction. [CH-9]"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import msgspec

from rapport.channel.channel import Channel, HeaderlessReader
from rapport.core.errors import ChannelUnavailable, Corrupt, InvalidInput
from rapport.core.event import BareStoredEvent, StoredEvent
from rapport.store.base import Change, Put, RecordStore, all_records

CURSORS = "cursors"
"""Table of the record store that holds one entry per channel and reader."""

Apply = Callable[[Sequence[Change]], Awaitable[None]]
Deliver = Callable[[list[StoredEvent]], list[StoredEvent]]
"""Applies delivery interceptors to a batch."""
ReportSkipped = Callable[[int, int, int], None]
"""(position before, position reached, how many): events that a reader skipped."""


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
    try:
        return msgspec.msgpack.decode(raw, type=Cursor)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise Corrupt(
            f"the cursor of {reader!r} in channel {channel!r} cannot be read: {error}",
            code="channel.bad_cursor",
            hint="the reader must be set to a position again; its events are all still there",
        ) from None


def cursor_change(channel: str, reader: str, cursor: Cursor) -> Put:
    """The change that saves a cursor."""
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
    """See Subscription. `position` and `state` are those of the last commit; reading runs ahead of
    them.
    """

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
        """Events skipped since it was opened: trimmed before they were read, past their time to
        live, or damaged.
        """

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
