"""Replaced, paused and killed under load: what is found is what a replay finds that changes in the
same places. [PO-8, PO-9]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rapport.core.detection import DETECTED, Detection
from rapport.kernel.clock import Chance
from rapport.policy.engine.stream_steps import StreamPosition
from rapport.policy.lifecycle.registry import CHANGED, CHANNEL, PolicyChange
from rapport.policy.runner.local import LocalRunner
from support.event_readings import readings_from_events

World = Any
Play = Callable[[Callable[[World], Any]], None]
NOW = 100_000
VERSIONS = ("or", "and-not", "mixed", "within")


async def replayed(world: World, lateness_ms: int) -> set[str]:
    """Ids of what a runner finds that is fed event by event and changed where the record says."""
    runner = LocalRunner([], world.pull, lateness_ms=lateness_ms)
    changes = [event.payload_as(PolicyChange) for event in await world.events(CHANGED, CHANNEL)]
    moved = [event.payload() for event in await world.events("rapport.policy.time")]
    steps: list[tuple[StreamPosition, int, Any]] = [(one.place, 1, one) for one in changes]
    steps += [(StreamPosition(one["after"], one["time"]), 0, one) for one in moved]
    steps.sort(key=lambda step: (step[0], step[1]))
    found: list[Detection] = []

    def act(step: Any) -> None:
        if isinstance(step, dict):
            found.extend(runner.advance(step["time"]))
            return
        if step.name in runner.policies():
            runner.withdraw(step.name)
        if step.text:
            runner.deploy(world.compile(step.name, step.text).plan)

    for stored in await world.channels.channel("events").read_after(0, limit=100_000):
        while steps and steps[0][0].after < stored.position:
            act(steps.pop(0)[2])
        found += runner.feed(readings_from_events([stored.event], world.ontology))
    for step in steps:
        act(step[2])
    return {one.id() for one in found}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_replacing_under_load_loses_and_doubles_nothing(play: Play, seed: int) -> None:
    async def story(world: World) -> None:
        chance = Chance(seed)
        options = {"lateness_ms": 1_000, "quiet_ms": 100}
        await world.start("or", **options)
        time = NOW
        for number in range(300):
            time += chance.randint(1, 400)
            world.clock.set_ms(time)
            person = str(chance.randint(2, 4))
            reading = world.position(
                time - chance.randint(0, 900),
                f"e{number}",
                person,
                chance.randint(0, 14),
                chance.randint(0, 9),
            )
            await world.channels.channel("events").append([reading])
            if chance.randint(0, 2) == 0:
                await world.engine.step(timeout_ms=0)
            if chance.randint(0, 9) == 0:
                text = world.texts[VERSIONS[chance.randint(0, 3)]]
                await world.life.replace("or", text)
            if chance.randint(0, 19) == 0:
                # Dies: what was not committed is read again.
                every = 0 if chance.randint(0, 1) else 10_000_000
                await world.start("or", commit_every_ms=every, **options)
        await world.until(time + 60_000)
        await world.until(time + 120_000)
        told = [Detection.from_event(event).id() for event in await world.events(DETECTED)]
        assert len(told) == len(set(told)) > 20
        assert set(told) == await replayed(world, 1_000)

    play(story)
