"""The wall clock set back and ahead by hours and years while everybody works. [CH-2, CH-3, CH-6,
CH-14, CH-15]
"""

from __future__ import annotations

import asyncio

import pytest

from rapport.channel.access.identities import Rates
from rapport.channel.agents.outbox import Outbox
from rapport.channel.backends.local import open_embedded, open_memory
from rapport.channel.config import ChannelRules, ChannelsConfig
from rapport.channel.push import (
    PausePush,
    PushDelivery,
    PushFailure,
    PushSubscription,
    SendMessages,
    after_failure,
    next_step,
)
from rapport.channel.requests.request import Request
from rapport.channel.retention.limits import RetentionLimits, decide_trim, newest_arrivals
from rapport.core.errors import LeaseExpired, TooFast
from rapport.core.event import Event
from rapport.kernel.clock import CONFIRM_MS, Chance, Ids
from rapport.store.base import LogPiece
from support.faults.jumping_clock import JumpingClock

pytestmark = pytest.mark.slow

START = 1_772_442_000_000
MINUTE, HOUR, DAY, YEAR = 60_000, 3_600_000, 86_400_000, 31_557_600_000
JUMPS = [-50 * YEAR, -DAY, -HOUR, HOUR, DAY, 73 * YEAR]


def events(first: int, last: int, **headers: str) -> list[Event]:
    return [
        Event("s", str(n), "t", "", 0, b'"' + b"x" * 200 + b'"', headers)
        for n in range(first, last + 1)
    ]


def rules(**chosen) -> ChannelsConfig:
    return ChannelsConfig(common=ChannelRules(**chosen))


@pytest.fixture
def clock() -> JumpingClock:
    return JumpingClock(START)


@pytest.fixture(params=["memory", "embedded"])
def channels_with(request, tmp_path, clock):
    def open_them(**chosen):
        if request.param == "memory":
            channels = open_memory(clock)
        else:
            channels = open_embedded(tmp_path, clock, segment_bytes=2_000)
        channels.use_rules(rules(**chosen))
        return channels

    return open_them


def play(scenario) -> None:
    async def limited():
        async with asyncio.timeout(30):
            await scenario()

    asyncio.run(limited())


async def positions(channels) -> list[int]:
    return [one.position for one in await channels.channel("c").read_after(0, limit=10_000)]


# --- retention ---


def test_a_moment_in_2099_lets_nothing_go(channels_with, clock):
    async def scenario():
        channels = channels_with(keep_for_ms=7 * DAY)
        for day in range(3):
            await channels.channel("c").append(events(day * 20 + 1, day * 20 + 20))
            await clock.advance(DAY)
        clock.jump(73 * YEAR)
        for _minute in range(9):
            await channels.sweeper.sweep_all()
            await clock.advance(MINUTE)
        assert await positions(channels) == list(range(1, 61))
        clock.correct()
        await channels.sweeper.sweep_all()
        assert await positions(channels) == list(range(1, 61))
        await channels.close()

    play(scenario)


def test_a_clock_that_stays_where_it_jumped_is_obeyed_after_ten_minutes(channels_with, clock):
    async def scenario():
        channels = channels_with(keep_for_ms=7 * DAY)
        await channels.channel("c").append(events(1, 20))
        clock.jump(30 * DAY)
        await channels.sweeper.sweep_all()
        assert len(await positions(channels)) == 20
        await clock.advance(CONFIRM_MS)
        await channels.sweeper.sweep_all()
        assert await positions(channels) == []
        await channels.close()

    play(scenario)


def test_events_that_came_in_a_moment_of_2099_do_not_hold_up_retention(channels_with, clock):
    async def scenario():
        channels = channels_with(keep_for_ms=7 * DAY)
        await channels.channel("c").append(events(1, 20))
        clock.jump(73 * YEAR)
        await channels.channel("c").append(events(21, 40))
        clock.correct()
        await channels.channel("c").append(events(41, 60))
        await channels.sweeper.sweep_all()
        for _day in range(12):
            await clock.advance(DAY)
            await channels.channel("c").append(events(1000 + _day, 1000 + _day))
            await channels.sweeper.sweep_all()
        kept = await positions(channels)
        assert kept[0] > 40
        assert len(kept) >= 7
        await channels.close()

    play(scenario)


def test_a_start_with_a_clock_far_ahead_lets_nothing_go_until_it_has_stood(tmp_path, clock):
    async def scenario():
        for jump in (0, 73 * YEAR):
            clock.jump(jump)
            channels = open_embedded(tmp_path, clock, segment_bytes=2_000)
            channels.use_rules(rules(keep_for_ms=7 * DAY))
            if not jump:
                await channels.channel("c").append(events(1, 40))
            await channels.sweeper.sweep_all()
            assert len(await positions(channels)) == 40
            if jump:
                await clock.advance(CONFIRM_MS)
                await channels.sweeper.sweep_all()
                assert await positions(channels) == []
            await channels.close()

    play(scenario)


def piece(number: int, newest: int) -> LogPiece:
    return LogPiece(number * 10 + 1, number * 10 + 10, 100, newest, newest)


def test_ages_of_pieces_are_told_by_their_neighbours_when_the_clock_was_wrong():
    now = START
    times = [now - 9 * DAY, now + 73 * YEAR, now - 50 * YEAR, now - 5 * DAY, now + YEAR]
    pieces = [piece(number, newest) for number, newest in enumerate(times)]
    told = newest_arrivals(pieces, now)
    assert told == [now - 9 * DAY, now - 9 * DAY, now - 9 * DAY, now - 5 * DAY, now]
    verdict = decide_trim(pieces, 500, now, RetentionLimits(for_ms=7 * DAY), {})
    assert verdict.trim_before == 31


