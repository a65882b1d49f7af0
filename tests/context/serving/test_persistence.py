"""Updates on their way to disk. [CX-8]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rapport.channel.backends.local import open_memory
from rapport.context.persistence import CHANNEL, RecordPersistence
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.errors import ChannelUnavailable, InvalidInput, RapportError
from rapport.core.event import Event
from rapport.kernel.clock import ManualClock, settle
from rapport.kernel.tasks import Tasks


def record(n: int, clock: ManualClock, *, name: str = "r") -> ContextRecord:
    now = clock.now_ms()
    return ContextRecord("p", EntityRef("room", name), "s", now, now + 60_000, {"n": n})


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(5_000):
        if holds():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not come to pass")


def test_what_waits_together_is_appended_together(clock: ManualClock) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        keeping = await RecordPersistence.open(channels, clock)
        appends: list[int] = []
        channel = channels.channel(CHANNEL)
        append = channel.append

        async def counting(events: Sequence[Event]) -> Any:
            appends.append(len(events))
            return await append(events)

        keeping._channel.append = counting  # type: ignore[method-assign]
        done: list[RapportError | None] = []
        running = asyncio.create_task(keeping.run())
        for n in range(50):
            keeping.keep(record(n, clock, name=f"r{n}"), "ana", done.append)
        await until(lambda: len(done) == 50)
        assert appends == [50]
        assert done == [None] * 50
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await channels.close()

    asyncio.run(scenario())


def test_a_disk_that_is_full_keeps_nobody_from_the_truth(clock: ManualClock) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        keeping = await RecordPersistence.open(channels, clock)
        append, is_full = keeping._channel.append, True

        async def failing(events: Sequence[Event]) -> Any:
            if is_full:
                raise ChannelUnavailable("disk full")
            return await append(events)

        keeping._channel.append = failing  # type: ignore[method-assign]
        done: list[RapportError | None] = []
        running = asyncio.create_task(keeping.run())
        keeping.keep(record(1, clock), "ana", done.append)
        await settle()
        await clock.advance(5_000)
        assert (done, keeping.queued) == ([], 1), "neither kept nor given up"
        is_full = False
        await clock.advance(2_000)
        await until(lambda: bool(done))
        assert done == [None]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await channels.close()

    asyncio.run(scenario())


def test_a_restart_reads_no_more_than_what_is_needed(clock: ManualClock) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        keeping = await RecordPersistence.open(channels, clock)
        running = asyncio.create_task(keeping.run())
        done: list[RapportError | None] = []

        def all_are_kept() -> bool:
            return len(done) == clock.now_ms() // 1_000 - began

        began = clock.now_ms() // 1_000
        for n in range(300):
            clock.set_ms(clock.now_ms() + 1_000)
            keeping.keep(record(n, clock, name=f"r{n}"), "ana", done.append)
            await until(
                lambda: (
                    keeping.queued == 0 and channels.channel(CHANNEL).last_position() == len(done)
                )
            )
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        keeping.neighbours = (("127.0.0.1", 7421),)
        await keeping.close()

        again = await RecordPersistence.open(channels, clock)
        assert again._place.position == 240
        found = await again.recall()
        assert [one.values["n"] for one in found] == list(range(240, 300))
        assert again.neighbours == (("127.0.0.1", 7421),)
        await channels.close()

    asyncio.run(scenario())


def test_records_of_other_nodes_are_history_here_and_nothing_else(clock: ManualClock) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        foreign = record(1, clock).to_event(source="context", headers={"hops": "other"})
        await channels.channel(CHANNEL).append([foreign])
        keeping = await RecordPersistence.open(channels, clock)
        assert await keeping.recall() == []
        await channels.close()

    asyncio.run(scenario())


def test_a_disk_that_fills_while_a_bad_update_is_sorted_out_loses_none(clock: ManualClock) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        keeping = await RecordPersistence.open(channels, clock)
        append, calls = keeping._channel.append, 0

        async def failing(events: Sequence[Event]) -> Any:
            nonlocal calls
            calls += 1
            if calls == 3:
                raise ChannelUnavailable("disk full")
            if any(event.subject == "room/bad" for event in events):
                raise InvalidInput("out of bounds")
            return await append(events)

        keeping._channel.append = failing  # type: ignore[method-assign]
        done: dict[str, RapportError | None] = {}
        names = ["r0", "r1", "bad", "r2"]
        tasks = Tasks(clock)
        tasks.start("keeping", keeping.run)
        for n, name in enumerate(names):
            noted = partial(done.__setitem__, name)
            keeping.keep(record(n, clock, name=name), "ana", noted)
        for _ in range(20):
            await settle()
            await clock.advance(2_000)
        await tasks.stop()
        assert {name: error is None for name, error in done.items()} == {
            "r0": True,
            "r1": True,
            "bad": False,
            "r2": True,
        }
        await channels.close()

    asyncio.run(scenario())


def test_what_is_being_appended_when_a_broker_closes_is_kept(clock: ManualClock) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        keeping = await RecordPersistence.open(channels, clock)
        append, may_write = keeping._channel.append, asyncio.Event()

        async def slow(events: Sequence[Event]) -> Any:
            await may_write.wait()
            return await append(events)

        keeping._channel.append = slow  # type: ignore[method-assign]
        done: list[RapportError | None] = []
        tasks = Tasks(clock)
        tasks.start("keeping", keeping.run)
        keeping.keep(record(1, clock), "ana", done.append)
        await settle()
        await tasks.stop()
        may_write.set()
        await keeping.close()
        assert done == [None]
        assert channels.channel(CHANNEL).last_position() == 1
        await channels.close()

    asyncio.run(scenario())
