"""Which stores a site's `[channels]` opens, and reading them without a node. [CH-13]"""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from rapport.channel.backends.stores import is_embedded, open_channels, open_reading, read_address
from rapport.channel.config import ChannelRules, ChannelsConfig
from rapport.channel.requests.request import Request
from rapport.core.errors import InvalidInput, StoreUnavailable
from rapport.core.event import Event
from rapport.store.placement import RoutedLogStore
from rapport.store.segment_store import SegmentLogStore

pytestmark = pytest.mark.slow


def counted(first, last):
    return [Event("s", str(number), "t", "", number) for number in range(first, last + 1)]


def declare(nats_address, tmp_path, **options):
    (tmp_path / "nats").write_text(nats_address)
    return ChannelsConfig(nats="file:nats", **options)


def open_site(tmp_path, clock, declared):
    return open_channels(tmp_path / "log", clock, declared, site=tmp_path, segment_bytes=1_000_000)


def play(tmp_path, clock, declared, scenario):
    async def run():
        channels = open_site(tmp_path, clock, declared)
        try:
            return await scenario(channels)
        finally:
            await channels.close()

    return asyncio.run(run())


async def fill(channels):
    for name in ("a", "far.one", "far.two"):
        await channels.channel(name).append(counted(1, 5))
    return channels


FAR = ChannelRules(pattern="far.*", log="nats")


def test_a_site_that_keeps_everything_embedded_has_no_routing_in_the_way(tmp_path, clock):
    channels = play(tmp_path, clock, ChannelsConfig(), fill)
    assert type(channels.parts.log) is SegmentLogStore
    assert is_embedded(tmp_path / "log", ChannelsConfig())


def test_each_channel_goes_where_its_rule_says(tmp_path, clock, nats_address):
    declared = declare(nats_address, tmp_path, rules=(FAR,))
    channels = play(tmp_path, clock, declared, fill)
    assert type(channels.parts.log) is RoutedLogStore
    files = {path.name for path in (tmp_path / "log" / "logs").iterdir()}
    assert files == {"a"}

    async def again(opened):
        assert opened.names() == ["a", "far.one", "far.two"]
        found = await opened.channel("far.two").append(counted(4, 6))
        assert (found.positions, found.duplicates) == ((4, 5, 6), 2)
        assert [name for name, _ in await opened.find_event("5")] == ["a", "far.one", "far.two"]

    play(tmp_path, clock, declared, again)


def test_a_channel_stays_where_it_is_when_the_site_changes_its_mind(tmp_path, clock, nats_address):
    play(tmp_path, clock, ChannelsConfig(), fill)
    declared = declare(nats_address, tmp_path, rules=(FAR,))

    async def grow(channels):
        await channels.channel("far.one").append(counted(6, 6))
        await channels.channel("far.three").append(counted(1, 1))

    with capture_logs() as told:
        play(tmp_path, clock, declared, grow)
    commands = [entry["command"] for entry in told if "command" in entry]
    assert commands == [
        "rapport channel move far.one --to nats",
        "rapport channel move far.two --to nats",
    ]
    files = {path.name for path in (tmp_path / "log" / "logs").iterdir()}
    assert files == {"a", "far.one", "far.two"}

    async def look(channels):
        assert channels.channel("far.one").last_position() == 6
        assert channels.channel("far.three").last_position() == 1

    back = ChannelsConfig(nats="file:nats")
    assert not is_embedded(tmp_path / "log", back)
    play(tmp_path, clock, back, look)
    with pytest.raises(InvalidInput) as caught:
        open_site(tmp_path, clock, ChannelsConfig())
    assert caught.value.code == "channel.no_address"


