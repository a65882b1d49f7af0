"""Retention does the same on every back end. [CH-13, CH-14]"""

from __future__ import annotations

from rapport.channel.config import ChannelRules, ChannelsConfig
from rapport.channel.requests.request import Request
from support.suites.channel import numbered, play

DAY = 86_400_000


def rules(**chosen) -> ChannelsConfig:
    return ChannelsConfig(common=ChannelRules(**chosen))


async def fill(channels, clock, days: int) -> None:
    for day in range(days):
        await channels.channel("c").append(numbered(day * 10 + 1, day * 10 + 10))
        await clock.advance(DAY)
        await channels.sweeper.sweep_all()  # as it goes on in a node: closes pieces in time


def test_what_is_too_old_goes_and_positions_go_on(channel_place):
    async def scenario(channels):
        channels.use_rules(rules(keep_for_ms=3 * DAY))
        for day in range(12):
            await channels.channel("c").append(numbered(day * 10 + 1, day * 10 + 10))
            await channel_place.clock.advance(DAY)
            await channels.sweeper.sweep_all()
        kept = [one.position for one in await channels.channel("c").read_after(0)]
        assert kept == list(range(kept[0], 121))
        assert 61 <= kept[0] <= 91
        await channel_place.clock.advance(9 * DAY)
        await channels.sweeper.sweep_all()
        assert await channels.channel("c").read_after(0) == []
        assert (await channels.channel("c").append(numbered(500, 500))).positions == (121,)

    play(channel_place, scenario)


def test_what_a_known_reader_has_not_read_stays(channel_place):
    async def scenario(channels):
        channels.use_rules(rules(keep_for_ms=DAY))
        subscription = await channels.subscribe("c", "slow")
        await fill(channels, channel_place.clock, 6)
        (swept,) = await channels.sweeper.sweep_all()
        assert (swept.trimmed, swept.held_by) == (0, ("slow",))
        await subscription.next_batch(limit=35)
        await subscription.commit(35)
        (swept,) = await channels.sweeper.sweep_all()
        assert swept.first <= 36
        found = await subscription.next_batch()
        assert [one.position for one in found] == list(range(36, 61))

    play(channel_place, scenario)


def test_a_token_of_what_went_is_gone_and_what_is_left_comes_next(channel_place):
    async def scenario(channels):
        channels.use_rules(rules(keep_for_ms=3 * DAY))
        await fill(channels, channel_place.clock, 8)
        asked = Request(query={}, max_messages=5, lease_minutes=1_000)
        first = await channels.source.request("c", asked, identity="me")
        begins = first.events[0].position
        channels.use_rules(rules(keep_for_ms=DAY + DAY // 2))  # no time passes: leases hold
        await channels.sweeper.sweep_all()
        kept = (await channels.channel("c").read_after(0))[0].position
        assert kept > begins + 4
        token = Request(token=first.current_token, lease_minutes=1_000)
        again = await channels.source.request("c", token, identity="me")
        assert (again.gone, again.events) == (True, ())
        left = Request(token=again.next_token, lease_minutes=1_000)
        following = await channels.source.request("c", left, identity="me")
        assert following.events[0].position == kept

    play(channel_place, scenario)
