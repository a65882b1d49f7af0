"""Indexes beside the log: feeding and searching them. [CH-4, CH-13]

`FieldFeed` and `HistoryFeed` read the log behind the writers, bounded in memory, and fill the index
of declared fields and the index of event ids; `BackgroundFeed` is the thread that runs them.
`FieldFinder` answers queries from the field index.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence

import msgspec

from rapport.channel.log.dedupe import decode_identities
from rapport.channel.log.logged_channel import DecodedBlocks
from rapport.channel.query.compiler import compile_values
from rapport.channel.query.index_plan import (
    UNINDEXABLE,
    IndexMatches,
    is_decided,
    needs_event,
    plan_lookup,
    unindexable_lookup,
)
from rapport.channel.query.parser import TokenCursor, parse_field
from rapport.channel.query.query_kinds import Query
from rapport.channel.query.tree import uses_payload
from rapport.channel.query.values import as_boolean, as_number, is_xml
from rapport.core.codec import decode_block
from rapport.core.errors import Corrupt, RapportError, StoreUnavailable
from rapport.core.event import Event, StoredEvent
from rapport.kernel.tasks import allow_all_cpus
from rapport.kernel.telemetry import get_logger
from rapport.store.base import Block, LogStore
from rapport.store.event_locations import EventLocation, PackedLocations
from rapport.store.field_index import Column, SqliteFieldIndex
from rapport.store.field_keys import Key, key_of
from rapport.store.history_index import HistoryIndex
from rapport.store.location_files import pack_locations
from rapport.store.segment_files import LocatedBlock

_log = get_logger(__name__)
_FIELD_READ_RECORDS = 4_096
_RAW = msgspec.msgpack.Decoder(list[msgspec.Raw])
PathsOf = Callable[[str], Sequence[str]]
_PAGE_BYTES = 4 * 1024 * 1024
_EVENT = msgspec.msgpack.Decoder(Event)
_READ_RECORDS = 20_000
_PRUNE_RECORDS = 5_000
"""Entries removed per transaction; short, so that feeding continues in between."""
LAG_EVENTS = 10_000
"""The lag at which the background threads are woken. Waking it for every event would cost more than
the event; after twice as many events their blocks have left the cache and would be decoded again. A
lookup feeds the rest first, so no caller sees the lag.
"""
Piece = tuple[int, Sequence[str]]
"""First position and ids of a block."""


class FieldExtractor:
    """Extracts the keys of some fields; made once per set of fields."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        self._indexed = [path for path in self.paths if path != UNINDEXABLE]
        fields = [parse_field(TokenCursor(path)) for path in self._indexed]
        self._values, self._xml_values = compile_values(fields), compile_values(fields, in_xml=True)
        self._in_payload = [number for number, one in enumerate(fields) if uses_payload(one)]
        self._parts: dict[tuple[str, ...], FieldExtractor] = {}

    def only(self, paths: Sequence[str]) -> FieldExtractor:
        chosen = tuple(paths)
        if chosen == self.paths:
            return self
        if chosen not in self._parts:
            self._parts[chosen] = FieldExtractor(chosen)
        return self._parts[chosen]

    def columns(self, first: int, received: int, events: Sequence[Event]) -> list[Column]:
        rows = []
        more: dict[int, list[tuple[int, Key]]] = {}
        for position, event in enumerate(events, start=first):
            stored = StoredEvent(position, received, event)
            if not self._in_payload or not event.headers or not is_xml(event.headers):
                rows.append(self._values(stored))
                continue
            rows.append(self._xml_values(stored))
            for number in self._in_payload:
                found = [(position, key) for key in _other_keys(rows[-1][number])]
                more.setdefault(number, []).extend(found)
        columns = [
            Column(path, first, [key_of(row[number]) for row in rows], more.get(number, ()))
            for number, path in enumerate(self._indexed)
        ]
        if UNINDEXABLE in self.paths:
            unusual = [1 if needs_event(event) else None for event in events]
            columns.append(Column(UNINDEXABLE, first, unusual))
        return columns


def _other_keys(value: str | None) -> list[Key]:
    """An XML value is a text, and also a number or truth value if it reads like one."""
    found = [key_of(as_number(value)), key_of(as_boolean(value))]
    return [key for key in found if isinstance(key, int)]


class IndexFeed(ABC):
    """Keeps an index up with a LogStore; `catch_up` may be called from any thread."""

    def __init__(self, log: LogStore) -> None:
        self._log_store = log
        self._guard = threading.Lock()
        self._stopped = False

    def catch_up(self) -> None:
        """Feeds everything durable by now; returns at once when there is nothing."""
        for log in self._log_store.logs():
            last = self._log_store.last_position(log)
            while not self._stopped and self._feed_some(log, last):
                continue

    def stop(self) -> None:
        """Makes a running catch-up return after its present step."""
        self._stopped = True

    @abstractmethod
    def _feed_some(self, log: str, last: int) -> bool:
        """Feeds a bounded number of events; False when nothing is left."""