def test_records_may_be_in_postgres_and_logs_in_nats(tmp_path, clock, nats_address, postgres):
    (tmp_path / "postgres").write_text(f"{postgres.dsn}#{postgres.schema}")
    declared = declare(
        nats_address,
        tmp_path,
        postgres="file:postgres",
        records="postgres",
        common=ChannelRules(log="nats"),
        rules=(ChannelRules(pattern="far.*", log="postgres"),),
    )

    async def work(channels):
        await fill(channels)
        reader = await channels.subscribe("far.one", "r")
        await reader.next_batch()
        await reader.commit(3, b"state")

    async def again(channels):
        assert channels.names() == ["a", "far.one", "far.two"]
        reader = await channels.subscribe("far.one", "r")
        assert (reader.position, reader.state) == (3, b"state")

    play(tmp_path, clock, declared, work)
    play(tmp_path, clock, declared, again)
    assert not (tmp_path / "log" / "records.sqlite").exists()

    async def read():
        channels = open_reading(tmp_path / "log", clock, declared, site=tmp_path)
        try:
            assert channels.names() == ["a", "far.one", "far.two"]
        finally:
            await channels.close()

    asyncio.run(read())


def test_a_site_all_in_postgres_lets_it_evaluate_conditions(tmp_path, clock, postgres):
    (tmp_path / "postgres").write_text(f"{postgres.dsn}#{postgres.schema}")
    declared = ChannelsConfig(
        postgres="file:postgres", records="postgres", common=ChannelRules(log="postgres")
    )

    async def ask(channels):
        await fill(channels)
        wanted = Request(query="time > 3")
        batch = await channels.source.request("a", wanted, identity="ana")
        assert [one.position for one in batch.events] == [4, 5]
        assert [name for name, _ in await channels.find_event("5")] == ["a", "far.one", "far.two"]
        return channels

    channels = play(tmp_path, clock, declared, ask)
    assert channels.parts.finder is not None
    assert not (tmp_path / "log" / "history.sqlite").exists()


def test_retention_holds_wherever_a_channel_is_kept(tmp_path, clock, nats_address):
    declared = declare(nats_address, tmp_path, common=ChannelRules(log="nats", keep_for_ms=60_000))

    async def age(channels):
        channels.use_rules(declared)
        channel = channels.channel("a")
        await channel.append(counted(1, 5))
        await clock.advance(120_000)
        await channels.sweeper.sweep_all()
        await channel.append(counted(5, 6))
        assert [one.position for one in await channel.read_after(0)] == [6]
        assert channel.first_position() == 6

    play(tmp_path, clock, declared, age)


def test_two_processes_cannot_open_one_directory_wherever_the_logs_are(
    tmp_path, clock, nats_address
):
    declared = declare(nats_address, tmp_path, common=ChannelRules(log="nats"))

    async def again(_channels):
        with pytest.raises(StoreUnavailable) as caught:
            open_site(tmp_path, clock, declared)
        assert caught.value.code == "store.locked"

    play(tmp_path, clock, declared, again)


def test_all_channels_can_be_read_without_the_lock_wherever_they_are(tmp_path, clock, nats_address):
    declared = declare(nats_address, tmp_path, rules=(FAR,))

    async def beside(channels):
        await fill(channels)
        reading = open_reading(tmp_path / "log", clock, declared, site=tmp_path)
        try:
            assert reading.names() == ["a", "far.one", "far.two"]
            for name in reading.names():
                found = await reading.channel(name).read_after(2, limit=2)
                assert [one.position for one in found] == [3, 4]
            assert await reading.channel("far.one").wait_after(4)
            found = await reading.find_event("5")
            assert [name for name, _ in found] == ["a", "far.one", "far.two"]
        finally:
            await reading.close()

    play(tmp_path, clock, declared, beside)


def test_addresses_of_nats_name_servers_and_a_prefix():
    address = read_address("nats://u:p@a:4222, tls://b:4223/building")
    assert address.servers == ("nats://u:p@a:4222", "tls://b:4223")
    assert address.prefix == "building"
    assert read_address("nats://a:4222").prefix == "rapport"
    for text in ("", "a:4222", "http://a:4222", "nats://"):
        with pytest.raises(InvalidInput):
            read_address(text)
