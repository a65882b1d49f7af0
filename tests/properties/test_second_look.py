"""Live and second looks together find what a replay of everything finds, whatever was held back and
whenever it was released, over crashes at any step. [PO-7, ME-16]
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.backends.local import open_memory
from rapport.channel.channel import Channels
from rapport.core.detection import DETECTED, Detection, detection_lines
from rapport.core.event import Event, make_event
from rapport.core.release import HISTORY, LATE, RELEASE_DONE, RELEASED, RELEASES, ReleaseDone
from rapport.kernel.clock import Chance, ManualClock
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.engine.engine import PolicyEngine
from rapport.policy.ontology import Ontology
from rapport.policy.plan import Plan
from rapport.policy.replay.reevaluation import SUPPORTED, UNSUPPORTED, ReevaluationService
from rapport.policy.runner.local import LocalRunner
from support.judge.occurrences import Reading
from support.judge.trials import Trial, varied_trial
from support.varied.worlds import (
    ONTOLOGY,
    WINDOW_MS,
    World,
    random_policy,
    random_world,
    readings_batch,
    with_periods,
)

pytestmark = pytest.mark.slow


class Crash(Exception):
    """The process ends here."""


class Site:
    """A node's policies on channels that outlive it."""

    def __init__(
        self, chance: Chance, world: World, ontology: Ontology, plans: Sequence[Plan], late_ms: int
    ) -> None:
        self.chance, self.world, self.ontology, self.plans = chance, world, ontology, plans
        self.lateness_ms = late_ms
        self.clock = ManualClock(0)
        self.channels: Channels = open_memory(self.clock)
        self.releases = 0
        self.start()

    def start(self) -> None:
        """As after a crash: nothing is known but what is in the channels."""
        self.engine = PolicyEngine(
            self.channels,
            self.clock,
            name="site",
            ontology=self.ontology,
            pull=self.world.pull,
            plans=self.plans,
            lateness_ms=self.lateness_ms,
            batch=self.chance.choice((1, 3, 100)),
            commit_every_ms=self.chance.choice((0, 10**9)),
        )
        self.looker = ReevaluationService(self.channels, self.engine, self.clock)

    async def drain(self) -> None:
        while await self.engine.step(timeout_ms=0):
            pass

    async def take(self, readings: Sequence[Reading], **headers: str) -> None:
        events = [self.event_of(reading, headers) for reading in readings]
        await self.channels.channel("events").append(events)

    async def release(self, readings: Sequence[Reading]) -> None:
        self.releases += 1
        await self.take(readings, **{RELEASED: "now"})
        done = ReleaseDone(release=f"r{self.releases}")
        for reading in readings:
            done.touch(reading.stream, reading.time)
        done.through = self.channels.channel("events").last_position()
        event = make_event(source="s", id=done.release, type=RELEASE_DONE, time=0, data=done)
        await self.channels.channel(RELEASES).append([event])
        if self.chance.randint(0, 3) == 0:
            await self.look_and_crash()
        await self.drain()
        await self.looker.step(timeout_ms=0)

    async def evaluate_history(self) -> None:
        """Lets the time pass in which readings of history are gathered."""
        self.clock.set_ms(self.clock.now_ms() + 10_000)
        await self.drain()
        await self.looker.step(timeout_ms=0)

    async def look_and_crash(self) -> None:
        """Dies before or after the engine has taken over what history says."""
        after, adopt = self.chance.randint(0, 1), self.engine.adopt

        async def dying(*arguments: object) -> None:
            if after:
                await adopt(*arguments)  # type: ignore[arg-type]
            raise Crash

        self.engine.adopt = dying  # type: ignore[method-assign]
        await self.drain()
        try:
            await self.looker.step(timeout_ms=0)
        except Crash:
            self.start()
        else:
            self.engine.adopt = adopt  # type: ignore[method-assign]

    def event_of(self, reading: Reading, headers: dict[str, str]) -> Event:
        given_by = {source.stream: name for name, source in self.ontology.sources.items()}
        return make_event(
            source=reading.source or given_by[reading.stream],
            id=reading.id,
            type=reading.stream,
            time=reading.time,
            data={"key": reading.key, "value": reading.value},
            headers=headers,
        )

    async def standing_detections(self) -> list[Detection]:
        """What was detected and is still supported; everything found behind its time says so."""
        found: dict[str, Detection] = {}
        unsupported: set[str] = set()
        for stored in await self.channels.channel("detections").read_after(0, limit=100_000):
            event = stored.event
            if event.type == DETECTED:
                assert event.id not in found
                found[event.id] = Detection.from_event(event)
                assert event.headers.get(LATE, "true") == "true"
            elif event.type == UNSUPPORTED:
                assert event.payload()["detection"] not in unsupported
                unsupported.add(event.payload()["detection"])
            elif event.type == SUPPORTED:
                unsupported.remove(event.payload()["detection"])
        return [item for id, item in found.items() if id not in unsupported]


def stretched(world: World, ontology: Ontology, by: int) -> tuple[World, Ontology]:
    """The same at a slower pace, so that looking again reads a part of the log only."""
    readings = [
        msgspec.structs.replace(reading, time=reading.time * by) for reading in world.readings
    ]
    sources = {
        name: msgspec.structs.replace(source, period_ms=source.period_ms * by)
        for name, source in ontology.sources.items()
    }
    return World(world.pull, tuple(readings)), msgspec.structs.replace(ontology, sources=sources)


