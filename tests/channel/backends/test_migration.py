"""A channel goes to another store: every position, cursor, token and mark stays valid. [CH-13]"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rapport.channel.backends.migration import MOVES, ChannelMover, digest_of
from rapport.channel.backends.stores import open_channels
from rapport.channel.config import channels_from_site
from rapport.channel.log.sequences import SequenceStamp, counted_in
from rapport.channel.requests.request import Request
from rapport.cli.main import run
from rapport.core.codec import encode_block
from rapport.core.errors import Conflict, Corrupt, UnknownName
from rapport.core.event import Event
from rapport.kernel.clock import SystemClock
from rapport.kernel.toml import TomlFile
from rapport.store.memory import MemoryLogStore, MemoryRecordStore
from rapport.store.placement import PLACEMENTS, read_placements
from support.numbered_events import stamped

pytestmark = pytest.mark.slow

CHILD = Path(__file__).with_name("moving_child.py")
STEPS = ("noted", "copying", "copied", "compared", "switched", "removed", "done")


def numbered(first, last):
    return counted_in(
        "c",
        [
            Event("s", str(n), "t", "", n, b'{"n": %d}' % n, stamped({}, SequenceStamp("p", 1, n)))
            for n in range(first, last + 1)
        ],
    )


@pytest.fixture
def site(tmp_path, nats_address, postgres):
    """A site that keeps new channels embedded and knows of the other stores."""
    (tmp_path / "nats").write_text(nats_address)
    (tmp_path / "postgres").write_text(f"{postgres.dsn}#{postgres.schema}")
    (tmp_path / "site.toml").write_text(
        'name = "moving"\n[channels]\nnats = "file:nats"\npostgres = "file:postgres"\n'
    )
    return tmp_path


def play(site, scenario, segment_bytes=4_000):
    async def work():
        declared, problems = channels_from_site(TomlFile.load(site / "site.toml"))
        assert not problems
        channels = open_channels(
            site / ".rapport" / "log",
            SystemClock(),
            declared,
            site=site,
            segment_bytes=segment_bytes,
        )
        try:
            return await scenario(channels)
        finally:
            await channels.close()

    return asyncio.run(work())


def before(site, *, trimmed=0):
    """A channel with a reader, a token and something taken; what was found in it."""

    async def scenario(channels):
        channel = channels.channel("c")
        for start in range(1, 200, 20):
            await channel.append(numbered(start, start + 19))
        if trimmed:
            channel.trim(trimmed)
        reader = await channels.subscribe("c", "r")
        await reader.next_batch()
        await reader.commit(150, b"state")
        asked = Request(query="data.n > 120", max_messages=10)
        batch = await channels.source.request("c", asked, identity="ana")
        taken = Request(query="data.n > 180", max_messages=5, take=True)
        await channels.source.request("c", taken, identity="bob")
        return batch, await whole(channel)

    return play(site, scenario)


async def whole(channel):
    found, position = [], 0
    while page := await channel.read_after(position):
        found += page
        position = page[-1].position
    return found


def check(site, batch, kept, place):
    """Everything is as it was, in the place it was moved to, and goes on."""

    async def scenario(channels):
        channel = channels.channel("c")
        assert await whole(channel) == kept
        assert channels.names() == ["c"]
        reader = await channels.subscribe("c", "r")
        assert (reader.position, reader.state) == (150, b"state")
        assert (await reader.next_batch(limit=1))[0].position == 151
        for token in (batch.current_token, batch.next_token):
            again = await channels.source.request("c", Request(token=token), identity="ana")
            assert not again.gone
            assert len(again.events) == 10
            if token == batch.current_token:
                assert again.events == batch.events
        rest = Request(query="data.n > 180", max_messages=100)
        left = await channels.source.request("c", rest, identity="bob")
        assert [one.position for one in left.events] == list(range(186, 201))
        repeated = await channel.append(numbered(190, 203))
        assert (repeated.duplicates, repeated.positions[-1]) == (11, 203)
        assert [one.position for _name, one in await channels.find_event("170")] == [170]

    play(site, scenario)
    records = play(site, placements_of)
    assert records == {"c": place}


async def placements_of(channels):
    assert channels.records.get(MOVES, "c") is None
    return read_placements(channels.records)


def move(site, target, *options):
    return run(["channel", "move", "c", "--to", target, "--site", str(site), *options])


@pytest.mark.parametrize("target", ["nats", "postgres"])
@pytest.mark.parametrize("trimmed", [0, 100])
def test_a_moved_channel_is_as_it_was(site, target, trimmed, capsys):
    batch, kept = before(site, trimmed=trimmed)
    assert (kept[0].position > 1) == bool(trimmed)
    assert move(site, target) == 0
    assert f"moved from embedded to {target}" in capsys.readouterr().err
    assert move(site, target) == 0
    capsys.readouterr()
    assert run(["read", "c", "--site", str(site), "--limit", "1000", "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(kept)
    check(site, batch, kept, target)


def test_there_and_back_again_by_way_of_all_stores(site):
    batch, kept = before(site, trimmed=100)
    for target in ("nats", "postgres", "nats", "embedded"):
        assert move(site, target) == 0
    check(site, batch, kept, "embedded")


def test_a_copy_that_was_kept_is_gone_on_with_when_the_channel_comes_back(site):
    batch, kept = before(site)
    assert move(site, "nats", "--keep") == 0
    assert list((site / ".rapport/log/logs/c").iterdir())

    async def grow(channels):
        found = await channels.channel("c").append(numbered(195, 202))
        assert found.positions[-1] == 202
        return await whole(channels.channel("c"))

    play(site, grow)
    assert move(site, "embedded") == 0
    found = play(site, lambda channels: whole(channels.channel("c")))
    assert found[:200] == kept
    assert [one.position for one in found] == list(range(1, 203))
    assert batch.events == tuple(found[120:130])


@pytest.mark.slow
@pytest.mark.parametrize("target", ["nats", "postgres"])
def test_a_move_killed_at_any_step_goes_on_when_it_is_started_again(site, target):
    batch, kept = before(site, trimmed=60)
    for step in STEPS:
        command = [sys.executable, str(CHILD), str(site), "c", target, step]
        done = subprocess.run(command, capture_output=True, check=False)
        assert done.returncode == -signal.SIGKILL, (step, done.stderr.decode())
        found = play(site, lambda channels: whole(channels.channel("c")))
        assert found == kept, step
        if step in ("switched", "removed"):
            assert move(site, target) == 0  # ends the removal
            assert move(site, "embedded") == 0
    assert move(site, target) == 0
    check(site, batch, kept, target)


def test_a_channel_cannot_be_moved_while_its_node_runs(site, capsys):
    before(site)

    async def scenario(_channels):
        return await asyncio.to_thread(move, site, "nats")

    assert play(site, scenario) == 1
    told = capsys.readouterr().err
    assert "store.locked" in told
    assert "stop the node" in told


def test_an_unknown_channel_and_an_impossible_name_are_refused(site, capsys):
    before(site)
    for name, code in (("d", "channel.unknown"), ("A b", "channel.bad_name")):
        assert run(["channel", "move", name, "--to", "nats", "--site", str(site)]) == 2
        assert code in capsys.readouterr().err


# --- without a server -----------------------------------------------------------------------------


def memory_mover():
    stores = {"embedded": MemoryLogStore(), "nats": MemoryLogStore()}
    records = MemoryRecordStore()

    def place_of(log):
        return (records.get(PLACEMENTS, log) or b"embedded").decode()

    return ChannelMover(stores, records, place_of), stores, records


def fill(store, first, last, received=5):
    for number in range(first, last + 1):
        store.append("c", [(1, encode_block([Event("s", str(number), "t", "", 0)]))], received)


def test_a_log_of_somebody_else_in_the_target_is_not_touched():
    mover, stores, _records = memory_mover()
    fill(stores["embedded"], 1, 9)
    fill(stores["nats"], 1, 3)
    with pytest.raises(Conflict) as caught:
        mover.move("c", "nats")
    assert caught.value.code == "channel.move_occupied"
    assert stores["nats"].last_position("c") == 3
    with pytest.raises(UnknownName):
        mover.move("d", "nats")


def test_a_channel_that_is_nowhere_is_unknown_also_where_it_would_stay():
    mover, stores, _records = memory_mover()
    fill(stores["embedded"], 1, 2)
    with pytest.raises(UnknownName) as caught:
        mover.move("d", "embedded")
    assert "c" in caught.value.hint
    assert mover.move("c", "embedded").last == 2


def test_a_copy_that_differs_is_removed_and_nothing_moves():
    mover, stores, records = memory_mover()
    fill(stores["embedded"], 1, 9)
    with pytest.raises(KeyboardInterrupt):
        mover.move("c", "nats", report=stop_at("copied"))
    spoil = stores["nats"]
    spoil.remove("c")
    fill(spoil, 11, 19)
    with pytest.raises(Corrupt) as caught:
        mover.move("c", "nats")
    assert caught.value.code == "channel.move_differs"
    assert stores["nats"].last_position("c") == 0
    assert records.get(PLACEMENTS, "c") is None
    assert mover.move("c", "nats").last == 9


def test_what_came_and_went_between_two_tries_of_a_move_is_right_in_the_end():
    mover, stores, _records = memory_mover()
    source = stores["embedded"]
    fill(source, 1, 9)
    with pytest.raises(KeyboardInterrupt):
        mover.move("c", "nats", report=stop_at(9))
    fill(source, 10, 12)
    source.trim("c", 5)
    expected = source.read_after("c", 0)
    moved = mover.move("c", "nats")
    assert (moved.first, moved.last) == (1, 12)
    assert stores["nats"].read_after("c", expected[0].first - 1) == expected


def stop_at(step):
    def told(what):
        if what == step:
            raise KeyboardInterrupt

    return told


def test_holes_and_times_are_moved_as_they_are():
    mover, stores, _records = memory_mover()
    source = stores["embedded"]
    fill(source, 1, 4, received=1)
    source.skip_to("c", 11)
    fill(source, 11, 14, received=2)
    source.append("c", [(2, b"\xc1 damaged")], 3)
    expected = source.read_after("c", 0)
    digest = digest_of(source, "c", 0)
    moved = mover.move("c", "nats")
    assert stores["nats"].read_after("c", 0) == expected
    assert moved.digest == digest
    assert (moved.first, moved.last) == (1, 16)
    assert source.logs() == []
