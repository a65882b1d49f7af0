"""Group commit: shared syncs, back-pressure, and what callers are told when the disk refuses.
[CH-13, CH-14]
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rapport.channel.channel import AppendResult
from rapport.channel.log.channels import LoggedChannels, LogParts
from rapport.channel.log.writer import StorePace, ThreadWriter
from rapport.core.errors import ChannelUnavailable, StoreUnavailable
from rapport.core.event import Event
from rapport.kernel.clock import ManualClock
from rapport.store.history_index import MemoryHistory
from rapport.store.memory import MemoryRecordStore
from rapport.store.segment_store import SegmentLogStore
from support.faults.disk import ForgetfulDisk


def event(identity: str, size: int = 10) -> Event:
    return Event("s", identity, "t", "", 0, b"x" * size)


def channels_on(disk: ForgetfulDisk) -> LoggedChannels:
    return LoggedChannels(
        LogParts(
            clock=ManualClock(),
            log=SegmentLogStore(Path("/store"), files=disk),
            records=MemoryRecordStore(),
            history=MemoryHistory(),
            writer=ThreadWriter(name="writer-under-test"),
            pool=ThreadPoolExecutor(1),
        )
    )


class HeldTarget:
    """A channel whose commits wait until they are let go; notes what each group held."""

    name = "held"

    def __init__(self) -> None:
        self.groups: list[int] = []
        self.trim = threading.Event()
        self.error: Exception | None = None

    def commit(self, appends):
        self.trim.wait(10)
        self.groups.append(len(appends))
        if self.error:
            raise self.error
        return [AppendResult((1,) * len(append), 0) for append in appends]


async def until(condition) -> None:
    """Waits for another thread; the deadline is a real one."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the other side is a thread
            await asyncio.sleep(0.001)


def test_while_one_group_is_written_the_next_one_gathers():
    async def scenario():
        writer, target = ThreadWriter(name="w"), HeldTarget()
        first = asyncio.create_task(writer.write(target, [event("0")], 10))
        await until(writer._requests.empty)
        await asyncio.sleep(0.01)
        rest = [asyncio.create_task(writer.write(target, [event("x")], 10)) for _ in range(50)]
        await asyncio.sleep(0)
        await until(lambda: writer._requests.qsize() == 50)
        target.trim.set()
        await asyncio.gather(first, *rest)
        assert target.groups == [1, 50]
        writer.stop()

    asyncio.run(scenario())


def test_a_full_queue_makes_appends_wait_and_loses_none():
    async def scenario():
        writer, target = ThreadWriter(name="w", queue_bytes=10_000), HeldTarget()
        tasks = [
            asyncio.create_task(writer.write(target, [event(str(n), 1000)], 1000))
            for n in range(100)
        ]
        await asyncio.sleep(0.01)
        assert writer._budget._inside <= 10_000
        assert len(writer._budget._queue) > 80
        target.trim.set()
        await asyncio.gather(*tasks)
        assert sum(target.groups) == 100
        assert writer._budget._inside == 0
        writer.stop()

    asyncio.run(scenario())


def test_a_cancelled_append_harms_nobody_else():
    async def scenario():
        writer, target = ThreadWriter(name="w"), HeldTarget()
        tasks = [asyncio.create_task(writer.write(target, [event(str(n))], 10)) for n in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        target.trim.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(answer) for answer in answers] == [
            AppendResult,
            asyncio.CancelledError,
            AppendResult,
        ]
        writer.stop()

    asyncio.run(scenario())


def test_a_fault_of_ours_reaches_the_caller_and_the_thread_goes_on():
    async def scenario():
        writer, target = ThreadWriter(name="w"), HeldTarget()
        target.trim.set()
        target.error = ZeroDivisionError("our fault")
        with pytest.raises(ChannelUnavailable, match="our fault"):
            await writer.write(target, [event("1")], 10)
        target.error = None
        assert (await writer.write(target, [event("1")], 10)).positions == (1,)
        writer.stop()
        with pytest.raises(ChannelUnavailable):
            await writer.write(target, [event("1")], 10)

    asyncio.run(scenario())


def test_concurrent_appends_share_syncs():
    async def scenario():
        disk = ForgetfulDisk()
        channels = channels_on(disk)
        channel = channels.channel("c")
        await channel.append([event("first")])
        before = disk.syncs
        await asyncio.gather(*(channel.append([event(str(n))]) for n in range(200)))
        assert disk.syncs - before < 20
        await channels.close()

    asyncio.run(scenario())