# --- time to live ---


@pytest.mark.parametrize("jump", [73 * YEAR, -YEAR])
def test_a_jump_hides_no_event_before_its_time_to_live_is_over(channels_with, clock, jump):
    async def scenario():
        channels = channels_with(ttl_ms=HOUR)
        await channels.channel("c").append(events(1, 5))
        clock.jump(jump)
        assert await positions(channels) == [1, 2, 3, 4, 5]
        clock.correct()
        await channels.sweeper.sweep_all()
        assert await positions(channels) == [1, 2, 3, 4, 5]
        await clock.advance(2 * HOUR)
        assert await positions(channels) == []
        await channels.close()

    play(scenario)


# --- publishing, leases, takes, rates ---


@pytest.mark.parametrize("jump", JUMPS)
def test_publishing_goes_on_and_repetitions_are_known_whatever_the_clock_says(
    channels_with, clock, jump
):
    async def scenario():
        channels = channels_with()
        channel = channels.channel("c")
        await channel.append(events(1, 3))
        clock.jump(jump)
        appended = await channel.append(events(2, 5))
        assert (appended.positions, appended.duplicates) == ((2, 3, 4, 5), 2)
        stored = await channel.read_after(0)
        assert [one.received for one in stored[3:]] == [START + jump] * 2
        first = await channels.source.request("c", Request(query={}), identity="r")
        clock.correct()
        again = await channels.source.request("c", Request(token=first.current_token), identity="r")
        assert again.events == first.events
        await channels.close()

    play(scenario)


@pytest.mark.parametrize("jump", JUMPS)
def test_a_lease_in_memory_lasts_as_long_as_it_was_given_for(clock, jump):
    async def scenario():
        channels = open_memory(clock)
        await channels.channel("c").append(events(1, 3))
        ask = channels.source.request
        first = await ask("c", Request(query={}, lease_minutes=10), identity="r")
        clock.jump(jump)
        await clock.advance(9 * MINUTE)
        seen = Request(token=first.current_token, lease_minutes=10)
        assert len((await ask("c", seen, identity="r")).events) == 3
        await clock.advance(11 * MINUTE)
        with pytest.raises(LeaseExpired):
            await ask("c", seen, identity="r")
        await channels.close()

    play(scenario)


def test_a_taker_whose_answer_was_lost_gets_it_again_though_the_clock_was_ahead_for_a_moment(
    channels_with, clock
):
    async def scenario():
        channels = channels_with()
        await channels.channel("c").append(events(1, 4))
        ask = channels.source.request
        first = await ask("c", Request(query={}, max_messages=2), identity="r")
        take = Request(token=first.current_token, take=True, lease_minutes=10)
        taken = await ask("c", take, identity="r")
        clock.jump(73 * YEAR)
        other = await ask("c", Request(query={}, take=True), identity="other")
        assert [one.event.id for one in other.events] == ["3", "4"]
        clock.correct()
        assert (await ask("c", take, identity="r")).events == taken.events
        await channels.close()

    play(scenario)


@pytest.mark.parametrize("jump", JUMPS)
def test_who_waits_is_woken_by_an_event_or_by_time_that_passed_not_by_the_clock(
    channels_with, clock, jump
):
    async def scenario():
        channels = channels_with()
        channel = channels.channel("c")
        await channel.append(events(1, 1))
        waiting = asyncio.ensure_future(channel.wait_after(1, timeout_ms=5_000))
        await asyncio.sleep(0)
        clock.jump(jump)
        await clock.advance(4_000)
        assert not waiting.done()
        await clock.advance(1_500)
        assert await waiting is False
        await channels.close()

    play(scenario)


@pytest.mark.parametrize("jump", JUMPS)
def test_a_rate_lets_nobody_wait_longer_than_a_second_more_because_of_a_jump(clock, jump):
    rates = Rates({"device": 10})
    rates.charge("device", 15, clock.now_ms())
    clock.jump(jump)
    try:
        rates.charge("device", 1, clock.now_ms())
    except TooFast as refused:
        assert refused.retry_after_seconds <= 1
    clock.correct()
    asyncio.run(clock.advance(1_000))
    rates.charge("device", 1, clock.now_ms())


@pytest.mark.parametrize("jump", JUMPS)
def test_an_outbox_never_begins_an_epoch_again_and_ids_stay_unique(tmp_path, clock, jump):
    epochs, ids, make = [], [], Ids(clock, Chance(1))
    for _opening in range(3):
        outbox = Outbox(tmp_path, clock, new_name="p")
        epochs.append(outbox.identity.epoch)
        ids += [make.new() for _ in range(50)]
        outbox.close()
        clock.jump(jump)
    assert epochs == sorted(set(epochs))
    assert len(ids) == len(set(ids))


def test_a_push_that_failed_is_tried_again_soon_though_the_clock_went_back():
    push = PushSubscription(
        session="s",
        channel="c",
        identity="i",
        address="http://127.0.0.1/",
        form="json",
        token="t",
        sent=False,
        until_ms=START + DAY,
    )
    failed = after_failure(
        PushDelivery(push=push), PushFailure("unreachable", "no"), START, chance=0.5
    )
    soon = next_step(failed, START, longest_wait_ms=MINUTE)
    assert isinstance(soon, PausePush)
    assert soon.wait_ms <= MINUTE
    assert isinstance(next_step(failed, START - YEAR, longest_wait_ms=MINUTE), SendMessages)
