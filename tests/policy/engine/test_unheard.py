"""Silence where nothing was ever heard: by the clock, from the start on record. [PO-6, PO-7]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from rapport.channel.backends.local import open_memory
from rapport.channel.channel import Channels
from rapport.core.detection import DETECTED, Detection
from rapport.core.event import make_event
from rapport.kernel.clock import ManualClock
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.engine.engine import PolicyEngine
from rapport.policy.engine.stream_steps import TIME_TYPE, TimeMoved
from rapport.policy.plan import Plan
from rapport.tables.instances import Instances
from support.varied.worlds import ONTOLOGY, Pull

NOW = 1_790_000_000_000
MINUTE = 60_000
LATENESS_MS = 2_000


def plan(name: str, conditions: str) -> Plan:
    text = f"concepts\n  person A\nconditions\n  {conditions}\nactions\n  look\n"
    return compile_policy(text, name=name, ontology=ONTOLOGY, window_ms=1_000).plan


QUIET = plan("quiet", "no position of A for 10 min")
SHORT = plan("short", "no position of A for 1 min")


def pull(*people: str) -> Pull:
    return Pull(
        {"person": Instances("person", list(people), {"status": np.full(len(people), "guest")})}
    )


class Site:
    """An engine on channels in memory, which may die and start anew."""

    def __init__(self, channels: Channels, clock: ManualClock) -> None:
        self.channels, self.clock = channels, clock

    async def start(self, *plans: Plan, commit_every_ms: int = 0) -> None:
        self.engine = PolicyEngine(
            self.channels,
            self.clock,
            name="site",
            ontology=ONTOLOGY,
            pull=pull("ann", "ben"),
            plans=plans,
            lateness_ms=LATENESS_MS,
            commit_every_ms=commit_every_ms,
        )
        await self.settle()

    async def until(self, minutes: float) -> None:
        """Time passes, in steps of some seconds."""
        while self.clock.now_ms() < NOW + minutes * MINUTE:
            self.clock.set_ms(min(self.clock.now_ms() + 7_000, NOW + int(minutes * MINUTE)))
            await self.settle()

    async def settle(self) -> None:
        while await self.engine.step(timeout_ms=0):
            pass

    async def seen(self, who: str, time_ms: int) -> None:
        event = make_event(
            source="badges",
            id=f"{who}-{time_ms}",
            type="person.position",
            subject=f"person/{who}",
            time=time_ms,
            data={"key": who, "value": [1.0, 1.0]},
        )
        await self.channels.channel("events").append([event])
        await self.settle()

    async def told(self) -> list[tuple[str, str, float]]:
        """Policy, who, and minutes after the beginning."""
        stored = await self.channels.channel("detections").read_after(0, limit=10_000)
        found = [Detection.from_event(one.event) for one in stored if one.event.type == DETECTED]
        return [
            (one.policy, one.bindings["A"], (one.time - NOW + LATENESS_MS) / MINUTE)
            for one in found
        ]

    async def begun(self) -> list[int]:
        stored = await self.channels.channel("detections").read_after(0, limit=10_000)
        moved = [one.event.payload_as(TimeMoved) for one in stored if one.event.type == TIME_TYPE]
        return [one.time - NOW for one in moved if one.begins]


def play(story: Callable[[Site], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        clock = ManualClock(NOW)
        channels = open_memory(clock)
        await story(Site(channels, clock))
        await channels.close()

    asyncio.run(run())


def test_a_known_identity_without_a_reading_is_silent_from_the_start() -> None:
    async def story(site: Site) -> None:
        await site.start(QUIET)
        await site.until(9.9)
        assert await site.told() == [] == await site.begun()
        await site.until(30)
        assert await site.told() == [("quiet", "ann", 10), ("quiet", "ben", 10)]
        assert await site.begun() == [0]

    play(story)


@pytest.mark.parametrize("commit_every_ms", [0, 10_000_000])
def test_a_restart_neither_forgets_the_start_nor_tells_anything_twice(commit_every_ms: int) -> None:
    async def story(site: Site) -> None:
        await site.start(QUIET, commit_every_ms=0)
        await site.until(4)
        await site.engine.commit()
        for minutes in (8, 11, 12, 25):
            await site.start(QUIET, commit_every_ms=commit_every_ms)
            await site.until(minutes)
        assert await site.told() == [("quiet", "ann", 10), ("quiet", "ben", 10)]
        assert await site.begun() == [0]

    play(story)


def test_what_was_decided_after_it_is_met_again_at_the_same_place() -> None:
    async def story(site: Site) -> None:
        await site.start(QUIET, commit_every_ms=10_000_000)
        await site.until(11)
        await site.seen("ann", NOW + 11 * MINUTE)
        told = [("quiet", "ann", 10), ("quiet", "ben", 10)]
        assert await site.told() == told
        await site.start(QUIET, commit_every_ms=10_000_000)  # all of it is read again
        await site.until(30)
        later = ("quiet", "ann", 21 + LATENESS_MS / MINUTE)
        assert await site.told() == [*told, later]
        assert await site.begun() == [0]

    play(story)


def test_time_does_not_begin_before_the_first_can_be_silent_long_enough() -> None:
    async def story(site: Site) -> None:
        await site.start(QUIET)
        await site.until(9)
        await site.seen("ann", NOW - 100 * MINUTE)  # old, but the first: it is the start
        assert site.engine.counts.late == 0
        await site.until(9.5)
        assert [one[:2] for one in await site.told()] == [("quiet", "ann"), ("quiet", "ben")]
        assert {one[2] for one in await site.told()} == {-90 + LATENESS_MS / MINUTE}
        assert await site.begun() == []

    play(story)


def test_readings_that_come_after_it_break_the_silence_as_always() -> None:
    async def story(site: Site) -> None:
        await site.start(QUIET, SHORT)
        await site.until(2)
        assert await site.begun() == [0]
        await site.seen("ann", NOW + 2 * MINUTE)
        await site.until(11)
        assert sorted(await site.told()) == [
            ("quiet", "ben", 10),
            ("short", "ann", 1),
            ("short", "ann", 3 + LATENESS_MS / MINUTE),
            ("short", "ben", 1),
        ]

    play(story)


def test_without_a_reading_silence_counts_from_the_last_change_of_plans_and_tables() -> None:
    async def story(site: Site) -> None:
        await site.start()
        await site.until(60)
        assert await site.begun() == []  # nobody asks for silence
        site.engine.deploy(QUIET)
        await site.until(65)
        await site.engine.refresh_pull(pull("ann", "ben", "cem"))
        await site.until(74)
        assert await site.told() == []
        await site.until(80)
        assert await site.told() == [("quiet", who, 75) for who in ("ann", "ben", "cem")]

    play(story)


def test_who_is_new_in_a_table_counts_from_then_where_other_streams_go_on() -> None:
    async def story(site: Site) -> None:
        await site.start(QUIET)
        await site.seen("ann", NOW)
        await site.until(8)
        event = make_event(
            source="carts",
            id="other",
            type="cart.place",
            subject="cart/c1",
            time=NOW + 8 * MINUTE,
            data={"key": "c1", "value": [1.0, 1.0]},
        )
        await site.channels.channel("events").append([event])
        await site.settle()
        await site.engine.refresh_pull(pull("ann", "ben", "cem"))
        await site.until(30)
        found = {who: minutes for _, who, minutes in await site.told()}
        assert found["ben"] == found["ann"] == 10 + LATENESS_MS / MINUTE
        assert found["cem"] >= 17.9

    play(story)
