"""Dead letters come back: listed, shown, replayed once and in order, forgotten. [CH-14]"""

from __future__ import annotations

import asyncio

import pytest

from rapport.channel.backends.local import open_embedded, open_memory
from rapport.channel.consumers import serve
from rapport.channel.dead_letters import (
    ASKED,
    DEAD_LETTER,
    DEAD_LETTERS,
    FAILED_AGAIN,
    FORGOTTEN,
    REPLAYED,
    DeadLetterAdmin,
    LetterFilter,
    append_dead_letter,
)
from rapport.channel.log.logged_channel import load_cursor
from rapport.core.errors import Conflict, InvalidInput, UnknownName, Unsupported
from rapport.core.event import Event
from rapport.kernel.clock import SystemClock


def events(first: int, last: int) -> list[Event]:
    return [Event("s", str(n), "t", "", n, b'{"n":%d}' % n) for n in range(first, last + 1)]


class Handler:
    """Adds up in its state; fails on the ids it is told to."""

    def __init__(self, *poison: str) -> None:
        self.poison = set(poison)
        self.handled: list[str] = []

    async def __call__(self, batch):
        if {item.event.id for item in batch} & self.poison:
            raise ValueError("indigestible")
        self.handled += [item.event.id for item in batch]
        return b"%d" % len(self.handled)


class Served:
    """A reader at work while the block runs, and until it has committed what it handled: ended in
    between it would handle that again, as promised.
    """

    def __init__(self, channels, handler, clock, reader="r") -> None:
        self._channels, self._reader = channels, reader
        self._work = lambda: serve(channels, "c", reader, handler, clock, limit=4)

    async def __aenter__(self):
        self._task = asyncio.create_task(self._work())

    async def __aexit__(self, kind, *_error):
        if kind is None:
            await until(self._has_committed)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _has_committed(self) -> bool:
        cursor = load_cursor(self._channels.records, "c", self._reader)
        last = self._channels.channel("c").last_position()
        return cursor is not None and cursor.position == last


