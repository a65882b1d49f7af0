"""Files of a node deleted or overwritten: indexes are made again, what cannot be made again is
refused with a hint, and the log goes on. [CH-6, CH-13, CH-14]
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rapport.channel.backends.local import open_embedded
from rapport.channel.config import ChannelRules, ChannelsConfig
from rapport.channel.log.logged_channel import CURSORS, cursor_key
from rapport.channel.log.sequences import SequenceStamp, counted_in
from rapport.channel.requests.request import Request
from rapport.core.errors import Corrupt, NotAllowed, StoreUnavailable
from rapport.core.event import Event
from support.numbered_events import stamped

pytestmark = pytest.mark.slow

INDEXES = ("history.sqlite", "fields.sqlite")
GARBAGE = {"text": b"not a database " * 1_000, "zeros": bytes(20_000), "short": b"x", "empty": b""}
DAY = 86_400_000


def numbered(first: int, last: int) -> list[Event]:
    return counted_in(
        "c",
        [
            Event("s", f"e{n}", "t", "", 0, b'{"n": %d}' % n, stamped({}, SequenceStamp("p", 1, n)))
            for n in range(first, last + 1)
        ],
    )


def play(scenario) -> None:
    async def limited():
        async with asyncio.timeout(40):
            await scenario()

    asyncio.run(limited())


@pytest.fixture
def opened(tmp_path, clock):
    """Opens the channels of the test with a small window of ids and one indexed field."""

    def open_them():
        channels = open_embedded(tmp_path, clock, segment_bytes=20_000, dedupe_window=50)
        channels.use_rules(ChannelsConfig(common=ChannelRules(index=("data.n",))))
        return channels

    return open_them


async def fill(channels, first: int = 1, last: int = 600) -> None:
    for start in range(first, last + 1, 100):
        await channels.channel("c").append(numbered(start, min(start + 99, last)))


async def check_everything(channels, last: int = 600) -> None:
    """All events, by position, by id and by field."""
    stored = await channels.channel("c").read_after(0, limit=10_000)
    assert [one.event.id for one in stored] == [f"e{n}" for n in range(1, last + 1)]
    assert [(name, one.position) for name, one in await channels.find_event("e77")] == [("c", 77)]
    found = await channels.source.request("c", Request(query="data.n = 123"), identity="r")
    assert [one.event.id for one in found.events] == ["e123"]


@pytest.mark.parametrize("name", INDEXES)
@pytest.mark.parametrize("garbage", [*GARBAGE, "deleted"])
def test_an_index_that_is_gone_or_garbage_is_made_again(tmp_path, opened, name, garbage):
    async def scenario():
        channels = opened()
        await fill(channels)
        await check_everything(channels)
        await channels.close()
        for part in ("-wal", "-shm"):
            (tmp_path / f"{name}{part}").unlink(missing_ok=True)
        if garbage == "deleted":
            (tmp_path / name).unlink()
        else:
            (tmp_path / name).write_bytes(GARBAGE[garbage])
        channels = opened()
        await fill(channels, 601, 700)
        await check_everything(channels, 700)
        await channels.close()
        if garbage in ("text", "zeros"):
            assert (tmp_path / f"{name}.damaged").exists()

    play(scenario)


@pytest.mark.parametrize("garbage", ["text", "zeros"])
def test_records_that_are_garbage_are_refused_with_a_hint_and_nothing_is_touched(
    tmp_path, opened, garbage
):
    async def scenario():
        channels = opened()
        await fill(channels)
        await channels.close()
        (tmp_path / "records.sqlite").write_bytes(GARBAGE[garbage])
        with pytest.raises(Corrupt) as refused:
            opened()
        assert refused.value.code == "store.damaged"
        assert "copy" in refused.value.hint
        assert (tmp_path / "records.sqlite").read_bytes() == GARBAGE[garbage]

    play(scenario)


def test_without_its_records_a_log_is_whole_readers_begin_again_and_old_tokens_are_refused(
    tmp_path, opened
):
    async def scenario():
        channels = opened()
        await fill(channels)
        subscription = await channels.subscribe("c", "r")
        await subscription.commit(100, b"state")
        batch = await channels.source.request("c", Request(query={}), identity="r")
        await channels.close()
        for file in tmp_path.glob("records.sqlite*"):
            file.unlink()
        channels = opened()
        await check_everything(channels)
        subscription = await channels.subscribe("c", "r")
        assert (subscription.position, subscription.state) == (0, b"")
        with pytest.raises(NotAllowed, match="not given out by this node"):
            await channels.source.request("c", Request(token=batch.current_token), identity="r")
        again = await channels.channel("c").append(numbered(1, 20))
        assert again.duplicates == 20, "the marks of publishers are found in the log again"
        await channels.close()

    play(scenario)


def damage_inside(path: Path) -> None:
    """Overwrites everything but the first pages, which say what the file is."""
    raw = bytearray(path.read_bytes())
    assert len(raw) > 5 * 4096
    for at in range(5 * 4096, len(raw)):
        raw[at] = at * 7 % 251
    path.write_bytes(raw)


@pytest.mark.parametrize("name", INDEXES)
def test_an_index_damaged_inside_never_stops_appends_reads_or_sweeps(tmp_path, opened, name):
    async def scenario():
        channels = opened()
        await fill(channels, 1, 3_000)
        await channels.find_event("e1")
        await channels.source.request("c", Request(query="data.n = 123"), identity="r")
        await channels.close()
        damage_inside(tmp_path / name)
        channels = opened()
        appended = await channels.channel("c").append(numbered(2_500, 3_100))
        assert appended.duplicates == 501
        found = await channels.source.request("c", Request(query="data.n = 123"), identity="r")
        assert [one.event.id for one in found.events] == ["e123"]
        await channels.channel("other").append(numbered(1, 1))
        channels.use_rules(ChannelsConfig(common=ChannelRules(keep_bytes=100_000)))
        await channels.sweeper.sweep_all()
        stored = await channels.channel("c").read_after(0, limit=10_000)
        assert stored[-1].event.id == "e3100"
        try:
            await channels.find_event("e2900")
        except Corrupt as error:
            assert error.hint
        try:
            await channels.close()
        except (Corrupt, StoreUnavailable) as error:
            assert error.hint

    play(scenario)


def test_a_cursor_that_cannot_be_read_is_told_and_keeps_no_other_channel_from_being_swept(opened):
    async def scenario():
        channels = opened()
        channels.use_rules(ChannelsConfig(common=ChannelRules(keep_bytes=10_000)))
        await fill(channels)
        for start in range(0, 600, 100):
            events = [Event("s", f"z{start + n}", "t", "", 0, b'"x"') for n in range(100)]
            await channels.channel("zoo").append(events)
        channels.records.put(CURSORS, cursor_key("c", "r"), b"\xc1 no cursor")
        with pytest.raises(Corrupt) as refused:
            await channels.subscribe("c", "r")
        assert refused.value.code == "channel.bad_cursor"
        assert refused.value.hint
        swept = await channels.sweeper.sweep_all()
        assert "zoo" in [one.channel for one in swept]
        assert channels.channel("c").first_position() == 1, "what its reader waits for is unknown"
        await channels.close()

    play(scenario)
