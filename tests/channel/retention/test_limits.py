"""Retention: what goes, what stays, what everybody who stands in between is told. [CH-14]"""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.channel.backends.local import open_embedded, open_memory
from rapport.channel.config import ChannelRules, ChannelsConfig, channels_from_site
from rapport.channel.log.sequences import SequenceStamp, counted_in
from rapport.channel.requests.request import Request
from rapport.channel.retention.limits import RetentionLimits, decide_trim
from rapport.core.event import Event
from rapport.kernel.clock import ManualClock
from rapport.kernel.toml import TomlFile
from rapport.store.base import LogPiece
from support.examples import examples
from support.numbered_events import stamped

HOUR, DAY = 3_600_000, 86_400_000


def events(first: int, last: int, *, size: int = 10, **headers: str) -> list[Event]:
    data = b'"' + b"x" * size + b'"'
    return [Event("s", str(n), "t", "", n, data, headers) for n in range(first, last + 1)]


def rules(**chosen) -> ChannelsConfig:
    return ChannelsConfig(common=ChannelRules(**chosen))


@pytest.fixture(params=["memory", "embedded"])
def open_channels(request, tmp_path, clock):
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


async def fill(channels, clock, days: int, *, per_day: int = 10, name: str = "c") -> None:
    """So many events a day; the clock stands at the end of the last."""
    for day in range(days):
        first = day * per_day + 1
        await channels.channel(name).append(events(first, first + per_day - 1, size=200))
        await clock.advance(DAY)


async def positions(channels, name: str = "c") -> list[int]:
    return [one.position for one in await channels.channel(name).read_after(0, limit=10_000)]


# --- the decision ---


def piece(first: int, last: int, newest: int, size: int = 100, oldest: int | None = None):
    return LogPiece(first, last, size, newest if oldest is None else oldest, newest)


def test_by_age_whole_pieces_go_oldest_first():
    pieces = [piece(1, 10, 1_000), piece(11, 20, 2_000), piece(21, 30, 3_000)]
    verdict = decide_trim(pieces, 300, 12_500, RetentionLimits(for_ms=10_000), {})
    assert (verdict.trim_before, verdict.held_by) == (21, ())


def test_by_size_the_growing_piece_always_stays():
    pieces = [piece(1, 10, 1_000), piece(11, 20, 2_000)]
    verdict = decide_trim(pieces, 200, 3_000, RetentionLimits(size=50), {}, growing=pieces[-1])
    assert verdict.trim_before == 11


def test_what_a_reader_has_not_committed_stays_and_the_reader_is_named():
    pieces = [piece(1, 10, 1_000), piece(11, 20, 2_000), piece(21, 30, 3_000)]
    readers = {"slow": 15, "quick": 30}
    verdict = decide_trim(pieces, 300, 14_000, RetentionLimits(for_ms=10_000), readers)
    assert (verdict.trim_before, verdict.held_by, verdict.overdue) == (11, ("slow",), False)
    verdict = decide_trim(pieces, 300, 50_000, RetentionLimits(for_ms=10_000), readers)
    assert verdict.overdue
    verdict = decide_trim(pieces, 300, 50_000, RetentionLimits(for_ms=10_000, hard=True), readers)
    assert (verdict.trim_before, verdict.held_by) == (31, ())


def test_what_is_past_its_time_to_live_waits_for_no_reader():
    pieces = [piece(1, 10, 1_000), piece(11, 20, 2_000)]
    verdict = decide_trim(pieces, 200, 50_000, RetentionLimits(ttl_ms=10_000), {"slow": 0})
    assert verdict.trim_before == 21


