"""What live decided is decided again from the log, whatever clocks, people and crashes did."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.channel.backends.local import open_memory
from rapport.channel.channel import Channels
from rapport.core.detection import DETECTED, UNDECIDED, Detection, detection_lines, detection_order
from rapport.core.errors import Conflict, DuplicateName, InvalidInput, UnknownName
from rapport.core.event import Event, make_event
from rapport.kernel.clock import ManualClock
from rapport.policy.compiler.compile import CompiledPolicy, compile_policy
from rapport.policy.engine.engine import ALLOWED_SKEW_MS, PolicyEngine
from rapport.policy.engine.stream_steps import LATE_TYPE, RESET_TYPE
from rapport.policy.lifecycle.lifecycle import PolicyLifecycle
from rapport.policy.replay.log_replay import LiveReplay
from rapport.policy.replay.replay import ReplayResult
from rapport.site.site import load_site
from support.examples import examples

CHECK = Path(__file__).parents[2] / "data" / "checks" / "small-policies"
SITE = load_site(CHECK)
TEXTS = {name: (CHECK / f"{name}.dpl").read_text() for name in SITE.policies}
NOW = 1_800_000_000_000


def compile(name: str, text: str) -> CompiledPolicy:
    return compile_policy(text, name=name, ontology=SITE.ontology, window_ms=SITE.window_ms)


def position(time_ms: int, id: str, person: str, x: float) -> Event:
    return make_event(
        source="positions",
        id=id,
        type="person.position",
        subject=f"person/{person}",
        time=time_ms,
        data={"key": person, "value": [x, 5.0]},
    )


class Site:
    """One log on which processes run and die."""

    def __init__(self, batch: int) -> None:
        self.clock = ManualClock(NOW)
        self.channels: Channels = open_memory(self.clock)
        self._batch = batch

    async def start(self) -> None:
        self.engine = PolicyEngine(
            self.channels,
            self.clock,
            name="site",
            ontology=SITE.ontology,
            pull=SITE.tables,
            lateness_ms=2_000,
            batch=self._batch,
            commit_every_ms=10_000_000,
            quiet_ms=0,
        )
        self.life = PolicyLifecycle(self.channels, self.engine, self.clock, compile)
        await self.life.begin({name: TEXTS[name] for name in ("or", "and-not", "chain-not")})

    async def drain(self) -> None:
        while await self.engine.step(timeout_ms=0):
            pass

    async def of_type(self, type: str) -> list[Event]:
        stored = await self.channels.channel("detections").read_after(0, limit=100_000)
        return [item.event for item in stored if item.event.type == type]

    async def again(self) -> tuple[ReplayResult, list[str]]:
        replay = LiveReplay(
            self.channels,
            SITE.ontology,
            SITE.tables,
            compile,
            name="site",
            lateness_ms=2_000,
            skew_ms=ALLOWED_SKEW_MS,
        )
        return await replay.run(), replay.notes


clocks = st.tuples(
    st.just("clock"), st.sampled_from([200, 3_000, 9_000, 70_000, -3_000, -90_000, -5_000])
)
readings = st.tuples(
    st.just("reading"),
    st.tuples(
        st.sampled_from([0, -100, 900, -4_000, 30_000, 61_000]),
        st.sampled_from(["2", "1", "3"]),
        st.sampled_from([5.0, 15.0]),
    ),
)
changes = st.tuples(
    st.sampled_from(["pause", "resume", "register", "replace", "delete"]),
    st.sampled_from(["or", "mixed"]),
)
ends = st.tuples(st.sampled_from(["dies", "commits"]), st.none())


@settings(max_examples=examples(40), deadline=None)
@given(
    steps=st.lists(st.one_of(readings, clocks, readings, changes, ends), min_size=12, max_size=40),
    batch=st.integers(1, 5),
)
def test_whatever_happened_live_a_replay_as_live_finds_the_same(
    steps: list[tuple[str, Any]], batch: int
) -> None:
    async def run() -> None:
        site = Site(batch)
        await site.start()
        for number, (what, value) in enumerate(steps):
            await happen(site, number, what, value)
            await site.drain()
        found, notes = await site.again()
        on_record = {event.id: event for event in await site.of_type(DETECTED)}
        expected = [Detection.from_event(event) for event in on_record.values()]
        assert detection_lines(found.detections) == detection_lines(
            sorted(expected, key=detection_order)
        )
        late = [event.payload() for event in await site.of_type(LATE_TYPE)]
        assert sorted(found.late) == sorted((one["time"], one["id"]) for one in late)
        assert len(found.undecided) == len(await site.of_type(UNDECIDED))
        assert notes == []
        await site.channels.close()

    asyncio.run(run())


async def happen(site: Site, number: int, what: str, value: Any) -> None:
    if what == "clock":
        site.clock.set_ms(site.clock.now_ms() + value)
    elif what == "reading":
        offset, person, x = value
        event = position(site.clock.now_ms() + offset, f"e{number}", person, x)
        await site.channels.channel("events").append([event])
    elif what == "dies":
        await site.start()
    elif what == "commits":
        async with site.engine.turn:
            await site.engine.commit()
    else:
        try:
            if what in ("register", "replace"):
                await getattr(site.life, what)(value, TEXTS[value] + f"# {number}\n")
            else:
                await getattr(site.life, what)(value)
        except (DuplicateName, UnknownName, Conflict):
            pass


def test_a_wait_a_late_reading_and_a_reset_come_out_as_live() -> None:
    async def run() -> None:
        site = Site(100)
        await site.start()
        for number, (offset, then) in enumerate(
            [(0, 1_000), (55_000, 1_000), (0, 3_000), (-9_000, 90_000), (0, 10_000), (0, -95_000)]
        ):
            event = position(site.clock.now_ms() + offset, f"e{number}", "2", 5.0)
            await site.channels.channel("events").append([event])
            await site.drain()
            site.clock.set_ms(site.clock.now_ms() + then)
            await site.drain()
        last = position(site.clock.now_ms(), "last", "2", 5.0)
        await site.channels.channel("events").append([last])
        await site.drain()
        site.clock.set_ms(site.clock.now_ms() + 9_000)
        await site.drain()
        assert len(await site.of_type(RESET_TYPE)) == 1
        found, notes = await site.again()
        expected = [Detection.from_event(event) for event in await site.of_type(DETECTED)]
        assert found.detections == sorted(expected, key=detection_order)
        assert {id for one in found.detections for _, id in one.causes} >= {"e0", "e1", "last"}
        assert [id for _, id in found.late] == ["e3", "e5"]  # e5 waited too far ahead
        assert (found.events, notes) == (7, [])
        await site.channels.close()

    asyncio.run(run())


def test_where_no_node_ran_there_is_nothing_to_repeat() -> None:
    async def run() -> None:
        channels = open_memory(ManualClock(NOW))
        with pytest.raises(InvalidInput) as refused:
            LiveReplay(
                channels,
                SITE.ontology,
                SITE.tables,
                compile,
                name="site",
                lateness_ms=0,
                skew_ms=0,
            )
        assert refused.value.code == "replay.no_live"
        await channels.close()

    asyncio.run(run())
