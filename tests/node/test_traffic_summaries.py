"""Once a minute a line, and none is lost but for a kill. [PI-6]"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from rapport.channel.backends.local import open_memory
from rapport.channel.channel import AppendResult
from rapport.channel.validation import SUMMARIES, is_node_channel
from rapport.core.errors import StoreUnavailable
from rapport.core.event import Event, make_event
from rapport.kernel.clock import ManualClock
from rapport.node.maintenance import SUMMARY_EVERY_MS, TrafficSummaries


class Counting:
    """Tells what happened, or nothing."""

    def __init__(self) -> None:
        self.happened, self.told = 0, 0

    def take(self) -> Event | None:
        if not self.happened:
            return None
        self.told += 1
        event = make_event(
            source="s", id=str(self.told), type="x", time=0, data={"n": self.happened}
        )
        self.happened = 0
        return event


def running(
    scenario: Callable[[ManualClock, Counting, TrafficSummaries], Awaitable[None]],
) -> list[int]:
    """What is in the channel afterwards."""

    async def run() -> list[int]:
        clock = ManualClock()
        channels, counting = open_memory(clock), Counting()
        await scenario(clock, counting, TrafficSummaries(channels, clock, counting.take))
        kept = await channels.channel(SUMMARIES).read_after(0)
        return [stored.event.payload()["n"] for stored in kept]

    return asyncio.run(run())


def test_a_minute_is_a_line_and_a_silent_one_is_none() -> None:
    async def scenario(clock: ManualClock, counting: Counting, summaries: TrafficSummaries) -> None:
        task = asyncio.create_task(summaries.run())
        for happened in (5, 0, 7):
            counting.happened = happened
            await clock.advance(SUMMARY_EVERY_MS)
        counting.happened = 9
        await clock.advance(SUMMARY_EVERY_MS - 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    assert running(scenario) == [5, 7]


def test_the_rest_is_told_at_the_end() -> None:
    async def scenario(clock: ManualClock, counting: Counting, summaries: TrafficSummaries) -> None:
        counting.happened = 3
        await summaries.finish()
        await summaries.finish()

    assert running(scenario) == [3]


def test_what_the_disk_refused_is_told_with_the_next_and_closing_goes_on() -> None:
    async def scenario(clock: ManualClock, counting: Counting, summaries: TrafficSummaries) -> None:
        channel = summaries._channel
        append = channel.append

        async def refuse(events: Sequence[Event]) -> AppendResult:
            raise StoreUnavailable("the disk is full")

        channel.append = refuse  # type: ignore[method-assign]
        counting.happened = 1
        await summaries.finish()
        channel.append = append  # type: ignore[method-assign]
        counting.happened = 2
        await summaries.step()

    assert running(scenario) == [1, 2]


def test_nobody_else_appends_to_it() -> None:
    assert is_node_channel(SUMMARIES)