@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=8),
    ages=st.lists(st.integers(0, 100), min_size=8, max_size=8),
    keep_for=st.integers(0, 80),
    keep_bytes=st.integers(0, 200),
    readers=st.dictionaries(st.sampled_from("abc"), st.integers(0, 100)),
)
def test_nothing_goes_that_is_young_small_and_unread(sizes, ages, keep_for, keep_bytes, readers):
    now, pieces, position = 1_000, [], 0
    for size, age in zip(sizes, sorted(ages, reverse=True), strict=False):
        pieces.append(piece(position + 1, position + size, now - age, size=size))
        position += size
    keep = RetentionLimits(for_ms=keep_for, size=keep_bytes)
    verdict = decide_trim(pieces, sum(sizes), now, keep, readers, growing=pieces[-1])
    left = sum(sizes)
    for one in pieces:
        if one.last < verdict.trim_before:
            assert one.last <= min(readers.values(), default=position)
            assert 0 < keep_for < now - one.newest or 0 < keep_bytes < left
            left -= one.size


# --- at work ---


def test_a_quiet_channel_honours_its_age_too(open_channels, clock):
    async def scenario():
        channels = open_channels(keep_for_ms=7 * DAY)
        await fill(channels, clock, 1)
        assert (await channels.sweeper.sweep_all())[0].trimmed == 0
        await clock.advance(8 * DAY)
        (swept,) = await channels.sweeper.sweep_all()
        assert (swept.trimmed, await positions(channels)) == (10, [])
        assert (await channels.channel("c").append(events(100, 100))).positions == (11,)
        assert await positions(channels) == [11]
        await channels.close()

    play(scenario)


def test_days_go_one_by_one_while_new_ones_come(open_channels, clock):
    async def scenario():
        channels = open_channels(keep_for_ms=8 * DAY)
        for day in range(40):
            await channels.channel("c").append(events(day * 3 + 1, day * 3 + 3))
            await clock.advance(DAY)
            await channels.sweeper.sweep_all()
        kept = await positions(channels)
        assert kept[-1] == 120
        assert 8 * 3 <= len(kept) <= 10 * 3
        await channels.close()

    play(scenario)


def test_size_is_kept_within_an_eighth(open_channels, clock):
    async def scenario():
        channels = open_channels(keep_bytes=40_000)
        for turn in range(50):
            await channels.channel("c").append(events(turn * 10 + 1, turn * 10 + 10, size=400))
            (swept,) = await channels.sweeper.sweep_all()
        assert 25_000 < swept.kept_bytes < 50_000
        assert (await positions(channels))[-1] == 500
        await channels.close()

    play(scenario)


def test_nothing_goes_that_a_named_reader_has_not_committed(open_channels, clock):
    async def scenario():
        channels = open_channels(keep_for_ms=DAY)
        subscription = await channels.subscribe("c", "slow")  # has never committed
        await fill(channels, clock, 10)
        (swept,) = await channels.sweeper.sweep_all()
        assert (swept.trimmed, swept.held_by, swept.overdue) == (0, ("slow",), True)
        await subscription.next_batch(limit=50)
        await subscription.commit(50)
        (swept,) = await channels.sweeper.sweep_all()
        assert 0 < swept.first <= 51
        found = await subscription.next_batch(limit=1_000)
        assert ([one.position for one in found], subscription.skipped) == ([*range(51, 101)], 0)
        await channels.close()

    play(scenario)


def test_under_hard_rules_a_late_reader_goes_on_and_is_notified_of_what_it_lost(
    open_channels, clock
):
    async def scenario():
        channels = open_channels(keep_for_ms=DAY, keep_hard=True)
        subscription = await channels.subscribe("c", "slow")
        await fill(channels, clock, 10)
        await channels.sweeper.sweep_all()
        await channels.channel("c").append(events(1_000, 1_000))
        found = await subscription.next_batch()
        assert subscription.skipped == found[0].position - 1 > 80
        assert channels.skipped["c", "slow"] == subscription.skipped
        await channels.close()

    play(scenario)


