"""What only channels in a directory can show: restarts, damage, the index, slow readers. [CH-13]"""

from __future__ import annotations

import asyncio
import gc

import pytest
from blockbuster import blockbuster_ctx

from rapport.channel.backends.local import open_embedded, open_memory
from rapport.channel.channel import Channels
from rapport.channel.log.logged_channel import CURSORS
from rapport.core.errors import Corrupt, InvalidInput, StoreUnavailable
from rapport.core.event import Event
from rapport.store.base import Put


def events(first: int, last: int, data: bytes = b"{}") -> list[Event]:
    return [Event("s", f"id-{n}", "t", "", n, data) for n in range(first, last + 1)]


def test_a_directory_in_use_is_refused_and_left_unharmed(tmp_path, clock):
    async def scenario():
        channels = open_embedded(tmp_path, clock)
        with pytest.raises(StoreUnavailable) as refused:
            open_embedded(tmp_path, clock)
        assert refused.value.code == "store.locked"
        await channels.channel("c").append(events(1, 3))
        await channels.close()
        channels = open_embedded(tmp_path, clock)
        assert channels.channel("c").last_position() == 3
        await channels.close()

    asyncio.run(scenario())


def test_a_damaged_record_file_does_not_keep_the_lock(tmp_path, clock):
    (tmp_path / "records.sqlite").write_bytes(b"x" * 5000)
    for _time in range(2):
        with pytest.raises(Exception, match="damaged"):
            open_embedded(tmp_path, clock)


def test_a_damaged_block_is_passed_over_and_its_readers_go_on(tmp_path, clock):
    async def scenario():
        channels = open_embedded(tmp_path, clock)
        for start in range(1, 31, 10):
            await channels.channel("c").append(events(start, start + 9))
        await channels.close()
        segment = next((tmp_path / "logs" / "c").glob("*.log"))
        content = segment.read_bytes()
        with segment.open("r+b") as file:
            file.seek(content.index(b"id-15"))
            file.write(b"?")
        channels = open_embedded(tmp_path, clock)
        subscription = await channels.subscribe("c", "r")
        found = await subscription.next_batch()
        assert [item.position for item in found] == [*range(1, 11), *range(21, 31)]
        assert (await channels.channel("c").read_after(12))[0].position == 21
        assert channels.parts.log.problems()
        assert await channels.find_event("id-15") == []
        assert len(await channels.find_event("id-25")) == 1
        await channels.close()

    asyncio.run(scenario())


def test_damage_at_the_very_end_makes_no_reader_spin(tmp_path, clock):
    async def scenario():
        channels = open_embedded(tmp_path, clock)
        for start in (1, 11):
            await channels.channel("c").append(events(start, start + 9))
        await channels.close()
        segment = next((tmp_path / "logs" / "c").glob("*.log"))
        content = segment.read_bytes()
        with segment.open("r+b") as file:
            file.seek(content.index(b"id-15"))
            file.write(b"?")
        channels = open_embedded(tmp_path, clock)
        subscription = await channels.subscribe("c", "r")
        assert len(await subscription.next_batch()) == 10
        waiting = asyncio.create_task(subscription.next_batch())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await channels.channel("c").append(events(21, 21))
        assert [item.position for item in await waiting] == [21]
        await channels.close()

    asyncio.run(scenario())


def test_the_index_is_fed_in_the_background_and_made_again_when_lost(tmp_path, clock):
    async def fill():
        channels = open_embedded(tmp_path, clock)
        for start in range(1, 30_001, 1000):
            await channels.channel("c").append(events(start, start + 999))
        assert [item.position for _name, item in await channels.find_event("id-29000")] == [29_000]
        await channels.close()

    async def find():
        channels = open_embedded(tmp_path, clock)
        assert [item.position for _name, item in await channels.find_event("id-12345")] == [12_345]
        await channels.close()

    asyncio.run(fill())
    asyncio.run(find())
    for file in tmp_path.glob("history.sqlite*"):
        file.unlink()
    asyncio.run(find())


def test_an_index_that_belongs_to_another_log_is_begun_again(tmp_path, clock):
    async def one(name: str, count: int) -> None:
        channels = open_embedded(tmp_path / name, clock)
        await channels.channel("c").append(events(1, count))
        assert len(await channels.find_event("id-2")) == 1
        await channels.close()

    async def mixed() -> None:
        channels = open_embedded(tmp_path / "small", clock)
        assert await channels.find_event("id-500") == []
        assert len(await channels.find_event("id-3")) == 1
        await channels.close()

    asyncio.run(one("large", 500))
    asyncio.run(one("small", 5))
    for file in (tmp_path / "small").glob("history.sqlite*"):
        file.unlink()
    (tmp_path / "large" / "history.sqlite").rename(tmp_path / "small" / "history.sqlite")
    asyncio.run(mixed())


