"""Several processes on one log: each event once, no gap, the same order for all. [CH-6, CH-13]"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rapport.channel.log.channels import LoggedChannels, LogParts
from rapport.channel.log.logged_channel import Horizon
from rapport.channel.log.sequences import SequenceStamp, counted_in
from rapport.channel.log.writer import InlineWriter
from rapport.core.errors import ChannelUnavailable
from rapport.core.event import Event
from rapport.kernel.clock import ManualClock
from rapport.store.base import AppendConflict
from rapport.store.history_index import MemoryHistory
from rapport.store.memory import MemoryLogStore, MemoryRecordStore
from support.numbered_events import stamped
from support.servers.nats import NatsServer

pytestmark = pytest.mark.slow

CHILD = Path(__file__).with_name("sharing_child.py")


class SharedMemory(MemoryLogStore):
    """A log that several writers share, and how often one of them was overtaken."""

    def __init__(self):
        super().__init__()
        self.watchers, self.overtaken = [], 0
        self.always = False

    def append_after(self, log, after, blocks, received):
        if self.always or after != self.last_position(log):
            self.overtaken += 1
            raise AppendConflict("another was faster")
        placed = self.append(log, blocks, received)
        for watcher in self.watchers:
            watcher(log, placed[-1].last)
        return placed

    def watch(self, grown):
        self.watchers.append(grown)

    def close(self):
        """Stays open for the others."""


def open_on(log, clock, **options):
    parts = LogParts(
        clock=clock,
        log=log,
        records=MemoryRecordStore(),
        history=MemoryHistory(),
        writer=InlineWriter(),
        pool=None,
        **options,
    )
    return LoggedChannels(parts)


def counted(first, last, source="s"):
    return [Event(source, str(number), "t", "", number) for number in range(first, last + 1)]


def numbered(first, last):
    return counted_in(
        "c",
        [
            Event("s", str(n), "t", "", n, b"{}", stamped({}, SequenceStamp("p", 1, n)))
            for n in range(first, last + 1)
        ],
    )


async def ids(channel):
    found, position = [], 0
    while batch := await channel.read_after(position):
        found += [one.event.id for one in batch]
        position = batch[-1].position
    return found


def test_what_another_appended_is_recognised_before_it_is_planned_again(clock: ManualClock):
    async def scenario():
        log = SharedMemory()
        one, other = open_on(log, clock), open_on(log, clock)
        assert (await one.channel("c").append(counted(1, 4))).positions == (1, 2, 3, 4)
        again = await other.channel("c").append(counted(3, 6))
        assert (again.positions, again.duplicates) == ((3, 4, 5, 6), 2)
        once_more = await one.channel("c").append([*counted(6, 7), *counted(1, 1)])
        assert (once_more.positions, once_more.duplicates) == ((6, 7, 1), 2)
        assert log.overtaken == 2
        for channels in (one, other):
            assert await ids(channels.channel("c")) == list("1234567")
            assert channels.names() == ["c"]
            assert [name for name, _ in await channels.find_event("5")] == ["c"]

    asyncio.run(scenario())


def test_marks_of_publishers_count_what_others_took(clock: ManualClock):
    """The window of identities holds two events, so only the numbers can tell."""

    async def scenario():
        log = SharedMemory()
        one, other = (open_on(log, clock, dedupe_window=2) for _ in range(2))
        await one.channel("c").append(numbered(1, 1))
        await other.channel("c").append(numbered(1, 50))
        again = await one.channel("c").append(numbered(1, 51))
        assert again.duplicates == 50
        assert (await other.channel("c").append(numbered(40, 51))).duplicates == 12
        assert one.channel("c").last_position() == 51

    asyncio.run(scenario())


def test_a_reader_is_woken_by_what_another_process_appended(clock: ManualClock):
    async def scenario():
        log = SharedMemory()
        one, other = open_on(log, clock), open_on(log, clock)
        waiting = asyncio.create_task(one.channel("c").wait_after(0))
        unknown = asyncio.create_task(one.channel("d").wait_after(0))
        await clock.sleep(0)
        await other.channel("c").append(counted(1, 2))
        await other.channel("d").append(counted(1, 1))
        assert await asyncio.gather(waiting, unknown) == [True, True]
        assert one.channel("c").last_position() == 2
        reader = await one.subscribe("c", "r")
        await reader.next_batch()
        await reader.commit(2)

    asyncio.run(scenario())


def test_a_log_that_is_always_overtaken_refuses_in_the_end(clock: ManualClock):
    async def scenario():
        log = SharedMemory()
        channels = open_on(log, clock)
        log.always = True
        with pytest.raises(ChannelUnavailable) as caught:
            await channels.channel("c").append(counted(1, 1))
        assert caught.value.code == "store.overtaken"
        log.always = False
        assert (await channels.channel("c").append(counted(1, 1))).positions == (1,)

    asyncio.run(scenario())


def test_what_is_heard_while_writing_is_shown_when_that_is_over():
    horizon = Horizon(5)
    assert horizon.report(7)
    assert not horizon.report(6)
    horizon.begin()
    assert not horizon.report(9)
    assert horizon.last == 7
    assert horizon.end(8)
    assert horizon.last == 9
    assert not horizon.end(9)


# --- real processes -------------------------------------------------------------------------------


def start(directory: Path, store: str, address: str, processes: int, count: int):
    (directory / "store").write_text(store)
    (directory / "address").write_text(address)
    return [
        subprocess.Popen(
            [
                *(sys.executable, str(CHILD), str(directory / f"data-{number}")),
                *(str(number), str(count), str(processes)),
            ],
            stdout=subprocess.PIPE,
        )
        for number in range(processes)
    ]


def check(children, processes: int, count: int):
    answers = [child.communicate(timeout=120)[0] for child in children]
    assert [child.returncode for child in children] == [0] * processes
    found = [json.loads(answer) for answer in answers]
    total = count + processes * count
    assert all(one["seen"] == found[0]["seen"] for one in found)
    seen = found[0]["seen"]
    assert [position for position, _id in seen] == list(range(1, total + 1))
    shared = [name for _position, name in seen if name.startswith("shared")]
    assert shared == [f"shared-{n}" for n in range(1, count + 1)]
    return found


@pytest.mark.slow
def test_three_processes_publish_into_one_channel_on_nats(tmp_path, nats_address):
    found = check(start(tmp_path, "nats", nats_address, 3, 300), 3, 300)
    assert sum(one["duplicates"] for one in found) == 2 * 300


@pytest.mark.slow
def test_three_processes_publish_into_one_channel_on_postgres(tmp_path, postgres):
    found = check(start(tmp_path, "postgres", f"{postgres.dsn}#{postgres.schema}", 3, 300), 3, 300)
    assert sum(one["duplicates"] for one in found) == 2 * 300


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_when_the_server_is_killed_meanwhile(tmp_path):
    """Of an append whose answer was lost nobody knows whether it was new: no count of these."""
    with NatsServer() as server:
        children = start(tmp_path, "nats", f"{server.url}/kill", 3, 800)
        clock_free_wait(children[0], 1.5)
        server.kill()
        server.start()
        check(children, 3, 800)


def clock_free_wait(child, seconds: float) -> None:
    """Lets the children work for a while."""
    try:
        child.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return
