"""Blocks decoded once for several readers: a small cache, bounded by their bytes. [CH-13]

Blocks of the log as events without headers: as columns where all are alike, else one by one.
[CH-1]
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from rapport.channel.retention.ttl import have_ttl
from rapport.core.codec import decode_bare_block
from rapport.core.errors import Corrupt
from rapport.core.event import BareStoredEvent, Event, StoredEvent
from rapport.core.event_columns import BlockEvents, decode_block_events
from rapport.store.base import Block
from rapport.store.history_index import KeyedIds, id_keys

CACHE_BYTES = 16 * 1024 * 1024
_MANY = 32
"""Smaller blocks get their id keys on demand, together with those of other blocks."""
_MANY_EVENTS = 500
"""From so many events on, columns are worth their preparation."""


class DecodedBlock:
    """The events of one block; StoredEvents are built for the first reader."""

    __slots__ = ("_events", "_has_ttl", "_ids", "_stored", "first", "last", "received", "size")

    def __init__(
        self,
        first: int,
        received: int,
        events: Sequence[Event],
        size: int,
        *,
        keyed: bool = False,
    ) -> None:
        """`keyed`: compute the keys of the ids now."""
        self.first, self.last, self.size = first, first + len(events) - 1, size
        self.received, self._events = received, events
        self._ids: KeyedIds | None = None
        if keyed and len(events) >= _MANY:
            names = [one.id for one in events]
            self._ids = KeyedIds(names, id_keys(names))
        self._stored: list[StoredEvent] | None = None
        self._has_ttl: bool | None = None

    @property
    def has_ttl(self) -> bool:
        """Whether an event has a time to live of its own; computed for the first reader."""
        if self._has_ttl is None:
            self._has_ttl = have_ttl(self._events)
        return self._has_ttl

    def ids(self) -> Sequence[str]:
        """The ids of its events, in order."""
        return [event.id for event in self._events] if self._ids is None else self._ids

    def after(self, position: int, limit: int) -> list[StoredEvent]:
        """Up to `limit` events after a position."""
        if self._stored is None:
            received = self.received
            self._stored = [
                StoredEvent(place, received, event)
                for place, event in enumerate(self._events, start=self.first)
            ]
        start = max(position - self.first + 1, 0)
        return self._stored[start : start + limit]


class DecodedBlocks:
    """The least recently used blocks leave first. Safe to call from any thread."""

    def __init__(self, limit_bytes: int = CACHE_BYTES) -> None:
        self._limit, self._size = limit_bytes, 0
        self._guard = threading.Lock()
        self._blocks: OrderedDict[tuple[str, int], DecodedBlock] = OrderedDict()
        self._firsts: dict[str, list[int]] = {}

    def put(self, channel: str, block: DecodedBlock) -> None:
        """Keeps a block until others push it out."""
        key = (channel, block.first)
        with self._guard:
            if key in self._blocks or block.size > self._limit // 2:
                return
            self._blocks[key] = block
            firsts = self._firsts.setdefault(channel, [])
            if not firsts or firsts[-1] < block.first:
                firsts.append(block.first)
            else:
                insort(firsts, block.first)
            self._size += block.size
            while self._size > self._limit:
                self._drop_oldest()

    def holding(self, channel: str, position: int) -> DecodedBlock | None:
        """The block that holds a position, if it is here."""
        with self._guard:
            firsts = self._firsts.get(channel)
            if not firsts:
                return None
            number = bisect_right(firsts, position) - 1
            if number < 0:
                return None
            key = (channel, firsts[number])
            block = self._blocks[key]
            if block.last < position:
                return None
            self._blocks.move_to_end(key)
            return block

    def drop_before(self, channel: str, position: int) -> None:
        """Forgets blocks of a channel that end before a position."""
        with self._guard:
            firsts = self._firsts.get(channel, [])
            while firsts and self._blocks[(channel, firsts[0])].last < position:
                self._size -= self._blocks.pop((channel, firsts.pop(0))).size

    def clear(self) -> None:
        """Empties the cache; for benchmarks of uncached reads."""
        with self._guard:
            self._blocks.clear()
            self._firsts.clear()
            self._size = 0

    def _drop_oldest(self) -> None:
        (channel, first), block = self._blocks.popitem(last=False)
        self._size -= block.size
        firsts = self._firsts[channel]
        del firsts[bisect_right(firsts, first) - 1]


def may_hold(body: bytes, name: bytes) -> bool:
    """Whether a name of at least three characters occurs in a block. Tests for two adjacent
    characters first, which costs a third of a search.
    """
    octets = np.frombuffer(body, np.uint8)
    middle = len(name) // 2
    here = (octets[:-1] == name[middle]) & (octets[1:] == name[middle + 1])
    return bool(here.any()) and name in body


def bare_events(blocks: Sequence[Block], position: int) -> Sequence[BareStoredEvent]:
    """The events after a position without headers, up to the first unreadable block: reading whole
    events reports that one.
    """
    if sum(block.count for block in blocks) >= _MANY_EVENTS:
        found = decode_block_events([(block.first, block.received, block.body) for block in blocks])
        if found is not None:
            return _after(found, position)
    return _one_by_one(blocks, position)


def _after(events: BlockEvents, position: int) -> BlockEvents:
    return events[int(events.positions.searchsorted(position, side="right")) :]


def _one_by_one(blocks: Sequence[Block], position: int) -> list[BareStoredEvent]:
    found: list[BareStoredEvent] = []
    for block in blocks:
        try:
            events = decode_bare_block(block.body)
        except Corrupt:
            break
        received = block.received
        found += [
            BareStoredEvent(place, received, event)
            for place, event in enumerate(events, start=block.first)
            if place > position
        ]
    return found
