"""Clocks that are wrong: a source's runs ahead, the node's own jumps. Policies keep working."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rapport.channel.backends.local import open_memory
from rapport.channel.channel import Channels
from rapport.core.detection import DETECTED, Detection, detection_lines
from rapport.core.event import Event, make_event
from rapport.kernel.clock import ManualClock
from rapport.policy.engine.engine import PolicyEngine
from rapport.policy.engine.stream_steps import LATE_TYPE, RESET_TYPE
from rapport.site.site import load_site
from support.examples import examples

CHECK = Path(__file__).parents[2] / "data" / "checks" / "small-policies"
SITE = load_site(CHECK)
NOW = 1_800_000_000_000
DAYS_400 = 400 * 86_400_000
SEVERAL = ("or", "and-not", "chain-not", "mixed")


def engine(channels: Channels, clock: ManualClock, *names: str, **options: Any) -> PolicyEngine:
    return PolicyEngine(
        channels,
        clock,
        name="site",
        ontology=SITE.ontology,
        pull=SITE.tables,
        plans=[SITE.policies[name].plan for name in names],
        lateness_ms=options.pop("lateness_ms", 2_000),
        **options,
    )


def position(time_ms: int, id: str, person: str = "2", x: float = 5, y: float = 5) -> Event:
    return make_event(
        source="positions",
        id=id,
        type="person.position",
        subject=f"person/{person}",
        time=time_ms,
        data={"key": person, "value": [x, y]},
    )


async def of_type(channels: Channels, type: str, channel: str = "detections") -> list[Event]:
    stored = await channels.channel(channel).read_after(0, limit=100_000)
    return [item.event for item in stored if item.event.type == type]


async def causes(channels: Channels) -> list[str]:
    """What detections rest on, in the order in which they were appended."""
    found = [Detection.from_event(event) for event in await of_type(channels, DETECTED)]
    return [id for one in found for _time, id in one.causes]


async def drain(running: PolicyEngine) -> None:
    while await running.step(timeout_ms=0):
        pass


async def come(running: PolicyEngine, channels: Channels, *events: Event) -> None:
    await channels.channel("events").append(list(events))
    await drain(running)


def scenario(test: Callable[[Channels, ManualClock], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        clock = ManualClock(NOW)
        channels = open_memory(clock)
        await test(channels, clock)
        await channels.close()

    asyncio.run(run())


def test_a_source_whose_clock_is_ahead_makes_nobody_else_late() -> None:
    async def test(channels: Channels, clock: ManualClock) -> None:
        running = engine(channels, clock, "or")
        await come(running, channels, position(NOW + 55_000, "ahead"))
        for number in range(8):
            clock.set_ms(NOW + 1_000 * number)
            await come(running, channels, position(clock.now_ms(), f"true{number}"))
        assert running.counts.late == running.counts.quarantined == 0
        clock.set_ms(NOW + 20_000)
        await drain(running)
        assert await causes(channels) == [f"true{number}" for number in range(8)]
        clock.set_ms(NOW + 57_000)
        await drain(running)
        assert "ahead" not in await causes(channels)
        clock.set_ms(NOW + 57_001)
        await drain(running)
        assert (await causes(channels))[-1] == "ahead"

    scenario(test)


@pytest.mark.parametrize("every", [0, 10_000_000])
def test_a_reading_that_waits_for_its_time_survives_the_end_of_the_process(every: int) -> None:
    async def test(channels: Channels, clock: ManualClock) -> None:
        # `every` = 0 commits each batch; the other one never, so all is read again.
        before = engine(channels, clock, "or", commit_every_ms=every)
        await come(before, channels, position(NOW + 55_000, "ahead"), position(NOW, "true"))
        clock.set_ms(NOW + 10_000)
        await drain(before)
        assert await causes(channels) == ["true"]
        after = engine(channels, clock, "or", commit_every_ms=every)
        await drain(after)
        clock.set_ms(NOW + 58_000)
        await drain(after)
        assert await causes(channels) == ["true", "ahead"]

    scenario(test)


def test_time_never_passes_the_clock_whatever_readings_say() -> None:
    async def test(channels: Channels, clock: ManualClock) -> None:
        running = engine(channels, clock, "and-not", "or")
        for number in range(30):
            clock.set_ms(NOW + 700 * number)
            ahead = (number * 37_000) % 59_000
            await come(running, channels, position(clock.now_ms() + ahead, f"e{number}"))
            async with running.turn:
                assert (await running.progress()).watermark <= clock.now_ms() - 2_000

    scenario(test)


@pytest.mark.parametrize("jump_ms", [80_000, DAYS_400])
def test_after_a_jump_of_the_clock_and_back_policies_work_and_the_reset_is_on_record(
    jump_ms: int,
) -> None:
    async def test(channels: Channels, clock: ManualClock) -> None:
        running = engine(channels, clock, "or", "and-not")
        await come(running, channels, position(NOW, "before"))
        clock.set_ms(NOW + jump_ms)
        await come(running, channels, position(clock.now_ms(), "wrong"))
        clock.set_ms(NOW + jump_ms + 10_000)
        await drain(running)
        await come(running, channels, position(clock.now_ms(), "waiting"))
        clock.set_ms(NOW + 20_000)
        await come(running, channels, position(clock.now_ms(), "after"))
        [reset] = await of_type(channels, RESET_TYPE)
        assert reset.payload() == {
            "time": NOW + 20_000,
            "after": 3,
            "before": NOW + jump_ms + 10_000,
            "resets": 1,
            "skew_ms": 60_000,
        }
        # Nothing is left out silently: what waited too far ahead is listed as late readings are.
        late = [event.payload()["id"] for event in await of_type(channels, LATE_TYPE)]
        assert late == ["waiting"]
        clock.set_ms(NOW + 30_000)
        await drain(running)
        found = [Detection.from_event(event) for event in await of_type(channels, DETECTED)]
        after = [one.policy for one in found if ("after" in [id for _, id in one.causes])]
        assert sorted(after) == ["and-not", "or"]
        assert running.counts.resets == 1

    scenario(test)


def test_a_clock_that_is_behind_after_a_start_costs_policies_nothing_unless_it_stays_there() -> (
    None
):
    async def test(channels: Channels, clock: ManualClock) -> None:
        running = engine(channels, clock, "and-not")
        await come(running, channels, position(NOW, "before"))
        await running.commit()
        clock.set_ms(NOW - DAYS_400)
        again = engine(channels, clock, "and-not")
        await drain(again)
        clock.set_ms(NOW - DAYS_400 + 599_000)
        await drain(again)
        assert again.counts.resets == 0
        clock.set_ms(NOW + 8_000)
        await drain(again)
        assert await causes(channels) == ["before"]
        clock.set_ms(NOW - DAYS_400)
        await drain(again)
        clock.set_ms(NOW - DAYS_400 + 600_000)
        await drain(again)
        assert again.counts.resets == 1

    scenario(test)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("clock"), st.sampled_from([200, 3_000, 70_000, -3_000, -90_000, -5_000])),
        st.tuples(
            st.just("reading"),
            st.tuples(
                st.sampled_from([0, -100, 900, -4_000, 30_000, 61_000]),
                st.sampled_from(["2", "1", "3"]),
                st.sampled_from([5.0, 15.0]),
            ),
        ),
    ),
    min_size=12,
    max_size=30,
)


AFTER_A_RESET = [
    ("reading", (-100, "3", 15.0)),
    ("reading", (900, "3", 5.0)),
    ("reading", (-100, "2", 15.0)),
    ("clock", 3_000),
    ("clock", -90_000),
    ("reading", (-100, "2", 5.0)),
    ("reading", (0, "3", 5.0)),
    ("clock", 70_000),
]


@settings(max_examples=examples(50), deadline=None)
@example(steps=AFTER_A_RESET, dies=[number == 5 for number in range(30)], batch=5)
@given(steps=steps, dies=st.lists(st.booleans(), min_size=30, max_size=30), batch=st.integers(1, 5))
def test_whenever_the_process_dies_the_same_is_found_after_any_jumps_of_clocks(
    steps: list[tuple[str, Any]], dies: list[bool], batch: int
) -> None:
    async def run(mortal: bool) -> tuple[bytes, list[str], list[Any]]:
        clock = ManualClock(NOW)
        channels = open_memory(clock)
        options: dict[str, Any] = {"batch": batch, "commit_every_ms": 10_000_000, "quiet_ms": 0}
        running = engine(channels, clock, *SEVERAL, **options)
        for number, (what, value) in enumerate(steps):
            if what == "clock":
                clock.set_ms(clock.now_ms() + value)
            elif what == "reading":
                offset, person, x = value
                event = position(clock.now_ms() + offset, f"e{number}", person, x, 5)
                await channels.channel("events").append([event])
            await drain(running)
            if mortal and dies[number]:
                if number % 2:
                    await running.commit()
                running = engine(channels, clock, *SEVERAL, **options)
        await drain(running)
        found = [Detection.from_event(event) for event in await of_type(channels, DETECTED)]
        late = [event.payload()["id"] for event in await of_type(channels, LATE_TYPE)]
        resets = [event.payload() for event in await of_type(channels, RESET_TYPE)]
        await channels.close()
        return detection_lines(found), late, resets

    assert asyncio.run(run(mortal=True)) == asyncio.run(run(mortal=False))
