"""Feeding the history index: from memory where the blocks still are, from the log where not."""

from __future__ import annotations

from collections.abc import Sequence

from rapport.channel.log.indexes import HistoryFeed
from rapport.channel.log.logged_channel import DecodedBlock, DecodedBlocks
from rapport.core.codec import encode_block
from rapport.core.event import Event
from rapport.store.base import Block
from rapport.store.history_index import MemoryHistory
from rapport.store.memory import MemoryLogStore


class CountingLog(MemoryLogStore):
    """Counts how often it is read."""

    reads = 0

    def read_after(self, log: str, position: int, *, max_records: int = 10_000) -> list[Block]:
        self.reads += 1
        return super().read_after(log, position, max_records=max_records)


def events(first: int, count: int) -> list[Event]:
    return [Event("s", f"e{number}", "t", "", 0) for number in range(first, first + count)]


def append(log: MemoryLogStore, recent: DecodedBlocks | None, batch: Sequence[Event]) -> None:
    body = encode_block(batch)
    (block,) = log.append("c", [(len(batch), body)], 99)
    if recent is not None:
        recent.put("c", DecodedBlock(block.first, block.received, batch, len(body)))


def places(index: MemoryHistory, count: int) -> list[list[tuple[str, int]]]:
    return [index.find(f"e{number}") for number in range(1, count + 1)]


def test_blocks_in_memory_are_fed_without_reading_the_log() -> None:
    log, index, recent = CountingLog(), MemoryHistory(), DecodedBlocks()
    for first in (1, 11, 21):
        append(log, recent, events(first, 10))
    HistoryFeed(log, index, recent).catch_up()
    assert log.reads == 0
    assert places(index, 30) == [[("c", number)] for number in range(1, 31)]
    assert index.fed("c") == 30


def test_what_has_left_memory_is_read_and_nothing_is_missed() -> None:
    log, index, recent = CountingLog(), MemoryHistory(), DecodedBlocks()
    append(log, None, events(1, 10))
    append(log, recent, events(11, 10))
    append(log, None, events(21, 10))
    append(log, recent, events(31, 10))
    feed = HistoryFeed(log, index, recent)
    feed.catch_up()
    assert log.reads > 0
    assert places(index, 40) == [[("c", number)] for number in range(1, 41)]
    feed.catch_up()
    assert index.fed("c") == 40
