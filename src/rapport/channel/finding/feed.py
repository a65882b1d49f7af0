"""Feeding the field index from the log, behind the writers and bounded in memory. [CH-4]"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import msgspec

from rapport.channel.finding.keys import Extraction
from rapport.channel.finding.unusual import UNUSUAL
from rapport.core.codec import decode_block
from rapport.core.errors import Corrupt
from rapport.kernel.telemetry import get_logger
from rapport.store.base import Block, LogStore
from rapport.store.event_locations import PackedLocations
from rapport.store.field_index import Column, FieldIndex
from rapport.store.location_files import pack_locations
from rapport.store.segment_files import LocatedBlock

_log = get_logger(__name__)

_READ_RECORDS = 4_096
_RAW = msgspec.msgpack.Decoder(list[msgspec.Raw])

PathsOf = Callable[[str], Sequence[str]]


class FieldFeed:
    """Keeps a FieldIndex up with a LogStore; `catch_up` from any thread, one at a time."""

    def __init__(self, log: LogStore, index: FieldIndex, paths_of: PathsOf) -> None:
        self._log_store, self._index, self._paths_of = log, index, paths_of
        self._guard = threading.Lock()
        self._extractions: dict[str, Extraction] = {}
        self._stopped = False

    def catch_up(self) -> None:
        """Feeds everything durable by now; returns at once when there is nothing."""
        for log in self._log_store.logs():
            last = self._log_store.last_position(log)
            while not self._stopped and self._feed_some(log, last):
                continue

    def lag(self, log: str, last: int) -> int:
        """How many events of a log are not indexed, given its last position; 0 for one without an
        index.
        """
        if not self._paths_of(log):
            return 0
        return last - min(self._index.fed(log).values(), default=0)

    def paths(self, log: str) -> Sequence[str]:
        """The fields of a log that are declared and made ready."""
        extraction = self._extractions.get(log)
        every = () if extraction is None else extraction.paths
        return tuple(path for path in every if path != UNUSUAL)

    def prune(self, log: str, before: int) -> None:
        """Drops what stands before a position that the log has let go, a piece at a time."""
        while not self._stopped and self._index.prune(log, before):
            continue

    def rules_changed(self) -> None:
        """Other fields may be declared from now on; the next catch-up sees to it."""
        with self._guard:
            self._extractions = {}

    def stop(self) -> None:
        """Makes a catch-up under way return after its present piece."""
        self._stopped = True

    def _feed_some(self, log: str, last: int) -> bool:
        with self._guard:
            extraction = self._extraction(log, last)
            if not extraction.paths:
                return False
            fed = self._index.fed(log)
            lowest = min(fed.values())
            if lowest >= last:
                return False
            # Fields that are behind catch up to the next ones and go on together with them.
            paths = [path for path, reached in fed.items() if reached == lowest]
            until = min([last, *(reached for reached in fed.values() if reached > lowest)])
            blocks = [each for each in self._read(log, lowest) if each.block.first <= until]
            reached = min(blocks[-1].block.last, until) if blocks else until
            self._feed(log, blocks, extraction.only(paths), reached)
            return min(self._index.fed(log).values()) < last

    def _feed(
        self, log: str, blocks: Sequence[LocatedBlock], wanted: Extraction, reached: int
    ) -> None:
        columns: list[Column] = []
        spots: list[PackedLocations] = []
        for placed in blocks:
            block = placed.block
            try:
                columns += wanted.columns(block.first, block.received, decode_block(block.body))
            except Corrupt as error:
                _log.warning("block not indexed", log=log, position=block.first, error=str(error))
                continue
            if placed.segment:
                spots.append(_spots(placed))
        self._index.feed(log, columns, spots, dict.fromkeys(wanted.paths, reached))

    def _read(self, log: str, position: int) -> list[LocatedBlock]:
        placed = getattr(self._log_store, "read_placed", None)
        if placed is not None:
            found: list[LocatedBlock] = placed(log, position, max_records=_READ_RECORDS)
            return found
        blocks = self._log_store.read_after(log, position, max_records=_READ_RECORDS)
        return [LocatedBlock(block, 0, 0) for block in blocks]

    def _extraction(self, log: str, last: int) -> Extraction:
        if log not in self._extractions:
            paths = tuple(self._paths_of(log))
            if paths:
                paths = (*paths, UNUSUAL)
                self._index.declare(log, paths)
                if max(self._index.fed(log).values()) > last:
                    # The index knows more than the log: it belongs to another one. Begin again.
                    self._index.forget(log)
            self._extractions[log] = Extraction(paths)
        return self._extractions[log]


def _spots(placed: LocatedBlock) -> PackedLocations:
    block: Block = placed.block
    bodies = [memoryview(raw) for raw in _RAW.decode(block.body)]
    header = len(block.body) - sum(len(body) for body in bodies)
    return pack_locations(
        block.first, placed.segment, block.received, placed.offset + header, bodies
    )
