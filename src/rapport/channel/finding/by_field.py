"""Finding events by the field index of embedded logs. [CH-4]"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence

import msgspec

from rapport.channel.finding.feed import FieldFeed
from rapport.channel.finding.planning import Found, is_decided, plan_lookup
from rapport.channel.finding.unusual import unusual_ones
from rapport.channel.query.kinds import Query
from rapport.core.codec import decode_block
from rapport.core.errors import Corrupt, StoreUnavailable
from rapport.core.event import Event, StoredEvent
from rapport.kernel.telemetry import get_logger
from rapport.store.base import Block, LogStore
from rapport.store.event_locations import EventLocation
from rapport.store.field_index import FieldIndex

_log = get_logger(__name__)

_PAGE_BYTES = 4 * 1024 * 1024
_EVENT = msgspec.msgpack.Decoder(Event)


class FieldFinder:
    """See Finder. Cost: the candidates, and one search per 131,072 positions without any."""

    def __init__(self, log: LogStore, index: FieldIndex, feed: FieldFeed) -> None:
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
    ) -> Found | None:
        """See Finder. An index in trouble is as good as none: the log is read instead."""
        lookup = plan_lookup(query.condition, self._feed.paths(log))
        if lookup is None:
            return None
        try:
            found = self._index.search(log, lookup, after=after, until=until, limit=limit)
            if found.positions is None:
                return Found(None, found.through)
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
            _log.warning("field index not asked", log=log, why=error.message)
            return None

    def fetch(self, log: str, positions: Collection[int]) -> list[StoredEvent]:
        """See Finder."""
        wanted, events = sorted(positions), []
        while wanted:
            found = self._read(log, wanted, wanted[-1])
            events += found.events or []
            wanted = [position for position in wanted if position > found.through]
        return events

    def _decides(self, log: str, query: Query, after: int, until: int) -> bool:
        """Whether the keys alone say what matches between two positions."""
        if not query.is_its_condition or not is_decided(query.condition, self._feed.paths(log)):
            return False
        unusual = self._index.search(log, unusual_ones(), after=after, until=until, limit=1)
        return unusual.positions == [] and unusual.through >= until

    def _read_some(
        self, log: str, positions: Sequence[int], read: int, edge: int, *, decided: bool
    ) -> Found:
        """The first events, and where the others stand."""
        found = self._read(log, positions[:read], edge)
        if found.through < edge:
            return found  # they are large: others will be asked for later
        first = self._log_store.first_position(log)
        certain = [place for place in positions[read:] if place >= first]
        return Found(found.events, edge, certain, decided=decided, unread=found.unread)

    def _read(self, log: str, positions: Sequence[int], through: int) -> Found:
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

    def _read_kept(self, log: str, kept: Sequence[int], through: int) -> Found:
        spots = self._index.locations(log, kept)
        if len(spots) != len(kept):
            return self._read_blocks(log, kept, through)
        size = 0
        for number, spot in enumerate(spots):
            size += spot.length
            if size > _PAGE_BYTES and number:
                spots, through = spots[:number], spots[number - 1].position
                break
        return Found(self._read_spots(log, spots), through)

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

    def _read_blocks(self, log: str, positions: Sequence[int], through: int) -> Found:
        """The slow way, for logs without spots and for bytes that changed: the whole block."""
        found: list[StoredEvent] = []
        block: Block | None = None
        events: list[Event] = []
        size = 0
        for position in positions:
            if block is None or not block.first <= position <= block.last:
                if size > _PAGE_BYTES:
                    return Found(found, found[-1].position if found else position - 1)
                block = self._block_at(log, position)
                events = _decoded(block)
                size += 0 if block is None else len(block.body)
            if block is not None and events:
                event = events[position - block.first]
                found.append(StoredEvent(position, block.received, event))
        return Found(found, through)

    def _block_at(self, log: str, position: int) -> Block | None:
        for block in self._log_store.read_after(log, position - 1, max_records=1):
            if block.first <= position <= block.last:
                return block
        return None


def _decoded(block: Block | None) -> list[Event]:
    try:
        return [] if block is None else decode_block(block.body)
    except Corrupt:
        return []  # told when the block was indexed, or by whoever reads it