def test_a_full_disk_refuses_the_append_and_nothing_else():
    async def scenario():
        disk = ForgetfulDisk()
        channels = channels_on(disk)
        channel = channels.channel("c")
        await channel.append([event("1")])
        disk.full_after_bytes = 50
        for _time in range(3):
            with pytest.raises(ChannelUnavailable) as refused:
                await channel.append([event("2"), event("3")])
            assert refused.value.code == "store.disk_full"
        assert channel.last_position() == 1
        assert [item.event.id for item in await channel.read_after(0)] == ["1"]
        disk.full_after_bytes = None
        again = await channel.append([event("2"), event("3")])
        assert (again.positions, again.duplicates) == ((2, 3), 0)
        await channels.close()

    asyncio.run(scenario())


def test_channels_serve_one_loop_after_the_other():
    disk = ForgetfulDisk()
    channels = channels_on(disk)
    for number in range(3):
        appended = asyncio.run(channels.channel("c").append([event(str(number))]))
        assert appended.positions == (number + 1,)
    asyncio.run(channels.close())


def test_an_append_pending_is_finished_before_closing():
    async def scenario():
        disk = ForgetfulDisk()
        channels = channels_on(disk)
        appending = [
            asyncio.create_task(channels.channel("c").append([event(str(n))])) for n in range(50)
        ]
        await asyncio.sleep(0)
        await channels.close()
        assert [(await task).positions for task in appending] == [(n + 1,) for n in range(50)]

    asyncio.run(scenario())


def test_a_lone_append_is_written_in_its_own_task_while_the_store_is_fast():
    async def scenario():
        clock = ManualClock(0)
        writer = ThreadWriter(name="w", lone=StorePace(clock, fast_ns=10, trust_after=2))
        target = Telling(clock)
        for _number in range(5):
            await writer.write(target, (event("1"),), 1)
        here = threading.get_ident()
        assert [thread == here for thread in target.threads] == [False, False, True, True, True]
        target.takes_ms = 1  # one slow answer, and the thread has it again
        await writer.write(target, (event("1"),), 1)
        await writer.write(target, (event("1"),), 1)
        assert [thread == here for thread in target.threads[5:]] == [True, False]
        writer.stop()

    asyncio.run(scenario())


def test_appends_of_one_turn_are_one_group_and_keep_their_order():
    async def scenario():
        clock = ManualClock(0)
        writer = ThreadWriter(name="w", lone=StorePace(clock, trust_after=1))
        target = Telling(clock)
        await writer.write(target, (event("warm"),), 1)
        together = [writer.write(target, (event(str(n)),), 1) for n in range(20)]
        assert [one.positions[0] for one in await asyncio.gather(*together)] == list(range(2, 22))
        assert threading.get_ident() not in target.threads
        writer.stop()

    asyncio.run(scenario())


def test_a_lone_append_that_is_cancelled_or_met_by_the_end_is_still_written_once():
    async def scenario():
        clock = ManualClock(0)
        writer = ThreadWriter(name="w", lone=StorePace(clock, trust_after=1))
        target = Telling(clock)
        await writer.write(target, (event("warm"),), 1)
        waiting = asyncio.create_task(writer.write(target, (event("2"),), 1))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        last = asyncio.create_task(writer.write(target, (event("3"),), 1))
        await asyncio.sleep(0)
        await asyncio.to_thread(writer.stop)
        assert (await last).positions == (3,)
        assert target.position == 3

    asyncio.run(scenario())


def test_the_fault_of_a_lone_append_reaches_its_caller_and_the_next_one_works():
    async def scenario():
        clock = ManualClock(0)
        writer = ThreadWriter(name="w", lone=StorePace(clock, trust_after=1))
        target = Telling(clock)
        await writer.write(target, (event("warm"),), 1)
        target.fault = StoreUnavailable("the disk is full", code="store.disk_full")
        with pytest.raises(ChannelUnavailable) as refused:
            await writer.write(target, (event("2"),), 1)
        assert refused.value.code == "store.disk_full"
        target.fault = None
        assert (await writer.write(target, (event("2"),), 1)).positions == (2,)
        writer.stop()

    asyncio.run(scenario())


class Telling:
    """A target that counts, and tells in which thread it was called."""

    name = "c"

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.threads: list[int] = []
        self.takes_ms, self.position = 0, 0
        self.fault: StoreUnavailable | None = None

    def commit(self, appends):
        self.threads.append(threading.get_ident())
        self._clock.set_ms(self._clock.now_ms() + self.takes_ms)
        if self.fault is not None:
            raise self.fault
        answers = []
        for events in appends:
            self.position += len(events)
            answers.append(AppendResult((self.position,), 0))
        return answers
