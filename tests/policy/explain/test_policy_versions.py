"""Which version met the readings of a time: by the places of changes in the stream, whatever the
clock said; compared with what a living engine told. [PO-9, PO-11]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import numpy as np
import pytest

from rapport.channel.backends.local import open_memory
from rapport.channel.channel import Channels
from rapport.core.detection import DETECTED, Detection
from rapport.core.event import make_event
from rapport.kernel.clock import ManualClock
from rapport.policy.compiler.compile import CompiledPolicy, compile_policy
from rapport.policy.engine.engine import PolicyEngine
from rapport.policy.explain.answer import WhyNotAnswer
from rapport.policy.explain.explainer import Explainer
from rapport.policy.explain.why_not import WhyNotQuestion
from rapport.policy.lifecycle.lifecycle import PolicyLifecycle
from rapport.tables.instances import Instances
from support.varied.worlds import ONTOLOGY, Pull

NOW = 1_790_000_000_000
MARCH = 1_772_000_000_000
"""Readings are months older than the node that takes them in."""
WINDOW_MS = 1_000
INSIDE = """concepts
  person A (status='guest')
  room R (security='restricted')
conditions
  A is inside R
actions
  look
"""
ALONE = INSIDE.replace("  room R", "  person B (status='employee')\n  room R").replace(
    "inside R\nactions", "inside R\n  B is not inside R\nactions"
)
ONCE = INSIDE.replace("inside R\nactions", "inside R\n  at most once per 10 s\nactions")
UNHEARD = """concepts
  person A (status='guest')
conditions
  no position of A for 30 s
actions
  look