def test_repetitions_are_recognised_within_the_window_only(tmp_path, clock):
    async def scenario():
        channels = open_embedded(tmp_path, clock, dedupe_window=100)
        channel = channels.channel("c")
        for start in range(1, 1001, 50):
            await channel.append(events(start, start + 49))
        assert (await channel.append(events(901, 1000))).duplicates == 100
        assert (await channel.append(events(1, 10))).duplicates == 0
        await channels.close()
        channels = open_embedded(tmp_path, clock, dedupe_window=100)
        channel = channels.channel("c")
        assert (await channel.append(events(911, 1000))).duplicates == 90
        await channels.close()

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_slow_reader_holds_nobody_up_and_no_memory(tmp_path, clock):
    async def scenario():
        channels = open_embedded(tmp_path, clock, segment_bytes=2_000_000)
        slow = await channels.subscribe("c", "slow")
        for start in range(1, 30_001, 1000):
            await channels.channel("c").append(events(start, start + 999, b"x" * 1000))
        gc.collect()
        assert channels.decoded._size <= 16 * 1024 * 1024
        position = 0
        while position < 30_000:
            batch = await slow.next_batch(limit=4000)
            assert batch[0].position == position + 1
            position = batch[-1].position
        await slow.commit(position)
        await channels.close()

    asyncio.run(scenario())


def test_several_readers_share_one_decoding(tmp_path, clock):
    async def scenario():
        channels = open_embedded(tmp_path, clock)
        await channels.channel("c").append(events(1, 10))
        await channels.close()
        channels = open_embedded(tmp_path, clock)
        first = await channels.channel("c").read_after(0)
        second = await channels.channel("c").read_after(0)
        assert first[3] is second[3]
        await channels.close()

    asyncio.run(scenario())


def test_records_and_cursor_change_together(tmp_path, clock):
    async def scenario():
        channels = open_embedded(tmp_path, clock)
        await channels.channel("c").append(events(1, 3))
        reader = await channels.subscribe("c", "r")
        await reader.commit(2, b"s", changes=[Put("mine", "k", b"v")])
        assert channels.records.get("mine", "k") == b"v"
        with pytest.raises(Exception, match="no bytes"):
            await reader.commit(3, b"t", changes=[Put("mine", "k", None)])
        assert (reader.position, reader.state) == (2, b"s")
        await channels.close()

    asyncio.run(scenario())


def test_a_damaged_cursor_is_called_so_and_not_begun_again(tmp_path, clock):
    async def scenario():
        channels = open_embedded(tmp_path, clock)
        channels.records.put(CURSORS, "c/r", b"rubbish")
        with pytest.raises(Corrupt):
            await channels.subscribe("c", "r")
        await channels.close()

    asyncio.run(scenario())


def test_a_publisher_that_repeats_itself_is_answered_at_once(tmp_path, clock):
    async def scenario():
        channels = open_embedded(tmp_path, clock)
        channel = channels.channel("c")
        for event in events(1, 600):
            await channel.append([event])
        channels.decoded.clear()
        reads = []
        read_after = channels.parts.log.read_after

        def counted(*values, **options):
            reads.append(values)
            return read_after(*values, **options)

        channels.parts.log.read_after = counted
        again = await channel.append(events(1, 600))
        assert (again.positions, again.duplicates) == (tuple(range(1, 601)), 600)
        assert len(reads) <= 3
        await channels.close()

    asyncio.run(scenario())


def test_nothing_but_opening_blocks_the_loop(tmp_path, clock):
    async def scenario():
        channels = open_embedded(tmp_path, clock)
        with blockbuster_ctx():
            channel = channels.channel("c")
            await asyncio.gather(*(channel.append(events(n, n)) for n in range(1, 50)))
            channels.decoded.clear()
            assert len(await channel.read_after(0)) == 49
            reader = await channels.subscribe("c", "r")
            await reader.commit((await reader.next_batch())[-1].position, b"s")
            assert await channels.find_event("id-7")
            assert channels.channel("another").last_position() == 0
            assert channels.names() == ["c"]
            await channels.close()

    asyncio.run(scenario())


def test_a_directory_that_cannot_be_made_is_reported_with_a_hint(tmp_path, clock):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreUnavailable) as refused:
        open_embedded(tmp_path / "file" / "data", clock)
    assert refused.value.hint


def test_a_strange_directory_among_the_logs_is_left_alone(tmp_path, clock):
    strange = tmp_path / "logs" / "%41" / f"{1:020d}.log"
    strange.parent.mkdir(parents=True)
    strange.write_bytes(b"")

    async def scenario():
        channels = open_embedded(tmp_path, clock)
        await channels.channel("c").append(events(1, 1))
        assert channels.names() == ["c"]
        assert len(await channels.find_event("id-1")) == 1
        await channels.close()

    asyncio.run(scenario())


def test_a_limit_that_no_block_could_hold_is_refused(clock):
    with pytest.raises(InvalidInput):
        open_memory(clock, max_data_bytes=64 * 1024 * 1024)


def test_the_channels_fit_the_contract(tmp_path, clock):
    channels: Channels = open_embedded(tmp_path, clock)
    asyncio.run(channels.close())