async def until(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await SystemClock().sleep(1)


async def types_noted(channels) -> list[str]:
    return [one.event.type for one in await channels.channel(DEAD_LETTERS).read_after(0)]


def play(scenario) -> None:
    asyncio.run(scenario())


@pytest.fixture(params=["memory", "embedded"])
def channels_of(request, tmp_path, clock):
    def opened():
        return open_memory(clock) if request.param == "memory" else open_embedded(tmp_path, clock)

    return opened


def test_after_the_mend_letters_are_handled_again_in_order_and_once(channels_of, clock):
    async def scenario():
        channels = channels_of()
        office = DeadLetterAdmin(channels, clock)
        handler = Handler("3", "7", "8")
        await channels.channel("c").append(events(1, 10))
        async with Served(channels, handler, clock):
            await until(lambda: channels.channel(DEAD_LETTERS).last_position() == 3)
            await until(lambda: "10" in handler.handled)
            letters = await office.letters(LetterFilter(channel="c"))
            assert [one.event_position for one in letters] == [3, 7, 8]
            assert letters[0].message == "ValueError: indigestible"
            shown = await office.show(letters[0].id)
            assert shown.event["id"] == "3"
            handler.poison.clear()
            handler.handled.clear()
            backwards = LetterFilter(ids=tuple(one.id for one in reversed(letters)))
            await office.replay(backwards)
            await until(lambda: len(handler.handled) >= 3)
            await until(lambda: channels.channel(DEAD_LETTERS).last_position() == 9)
            assert handler.handled == ["3", "7", "8"]
            assert {one.state for one in await office.letters(LetterFilter(state=""))} == {
                "replayed"
            }
            with pytest.raises(Conflict):
                await office.replay(backwards)
            await channels.channel("c").append(events(11, 11))
            await until(lambda: "11" in handler.handled)
        subscription = await channels.subscribe("c", "r")
        assert (subscription.position, subscription.state) == (11, b"4")
        noted = await types_noted(channels)
        assert (noted.count(ASKED), noted.count(REPLAYED)) == (3, 3)
        await channels.close()

    play(scenario)


def test_what_fails_again_stays_open_and_can_be_sent_back_again(channels_of, clock):
    async def scenario():
        channels = channels_of()
        office = DeadLetterAdmin(channels, clock)
        handler = Handler("2")
        await channels.channel("c").append(events(1, 3))
        async with Served(channels, handler, clock):
            await until(lambda: "3" in handler.handled)
            for turn in (1, 2):
                await clock.advance(1_000)
                await office.replay(LetterFilter(reader="r"))
                await until(
                    lambda n=1 + 2 * turn: channels.channel(DEAD_LETTERS).last_position() == n
                )
                await asyncio.sleep(0.01)
                (letter,) = await office.letters(LetterFilter())
                assert letter.state == "open"
            assert (await types_noted(channels)).count(FAILED_AGAIN) == 2
            handler.poison.clear()
            await clock.advance(1_000)
            await office.replay(LetterFilter(reader="r"))
            await until(lambda: "2" in handler.handled)
        await channels.close()

    play(scenario)


def test_a_replay_asked_for_while_the_reader_is_away_waits_for_it(channels_of, clock):
    async def scenario():
        channels = channels_of()
        office = DeadLetterAdmin(channels, clock)
        handler = Handler("1")
        await channels.channel("c").append(events(1, 2))
        async with Served(channels, handler, clock):
            await until(lambda: "2" in handler.handled)
        handler.poison.clear()
        await office.replay(LetterFilter(channel="c"))
        await office.replay(LetterFilter(channel="c", state="waiting"))  # asked twice, done once
        assert handler.handled == ["2"]
        async with Served(channels, handler, clock):
            await until(lambda: len(handler.handled) >= 2)
            await asyncio.sleep(0.02)
        assert handler.handled == ["2", "1"]
        await channels.close()

    play(scenario)


def test_forgotten_letters_are_off_the_list_and_noted(channels_of, clock):
    async def scenario():
        channels = channels_of()
        office = DeadLetterAdmin(channels, clock)
        await channels.channel("c").append(events(1, 4))
        for stored in await channels.channel("c").read_after(0):
            reader = "even" if stored.position % 2 == 0 else "odd"
            await append_dead_letter(channels, "c", reader, stored, ValueError("no"), 3)
            await clock.advance(1_000)
        since = clock.now_ms() - 2_500
        assert [
            one.event_position for one in await office.letters(LetterFilter(since_ms=since))
        ] == [
            3,
            4,
        ]
        assert len(await office.forget(LetterFilter(reader="odd"))) == 2
        left = await office.letters(LetterFilter())
        assert [one.event_position for one in left] == [2, 4]
        assert len(await office.letters(LetterFilter(state="forgotten"))) == 2
        noted = await types_noted(channels)
        assert (noted.count(DEAD_LETTER), noted.count(FORGOTTEN)) == (4, 2)
        with pytest.raises(InvalidInput):
            await office.forget(LetterFilter())
        with pytest.raises(UnknownName):
            await office.show("nothing")
        await channels.close()

    play(scenario)


def test_a_reader_that_takes_nothing_back_is_refused_and_the_event_can_be_republished(
    channels_of, clock
):
    async def scenario():
        channels = channels_of()
        office = DeadLetterAdmin(channels, clock)
        await channels.channel("c").append(events(1, 1))
        (stored,) = await channels.channel("c").read_after(0)
        await append_dead_letter(channels, "c", "engine", stored, ValueError("no"), 1)
        with pytest.raises(Unsupported) as refused:
            await office.replay(LetterFilter(reader="engine"))
        assert "republish" in refused.value.hint
        await office.replay(LetterFilter(reader="engine"), republish=True)
        found = await channels.channel("c").read_after(0)
        assert [one.event.data for one in found] == [stored.event.data] * 2
        assert await office.letters(LetterFilter()) == []
        await channels.close()

    play(scenario)


def test_poison_in_any_place_never_keeps_the_others_waiting(clock):
    async def scenario():
        for poison in range(1, 9):
            channels = open_memory(clock)
            handler = Handler(str(poison))
            await channels.channel("c").append(events(1, 8))
            async with Served(channels, handler, clock):
                await until(lambda c=channels: c.channel(DEAD_LETTERS).last_position() == 1)
                await until(lambda h=handler: len(h.handled) == 7)
            assert handler.handled == [str(n) for n in range(1, 9) if n != poison]
            await channels.close()

    play(scenario)


def test_a_settled_letter_is_open_again_when_its_reader_went_back_and_failed_again():
    async def scenario():
        clock = SystemClock()
        channels = open_memory(clock)
        office = DeadLetterAdmin(channels, clock)
        await channels.channel("c").append(events(1, 3))
        handler = Handler("2")
        async with Served(channels, handler, clock):
            await until(lambda: channels.channel(DEAD_LETTERS).last_position() == 1)
        (letter,) = await office.forget(LetterFilter(channel="c"))
        assert await office.letters(LetterFilter()) == []
        reader = await channels.subscribe("c", "r")
        await reader.commit(0)
        async with Served(channels, handler, clock):
            pass
        assert [one.id for one in await office.letters(LetterFilter())] == [letter.id]
        await channels.close()

    asyncio.run(scenario())