def replayed(site: Site) -> bytes:
    """What all readings in order of time give."""
    runner = LocalRunner(site.plans, site.world.pull, lateness_ms=0, sources=site.ontology.sources)
    ordered = sorted(site.world.readings, key=lambda reading: reading.time)
    found = runner.feed(readings_batch(ordered, site.ontology)) + runner.finish()
    assert runner.late == 0
    return detection_lines(found)


async def live_and_looked(site: Site) -> bytes:
    """The readings live, some of them held back and released later, a few at a time."""
    chance = site.chance
    share = chance.choice((5, 30, 60))
    arrivals = sorted(site.world.readings, key=lambda reading: reading.time)
    first = arrivals[0].time  # silence counts from there: live and replay begin with the same
    held: list[Reading] = []
    while arrivals:
        now, arrivals = arrivals[: (size := chance.randint(1, 9))], arrivals[size:]
        back = [r for r in now if r.time > first and chance.randint(1, 100) <= share]
        site.clock.set_ms(now[-1].time)
        await site.take([reading for reading in now if reading not in back])
        await site.drain()
        held += back
        if held and chance.randint(0, 2) == 0:
            freed = chance.sample(held, chance.randint(1, len(held)))
            held = [reading for reading in held if reading not in freed]
            await site.release(freed)
        if chance.randint(0, 5) == 0:
            site.start()
    if held:
        await site.release(held)
    for later_ms in (2**50, 2**50 + 1_000):  # after a crash there is something to read first
        site.clock.set_ms(later_ms)
        await site.drain()
    found = await site.standing_detections()
    await site.channels.close()
    return detection_lines(found)


async def live_and_imported(site: Site) -> bytes:
    """Some readings live, then the others as files of history, in any order, over crashes."""
    chance = site.chance
    readings = sorted(site.world.readings, key=lambda reading: reading.time)
    files = chance.randint(1, 4)
    parts: list[list[Reading]] = [[] for _ in range(files + 1)]
    for reading in readings:  # silence counts from the first: live and replay begin with the same
        is_first = reading.time == readings[0].time
        parts[files if is_first else chance.randint(0, files)].append(reading)
    live = parts.pop()
    for reading in live:
        site.clock.set_ms(reading.time)
        await site.take([reading])
    for later_ms in (2**50, 2**50 + 1_000):
        site.clock.set_ms(later_ms)
        await site.drain()
    for file in parts:
        await site.take(chance.sample(file, len(file)), **{HISTORY: "true"})
        await site.drain()
        if chance.randint(0, 3) == 0:
            site.start()
            await site.drain()
        if chance.randint(0, 2):
            await site.evaluate_history()
    await site.evaluate_history()
    assert site.engine.counts.late == 0
    found = await site.standing_detections()
    await site.channels.close()
    return detection_lines(found)


def check_imports(seed: int, *, periods: bool) -> None:
    site = random_site(Chance(seed), periods=periods)
    assert asyncio.run(live_and_imported(site)) == replayed(site)


@given(st.integers(0, 2**32))
def test_live_and_files_imported_in_any_order_are_a_replay_of_everything(seed: int) -> None:
    check_imports(seed, periods=False)


def random_site(chance: Chance, *, periods: bool) -> Site:
    world, ontology = random_world(chance, events=chance.randint(5, 60)), ONTOLOGY
    if periods:
        world, ontology = with_periods(chance, world)
    pace = chance.choice((1, 10_000))
    world, ontology = stretched(world, ontology, pace)
    plans = [
        compile_policy(
            random_policy(chance), name=f"p{number}", ontology=ontology, window_ms=WINDOW_MS * pace
        ).plan
        for number in range(chance.randint(1, 2))
    ]
    return Site(chance, world, ontology, plans, chance.choice((0, 30 * pace)))


def check(seed: int, *, periods: bool) -> None:
    site = random_site(Chance(seed), periods=periods)
    assert asyncio.run(live_and_looked(site)) == replayed(site)


@given(st.integers(0, 2**32))
def test_live_and_second_looks_are_a_replay_of_everything(seed: int) -> None:
    check(seed, periods=False)


@given(st.integers(0, 2**32))
def test_so_they_are_where_sources_promise_to_be_heard(seed: int) -> None:
    check(seed, periods=True)


@given(st.integers(0, 2**32))
def test_so_they_are_for_policies_of_every_kind(seed: int) -> None:
    site = varied_site(Chance(seed))
    assert asyncio.run(live_and_looked(site)) == replayed(site)


@given(st.integers(0, 2**32))
def test_imported_files_are_part_of_it_for_policies_of_every_kind(seed: int) -> None:
    site = varied_site(Chance(seed))
    assert asyncio.run(live_and_imported(site)) == replayed(site)


def varied_site(chance: Chance) -> Site:
    trial = varied_trial(chance, events=chance.randint(5, 40))
    plan = compile_policy(
        trial.text, name="p", ontology=trial.ontology, window_ms=trial.window_ms
    ).plan
    world = World(trial.pull, told_once(trial))
    return Site(chance, world, trial.ontology, [plan], chance.choice((0, 30)))


def told_once(trial: Trial) -> tuple[Reading, ...]:
    """The readings with names of their own: an event says one thing here."""
    return tuple(
        msgspec.structs.replace(reading, id=f"{reading.id}-{number}")
        for number, reading in enumerate(trial.readings)
    )
