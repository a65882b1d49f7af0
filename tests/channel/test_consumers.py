"""The loop around a handler: one poison event, dead letters, and going on. [CH-14]"""

from __future__ import annotations

import asyncio

import pytest

from rapport.channel.backends.local import open_memory
from rapport.channel.consumers import serve
from rapport.channel.dead_letters import (
    DEAD_LETTERS,
    LetterFailure,
    dead_letter_event,
    letter_event,
)
from rapport.core.errors import ChannelUnavailable, InvalidInput, StoreUnavailable
from rapport.core.event import Event, StoredEvent


def events(first: int, last: int) -> list[Event]:
    return [
        Event("s", str(n), "t", "", n, b'{"n":%d}' % n, {"h": "v"}) for n in range(first, last + 1)
    ]


class Handler:
    """Counts what it handles; fails on the ids it is told to."""

    def __init__(self, *poison: str, error: Exception | None = None) -> None:
        self.poison, self.error = set(poison), error or ValueError("indigestible")
        self.handled: list[str] = []
        self.tries: dict[str, int] = {}

    async def __call__(self, batch):
        for item in batch:
            if item.event.id in self.poison:
                self.tries[item.event.id] = self.tries.get(item.event.id, 0) + 1
                raise self.error
        self.handled += [item.event.id for item in batch]
        return b"%d" % len(self.handled)


async def serve_until(channels, handler, clock, done) -> None:
    task = asyncio.create_task(serve(channels, "c", "r", handler, clock, limit=64))
    async with asyncio.timeout(10):
        while not done():
            await asyncio.sleep(0)
            if task.done():
                task.result()
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_one_poison_event_is_buried_and_all_others_are_handled_once(clock):
    async def scenario():
        channels = open_memory(clock)
        await channels.channel("c").append(events(1, 100))
        handler = Handler("37", "38", "100")
        cursor = await channels.subscribe("c", "r")
        await serve_until(
            channels, handler, clock, lambda: channels.channel(DEAD_LETTERS).last_position() == 3
        )
        expected = [str(n) for n in range(1, 101) if n not in (37, 38, 100)]
        assert handler.handled == expected
        letters = [item.event for item in await channels.channel(DEAD_LETTERS).read_after(0)]
        failures = [letter.payload_as(LetterFailure) for letter in letters]
        assert [failure.position for failure in failures] == [37, 38, 100]
        assert failures[0].code == "ValueError"
        assert "indigestible" in failures[0].message
        assert letters[0].causes() == ("37",)
        assert letter_event(letters[0]) == events(37, 37)[0]
        cursor = await channels.subscribe("c", "r")
        assert (cursor.position, cursor.state) == (100, b"97")

    asyncio.run(scenario())


def test_a_handler_that_recovers_at_the_third_try_buries_nothing(clock):
    async def scenario():
        channels = open_memory(clock)
        await channels.channel("c").append(events(1, 1))
        handler = Handler()
        failures = iter([True, True, False])

        async def shaky(batch):
            if next(failures):
                raise InvalidInput("not today")
            return await handler(batch)

        await serve_until(channels, shaky, clock, lambda: handler.handled == ["1"])
        assert channels.channel(DEAD_LETTERS).last_position() == 0

    asyncio.run(scenario())


def test_an_unavailable_store_is_waited_out_and_nothing_is_buried(clock):
    async def scenario():
        channels = open_memory(clock)
        await channels.channel("c").append(events(1, 2))
        handler = Handler("1", error=StoreUnavailable("full", retry_after_seconds=2))
        task = asyncio.create_task(serve(channels, "c", "r", handler, clock))
        for _time in range(5):
            await clock.advance(2000)
        assert handler.tries["1"] >= 5
        assert channels.channel(DEAD_LETTERS).last_position() == 0
        handler.poison.clear()
        await clock.advance(2000)
        assert handler.handled == ["1", "2"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())


def test_the_loop_ends_with_an_error_when_the_channels_are_closed(clock):
    async def scenario():
        channels = open_memory(clock)
        task = asyncio.create_task(serve(channels, "c", "r", Handler(), clock))
        await asyncio.sleep(0)
        await channels.close()
        with pytest.raises(ChannelUnavailable):
            await task

    asyncio.run(scenario())


def test_burying_again_after_a_crash_changes_nothing(clock):
    async def scenario():
        channels = open_memory(clock)
        stored = StoredEvent(7, 0, events(1, 1)[0])
        letters = [
            dead_letter_event("c", "r", stored, ValueError(text), 3) for text in ("one", "two")
        ]
        await channels.channel(DEAD_LETTERS).append(letters[:1])
        assert (await channels.channel(DEAD_LETTERS).append(letters[1:])).duplicates == 1

    asyncio.run(scenario())


def test_a_dead_letter_that_cannot_be_handled_is_not_buried_again(clock):
    async def scenario():
        channels = open_memory(clock)
        await channels.channel(DEAD_LETTERS).append(events(1, 3))
        handler = Handler("2")
        task = asyncio.create_task(serve(channels, DEAD_LETTERS, "r", handler, clock))
        for _ in range(100):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert handler.handled == ["1", "3"]
        assert channels.channel(DEAD_LETTERS).last_position() == 3
        assert (await channels.subscribe(DEAD_LETTERS, "r")).position == 3

    asyncio.run(scenario())


def test_data_that_are_no_json_are_kept_and_come_back(clock):
    strange = Event("s", "1", "t", "", 0, b"\xff\x00 no json")
    letter = dead_letter_event("c", "r", StoredEvent(1, 0, strange), ValueError("\ud800"), 3)
    assert letter_event(letter) == strange


def test_an_event_too_large_to_be_kept_twice_is_referred_to(clock):
    async def scenario():
        channels = open_memory(clock)
        large = Event("s", "1", "t", "", 0, b'"' + b"x" * (1024 * 1024 - 2) + b'"')
        await channels.channel("c").append([large])
        handler = Handler("1")
        await serve_until(
            channels, handler, clock, lambda: channels.channel(DEAD_LETTERS).last_position() == 1
        )
        (letter,) = await channels.channel(DEAD_LETTERS).read_after(0)
        assert letter_event(letter.event) is None
        assert letter.event.payload_as(LetterFailure).position == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("what", ["read_after", "look"])
def test_a_log_or_store_that_is_away_while_the_loop_reads_is_waited_out(clock, monkeypatch, what):
    async def scenario():
        channels = open_memory(clock)
        owner = channels.channel("c") if what == "read_after" else channels
        real, refusals = getattr(owner, what), [3]

        async def away_at_first(*values, **more):
            if refusals[0]:
                refusals[0] -= 1
                raise ChannelUnavailable("the server is away", retry_after_seconds=2)
            return await real(*values, **more)

        monkeypatch.setattr(owner, what, away_at_first)
        await channels.channel("c").append(events(1, 2))
        handler = Handler()
        task = asyncio.create_task(serve(channels, "c", "r", handler, clock))
        for _time in range(5):
            await clock.advance(2000)
        assert not task.done()
        assert (handler.handled, refusals) == (["1", "2"], [0])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())
