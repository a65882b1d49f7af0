import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.channel.backends.local import open_embedded, open_memory
from rapport.channel.requests.request import Request
from rapport.core.errors import InvalidInput, NotAllowed
from rapport.core.event import Event
from rapport.kernel.clock import SystemClock
from support.examples import examples

EVEN = "type = 'even'"


def events(first: int, last: int) -> list[Event]:
    kinds = ("even", "odd")
    return [Event("s", str(n), kinds[n % 2], "", n, b"1") for n in range(first, last + 1)]


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.integers(1, 30), max_size=6), st.integers(1, 7), st.booleans())
def test_sets_follow_each_other_whatever_is_appended_meanwhile(
    sizes: list[int], most: int, filtered: bool
) -> None:
    async def scenario() -> None:
        channels = open_memory(SystemClock())
        channel, last = channels.channel("c"), 0
        request = Request(query=EVEN if filtered else {}, max_messages=most)
        following = await channels.source.follow("c", request, identity="me")
        found: list[int] = []
        for size in sizes:
            await channel.append(events(last + 1, last + size))
            last += size
            followed = await following.next_set(wait_ms=0)
            if followed is not None:
                assert len(followed.chosen.events) <= most
                found += [stored.position for stored in followed.chosen.events]
        while (followed := await following.next_set(wait_ms=0)) is not None:
            found += [stored.position for stored in followed.chosen.events]
        assert found == [n for n in range(1, last + 1) if not filtered or n % 2 == 0]
        await channels.close()

    asyncio.run(scenario())


def test_tokens_of_a_stream_are_those_of_requests_also_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        channels = open_embedded(tmp_path, SystemClock())
        await channels.channel("c").append(events(1, 9))
        asked = Request(query=EVEN, max_messages=2, handback="h")
        streams = [await channels.source.follow("c", asked, identity="me") for _ in range(2)]
        tokens = []
        for stream in streams:
            followed = await stream.next_set()
            assert followed is not None
            tokens.append(stream.tokens(followed))
        assert tokens[0] == tokens[1]  # so a door writes them once
        await channels.close()
        channels = open_embedded(tmp_path, SystemClock())
        current, following = tokens[0]
        batch = await channels.source.request("c", Request(token=current), identity="me")
        assert [one.position for one in batch.events] == [2, 4]
        again = await channels.source.follow("c", Request(token=current), identity="me")
        on = await channels.source.follow("c", Request(token=following), identity="me")
        assert (again.handback, on.handback) == ("h", "h")
        first, second = await again.next_set(), await on.next_set()
        assert first is not None
        assert second is not None
        assert [one.position for one in first.chosen.events] == [2, 4]
        assert [one.position for one in second.chosen.events] == [6, 8]
        with pytest.raises(NotAllowed):
            await channels.source.follow("c", Request(token=current), identity="other")
        await channels.close()

    asyncio.run(scenario())


def test_a_set_that_was_taken_meanwhile_is_gone_and_the_stream_goes_on() -> None:
    async def scenario() -> None:
        channels = open_memory(SystemClock())
        await channels.channel("c").append(events(1, 6))
        batch = await channels.source.request("c", Request(query={}, max_messages=2), identity="me")
        await channels.source.request(
            "c", Request(query={}, max_messages=1, take=True), identity="other"
        )
        token = Request(token=batch.current_token, max_messages=10)
        following = await channels.source.follow("c", token, identity="me")
        first, second = await following.next_set(), await following.next_set()
        assert first is not None
        assert second is not None
        assert first.gone
        assert [one.position for one in second.chosen.events] == [3, 4, 5, 6]
        await channels.close()

    asyncio.run(scenario())


def test_a_stream_waits_ends_and_refuses_what_it_cannot_do() -> None:
    async def scenario() -> None:
        channels = open_memory(SystemClock())
        following = await channels.source.follow("c", Request(query={}), identity="me", after=1)
        waiting = asyncio.create_task(following.next_set())
        await asyncio.sleep(0)
        await channels.channel("c").append(events(1, 2))
        followed = await asyncio.wait_for(waiting, 5)
        assert followed is not None
        assert [one.position for one in followed.chosen.events] == [2]
        bounded = Request(query="position <= 1")
        ended = await channels.source.follow("c", bounded, identity="me")
        assert await ended.next_set() is not None
        assert await ended.next_set() is None
        assert ended.is_over
        for refused in (Request(query={}, take=True), Request(token="x", query={})):
            with pytest.raises(InvalidInput):
                await channels.source.follow("c", refused, identity="me")
        await channels.close()

    asyncio.run(scenario())