"""
PULL = Pull(
    {
        "person": Instances(
            "person", ["guest", "keeper"], {"status": np.array(["guest", "employee"], object)}
        ),
        "room": Instances(
            "room",
            ["lab"],
            {
                "security": np.array(["restricted"], object),
                "area": np.array([(0, 0, 5, 5)], np.float64),
                "door": np.array([(0, 0)], np.float64),
            },
        ),
    }
)
IN, OUT = [1.0, 1.0], [9.0, 1.0]
NAME = "watch"


def compiled(name: str, text: str) -> CompiledPolicy:
    return compile_policy(text, name=name, ontology=ONTOLOGY, window_ms=WINDOW_MS)


class Node:
    """An engine whose policies change, on channels in memory; it may die and start anew."""

    def __init__(self, *, lateness_ms: int = 0) -> None:
        self.clock = ManualClock(NOW)
        self.channels: Channels = open_memory(self.clock)
        self.lateness_ms = lateness_ms
        self.asking = Explainer(
            self.channels,
            ONTOLOGY,
            PULL,
            {},
            lambda name, text: compiled(name, text).plan,
            lateness_ms=lateness_ms,
        )
        self._count = 0

    async def start(self, text: str = "", *, commit_every_ms: int = 0) -> None:
        self.engine = PolicyEngine(
            self.channels,
            self.clock,
            name="site",
            ontology=ONTOLOGY,
            pull=PULL,
            lateness_ms=self.lateness_ms,
            quiet_ms=50,
            commit_every_ms=commit_every_ms,
        )
        # The readings are of March and the clock is not: what they lead to is carried out here.
        self.life = PolicyLifecycle(
            self.channels, self.engine, self.clock, compiled, act_within_ms=NOW - MARCH
        )
        await self.life.begin({NAME: text} if text else {})

    async def seen(self, time_ms: int, who: str, where: list[float]) -> str:
        id = await self.arrives(time_ms, who, where)
        while await self.engine.step(timeout_ms=0):
            pass
        return id

    async def arrives(self, time_ms: int, who: str, where: list[float]) -> str:
        """In the log, but not yet taken."""
        self._count += 1
        event = make_event(
            source="badges",
            id=f"e{self._count}",
            type="person.position",
            subject=f"person/{who}",
            time=MARCH + time_ms,
            data={"key": who, "value": where},
        )
        await self.channels.channel("events").append([event])
        return event.id

    async def go_on(self) -> None:
        """A quiet while: what is pending is decided by the clock."""
        await self.clock.advance(1_000)
        await self.engine.step(timeout_ms=0)

    async def told(self) -> list[Detection]:
        if "detections" not in self.channels.names():
            return []
        kept = await self.channels.channel("detections").read_after(0, limit=10_000)
        return [Detection.from_event(one.event) for one in kept if one.event.type == DETECTED]

    async def why_not(self, at: int, **given: str) -> WhyNotAnswer:
        return await self.asking.why_not(NAME, WhyNotQuestion(at=MARCH + at, given=given))


def play(story: Callable[[Node], Coroutine[Any, Any, None]], **options: int) -> None:
    asyncio.run(story(Node(**options)))


def notes(answer: WhyNotAnswer) -> str:
    return "\n".join(one.text for one in answer.notes)


def test_old_readings_meet_a_policy_that_was_there_before_them() -> None:
    async def story(node: Node) -> None:
        await node.start(ALONE)
        await node.seen(0, "guest", IN)
        await node.go_on()
        assert len(await node.told()) == 1
        answer = await node.why_not(0, A="guest")
        assert [one.bindings for one in answer.fired] == [{"A": "guest", "R": "lab"}]
        assert answer.notes == ()

    play(story)


def test_what_came_before_a_policy_was_not_seen_by_it() -> None:
    async def story(node: Node) -> None:
        await node.start()
        await node.seen(0, "guest", IN)
        await node.seen(60_000, "guest", OUT)
        await node.life.register(NAME, INSIDE, by="ana")
        await node.seen(70_000, "guest", IN)
        await node.go_on()
        before = await node.why_not(0, A="guest")
        assert (before.fired, before.candidates[0].became) == ((), "not run")
        assert "registered only at" in notes(before)
        assert "of the readings' time" in notes(before)
        after = await node.why_not(70_000, A="guest")
        assert (len(after.fired), after.notes) == (1, ())

    play(story)


def test_a_reading_that_waited_meets_what_changed_meanwhile() -> None:
    async def story(node: Node) -> None:
        await node.start()
        await node.seen(0, "guest", OUT)
        await node.seen(9_000, "guest", IN)  # waits until 14 s are reached
        await node.life.register(NAME, INSIDE)
        await node.seen(20_000, "guest", OUT)
        assert len(await node.told()) == 1
        assert len((await node.why_not(9_000, A="guest")).fired) == 1

    play(story, lateness_ms=5_000)


def test_the_explained_version_is_the_one_that_received_the_readings() -> None:
    async def story(node: Node) -> None:
        await node.start(INSIDE)
        await node.seen(0, "guest", IN)
        await node.seen(60_000, "guest", OUT)
        await node.life.replace(NAME, ALONE)
        await node.seen(100_000, "guest", OUT)
        await node.life.replace(NAME, ONCE)
        await node.seen(200_000, "guest", OUT)
        texts = [(await node.why_not(at, A="guest")).text for at in (0, 80_000, 200_000)]
        assert texts == [INSIDE, ALONE, ONCE]
        assert "another version is in force" in notes(await node.why_not(80_000))

    play(story)


def test_what_held_while_a_policy_was_paused_was_not_told() -> None:
    async def story(node: Node) -> None:
        await node.start(INSIDE)
        await node.seen(0, "guest", OUT)
        await node.life.pause(NAME, by="ana")
        await node.seen(60_000, "guest", IN)
        await node.seen(120_000, "guest", OUT)
        await node.life.resume(NAME, by="ana")
        await node.seen(180_000, "guest", IN)
        await node.go_on()
        paused = await node.why_not(60_000, A="guest")
        assert (paused.fired, paused.candidates[0].became) == ((), "not run")
        assert "paused since" in notes(paused)
        assert "by ana" in notes(paused)
        resumed = await node.why_not(180_000, A="guest")
        assert len(resumed.fired) == 1
        assert "began anew" in notes(resumed)

    play(story)


def test_what_was_pending_when_the_policy_changed_was_never_told() -> None:
    async def story(node: Node) -> None:
        await node.start(ALONE)
        await node.seen(0, "guest", IN)
        await node.seen(500, "guest", OUT)  # the second without a keeper is not over yet
        await node.life.replace(NAME, ONCE)
        await node.seen(60_000, "guest", OUT)
        assert await node.told() == []
        answer = await node.why_not(0, A="guest")
        assert (answer.text, answer.fired) == (ALONE, ())
        assert answer.candidates[0].became == "not run"

    play(story)


def test_readings_older_than_what_the_stream_reached_are_late_however_they_came() -> None:
    async def story(node: Node) -> None:
        await node.start(INSIDE)
        await node.seen(90_000_000, "keeper", OUT)
        late = await node.seen(0, "guest", IN)
        answer = await node.why_not(0, A="guest")
        assert answer.fired == ()
        assert [(one.kind, one.event) for one in answer.notes] == [("late", late)]

    play(story)


def test_a_change_made_while_a_node_catches_up_holds_behind_what_it_had_read() -> None:
    async def story(node: Node) -> None:
        await node.start(INSIDE, commit_every_ms=10_000_000)
        await node.seen(0, "guest", IN)
        await node.seen(60_000, "guest", OUT)
        assert len(await node.told()) == 1
        await node.start(ALONE)  # killed: nothing was committed, and the file has changed
        [change] = node.life.history(NAME)[1:]
        assert change.after == 2
        await node.seen(120_000, "guest", OUT)
        before = await node.why_not(0, A="guest")
        assert (before.text, len(before.fired)) == (INSIDE, 1)
        assert (await node.why_not(120_000, A="guest")).text == ALONE

    play(story)


def test_a_version_from_the_shadow_goes_on_with_what_it_saw_there() -> None:
    async def story(node: Node) -> None:
        await node.start(INSIDE)
        await node.seen(0, "keeper", OUT)
        await node.life.shadow(NAME, ALONE)
        await node.seen(100, "guest", IN)
        await node.seen(500, "keeper", OUT)
        await node.life.promote(NAME)
        await node.seen(60_000, "keeper", OUT)
        told = [one for one in await node.told() if one.version == node.life.policy(NAME).version]
        assert [one.time - MARCH for one in told] == [1_100]
        answer = await node.why_not(1_100, A="guest")
        assert (answer.text, len(answer.fired)) == (ALONE, 1)

    play(story)


def test_a_policy_that_a_detection_stopped_emitted_nothing_after_it() -> None:
    async def story(node: Node) -> None:
        await node.start(INSIDE.replace("  look\n", f"  look\n  pause policy {NAME}\n"))
        for time in (0, 100, 60_000):  # read at once: more was taken than what stopped it
            await node.arrives(time, "guest", IN)
        await node.seen(70_000, "guest", OUT)
        assert [one.time - MARCH for one in await node.told()] == [0]
        assert len((await node.why_not(0, A="guest")).fired) == 1
        later = await node.why_not(60_000, A="guest")
        assert (later.fired, later.candidates[0].became) == ((), "not run")
        assert f"by policy {NAME}" in notes(later)

    play(story)


@pytest.mark.parametrize("lateness_ms", [0, 5_000])
def test_an_identity_without_a_reading_is_silent_from_the_start_of_the_policy(
    lateness_ms: int,
) -> None:
    async def story(node: Node) -> None:
        await node.start()
        await node.seen(0, "keeper", OUT)
        await node.seen(10_000, "keeper", OUT)
        await node.life.register(NAME, UNHEARD)
        await node.seen(20_000, "keeper", OUT)  # the first that the policy sees
        await node.seen(90_000, "keeper", OUT)
        [detection] = await node.told()
        assert detection.time == MARCH + 10_000 - lateness_ms + 30_000
        assert (await node.asking.why(detection)).held is not None
        answer = await node.why_not(detection.time - MARCH, A="guest")
        assert [one.detection for one in answer.fired] == [detection]

    play(story, lateness_ms=lateness_ms)


@pytest.mark.parametrize("lateness_ms", [0, 5_000])
def test_a_silence_in_a_stream_without_any_reading_is_explained(
    lateness_ms: int,
) -> None:
    async def story(node: Node) -> None:
        await node.start(UNHEARD)
        for _ in range(40):
            await node.go_on()
        [detection] = await node.told()
        assert detection.time == NOW - lateness_ms + 30_000
        assert (await node.asking.why(detection)).held is not None
        answer = await node.why_not(detection.time - MARCH, A="guest")
        assert [one.detection for one in answer.fired] == [detection]

    play(story, lateness_ms=lateness_ms)


def test_a_death_right_after_a_policy_came_makes_nobody_silent_from_before_it() -> None:
    async def story(node: Node) -> None:
        await node.start(commit_every_ms=10_000_000)
        await node.go_on()
        await node.engine.commit()
        for _ in range(60):
            await node.go_on()
        await node.life.register(NAME, UNHEARD)
        came = node.clock.now_ms()
        await node.start()
        for _ in range(29):
            await node.go_on()
        assert await node.told() == []
        for _ in range(5):
            await node.go_on()
        [detection] = await node.told()
        assert detection.time == came + 30_000

    play(story)


@pytest.mark.parametrize("seed", range(12))
def test_explained_detections_are_the_emitted_ones(seed: int) -> None:
    """Readings out of order, a clock that has nothing to do with them, changes in between."""

    async def story(node: Node) -> None:
        chance = Random(seed)
        await node.start(INSIDE if chance.random() < 0.5 else "")
        now = 0
        for _ in range(40):
            now += chance.choice([0, 200, 700, 3_000])
            await _something(node, chance, now)
        await node.seen(now + 60_000, "keeper", OUT)
        told = await node.told()
        assert told or seed
        for at in range(0, now + 2_000, 500):
            answer = await node.asking.why_not(
                NAME, WhyNotQuestion(at=MARCH + at, given={"A": "guest"}, within_ms=250)
            )
            own = {one.id() for one in told if one.version == answer.version}
            near = {one.id() for one in told if abs(one.time - MARCH - at) <= 250} & own
            fired = {one.detection.id() for one in answer.fired if one.detection is not None}
            assert fired <= own, at
            assert near <= fired, at

    play(story, lateness_ms=[0, 1_500][seed % 2])


def test_after_a_clock_that_was_ahead_the_version_of_then_is_explained() -> None:
    ahead, begin = 400 * 86_400_000, NOW - MARCH

    async def story(node: Node) -> None:
        await node.start(INSIDE)
        await node.seen(begin, "guest", OUT)
        node.clock.set_ms(NOW + ahead)
        await node.seen(begin + ahead, "guest", IN)
        await node.life.replace(NAME, ONCE)  # its place is 400 days ahead of all that follow
        node.clock.set_ms(NOW + 60_000)
        await node.seen(begin + 60_000, "guest", OUT)
        await node.life.replace(NAME, ALONE)
        node.clock.set_ms(NOW + 70_000)
        await node.seen(begin + 70_000, "guest", IN)
        await node.go_on()
        answer = await node.why_not(begin + 70_000, A="guest")
        assert answer.text == ALONE
        assert [one.bindings for one in answer.fired] == [{"A": "guest", "R": "lab"}]
        before = await node.why_not(begin, A="guest")
        assert before.text == INSIDE

    play(story)


async def _something(node: Node, chance: Random, now: int) -> None:
    known = {one.name: one.state for one in node.life.policies()}
    match chance.randrange(12):
        case 0 if known:
            await node.life.pause(NAME)
        case 1 if known:
            await node.life.resume(NAME)
        case 2 if known:
            await node.life.replace(NAME, chance.choice([INSIDE, ALONE, ONCE]))
        case 3 if known and chance.random() < 0.3:
            await node.life.delete(NAME)
        case 3 | 4 if not known:
            await node.life.register(NAME, chance.choice([INSIDE, ALONE]))
        case 5:
            await node.go_on()
        case _:
            who = chance.choice(["guest", "guest", "keeper"])
            time = now - chance.choice([0, 0, 0, 400, 2_000])
            await node.seen(max(time, 0), who, chance.choice([IN, OUT]))
