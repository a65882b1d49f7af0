"""A version in the shadow of the running one: only differences are told. [PO-9]"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rapport.core.detection import DETECTED, Detection
from rapport.policy.engine.shadow_episodes import SHADOW_TYPE, ShadowDifference

World = Any
Play = Callable[[Callable[[World], Any]], None]
NOW = 100_000
GUESTS = "concepts\n  person A (status='guest')\n  room R (security='restricted')\n"
RESTRICTED = GUESTS + "conditions\n  A is inside R\nactions\n  raise alarm\n"


async def differences(world: World) -> list[tuple[str, int]]:
    found = [event.payload_as(ShadowDifference) for event in await world.events(SHADOW_TYPE)]
    return [(one.found_by, one.time) for one in found]


@pytest.mark.parametrize("restarted", [False, True])
def test_only_differences_of_versions_are_emitted_and_they_trigger_no_action(
    play: Play, restarted: bool
) -> None:
    async def story(world: World) -> None:
        await world.start("or", commit_every_ms=0)
        await world.send(world.position(NOW, "a", "2"))
        world.clock.set_ms(NOW + 20_000)
        await world.life.shadow("or", RESTRICTED, by="ana")
        running = world.life.policy("or")
        assert (running.state, running.shadow != "") == ("running", True)
        await world.send(
            world.position(NOW + 10_000, "b", "2", 15),
            world.position(NOW + 11_000, "c", "2"),
        )
        if restarted:
            await world.start("or", commit_every_ms=0)
        await world.send(world.position(NOW + 20_000, "d", "4", 50, 50))
        assert await differences(world) == [("running", NOW + 10_000)]
        tally = world.life.policy("or").tally
        assert (tally.both, tally.only_running, tally.only_shadow) == (1, 1, 0)
        found = [Detection.from_event(event) for event in await world.events(DETECTED)]
        assert {one.version for one in found} == {running.version}

    play(story)


def test_a_promoted_version_goes_on_with_what_it_waits_for(play: Play) -> None:
    async def story(world: World) -> None:
        await world.start("or", commit_every_ms=0)
        await world.send(world.position(NOW, "a", "4", 50, 50))
        await world.life.shadow("or", world.texts["and-not"])
        world.clock.set_ms(NOW + 10_000)
        await world.send(world.position(NOW + 10_000, "b", "2"))
        done = await world.life.promote("or", by="ana")
        assert world.life.policy("or").version == done.version
        assert world.life.policy("or").shadow == ""
        await world.until(NOW + 20_000)
        # Opened in the shadow at NOW + 10 000, decided as the policy five seconds later.
        assert (await world.found())[-1] == ("or", NOW + 15_000)
        await world.start("or")
        assert world.life.policy("or").version == done.version

    play(story)


def test_a_dropped_shadow_tells_what_was_left_and_is_gone(play: Play) -> None:
    async def story(world: World) -> None:
        await world.start("or", commit_every_ms=0)
        await world.send(world.position(NOW, "a", "4", 50, 50))
        await world.life.shadow("or", RESTRICTED)
        world.clock.set_ms(NOW + 10_000)
        await world.send(world.position(NOW + 9_000, "b", "2", 15))
        await world.until(NOW + 10_100)
        assert await differences(world) == []
        await world.life.drop("or")
        assert await differences(world) == [("running", NOW + 9_000)]
        assert world.life.policy("or").tally is None
        assert world.engine.shadows() == {}

    play(story)


def test_what_the_shadow_could_not_have_seen_is_no_difference(play: Play) -> None:
    async def story(world: World) -> None:
        await world.start("and-not", commit_every_ms=0)
        await world.send(world.position(NOW, "a", "2"), world.position(NOW + 1, "x", "4", 50, 50))
        await world.life.shadow("and-not", RESTRICTED)
        await world.until(NOW + 60_000)
        assert await world.found() == [("and-not", NOW + 5_000)]
        await world.life.drop("and-not")
        assert await differences(world) == []

    play(story)


def test_on_a_quiet_node_the_clock_makes_a_difference_certain(play: Play) -> None:
    async def story(world: World) -> None:
        await world.start("or", commit_every_ms=0)
        await world.send(world.position(NOW, "a", "2"))
        world.clock.set_ms(NOW + 10_000)
        await world.life.shadow("or", RESTRICTED, by="ana")
        await world.send(world.position(NOW + 10_000, "b", "2", 15))
        assert await differences(world) == []
        for later_ms in (60_000, 61_000):  # after the first step nothing may be due any more
            world.clock.set_ms(NOW + later_ms)
            await world.drain()
        assert await differences(world) == [("running", NOW + 10_000)]
        assert world.life.policy("or").tally.only_running == 1

    play(story)
