"""Feeding the history index from the log, behind the writers and bounded in memory. [CH-4]"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

import msgspec

from rapport.channel.logged.decoded import DecodedBlocks
from rapport.channel.logged.seen import decode_identities
from rapport.core.errors import RapportError
from rapport.kernel.telemetry import get_logger
from rapport.kernel.threads import allow_all_cpus
from rapport.store.base import Block, LogStore
from rapport.store.history_index import HistoryIndex

_log = get_logger(__name__)

_READ_RECORDS = 20_000
_PRUNE_RECORDS = 5_000
"""Taken off at once: a short transaction, so that feeding goes on in between."""
LAG_EVENTS = 10_000
"""How far the index may fall behind before the background thread is woken: waking it for every
event would cost more than the event, and after twice as many their blocks have left memory and
would be read and decoded again. Whoever asks the index feeds the rest first, so nobody sees the
lag.
"""


Piece = tuple[int, Sequence[str]]
"""First position and ids of a block."""


class HistoryFeed:
    """Keeps a HistoryIndex up with a LogStore; `catch_up` from any thread, one at a time."""

    def __init__(
        self, log: LogStore, index: HistoryIndex, recent: DecodedBlocks | None = None
    ) -> None:
        """`recent`: where blocks of the log may still be in memory."""
        self._log_store, self._index, self._recent = log, index, recent
        self._guard = threading.Lock()
        self._fed: dict[str, int] = {}
        self._stopped = False

    def catch_up(self) -> None:
        """Feeds everything durable by now; returns at once when there is nothing."""
        for log in self._log_store.logs() if self._index.needs_feeding else ():
            last = self._log_store.last_position(log)
            while not self._stopped and self._feed_some(log, last):
                continue

    def lag(self, log: str, last: int) -> int:
        """How many events of a log are not indexed, given its last position."""
        return last - self._fed.get(log, 0) if self._index.needs_feeding else 0

    def prune(self, log: str, first: int, last: int) -> None:
        """Takes a stretch of positions off the index, a bounded piece at a time; it is not fed
        again. To be called while the log still holds them: their ids are read from it.
        """
        position = first - 1 if self._index.needs_feeding else last
        while position < last and not self._stopped:
            with self._guard:
                blocks = self._log_store.read_after(log, position, max_records=_PRUNE_RECORDS)
                blocks = [block for block in blocks if block.last <= last]
                reached = blocks[-1].last if blocks else last
                self._index.prune(log, [(block.first, self._ids(log, block)) for block in blocks])
                if self._fed_position(log, self._log_store.last_position(log)) < reached:
                    self._index.feed(log, (), reached)
                    self._fed[log] = reached
                position = reached

    def stop(self) -> None:
        """Makes a catch-up under way return after its present piece."""
        self._stopped = True

    def _feed_some(self, log: str, last: int) -> bool:
        with self._guard:
            fed = self._fed_position(log, last)
            if fed >= last:
                return False
            pieces, reached = self._pieces_in_memory(log, fed, last)
            if not pieces:
                blocks = self._log_store.read_after(log, fed, max_records=_READ_RECORDS)
                reached = blocks[-1].last if blocks else last
                pieces = [(block.first, self._ids(log, block)) for block in blocks]
            self._index.feed(log, pieces, reached)
            self._fed[log] = reached
            return reached < last

    def _pieces_in_memory(self, log: str, fed: int, last: int) -> tuple[list[Piece], int]:
        """Blocks after `fed` as far as they are in memory without a gap, and where they end: under
        load that is all of them, and nothing is read and decoded a second time.
        """
        pieces: list[Piece] = []
        most = min(last, fed + _READ_RECORDS)
        while self._recent is not None and fed < most:
            block = self._recent.holding(log, fed + 1)
            if block is None:
                break
            pieces.append((block.first, block.ids()))
            fed = block.last
        return pieces, fed

    def _fed_position(self, log: str, last: int) -> int:
        if log not in self._fed:
            fed = self._index.fed(log)
            if fed > last:
                # The index knows more than the log: it belongs to another one. Begin again.
                self._index.forget(log)
                fed = 0
            self._fed[log] = fed
        return self._fed[log]

    def _ids(self, log: str, block: Block) -> list[str]:
        try:
            return [identity.id for identity in decode_identities(block.body)]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            _log.warning("block not indexed", log=log, position=block.first, error=str(error))
            return []


class Feed(Protocol):
    """What keeps an index up with the log."""

    def catch_up(self) -> None:
        """Feeds everything durable by now."""

    def lag(self, log: str, last: int) -> int:
        """How many events of a log are not indexed, given its last position."""

    def stop(self) -> None:
        """Makes a catch-up under way return after its present piece."""


class BackgroundFeed:
    """A thread that catches up when told that the index is far behind, and once at the start."""

    def __init__(self, feed: Feed, *, name: str = "history-index") -> None:
        self._feed, self._name = feed, name
        self._wanted = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._wanted.set()
        self._thread.start()

    def appended(self, log: str, last: int) -> None:
        """Tells of new events; cheap."""
        if self._feed.lag(log, last) >= LAG_EVENTS and not self._wanted.is_set():
            self._wanted.set()

    def wake(self) -> None:
        """Catches up now, however little there is."""
        self._wanted.set()

    def stop(self) -> None:
        """Ends the thread after its present piece."""
        self._stopped = True
        self._feed.stop()
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        allow_all_cpus()
        while True:
            self._wanted.wait()
            if self._stopped:
                return
            self._wanted.clear()
            try:
                self._feed.catch_up()
            except RapportError as error:
                # The index is a convenience: its trouble is told, and tried again with the next
                # events.
                _log.warning("index is behind", index=self._name, error=error.message)