class FieldFeed(IndexFeed):
    def __init__(self, log: LogStore, index: SqliteFieldIndex, paths_of: PathsOf) -> None:
        super().__init__(log)
        self._index, self._paths_of = index, paths_of
        self._extractions: dict[str, FieldExtractor] = {}

    def lag(self, log: str, last: int) -> int:
        """The number of unindexed events of a log, given its last position."""
        if not self._paths_of(log):
            return 0
        return last - min(self._index.fed(log).values(), default=0)

    def paths(self, log: str) -> Sequence[str]:
        extraction = self._extractions.get(log)
        every = () if extraction is None else extraction.paths
        return tuple(path for path in every if path != UNINDEXABLE)

    def prune(self, log: str, before: int) -> None:
        """Removes entries before a position that the log has trimmed, in bounded steps."""
        while not self._stopped and self._index.prune(log, before):
            continue

    def rules_changed(self) -> None:
        """Other fields may be declared from now on; the next catch-up sees to it."""
        with self._guard:
            self._extractions = {}

    def _feed_some(self, log: str, last: int) -> bool:
        with self._guard:
            extraction = self._extraction(log, last)
            if not extraction.paths:
                return False
            fed = self._index.fed(log)
            lowest = min(fed.values())
            if lowest >= last:
                return False
            # Fields that lag behind catch up to the next ones and continue together with them.
            paths = [path for path, reached in fed.items() if reached == lowest]
            until = min([last, *(reached for reached in fed.values() if reached > lowest)])
            blocks = [each for each in self._read(log, lowest) if each.block.first <= until]
            reached = min(blocks[-1].block.last, until) if blocks else until
            self._feed(log, blocks, extraction.only(paths), reached)
            return min(self._index.fed(log).values()) < last

    def _feed(
        self, log: str, blocks: Sequence[LocatedBlock], wanted: FieldExtractor, reached: int
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
            found: list[LocatedBlock] = placed(log, position, max_records=_FIELD_READ_RECORDS)
            return found
        blocks = self._log_store.read_after(log, position, max_records=_FIELD_READ_RECORDS)
        return [LocatedBlock(block, 0, 0) for block in blocks]

    def _extraction(self, log: str, last: int) -> FieldExtractor:
        if log not in self._extractions:
            paths = tuple(self._paths_of(log))
            if paths:
                paths = (*paths, UNINDEXABLE)
                self._index.declare(log, paths)
                if max(self._index.fed(log).values()) > last:
                    # The index is ahead of the log, so it belongs to another log. Start over.
                    self._index.forget(log)
            self._extractions[log] = FieldExtractor(paths)
        return self._extractions[log]


def _spots(placed: LocatedBlock) -> PackedLocations:
    block: Block = placed.block
    bodies = [memoryview(raw) for raw in _RAW.decode(block.body)]
    header = len(block.body) - sum(len(body) for body in bodies)
    return pack_locations(
        block.first, placed.segment, block.received, placed.offset + header, bodies
    )


class FieldFinder:
    """See Finder. Cost: the candidates, and one search per 131,072 positions without any."""

    def __init__(self, log: LogStore, index: SqliteFieldIndex, feed: FieldFeed) -> None:
        self._log_store, self._index, self._feed = log, index, feed

    def find(
        self,
        log: str,
        query: Query,
        *,
        after: int,
        until: int,
        limit: int,
        read: int | None = None,
    ) -> IndexMatches | None:
        """See Finder. An index in trouble is as good as none: the log is read instead."""
        lookup = plan_lookup(query.condition, self._feed.paths(log))
        if lookup is None:
            return None
        try:
            found = self._index.search(log, lookup, after=after, until=until, limit=limit)
            if found.positions is None:
                return IndexMatches(None, found.through)
            positions, through = found.positions[:limit], found.through
            if len(positions) < len(found.positions):
                through = positions[-1]
            if read is not None and found.exact and read < len(positions) == limit:
                edge = positions[read - 1] if read else after
                decided = self._decides(log, query, after, through)
                if decided or (read and self._decides(log, query, edge, through)):
                    return self._read_some(log, positions, read, edge, decided=decided)
            return self._read(log, positions, through)
        except (StoreUnavailable, Corrupt) as error:
            _log.warning("field index unavailable", log=log, why=error.message)
            return None

    def fetch(self, log: str, positions: Collection[int]) -> list[StoredEvent]:
        wanted, events = sorted(positions), []
        while wanted:
            found = self._read(log, wanted, wanted[-1])
            events += found.events or []
            wanted = [position for position in wanted if position > found.through]
        return events

    def _decides(self, log: str, query: Query, after: int, until: int) -> bool:
        """Whether the keys alone decide the matches between two positions."""
        if not query.is_its_condition or not is_decided(query.condition, self._feed.paths(log)):
            return False
        unusual = self._index.search(log, unindexable_lookup(), after=after, until=until, limit=1)
        return unusual.positions == [] and unusual.through >= until

    def _read_some(
        self, log: str, positions: Sequence[int], read: int, edge: int, *, decided: bool
    ) -> IndexMatches:
        found = self._read(log, positions[:read], edge)
        if found.through < edge:
            return found  # they are large: read the others later
        first = self._log_store.first_position(log)
        certain = [place for place in positions[read:] if place >= first]
        return IndexMatches(found.events, edge, certain, decided=decided, unread=found.unread)

    def _read(self, log: str, positions: Sequence[int], through: int) -> IndexMatches:
        """The events at positions, as far as some megabytes reach; at least one."""
        first = self._log_store.first_position(log)
        kept = [position for position in positions if position >= first]
        found = self._read_kept(log, kept, through)
        read = {stored.position for stored in found.events or ()}
        wanted = kept[: bisect_right(kept, found.through)]
        if len(read) == len(wanted):
            return found
        unread = [position for position in wanted if position not in read]
        return msgspec.structs.replace(found, unread=unread)

    def _read_kept(self, log: str, kept: Sequence[int], through: int) -> IndexMatches:
        spots = self._index.locations(log, kept)
        if len(spots) != len(kept):
            return self._read_blocks(log, kept, through)
        size = 0
        for number, spot in enumerate(spots):
            size += spot.length
            if size > _PAGE_BYTES and number:
                spots, through = spots[:number], spots[number - 1].position
                break
        return IndexMatches(self._read_spots(log, spots), through)

    def _read_spots(self, log: str, spots: Sequence[EventLocation]) -> list[StoredEvent]:
        read = getattr(self._log_store, "read_spots", None)
        bodies: list[bytes | None] = [None] * len(spots) if read is None else read(log, spots)
        events: list[StoredEvent] = []
        for spot, body in zip(spots, bodies, strict=True):
            if body is None:
                events += self._read_blocks(log, (spot.position,), spot.position).events or ()
            else:
                events.append(StoredEvent(spot.position, spot.received, _EVENT.decode(body)))
        return events

    def _read_blocks(self, log: str, positions: Sequence[int], through: int) -> IndexMatches:
        """Slow path for logs without spots and for changed bytes: decodes the whole block."""
        found: list[StoredEvent] = []
        block: Block | None = None
        events: list[Event] = []
        size = 0
        for position in positions:
            if block is None or not block.first <= position <= block.last:
                if size > _PAGE_BYTES:
                    return IndexMatches(found, found[-1].position if found else position - 1)
                block = self._block_at(log, position)
                events = _decoded(block)
                size += 0 if block is None else len(block.body)
            if block is not None and events:
                event = events[position - block.first]
                found.append(StoredEvent(position, block.received, event))
        return IndexMatches(found, through)

    def _block_at(self, log: str, position: int) -> Block | None:
        for block in self._log_store.read_after(log, position - 1, max_records=1):
            if block.first <= position <= block.last:
                return block
        return None


def _decoded(block: Block | None) -> list[Event]:
    try:
        return [] if block is None else decode_block(block.body)
    except Corrupt:
        return []  # reported when the block was indexed, or by its readers


class HistoryFeed(IndexFeed):
    def __init__(
        self, log: LogStore, index: HistoryIndex, recent: DecodedBlocks | None = None
    ) -> None:
        """`recent`: where blocks of the log may still be in memory."""
        super().__init__(log)
        self._index, self._recent = index, recent
        self._fed: dict[str, int] = {}

    def catch_up(self) -> None:
        if self._index.needs_feeding:
            super().catch_up()

    def prune(self, log: str, first: int, last: int) -> None:
        """Removes a range of positions from the index, a bounded number at a time; it is not fed
        again. Call it while the log still holds them: their ids are read from it.
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
                # The index is ahead of the log, so it belongs to another log. Start over.
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


class BackgroundFeed:
    """A thread that runs a feed when it is woken, and once at the start."""

    def __init__(self, feed: IndexFeed, *, name: str = "history-index") -> None:
        self._feed, self._name = feed, name
        self._wanted = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._wanted.set()
        self._thread.start()

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
                # The index is a convenience: the failure is logged and retried at the next
                # wake.
                _log.warning("index is behind", index=self._name, error=error.message)
