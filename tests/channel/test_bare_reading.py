"""Events without headers: for readers that need none, wherever headers matter nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from rapport.channel.backends.embedded import open_embedded
from rapport.channel.logged import LoggedChannels
from rapport.core.codec import decode_bare_block, decode_block, encode_block
from rapport.core.errors import Corrupt
from rapport.core.event import BareStored, Event, StoredEvent
from rapport.kernel.clock import ManualClock


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
        found: list[StoredEvent | BareStored] = []
        while batch := await subscription.next_bare_batch(limit=3, timeout_ms=0):
            found += batch
        assert [item.position for item in found] == list(range(1, 11))
        assert [item.event.id for item in found] == [f"e{number}" for number in range(10)]
        assert all(isinstance(item, BareStored) for item in found)
        await channels.channel("c").append([event(10)])
        [last] = await subscription.next_bare_batch(limit=3, timeout_ms=0)
        assert isinstance(last, StoredEvent)  # in memory with its headers anyway

    reading(tmp_path, [event(number) for number in range(10)], test)


def test_an_event_with_a_time_to_live_is_read_as_a_whole(tmp_path: Path) -> None:
    async def test(channels: LoggedChannels) -> None:
        subscription = await channels.subscribe("c", "r")
        first = await subscription.next_bare_batch(limit=100, timeout_ms=0)
        assert [type(item) for item in first] == [BareStored] * 2
        rest = await subscription.next_bare_batch(limit=100, timeout_ms=0)
        assert [item.position for item in rest] == [3, 4]
        assert [type(item) for item in rest] == [StoredEvent] * 2

    reading(tmp_path, [event(0), event(1), event(2), event(3, ttlms="60000")], test)
