"""Packed events are kept, recognised and read as the events they stand for; what is carried for
them is there for a while, and never needed. [CH-1, CH-6]
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.channel.backends.local import open_embedded, open_memory
from rapport.channel.channel import AppendResult, PackedRange
from rapport.channel.log.channels import LoggedChannels
from rapport.channel.log.dedupe import BLOCK_EVENTS
from rapport.channel.log.logged_channel import LoggedChannel
from rapport.core.encoded_batch import EncodedBatch
from rapport.core.errors import TooLarge
from rapport.core.event import Event
from rapport.kernel.clock import ManualClock
from support.packed import Numbers
from support.packed import pack as packed_of

NOON = 1_772_452_800_000


def event(number: int, data: bytes = b"{}") -> Event:
    return Event("source", f"e{number}", "t", "s", NOON, data, {"cause": "x"})


def pack(numbers: Sequence[int], data: bytes = b"{}", *, carrying: bool = True) -> EncodedBatch:
    made = [event(number, data) for number in numbers]
    return packed_of(made, *([Numbers(numbers)] if carrying else []))


def carried(stretch: PackedRange | None) -> list[int]:
    assert stretch is not None
    return [value for piece in stretch.carried for value in piece.values]  # type: ignore[attr-defined]


def logged(channels: LoggedChannels, name: str = "c") -> LoggedChannel:
    channel = channels.channel(name)
    assert isinstance(channel, LoggedChannel)
    return channel


async def appended(
    channels: LoggedChannels, groups: Sequence[Sequence[Sequence[Event]]]
) -> list[AppendResult]:
    """The appends of a group come at once."""
    answers: list[AppendResult] = []
    for group in groups:
        answers += await asyncio.gather(*(channels.channel("c").append(one) for one in group))
    return answers


appends = st.tuples(st.booleans(), st.lists(st.integers(0, 30), max_size=8))
groups = st.lists(st.lists(appends, min_size=1, max_size=3), max_size=5)


@settings(max_examples=60, deadline=None)
@given(groups)
def test_packed_or_not_the_log_is_the_same(given_groups):
    async def run() -> None:
        plain, mixed = open_memory(ManualClock(NOON)), open_memory(ManualClock(NOON))
        as_events = [[[event(n) for n in numbers] for _, numbers in one] for one in given_groups]
        delivered_events = [
            [
                pack(numbers) if is_packed else [event(n) for n in numbers]
                for is_packed, numbers in g
            ]
            for g in given_groups
        ]
        assert await appended(plain, as_events) == await appended(mixed, delivered_events)
        before = await plain.channel("c").read_after(0)
        assert await mixed.channel("c").read_after(0) == before
        await asyncio.gather(plain.close(), mixed.close())

    asyncio.run(run())


@pytest.mark.anyio
async def test_after_a_start_they_are_read_and_recognised(tmp_path: Path):
    clock = ManualClock(NOON)
    channels = open_embedded(tmp_path, clock)
    await appended(channels, [[pack([1, 2, 3]), [event(4)], pack([5])]])
    await channels.close()
    channels = open_embedded(tmp_path, clock)
    channel = logged(channels)
    assert [one.event for one in await channel.read_after(0)] == [event(n) for n in range(1, 6)]
    assert channel.read_packed_after(0, limit=10) is None
    again = await channel.append(pack([2, 6, 5]))
    assert again == AppendResult((2, 6, 5), 2)
    ((_, found),) = await channels.find_event("e6")
    assert found.position == 6
    await channels.close()


@pytest.mark.anyio
async def test_an_index_finds_them_without_their_having_been_made(tmp_path: Path):
    channels = open_embedded(tmp_path, ManualClock(NOON))
    await channels.channel("c").append(pack(range(500)))
    ((name, stored),) = await channels.find_event("e321")
    assert (name, stored.position, stored.event) == ("c", 322, event(321))
    await channels.close()


@pytest.mark.anyio
async def test_what_is_carried_is_read_in_stretches_until_it_is_let_go():
    channels = open_memory(ManualClock(NOON))
    channel = logged(channels)
    await channel.append(pack([1, 2, 3]))
    await channel.append([event(4)])
    await channel.append(pack([5, 6], carrying=False))
    await channel.append(pack([7]))
    first = channel.read_packed_after(0, limit=2)
    assert (carried(first), first and first.last) == ([1, 2], 2)
    assert carried(channel.read_packed_after(1, limit=9)) == [2, 3]
    assert channel.read_packed_after(3, limit=9) is None
    assert channel.unpacked_after(3, limit=9) == 3
    assert channel.unpacked_after(3, limit=2) == 2
    assert channel.read_packed_after(4, limit=9) is None
    assert carried(channel.read_packed_after(6, limit=9)) == [7]
    assert channel.read_packed_after(7, limit=9) is None
    assert first is not None
    channel.let_packed_go(first)  # a part of it: the rest is still to be read
    assert carried(channel.read_packed_after(2, limit=9)) == [3]
    whole = channel.read_packed_after(0, limit=9)
    assert whole is not None
    channel.let_packed_go(whole)
    assert channel.read_packed_after(0, limit=9) is None
    assert len(await channel.read_after(0)) == 7
    await channels.close()


@pytest.mark.anyio
async def test_appends_at_once_are_one_block_as_far_as_it_has_room(tmp_path: Path):
    channels = open_embedded(tmp_path, ManualClock(NOON))
    channel = logged(channels)
    await channel.append([event(-1)])
    numbers = range(BLOCK_EVENTS + 500)
    await asyncio.gather(*(channel.append(pack([number])) for number in numbers))
    found: list[int] = []
    position, stretches = 1, 0
    while stretch := channel.read_packed_after(position, limit=5_000):
        found += carried(stretch)
        position, stretches = stretch.last, stretches + 1
        assert len(stretch) <= BLOCK_EVENTS
    assert found == list(numbers)
    assert stretches < 100
    await channels.close()


@pytest.mark.anyio
async def test_too_large_ones_are_refused_whole():
    channels = open_memory(ManualClock(NOON), max_data_bytes=10)
    with pytest.raises(TooLarge):
        await channels.channel("c").append(pack([1, 2], b"x" * 11))
    assert channels.channel("c").last_position() == 0
    await channels.close()


@pytest.mark.anyio
async def test_a_closed_channel_carries_nothing():
    channels = open_memory(ManualClock(NOON))
    channel = logged(channels)
    await channel.append(pack([1]))
    await channels.close()
    assert channel.read_packed_after(0, limit=1) is None
