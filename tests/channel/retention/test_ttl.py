"""Time to live: given out before it is over, to nobody afterwards; 0 = given out once. [CH-1,
CH-14]
"""

from __future__ import annotations

import asyncio

import pytest

from rapport.channel.backends.local import open_embedded, open_memory
from rapport.channel.config import ChannelRules, ChannelsConfig
from rapport.channel.requests.request import Request
from rapport.channel.validation import batch_ttl, ttl_of
from rapport.core.event import Event, StoredEvent

HOUR = 3_600_000


def events(first: int, last: int, **headers: str) -> list[Event]:
    return [Event("s", str(n), "t", "", n, b"{}", headers) for n in range(first, last + 1)]


@pytest.fixture(params=["memory", "embedded"])
def open_channels(request, tmp_path, clock):
    def open_them(**chosen):
        kind = request.param
        channels = open_memory(clock) if kind == "memory" else open_embedded(tmp_path, clock)
        channels.use_rules(ChannelsConfig(common=ChannelRules(**chosen)))
        return channels

    return open_them


def play(scenario) -> None:
    async def limited():
        async with asyncio.timeout(30):
            await scenario()

    asyncio.run(limited())


async def ask(channels, identity: str = "me", **asked):
    return await channels.source.request("c", Request(**asked), identity=identity)


def ids(batch) -> list[str]:
    return [stored.event.id for stored in batch.events]


def test_the_shorter_of_the_event_and_the_channel_counts():
    (short,) = events(1, 1, ttlms="10")
    (endless,) = events(1, 1, ttlms="-1")
    assert [ttl_of(short, -1), ttl_of(short, 50), ttl_of(short, 5)] == [10, 10, 5]
    assert [ttl_of(endless, -1), ttl_of(endless, 50)] == [-1, 50]
    assert ttl_of(events(1, 1, ttlms="٣")[0], -1) == -1


def test_a_batch_tells_the_shortest_time_its_messages_may_be_used():
    stored = [StoredEvent(n, 1_000, events(n, n, ttlms=str(n * 100))[0]) for n in (3, 2)]
    assert batch_ttl(stored, -1, 1_050) == 150
    assert batch_ttl(stored, -1, 9_000) == 1
    assert batch_ttl([*stored, StoredEvent(9, 0, events(9, 9, ttlms="0")[0])], -1, 1_000) == 0
    assert batch_ttl([StoredEvent(1, 0, events(1, 1)[0])], -1, 1_000) == -1
    assert batch_ttl([], 500, 0) == 500


def test_past_its_time_an_event_is_given_to_no_request_and_no_reader(open_channels, clock):
    async def scenario():
        channels = open_channels()
        channel = channels.channel("c")
        await channel.append([*events(1, 2), *events(3, 4, ttlms=str(HOUR)), *events(5, 5)])
        first = await ask(channels, query={}, max_messages=3, lease_minutes=120)
        assert (ids(first), first.ttl_ms) == (["1", "2", "3"], HOUR)
        await clock.advance(HOUR)
        again = await ask(channels, token=first.current_token)
        assert (again.gone, ids(again)) == (True, [])
        assert ids(await ask(channels, query={})) == ["1", "2", "5"]
        subscription = await channels.subscribe("c", "reader")
        assert [one.event.id for one in await subscription.next_batch()] == ["1", "2", "5"]
        assert subscription.skipped == 2
        await channels.close()

    play(scenario)


def test_a_reader_of_nothing_but_the_past_waits_and_does_not_spin(open_channels, clock):
    async def scenario():
        channels = open_channels(ttl_ms=HOUR)
        await channels.channel("c").append(events(1, 2_500))
        await clock.advance(2 * HOUR)
        subscription = await channels.subscribe("c", "reader")
        waiting = asyncio.create_task(subscription.next_batch())
        for _turn in range(50):
            await asyncio.sleep(0)
        assert not waiting.done()
        await channels.channel("c").append(events(3_000, 3_000))
        assert [one.event.id for one in await waiting] == ["3000"]
        await channels.close()

    play(scenario)


def test_what_the_channel_lets_expire_goes_with_the_sweep_read_or_not(open_channels, clock):
    async def scenario():
        channels = open_channels(ttl_ms=HOUR)
        await channels.subscribe("c", "never-reads")
        await channels.channel("c").append(events(1, 10))
        await clock.advance(2 * HOUR)
        (swept,) = await channels.sweeper.sweep_all()
        assert swept.trimmed == 10
        await channels.close()

    play(scenario)


