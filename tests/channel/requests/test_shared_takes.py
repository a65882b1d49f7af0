"""Taking from a log that several nodes share: nobody is given a message twice, and nobody waits
for a taker that was killed. [CH-2, CH-13]
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.backends.migration import ChannelMover
from rapport.channel.backends.stores import Stores, open_channels
from rapport.channel.config import ChannelRules, ChannelsConfig
from rapport.channel.log.channels import LoggedChannels, LogParts
from rapport.channel.log.writer import InlineWriter
from rapport.channel.requests import takes
from rapport.channel.requests.leases import Answers, MessageLease
from rapport.channel.requests.request import Request
from rapport.channel.requests.takes import (
    ROW_BITS,
    SharedTakes,
    Take,
    TakenMessages,
    TookRecord,
    load_taken,
    restore_summary,
    runs_of,
    summary_of,
)
from rapport.core.errors import Corrupt
from rapport.core.event import Event
from rapport.kernel.clock import ManualClock, SystemClock
from rapport.store.base import READ_BYTES, AppendConflict, take_log
from rapport.store.history_index import MemoryHistory
from rapport.store.memory import MemoryLogStore, MemoryRecordStore
from support.servers.postgres import PostgresAddress

CHILD = Path(__file__).with_name("shared_taking_child.py")
EVERYTHING = Request(query={}, max_messages=1_000)


class SharedMemory(MemoryLogStore):
    """A log that several writers share; `before` happens right before an append is decided."""

    def __init__(self):
        super().__init__()
        self.watchers, self.before = [], None

    def append_after(self, log, after, blocks, received):
        if self.before is not None and log.startswith("taken/"):
            before, self.before = self.before, None
            before()
        if after != self.last_position(log):
            raise AppendConflict("another was faster")
        placed = self.append(log, blocks, received)
        for watcher in self.watchers:
            watcher(log, placed[-1].last)
        return placed

    def watch(self, grown):
        self.watchers.append(grown)

    def close(self):
        """Stays open for the others."""


def open_on(log, clock, records=None):
    return LoggedChannels(
        LogParts(
            clock=clock,
            log=log,
            records=records or MemoryRecordStore(),
            history=MemoryHistory(),
            writer=InlineWriter(),
            pool=None,
        )
    )


def counted(first, last):
    return [Event("s", str(number), "t", "", number) for number in range(first, last + 1)]


async def taken_by(channels, count, query="time >= 0"):
    asked = Request(query=query, max_messages=count, take=True)
    batch = await channels.source.request("c", asked, identity="me")
    return [stored.position for stored in batch.events]


async def left_for(channels):
    batch = await channels.source.request("c", EVERYTHING, identity="me")
    return [stored.position for stored in batch.events]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 2), st.integers(1, 5)),
        st.tuples(st.just("pick"), st.integers(0, 2), st.integers(2, 4)),
        st.tuples(st.just("begin anew"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("publish"), st.integers(0, 2), st.integers(1, 9)),
    ),
    max_size=40,
)


@given(STEPS)
def test_three_nodes_take_each_message_once_whatever_they_do(steps):
    async def scenario():
        log, clock, published, found = SharedMemory(), ManualClock(), 0, []
        nodes = [open_on(log, clock) for _ in range(3)]
        for what, who, number in steps:
            if what == "publish":
                await nodes[who].channel("c").append(counted(published + 1, published + number))
                published += number
            elif what == "begin anew":
                nodes[who] = open_on(log, clock)
            elif what == "take":
                found += await taken_by(nodes[who], number)
            else:  # not the first ones: leaves holes
                found += await taken_by(nodes[who], 3, f"time >= {number * 3}")
            assert len(found) == len(set(found))
        expected = sorted(set(range(1, published + 1)) - set(found))
        for node in (*nodes, open_on(log, clock)):
            assert await left_for(node) == expected
        assert nodes[0].names() == (["c"] if published else [])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(takes, "SUMMARY_EVERY", 3)
        asyncio.run(scenario())


WORK = st.lists(
    st.one_of(
        st.tuples(st.just("lease"), st.integers(0, 2), st.integers(1, 4)),
        st.tuples(st.just("ack"), st.integers(0, 2), st.integers(0, 9)),
        st.tuples(st.just("nak"), st.integers(0, 2), st.integers(0, 9)),
        st.tuples(st.just("take"), st.integers(0, 2), st.integers(1, 2)),
        st.tuples(st.just("wait"), st.just(0), st.sampled_from([400, 1_100])),
        st.tuples(st.just("begin anew"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("publish"), st.integers(0, 2), st.integers(1, 5)),
    ),
    max_size=40,
)


@given(WORK)
def test_workers_at_three_nodes_share_leases_whatever_they_do(steps):
    async def scenario():
        log, clock, published = SharedMemory(), ManualClock(), 0
        nodes = [open_on(log, clock) for _ in range(3)]
        held: dict[int, tuple[str, int]] = {}  # position -> its latest delivery and its end
        done: set[int] = set()

        def is_free(position):
            return position not in held or held[position][1] <= clock.now_ms()

        for what, who, number in steps:
            source = nodes[who].source
            if what == "publish":
                await nodes[who].channel("c").append(counted(published + 1, published + number))
                published += number
            elif what == "begin anew":
                nodes[who] = open_on(log, clock)
            elif what == "wait":
                await clock.advance(number)
            elif what == "take":
                for position in await taken_by(nodes[who], number):
                    assert is_free(position)
                    assert position not in done
                    done.add(position)
            elif what == "lease":
                wanted = {"query": "time >= 0", "max_messages": number, "take": True}
                asked = Request(**wanted, lease_ms=1_000, max_tries=1_000)
                batch = await source.request("c", asked, identity="me")
                for stored, given_out in zip(batch.events, batch.deliveries, strict=True):
                    assert is_free(stored.position)
                    assert stored.position not in done
                    held[stored.position] = (given_out.id, clock.now_ms() + 1_000)
                left = [p for p in range(1, published + 1) if p not in done and is_free(p)]
                assert len(batch.events) == number or not left
            elif waiting := sorted(set(held) - done):
                position = waiting[number % len(waiting)]
                id, _until = held[position]
                was_returned = id.endswith("returned")
                if what == "ack":
                    settled = await source.settle("c", Answers(ack=(id,)))
                    assert settled.acked == (0 if was_returned else 1)
                    done |= set() if was_returned else {position}
                else:
                    settled = await source.settle("c", Answers(nak=(id,), delay_ms=500))
                    assert settled.returned == (0 if was_returned else 1)
                    if not was_returned:
                        held[position] = (f"{position}.returned", clock.now_ms() + 500)
        expected = sorted(set(range(1, published + 1)) - done)
        for node in (*nodes, open_on(log, clock)):
            assert await left_for(node) == expected

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(takes, "SUMMARY_EVERY", 3)
        asyncio.run(scenario())


def test_a_lease_that_a_node_reads_from_a_summary_replaces_the_one_it_knew(clock: ManualClock):
    async def scenario():
        log = SharedMemory()
        here, there = open_on(log, clock), open_on(log, clock)
        await here.channel("c").append(counted(1, 5))
        asked = Request(query={}, take=True, lease_ms=1_000, max_messages=1)
        assert len((await here.source.request("c", asked, identity="me")).events) == 1
        await clock.advance(1_100)
        for _ in range(4):  # the message that came back, and more until all is summed up
            await there.source.request("c", asked, identity="me")
        given = (await here.source.request("c", asked, identity="me")).events
        assert [stored.position for stored in given] == [5]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(takes, "SUMMARY_EVERY", 3)
        asyncio.run(scenario())


def test_a_taker_that_was_overtaken_chooses_anew(clock: ManualClock):
    async def scenario():
        log = SharedMemory()
        one = open_on(log, clock)
        await one.channel("c").append(counted(1, 6))
        assert await taken_by(one, 1) == [1]

        def overtake():
            record = TookRecord("another's", Take(10**15, ((2, 3),)))
            log.append(take_log("c"), [(1, msgspec.msgpack.encode(record))], 0)

        log.before = overtake
        assert await taken_by(one, 2) == [4, 5]
        assert log.before is None
        assert await left_for(one) == await left_for(open_on(log, clock)) == [6]

    asyncio.run(scenario())


def test_a_token_asked_again_gives_what_it_took_and_nobody_else_sees_it(clock: ManualClock):
    async def scenario():
        log = SharedMemory()
        one = open_on(log, clock)
        await one.channel("c").append(counted(1, 4))
        batch = await one.source.request("c", Request(query={}, max_messages=2), identity="me")
        token = batch.current_token
        first = await one.source.request("c", Request(token=token, take=True), identity="me")
        again = await one.source.request("c", Request(token=token, take=True), identity="me")
        assert first.events == again.events == batch.events
        assert await left_for(open_on(log, clock)) == [3, 4]

    asyncio.run(scenario())


def test_what_was_taken_before_a_channel_was_shared_stays_taken(clock: ManualClock):
    async def scenario():
        log, records = SharedMemory(), MemoryRecordStore()
        taken = TakenMessages("c")
        take = Take(10**15, ((2, 3),))
        records.apply(taken.changes([2, 3], "token", take, 0))
        mover = open_on(log, clock, records)
        await mover.channel("c").append(counted(1, 5))
        assert await taken_by(mover, 1) == [1]
        assert await left_for(open_on(log, clock)) == [4, 5]
        before = log.last_position(take_log("c"))
        assert await left_for(open_on(log, clock, records)) == [4, 5]
        assert log.last_position(take_log("c")) == before, "it is told once"

    asyncio.run(scenario())


def test_a_log_of_takes_stays_short(clock: ManualClock):
    async def scenario():
        log = SharedMemory()
        one = open_on(log, clock)
        await one.channel("c").append(counted(1, 40))
        for number in range(1, 41):
            assert await taken_by(one, 1) == [number]
        name = take_log("c")
        assert log.last_position(name) - log.first_position(name) < 12
        assert await left_for(open_on(log, clock)) == []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(takes, "SUMMARY_EVERY", 10)
        asyncio.run(scenario())


@given(st.lists(st.integers(1, 3 * ROW_BITS), max_size=50), st.integers(0, 2 * ROW_BITS))
def test_a_summary_says_all_and_holds_little_of_what_was_emptied(some: list[int], floor: int):
    taken, positions = TakenMessages("c"), sorted({*range(1, floor + 1), *some})
    take = Take(100, runs_of(positions))
    taken.confirm(positions, "token", take)
    leased = {4 * ROW_BITS: MessageLease(9, "a", 2, 5, "why")}
    taken.confirm_leases(leased, ())
    summary, again = summary_of(taken, 0), TakenMessages("c")
    restore_summary(again, summary)
    assert again.covers(taken)
    assert again.leases.all() == leased
    assert [again.holds(p) for p in range(1, 3 * ROW_BITS + 2)] == [
        taken.holds(p) for p in range(1, 3 * ROW_BITS + 2)
    ]
    assert again.is_untouched() is False
    assert (again.take_of("token") == take) is True
    assert summary_of(taken, 100).takes == {}
    assert all((number + 1) * ROW_BITS > floor for number in summary.rows)


@given(st.lists(st.integers(1, 3 * ROW_BITS), max_size=50), st.integers(0, 2 * ROW_BITS))
def test_records_made_of_a_log_of_takes_say_the_same(some: list[int], floor: int):
    taken, positions = TakenMessages("c"), sorted({*range(1, floor + 1), *some})
    taken.confirm(positions, "token", Take(100, runs_of(positions)))
    taken.confirm_leases({4 * ROW_BITS: MessageLease(9, "a", 2, 5, "why")}, ())
    restored, records = TakenMessages("c"), MemoryRecordStore()
    restore_summary(restored, summary_of(taken, 0))
    records.apply(restored.as_records())
    again = load_taken(records, "c")
    assert [again.holds(p) for p in range(1, 3 * ROW_BITS + 2)] == [
        taken.holds(p) for p in range(1, 3 * ROW_BITS + 2)
    ]
    assert again.take_of("token") == taken.take_of("token")
    assert again.leases.all() == taken.leases.all()


@pytest.mark.slow
def test_what_was_taken_stays_taken_when_the_channel_moves_away_and_back(
    tmp_path: Path, postgres: PostgresAddress
):
    (tmp_path / "address").write_text(f"{postgres.dsn}#{postgres.schema}")
    declared = ChannelsConfig(postgres="file:address", common=ChannelRules(log="postgres"))

    async def at_work(*, publish: bool = False) -> tuple[list[int], list[int]]:
        channels = open_channels(
            tmp_path / "log", SystemClock(), declared, site=tmp_path, segment_bytes=1_000_000
        )
        try:
            if publish:
                await channels.channel("c").append(counted(1, 6))
            return await taken_by(channels, 2), await left_for(channels)
        finally:
            await channels.close()

    def move(target: str) -> None:
        stores = Stores(tmp_path / "log", declared, tmp_path, segment_bytes=1_000_000)
        try:
            movable = {name: stores.open(name) for name in ("embedded", "postgres")}
            ChannelMover(movable, stores.records, stores.placements().of).move("c", target)
        finally:
            stores.close()

    assert asyncio.run(at_work(publish=True)) == ([1, 2], [3, 4, 5, 6])
    move("embedded")
    assert asyncio.run(at_work()) == ([3, 4], [5, 6])
    move("postgres")
    assert asyncio.run(at_work()) == ([5, 6], [])


def test_a_log_of_takes_that_cannot_be_read_is_reported(clock: ManualClock):
    async def scenario():
        log = SharedMemory()
        log.append(take_log("c"), [(1, b"\xc1 rubbish")], 0)
        with pytest.raises(Corrupt):
            await left_for(open_on(log, clock))

    asyncio.run(scenario())


# --- real processes -------------------------------------------------------------------------------


def start(directory: Path, name: str, lease_ms: int):
    command = [sys.executable, str(CHILD), str(directory / name), name, str(lease_ms)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def lines_of(raw: bytes) -> list[str]:
    return [line.decode() for line in raw.split(b"\n")[:-1]]


async def left_in(directory: Path, store: str) -> int:
    channels = open_beside(directory, store)
    try:
        return len(await left_for(channels))
    finally:
        await channels.close()


def open_beside(directory: Path, store: str) -> LoggedChannels:
    declared = ChannelsConfig(
        nats="file:address", postgres="file:address", common=ChannelRules(log=store)
    )
    return open_channels(
        directory / "publisher", SystemClock(), declared, site=directory, segment_bytes=1_000_000
    )


async def publish(directory: Path, store: str, count: int) -> None:
    channels = open_beside(directory, store)
    try:
        events = [Event("s", str(n), "t", "", n, b"{}") for n in range(count)]
        await channels.channel("c").append(events)
    finally:
        await channels.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("store", "lease_ms"),
    [("nats", 0), pytest.param("postgres", 0, marks=pytest.mark.long), ("postgres", 1_500)],
)
def test_two_processes_take_each_message_once_also_when_one_is_killed(
    store: str, lease_ms: int, tmp_path: Path, request: pytest.FixtureRequest
):
    count = 240
    if store == "nats":
        address = request.getfixturevalue("nats_address")
    else:
        postgres = request.getfixturevalue("postgres")
        address = f"{postgres.dsn}#{postgres.schema}"
    (tmp_path / "store").write_text(store)
    (tmp_path / "address").write_text(address)
    killed, other = start(tmp_path, "killed", lease_ms), start(tmp_path, "other", lease_ms)
    with killed, other:
        assert killed.stdout is not None
        assert other.stdout is not None
        assert killed.stdout.readline() == other.stdout.readline() == b"ready\n"
        asyncio.run(publish(tmp_path, store, count))
        before = b"".join(killed.stdout.readline() for _ in range(20))
        killed.kill()
        before += killed.stdout.read()
        rest, _ = other.communicate(timeout=90)
        assert other.returncode == 0
    found = Counter(lines_of(before) + lines_of(rest))
    assert max(found.values()) == 1
    # What the killed one had taken (or acked) and not yet told: a batch of 3 for each of its 3
    # takers.
    assert count - 9 <= len(found) <= count
    if lease_ms:
        assert asyncio.run(left_in(tmp_path, store)) == 0  # all were acked by one or the other
    assert lines_of(before)
    assert lines_of(rest)


def test_notes_of_takes_past_their_lease_are_forgotten(clock: ManualClock):
    async def scenario():
        log = SharedMemory()
        one, other = open_on(log, clock), open_on(log, clock)
        for number in range(1, 31):
            await one.channel("c").append(counted(number, number))
            assert await taken_by(one, 1) == [number]
            assert await left_for(other) == []
            await clock.advance(60_000)
        for node in (one, other):
            taken = await node.source.taker.taken("c")
            assert len(taken.contents()[2]) <= 11  # a lease lasts ten minutes
            assert await left_for(node) == []

    asyncio.run(scenario())


def test_takes_are_all_read_however_large_they_are():
    """A reading ends in bytes: that it gave few does not mean that these are all."""
    log = SharedMemory()
    shared = SharedTakes(log, "c")
    body = b"x" * (READ_BYTES // 2)
    for number in range(5):
        log.append(shared.name, [(1, body)], number)
    assert [block.first for block in shared.read()] == [1, 2, 3, 4, 5]
