"""What every back end of the channel must do; bound to the back ends in tests/conformance. [CH-1,
CH-6, CH-9, CH-13]

A class that inherits the suite gives the fixture `channel_place`, where channels can be opened
again and again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import pytest

from rapport.channel.channel import Channels, events_between
from rapport.core.errors import ChannelUnavailable, InvalidInput, TooLarge
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import ManualClock
from rapport.store.base import READ_BYTES


class ChannelPlace(Protocol):
    """Where channels live, and the clock they were given."""

    clock: ManualClock

    def open(self) -> Channels:
        """The channels; the former ones must be closed."""


def numbered(first: int, last: int, *, source: str = "suite", data: bytes = b"{}") -> list[Event]:
    """Events with the ids first .. last."""
    return [
        Event(source, str(number), "suite.counted", f"number/{number}", number, data)
        for number in range(first, last + 1)
    ]


def ids(stored: list[StoredEvent]) -> list[str]:
    """Their ids, in order."""
    return [item.event.id for item in stored]


Scenario = Callable[[Channels], Awaitable[None]]


def play(place: ChannelPlace, *scenarios: Scenario) -> None:
    """Runs scenarios one after the other, closing and opening the channels in between."""
    for scenario in scenarios:
        asyncio.run(_play_one(place, scenario))


async def _play_one(place: ChannelPlace, scenario: Scenario) -> None:
    channels = place.open()
    try:
        async with asyncio.timeout(30):
            await scenario(channels)
    finally:
        await channels.close()


class ChannelSuite:
    """Needs the fixture `channel_place`."""

    def test_what_is_appended_is_read_in_order_with_place_and_time(
        self, channel_place: ChannelPlace
    ) -> None:
        async def scenario(channels: Channels) -> None:
            channel = channels.channel("raw.readers")
            assert channel.last_position() == 0
            appended = await channel.append(numbered(1, 3))
            assert (appended.positions, appended.duplicates) == ((1, 2, 3), 0)
            found = await channel.read_after(0)
            assert [item.position for item in found] == [1, 2, 3]
            assert [item.event for item in found] == numbered(1, 3)
            assert {item.received for item in found} == {channel_place.clock.now_ms()}
            assert channels.names() == ["raw.readers"]

        play(channel_place, scenario)

    def test_reading_after_a_position_never_returns_it_again(
        self, channel_place: ChannelPlace
    ) -> None:
        async def scenario(channels: Channels) -> None:
            channel = channels.channel("c")
            for start in range(1, 2001, 40):
                await channel.append(numbered(start, start + 39))
            position, found = 0, []
            while batch := await channel.read_after(position, limit=33):
                assert batch[0].position == position + 1
                found += ids(batch)
                position = batch[-1].position
            assert found == [str(number) for number in range(1, 2001)]

        play(channel_place, scenario)

    def test_a_repetition_is_dropped_and_gets_the_position_of_its_first_copy(
        self, channel_place: ChannelPlace
    ) -> None:
        async def scenario(channels: Channels) -> None:
            channel = channels.channel("c")
            await channel.append(numbered(1, 5))
            again = await channel.append([*numbered(4, 6), *numbered(6, 7), *numbered(1, 1)])
            assert (again.positions, again.duplicates) == ((4, 5, 6, 6, 7, 1), 4)
            other = await channel.append(numbered(1, 1, source="another"))
            assert (other.positions, other.duplicates) == ((8,), 0)
            assert ids(await channel.read_after(0)) == ["1", "2", "3", "4", "5", "6", "7", "1"]

        play(channel_place, scenario)

    def test_channels_do_not_share_what_they_have_seen(self, channel_place: ChannelPlace) -> None:
        async def scenario(channels: Channels) -> None:
            await channels.channel("a").append(numbered(1, 2))
            assert (await channels.channel("b").append(numbered(1, 2))).duplicates == 0
            assert channels.names() == ["a", "b"]

        play(channel_place, scenario)

    def test_one_bad_event_keeps_the_whole_append_out(self, channel_place: ChannelPlace) -> None:
        async def scenario(channels: Channels) -> None:
            channel = channels.channel("c")
            bad_ones: list[Event] = [
                Event("s", "", "t", "", 0),
                Event("s", "x" * 257, "t", "", 0),
                Event("s", "a\nb", "t", "", 0),
                Event("s", "\ud800", "t", "", 0),
                Event("s", "i", "t", "", 2**63),
                Event("s", "i", "t", "", 0, b"{}", {"h": "\ud800"}),
                Event("s", "i", "t", "", 0, "text"),  # type: ignore[arg-type]
                Event("s", 7, "t", "", 0),  # type: ignore[arg-type]
                Event("s", "i", "t", None, 0),  # type: ignore[arg-type]
                Event("s", "i", "t", "", 0, b"{}", None),  # type: ignore[arg-type]
                Event("s", "i", "t", "", 0, b"{}", [("a", "b")]),  # type: ignore[arg-type]
                "no event at all",  # type: ignore[list-item]
                Event("s", "i", "t", "", 0, b"{}", {"h": 7}),  # type: ignore[dict-item]
                Event("s", "i", "t", "", "now"),  # type: ignore[arg-type]
            ]
            for bad in bad_ones:
                with pytest.raises(InvalidInput, match="event 2"):
                    await channel.append([*numbered(1, 2), bad])
            with pytest.raises(TooLarge):
                await channel.append(numbered(1, 1, data=b" " * (1024 * 1024 + 1)))
            with pytest.raises(TooLarge):
                await channel.append([Event("s", "i", "t", "", 0, b"{}", {"h": "x" * 70_000})])
            assert channel.last_position() == 0
            assert (await channel.append([])).positions == ()

        play(channel_place, scenario)

    def test_impossible_names_are_refused(self, channel_place: ChannelPlace) -> None:
        async def scenario(channels: Channels) -> None:
            for name in ("", "A", "-a", ".a", "a/b", "a b", "ä", "a" * 129, "a\n"):
                with pytest.raises(InvalidInput):
                    channels.channel(name)
            for reader in ("", "a/b", "x" * 101, "a\n"):
                with pytest.raises(InvalidInput):
                    await channels.subscribe("c", reader)

        play(channel_place, scenario)

    def test_a_waiting_reader_is_woken_by_an_append(self, channel_place: ChannelPlace) -> None:
        async def scenario(channels: Channels) -> None:
            channel = channels.channel("c")
            waiting = [asyncio.create_task(channel.wait_after(0)) for _ in range(3)]
            patient = asyncio.create_task(channel.wait_after(0, timeout_ms=60_000))
            await asyncio.gather(channel.append(numbered(1, 1)), *waiting)
            assert [task.result() for task in waiting] == [True] * 3
            assert await patient
            assert await channel.wait_after(0)

        play(channel_place, scenario)

    def test_waiting_ends_when_its_time_has_passed(self, channel_place: ChannelPlace) -> None:
        async def scenario(channels: Channels) -> None:
            channel = channels.channel("c")
            waiting = asyncio.create_task(channel.wait_after(0, timeout_ms=500))
            await channel_place.clock.advance(499)
            assert not waiting.done()
            await channel_place.clock.advance(1)
            assert await waiting is False
            subscription = await channels.subscribe("c", "r")
            batch = asyncio.create_task(subscription.next_batch(timeout_ms=100))
            await channel_place.clock.advance(100)
            assert await batch == []

        play(channel_place, scenario)

    def test_many_publishers_at_once_lose_and_repeat_nothing(
        self, channel_place: ChannelPlace
    ) -> None:
        async def scenario(channels: Channels) -> None:
            channel = channels.channel("c")
            seen: list[StoredEvent] = []

            async def publish(source: int) -> None:
                for event in numbered(1, 25, source=f"publisher-{source}"):
                    appended = await channel.append([event])
                    assert channel.last_position() >= appended.positions[0]

            async def tail() -> None:
                position = 0
                while len(seen) < 40 * 25:
                    await channel.wait_after(position)
                    batch = await channel.read_after(position, limit=17)
                    seen.extend(batch)
                    position = batch[-1].position

            await asyncio.gather(tail(), *(publish(source) for source in range(40)))
            assert [item.position for item in seen] == list(range(1, 1001))
            by_source: dict[str, list[str]] = {}
            for item in seen:
                by_source.setdefault(item.event.source, []).append(item.event.id)
            expected = [str(number) for number in range(1, 26)]
            assert all(found == expected for found in by_source.values())

        play(channel_place, scenario)

    def test_a_reader_goes_on_in_memory_and_starts_again_after_its_commit(
        self, channel_place: ChannelPlace
    ) -> None:
        async def scenario(channels: Channels) -> None:
            await channels.channel("c").append(numbered(1, 10))
            reader = await channels.subscribe("c", "r")
            assert (reader.position, reader.state) == (0, b"")
            assert ids(await reader.next_batch(limit=4)) == ["1", "2", "3", "4"]
            assert ids(await reader.next_batch(limit=2)) == ["5", "6"]
            await reader.commit(4, b"state at 4")
            assert (reader.position, reader.state) == (4, b"state at 4")
            again = await channels.subscribe("c", "r")
            assert (again.position, again.state) == (4, b"state at 4")
            assert ids(await again.next_batch()) == ["5", "6", "7", "8", "9", "10"]
            await again.commit(10)
            assert again.state == b"state at 4"
            other = await channels.subscribe("c", "other")
            assert other.position == 0

        play(channel_place, scenario)

    def test_a_new_reader_may_begin_with_the_next_event(self, channel_place: ChannelPlace) -> None:
        async def scenario(channels: Channels) -> None:
            channel = channels.channel("c")
            await channel.append(numbered(1, 3))
            reader = await channels.subscribe("c", "late", from_start=False)
            await channel.append(numbered(4, 4))
            assert ids(await reader.next_batch()) == ["4"]
            again = await channels.subscribe("c", "late", from_start=False)
            assert ids(await again.next_batch()) == ["4"]

        play(channel_place, scenario)

    def test_a_position_that_does_not_exist_cannot_be_committed(
        self, channel_place: ChannelPlace
    ) -> None:
        async def scenario(channels: Channels) -> None:
            await channels.channel("c").append(numbered(1, 3))
            reader = await channels.subscribe("c", "r")
            for position in (-1, 4):
                with pytest.raises(InvalidInput):
                    await reader.commit(position)
            for position, limit in ((-1, 1), (0, 0)):
                with pytest.raises(InvalidInput):
                    await channels.channel("c").read_after(position, limit=limit)

        play(channel_place, scenario)

    def test_what_is_large_is_read_in_portions_of_bounded_size(
        self, channel_place: ChannelPlace
    ) -> None:
        size, count = 1_000_000, READ_BYTES // 1_000_000 + 12

        async def scenario(channels: Channels) -> None:
            channel, position, found = channels.channel("c"), 0, 0
            data = b'"' + b"x" * (size - 2) + b'"'
            for first in range(1, count + 1, 5):
                await channel.append(numbered(first, min(first + 4, count), data=data))
            while page := await channel.read_after(position, limit=1000):
                assert len(page) * size < READ_BYTES + 5 * size
                assert page[0].position == position + 1
                position, found = page[-1].position, found + len(page)
            assert found == count
            stretch = await events_between(channel, 3, count - 3)
            assert [one.position for one in stretch] == list(range(3, count - 2))

        play(channel_place, scenario)

    def test_an_event_is_found_by_its_id_in_every_channel(
        self, channel_place: ChannelPlace
    ) -> None:
        async def scenario(channels: Channels) -> None:
            await channels.channel("a").append(numbered(1, 500))
            await channels.channel("b").append(numbered(300, 310))
            await channels.channel("b").append(numbered(305, 305, source="another"))
            found = await channels.find_event("305")
            assert [(name, item.position, item.event.source) for name, item in found] == [
                ("a", 305, "suite"),
                ("b", 6, "suite"),
                ("b", 12, "another"),
            ]
            assert await channels.find_event("nobody") == []

        play(channel_place, scenario)

    def test_closed_channels_refuse_clearly(self, channel_place: ChannelPlace) -> None:
        async def scenario(channels: Channels) -> None:
            channel = channels.channel("c")
            await channel.append(numbered(1, 1))
            waiting = asyncio.create_task(channel.wait_after(1))
            await channel_place.clock.sleep(0)
            await channels.close()
            await channels.close()
            with pytest.raises(ChannelUnavailable):
                await waiting
            with pytest.raises(ChannelUnavailable):
                await channel.append(numbered(2, 2))
            with pytest.raises(ChannelUnavailable):
                await channel.read_after(0)
            with pytest.raises(ChannelUnavailable):
                await channels.subscribe("c", "r")

        play(channel_place, scenario)

    def test_events_cursors_and_what_was_seen_outlive_a_restart(
        self, channel_place: ChannelPlace
    ) -> None:
        async def before(channels: Channels) -> None:
            await channels.channel("c").append(numbered(1, 300))
            reader = await channels.subscribe("c", "r")
            await reader.next_batch(limit=100)
            await reader.commit(100, b"a hundred")

        async def after(channels: Channels) -> None:
            channel = channels.channel("c")
            assert channels.names() == ["c"]
            assert channel.last_position() == 300
            again = await channel.append(numbered(299, 301))
            assert (again.positions, again.duplicates) == ((299, 300, 301), 2)
            reader = await channels.subscribe("c", "r")
            assert (reader.position, reader.state) == (100, b"a hundred")
            batch = await reader.next_batch(limit=1000)
            assert ids(batch)[0] == "101"
            assert [name for name, _stored in await channels.find_event("250")] == ["c"]

        play(channel_place, before, after)
