"""Events without headers: for readers that need none, wherever headers matter nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from rapport.channel.backends.local import open_embedded
from rapport.channel.log.channels import LoggedChannels
from rapport.channel.log.logged_channel import bare_events
from rapport.core.codec import decode_bare_block, decode_block, encode_block
from rapport.core.errors import Corrupt
from rapport.core.event import BareStoredEvent, Event, StoredEvent
from rapport.core.event_columns import BlockEvents
from rapport.kernel.clock import ManualClock
from rapport.store.base import Block


def event(number: int, **headers: str) -> Event:
    return Event("s", f"e{number}", "t", "x/1", number, b'{"a":1}', {"cause": "c", **headers})


def reading(
    folder: Path, events: list[Event], test: Callable[[LoggedChannels], Coroutine[Any, Any, None]]
) -> None:
    """Opens a log anew that holds the events, two blocks of them."""

    async def run() -> None:
        channels = open_embedded(folder, ManualClock(0))
        half = len(events) // 2
        for part in (events[:half], events[half:]):
            await channels.channel("c").append(part)
        await channels.close()
        channels = open_embedded(folder, ManualClock(0))
        await test(channels)
        await channels.close()

    asyncio.run(run())


def test_a_bare_block_has_all_but_the_headers() -> None:
    events = [event(1), event(2, more="x")]
    bare = decode_bare_block(encode_block(events))
    whole = decode_block(encode_block(events))
    for name in ("source", "id", "type", "subject", "time", "data"):
        assert [getattr(one, name) for one in bare] == [getattr(one, name) for one in whole]
    with pytest.raises(Corrupt):
        decode_bare_block(b"\xc1")


def test_a_reader_that_needs_no_headers_gets_every_event_once_from_the_log(tmp_path: Path) -> None:
    async def test(channels: LoggedChannels) -> None:
        subscription = await channels.subscribe("c", "r")
        found: list[StoredEvent | BareStoredEvent] = []
        while batch := await subscription.next_bare_batch(limit=3, timeout_ms=0):
            found += batch
        assert [item.position for item in found] == list(range(1, 11))
        assert [item.event.id for item in found] == [f"e{number}" for number in range(10)]
        assert all(isinstance(item, BareStoredEvent) for item in found)
        await channels.channel("c").append([event(10)])
        [last] = await subscription.next_bare_batch(limit=3, timeout_ms=0)
        assert isinstance(last, StoredEvent)  # in memory with its headers anyway

    reading(tmp_path, [event(number) for number in range(10)], test)


def test_an_event_with_a_time_to_live_is_read_as_a_whole(tmp_path: Path) -> None:
    async def test(channels: LoggedChannels) -> None:
        subscription = await channels.subscribe("c", "r")
        first = await subscription.next_bare_batch(limit=100, timeout_ms=0)
        assert [type(item) for item in first] == [BareStoredEvent] * 2
        rest = await subscription.next_bare_batch(limit=100, timeout_ms=0)
        assert [item.position for item in rest] == [3, 4]
        assert [type(item) for item in rest] == [StoredEvent] * 2

    reading(tmp_path, [event(0), event(1), event(2), event(3, ttlms="60000")], test)


MANY = 1_200
"""So many that they are read as columns where all are alike."""


def all_bare(
    folder: Path, events: list[Event], limit: int
) -> list[list[StoredEvent | BareStoredEvent]]:
    """The batches in which a reader without need of headers gets them."""
    found: list[list[StoredEvent | BareStoredEvent]] = []

    async def test(channels: LoggedChannels) -> None:
        subscription = await channels.subscribe("c", "r")
        while batch := await subscription.next_bare_batch(limit=limit, timeout_ms=0):
            assert len(batch) <= limit
            found.append(list(batch))

    reading(folder, events, test)
    return found


@pytest.mark.parametrize("limit", [70, 100, 599, 600, 601, 1_199, 5_000])
@pytest.mark.parametrize("is_mixed", [False, True], ids=["alike", "mixed"])
def test_many_events_come_as_they_are_in_batches_of_any_size(
    tmp_path: Path, limit: int, is_mixed: bool
) -> None:
    events = [event(number + 1_000_000) for number in range(MANY)]
    if is_mixed:
        events[800] = Event("other", "e", "t", "", 7, b"1", {})
    found = [item for batch in all_bare(tmp_path, events, limit) for item in batch]
    assert [item.position for item in found] == list(range(1, MANY + 1))
    for item, given in zip(found, events, strict=True):
        for name in ("source", "id", "type", "subject", "time", "data"):
            assert getattr(item.event, name) == getattr(given, name)


def test_events_alike_are_at_hand_as_columns(tmp_path: Path) -> None:
    async def test(channels: LoggedChannels) -> None:
        subscription = await channels.subscribe("c", "r")
        first = await subscription.next_bare_batch(limit=100, timeout_ms=0)
        rest = await subscription.next_bare_batch(limit=5_000, timeout_ms=0)
        assert isinstance(first, BlockEvents)
        assert isinstance(rest, BlockEvents)
        assert first.columns.ids.to_pylist() == [f"e{n}" for n in range(1_000_000, 1_000_100)]
        assert rest.positions.tolist() == list(range(101, 1_201))

    reading(tmp_path, [event(number + 1_000_000) for number in range(MANY)], test)


@pytest.mark.parametrize("place", [0, 599, 600, 1_199])
def test_among_many_a_block_with_a_time_to_live_is_read_as_a_whole(
    tmp_path: Path, place: int
) -> None:
    events = [event(number + 1_000_000) for number in range(MANY)]
    events[place] = event(place + 1_000_000, ttlms="100000")
    batches = all_bare(tmp_path, events, 600)
    assert [item.position for batch in batches for item in batch] == list(range(1, MANY + 1))
    [kind] = {type(item) for item in batches[place // 600]}
    assert kind is StoredEvent


def test_a_block_that_is_none_ends_what_is_read_without_headers() -> None:
    good = encode_block([event(number + 1_000_000) for number in range(300)])
    blocks = [Block(1, 300, 5, good), Block(301, 300, 6, good[:-1]), Block(601, 300, 7, good)]
    assert [item.position for item in bare_events(blocks, 40)] == list(range(41, 301))
    found = bare_events([blocks[0], blocks[2]], 299)
    assert isinstance(found, BlockEvents)
    assert [item.position for item in found] == [300, *range(601, 901)]
    assert list(bare_events(blocks[1:], 0)) == []