def test_a_token_gives_the_same_messages_or_gone_never_others(open_channels, clock):
    async def scenario():
        channels = open_channels(keep_for_ms=5 * DAY)
        source = channels.source
        await fill(channels, clock, 10)
        batch = await source.request("c", Request(query={}, max_messages=7), identity="me")
        given = {batch.current_token: batch.events}
        while batch.next_token:
            batch = await source.request("c", Request(token=batch.next_token), identity="me")
            given[batch.current_token] = batch.events
        (swept,) = await channels.sweeper.sweep_all()
        assert 1 < swept.first <= 60
        gone = 0
        for token, before in given.items():
            again = await source.request("c", Request(token=token, lease_minutes=60), identity="me")
            is_kept = all(one.position >= swept.first for one in before)
            assert again.gone != is_kept
            assert again.events == (before if is_kept else ())
            gone += again.gone
            if again.gone:
                left = await source.request("c", Request(token=again.next_token), identity="me")
                assert left.events[0].position >= swept.first
        assert gone > 1
        await channels.close()

    play(scenario)


def test_a_publisher_that_counts_is_still_recognised_when_its_events_are_gone(tmp_path, clock):
    def counted(number: int) -> list[Event]:
        headers = stamped({}, SequenceStamp("publisher", 1, number))
        return counted_in("c", [Event("s", f"id{number}", "t", "", 0, b"{}", headers)])

    async def scenario():
        channels = open_embedded(tmp_path, clock)
        channels.use_rules(rules(keep_for_ms=DAY))
        for number in range(1, 6):
            await channels.channel("c").append(counted(number))
        await clock.advance(2 * DAY)
        (swept,) = await channels.sweeper.sweep_all()
        assert swept.trimmed == 5
        await channels.close()
        channels = open_embedded(tmp_path, clock)
        assert (await channels.channel("c").append(counted(3))).duplicates == 1
        assert (await channels.channel("c").append(counted(6))).positions == (6,)
        await channels.close()

    play(scenario)


def test_index_and_takes_of_what_is_gone_are_pruned(open_channels, clock):
    async def scenario():
        channels = open_channels(keep_for_ms=DAY)
        await fill(channels, clock, 3, per_day=3_000)
        assert await channels.find_event("5")
        took = Request(query={}, max_messages=5_000, take=True)
        await channels.source.request("c", took, identity="me")
        await channels.source.request("c", took, identity="me")
        assert len(channels.records.find("taken", prefix="c/")) == 3
        await clock.advance(DAY)
        (swept,) = await channels.sweeper.sweep_all()
        assert swept.first > 8_192
        assert not await channels.find_event("5")
        assert channels.parts.history.find("5") == []
        assert len(channels.records.find("taken", prefix="c/")) == 1
        batch = await channels.source.request("c", Request(query={}), identity="me")
        assert batch.events == ()
        await channels.close()

    play(scenario)


@pytest.mark.slow
def test_the_cost_of_a_sweep_does_not_grow_with_the_log(tmp_path, clock):
    """Counts what is asked of the log, for two lengths."""

    async def asked_of_the_log(days: int) -> int:
        channels = open_embedded(tmp_path / str(days), clock, segment_bytes=1_000)
        channels.use_rules(rules(keep_for_ms=1_000 * DAY))
        await fill(channels, clock, days)
        await channels.sweeper.sweep_all()
        log, asked = channels.parts.log, 0
        read = log.read_after

        def counted(*args, **options):
            nonlocal asked
            asked += 1
            return read(*args, **options)

        log.read_after = counted
        await channels.sweeper.sweep_all()
        await channels.close()
        return asked

    async def scenario():
        assert await asked_of_the_log(200) <= await asked_of_the_log(20) + 2

    play(scenario)