def test_what_is_given_out_once_leaves_with_its_first_delivery(open_channels, clock):
    async def scenario():
        channels = open_channels()
        await channels.channel("c").append([*events(1, 2), *events(3, 3, ttlms="0")])
        mine = await ask(channels, query={})
        assert (ids(mine), mine.ttl_ms) == (["1", "2", "3"], 0)
        assert ids(await ask(channels, "you", query={})) == ["1", "2"]
        again = await ask(channels, token=mine.current_token)  # the answer was lost on the way
        assert ids(again) == ["1", "2", "3"]
        await channels.channel("c").append(events(4, 4, ttlms="0"))
        following = await ask(channels, token=mine.current_token, seen=True)
        await ask(channels, "you", query={})
        gone = await ask(channels, token=following.next_token)
        assert gone.gone
        await channels.close()

    play(scenario)


def test_a_channel_may_give_everything_out_once(open_channels, clock):
    async def scenario():
        channels = open_channels(ttl_ms=0)
        await channels.channel("c").append(events(1, 5))
        assert ids(await ask(channels, query={}, max_messages=3)) == ["1", "2", "3"]
        assert ids(await ask(channels, "you", query={})) == ["4", "5"]
        assert ids(await ask(channels, "you", query={})) == []
        await channels.close()

    play(scenario)


async def heard(following) -> list[str]:
    found: list[str] = []
    while (followed := await following.next_set(wait_ms=0)) is not None:
        found += [stored.event.id for stored in following.given(followed)]
    return found


async def listen(channels, identity: str, **asked):
    return await channels.source.follow("c", Request(query={}, **asked), identity=identity)


def test_all_who_listen_get_what_is_given_out_once_and_nobody_who_comes_later(open_channels):
    async def scenario():
        channels = open_channels()
        mine, yours = await listen(channels, "me"), await listen(channels, "you")
        alike = await listen(channels, "me")  # as another page of the same person
        await channels.channel("c").append([*events(1, 2, ttlms="0"), *events(3, 3)])
        assert await heard(mine) == await heard(yours) == await heard(alike) == ["1", "2", "3"]
        late = await listen(channels, "late")
        assert await heard(late) == ["3"]
        assert ids(await ask(channels, "late", query={})) == ["3"]
        await channels.channel("c").append(events(4, 4, ttlms="0"))
        assert [await heard(one) for one in (late, mine)] == [["4"], ["4"]]
        await channels.close()

    play(scenario)


def test_what_waited_for_somebody_is_given_to_the_first_stream_that_comes(open_channels):
    async def scenario():
        channels = open_channels(ttl_ms=0)
        await channels.channel("c").append(events(1, 5))
        first, second = await listen(channels, "a", max_messages=2), await listen(channels, "b")
        followed = await first.next_set()
        assert [stored.event.id for stored in followed.chosen.events] == ["1", "2"]
        token, _following = first.tokens(followed)
        assert await heard(second) == ["3", "4", "5"]
        assert await heard(first) == []
        again = await ask(channels, "a", token=token)  # as after a broken connection
        assert ids(again) == ["1", "2"]
        await channels.close()

    play(scenario)


def test_a_stream_that_begins_with_a_token_gives_its_set_out(open_channels):
    async def scenario():
        channels = open_channels(ttl_ms=0)
        await channels.channel("c").append(events(1, 4))
        asked = await ask(channels, query={}, max_messages=2)
        stream = await channels.source.follow("c", Request(token=asked.next_token), identity="me")
        assert await heard(stream) == ["3", "4"]
        assert ids(await ask(channels, "you", query={})) == []
        again = await channels.source.follow("c", Request(token=asked.next_token), identity="me")
        assert await heard(again) == ["3", "4"]  # the same token, the same messages
        await channels.close()

    play(scenario)


def test_what_a_request_got_is_heard_by_who_listened_and_outlives_a_restart(tmp_path, clock):
    async def scenario():
        channels = open_embedded(tmp_path, clock)
        listening = await listen(channels, "you")
        await channels.channel("c").append([*events(1, 1, ttlms="0"), *events(2, 2)])
        assert ids(await ask(channels, query={})) == ["1", "2"]
        assert await heard(listening) == ["1", "2"]
        await channels.close()
        channels = open_embedded(tmp_path, clock)
        assert await heard(await listen(channels, "you")) == ["2"]
        stored = await channels.channel("c").read_after(0)
        left = await channels.source.not_given_out("c", stored)
        assert [one.event.id for one in left] == ["2"]
        await channels.close()

    play(scenario)


def test_streams_at_the_same_time_share_out_what_waited(open_channels):
    """Whoever was faster has it: nothing is heard twice by who came later, and nothing is lost."""

    async def scenario():
        channels = open_channels()
        sent = [events(n, n, **({"ttlms": "0"} if n % 3 else {}))[0] for n in range(1, 61)]
        await channels.channel("c").append(sent)
        streams = [await listen(channels, f"r{n}", max_messages=7) for n in range(4)]
        found = await asyncio.gather(*(heard(one) for one in streams))
        once = sorted(int(id) for each in found for id in each if int(id) % 3)
        assert once == [n for n in range(1, 61) if n % 3]
        for each in found:
            assert [id for id in each if not int(id) % 3] == [str(n) for n in range(3, 61, 3)]
        await channels.close()

    play(scenario)
