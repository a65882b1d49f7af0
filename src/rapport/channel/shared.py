"""What all channels of a node share: stores, writer, threads, decoded blocks. [CH-13]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TypeVar

import msgspec

from rapport.channel.checking import LARGEST_DATA_BYTES, MAX_DATA_BYTES
from rapport.channel.decoded import DecodedBlocks
from rapport.channel.history_feed import BackgroundFeed, HistoryFeed
from rapport.channel.seen import DEDUPE_WINDOW
from rapport.channel.writer import Writer, as_channel_error, closed_error
from rapport.core.errors import InvalidInput, StoreUnavailable
from rapport.kernel.clock import Clock
from rapport.store.base import Change, LogStore, RecordStore
from rapport.store.history import HistoryIndex

T = TypeVar("T")


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


class Shared:
    """The parts at work, and whether they still are."""

    def __init__(self, parts: Parts) -> None:
        if not 0 < parts.max_data_bytes <= LARGEST_DATA_BYTES:
            raise InvalidInput(
                f"the largest data of an event cannot be {parts.max_data_bytes} bytes",
                code="channel.bad_limit",
                hint=f"1 to {LARGEST_DATA_BYTES}",
            )
        self.parts = parts
        self.decoded = DecodedBlocks()
        self.feed = HistoryFeed(parts.log, parts.history)
        self.closed = False
        self._background: BackgroundFeed | None = None

    def start(self) -> None:
        """Begins to feed the history index in the background, if there are threads to use."""
        if self.parts.pool is not None:
            self._background = BackgroundFeed(self.feed)

    async def off_loop(self, work: Callable[[], T]) -> T:
        """Runs work that may wait for a disk; raises ChannelUnavailable when the disk refuses."""
        if self.closed:
            raise closed_error()
        try:
            if self.parts.pool is None:
                return work()
            return await asyncio.get_running_loop().run_in_executor(self.parts.pool, work)
        except StoreUnavailable as error:
            raise as_channel_error(error) from error

    async def apply(self, changes: Sequence[Change]) -> None:
        """Changes records, all or none; durable when it returns."""
        await self.off_loop(lambda: self.parts.records.apply(changes))

    def appended(self, name: str, last: int) -> None:
        """Told by a channel when it has grown."""
        if self._background is not None:
            self._background.appended(name, last)

    async def close(self) -> None:
        """Finishes what is under way and closes the stores; the caller has set `closed`."""
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
            if self._background is not None:
                closing.callback(self._background.stop)
            closing.callback(self.parts.writer.stop)