@pytest.mark.slow
@settings(max_examples=examples(20))
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 30)),
            st.tuples(st.just("wait"), st.integers(1, 4)),
            st.tuples(st.just("sweep"), st.just(0)),
            st.tuples(st.just("read"), st.integers(1, 20)),
            st.tuples(st.just("commit"), st.integers(0, 20)),
            st.tuples(st.just("restart"), st.just(0)),
        ),
        max_size=40,
    )
)
def test_a_reader_that_is_known_gets_every_event_once_whatever_is_swept(steps, tmp_path_factory):
    directory = tmp_path_factory.mktemp("log")
    clock = ManualClock(1_772_442_000_000)

    async def scenario():
        def opened():
            channels = open_embedded(directory, clock, segment_bytes=500)
            channels.use_rules(rules(keep_for_ms=2 * DAY, keep_bytes=5_000))
            return channels

        channels, written = opened(), 0
        subscription = await channels.subscribe("c", "reader")
        handed_out = committed = 0
        for step, number in steps:
            if step == "append":
                await channels.channel("c").append(events(written + 1, written + number))
                written += number
            elif step == "wait":
                await clock.advance(number * DAY)
            elif step == "sweep":
                await channels.sweeper.sweep_all()
            elif step == "read" and handed_out < written:
                batch = await subscription.next_batch(limit=number)
                assert [one.position for one in batch] == [
                    *range(handed_out + 1, handed_out + 1 + len(batch))
                ]
                assert [one.event.id for one in batch] == [str(one.position) for one in batch]
                handed_out = batch[-1].position
            elif step == "commit" and handed_out > committed:
                committed = min(committed + number, handed_out)
                await subscription.commit(committed)
            elif step == "restart":
                await channels.close()
                channels = opened()
                subscription = await channels.subscribe("c", "reader")
                handed_out = committed
        await channels.close()

    play(scenario)


@pytest.mark.slow
@settings(max_examples=examples(20))
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 20)),
            st.tuples(st.just("wait"), st.integers(1, 3)),
            st.tuples(st.just("sweep"), st.just(0)),
            st.tuples(st.just("ask"), st.integers(1, 9)),
            st.tuples(st.just("take"), st.integers(1, 5)),
            st.tuples(st.just("go on"), st.integers(0, 10)),
        ),
        max_size=30,
    )
)
def test_whatever_goes_a_token_gives_its_messages_or_gone_for_ever(steps, tmp_path_factory):
    directory = tmp_path_factory.mktemp("log")
    clock = ManualClock(1_772_442_000_000)

    async def scenario():
        channels = open_embedded(directory, clock, segment_bytes=300)
        channels.use_rules(rules(keep_for_ms=2 * DAY, keep_bytes=4_000))
        written, given, gone = 0, {}, set()

        async def ask(**asked) -> None:
            batch = await channels.source.request("c", Request(**asked), identity="me")
            given.setdefault(batch.current_token, batch.events)

        for step, number in steps:
            if step == "append":
                ttl = {"ttlms": str(3 * DAY)} if number % 3 == 0 else {}
                await channels.channel("c").append(events(written + 1, written + number, **ttl))
                written += number
            elif step == "wait":
                await clock.advance(number * DAY)
            elif step == "sweep":
                await channels.sweeper.sweep_all()
            elif step == "go on" and given:
                await ask(token=list(given)[number % len(given)], lease_minutes=1_000)
            elif step in ("ask", "take"):
                await ask(query={}, max_messages=number, take=step == "take", lease_minutes=1_000)
            for token, before in given.items():
                asked = Request(token=token, lease_minutes=1_000)
                again = await channels.source.request("c", asked, identity="me")
                if again.gone:
                    gone.add(token)
                assert again.gone == (token in gone)
                assert again.events == (() if again.gone else before)
        await channels.close()

    play(scenario)


def test_rules_are_read_from_the_site_file(tmp_path):
    file = tmp_path / "site.toml"
    file.write_text(
        '[channels]\nkeep_for = "30 days"\n[channels."raw.*"]\nkeep_hard = true\nttl = "1h"\n'
    )
    declared, problems = channels_from_site(TomlFile.load(file))
    assert problems == []
    raw = declared.rules_for("raw.readers")
    assert (raw.keep_for_ms, raw.keep_hard, raw.ttl_ms) == (30 * DAY, True, HOUR)
    assert declared.rules_for("events").ttl_ms is None
