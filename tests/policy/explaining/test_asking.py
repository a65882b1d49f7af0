"""Questions to a node's history: late and held-back readings, versions, pauses, throttling, and a
long log of which only a little is read. [PO-11]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from rapport.channel.backends.memory import open_memory
from rapport.channel.id_prefix import whole_id
from rapport.channel.logged import LoggedChannels
from rapport.core.detection import DETECTED, Detection
from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.event import Event, make_event
from rapport.kernel.clock import ManualClock
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.engine import PolicyEngine
from rapport.policy.engine_places import Place
from rapport.policy.explaining.asking import Asking
from rapport.policy.explaining.past import read_past
from rapport.policy.explaining.reach import Reach
from rapport.policy.explaining.verdict import Answer
from rapport.policy.explaining.why_not import Question
from rapport.policy.life.changes import CHANNEL, Changed, What, change_event
from rapport.policy.plan import Plan
from rapport.tables.instances import Instances
from rapport.testing.worlds import ONTOLOGY, Pull

WINDOW_MS = 1_000
ALONE = """concepts
  person A (status='guest')
  person B (status='employee')
  room R (security='restricted')
conditions
  A is inside R
  B is not inside R
actions
  look
"""
ONCE = ALONE.replace("  B is not inside R\n", "  at most once per 10 s\n")
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


def plan_of(name: str, text: str) -> Plan:
    return compile_policy(text, name=name, ontology=ONTOLOGY, window_ms=WINDOW_MS).plan


class Node:
    """A policy running on channels in memory."""

    def __init__(self, text: str = ALONE) -> None:
        self.clock = ManualClock(0)
        self.channels: LoggedChannels = open_memory(self.clock)
        self.engine = PolicyEngine(
            self.channels,
            self.clock,
            name="site",
            ontology=ONTOLOGY,
            pull=PULL,
            plans=[plan_of("alone", text)],
            lateness_ms=0,
            commit_every_ms=0,
        )
        self.asking = Asking(self.channels, ONTOLOGY, PULL, {"alone": text}, plan_of, lateness_ms=0)

    async def seen(self, id: str, time_ms: int, who: str, where: list[float]) -> None:
        self.clock.set_ms(max(time_ms, self.clock.now_ms()))
        await self.channels.channel("events").append([reading(id, time_ms, who, where)])
        while await self.engine.step(timeout_ms=0):
            pass

    async def go_on(self, until_ms: int) -> None:
        self.clock.set_ms(until_ms)
        while await self.engine.step(timeout_ms=0):
            pass
        await self.engine.step(timeout_ms=0)

    async def changed(self, what: What, time_ms: int, text: str = "", number: int = 1) -> None:
        changed = Changed(
            what=what, name="alone", place=Place(0, 0), number=number, text=text, by="boss"
        )
        event = change_event(changed, "site", time_ms)
        await self.channels.channel(CHANNEL).append([event])

    async def detections(self) -> list[Detection]:
        kept = await self.channels.channel("detections").read_after(0)
        return [Detection.from_event(one.event) for one in kept if one.event.type == DETECTED]

    async def why_not(self, at: int, **given: str) -> Answer:
        return await self.asking.why_not("alone", Question(at=at, given=given))


def reading(id: str, time_ms: int, who: str, where: list[float]) -> Event:
    return make_event(
        source="badges",
        id=id,
        type="person.position",
        subject=f"person/{who}",
        time=time_ms,
        data={"key": who, "value": where},
        headers={"rawchannel": "raw.badges", "rawposition": "1"},
    )


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


def test_a_detection_is_explained_with_raw_values() -> None:
    async def scenario() -> None:
        node = Node()
        raw = make_event(source="badges", id="e1", type="badges.raw", time=0, data={"tag": 7})
        await node.channels.channel("raw.badges").append([raw])
        await node.seen("e1", 1_000, "guest", IN)
        await node.go_on(3_000)
        [detection] = await node.detections()
        explained = await node.asking.why(detection)
        assert explained.held is not None
        assert explained.text == ALONE
        assert {one.truth for one in explained.held.clauses} == {"true"}
        [shown] = explained.held.clauses[0].readings
        assert (shown.text, shown.raw) == ("position of guest = 1, 1 m", '{"tag":7}')

    run(scenario)


def test_a_refuted_absence_names_who_was_there() -> None:
    async def scenario() -> None:
        node = Node()
        await node.seen("e1", 1_000, "guest", IN)
        await node.seen("e2", 1_500, "keeper", IN)
        await node.go_on(3_000)
        assert await node.detections() == []
        answer = await node.why_not(1_200, A="guest")
        assert answer.candidates[0].clauses[1].because == "refuted by B = keeper within 1 s"
        assert answer.nearest is not None
        assert answer.nearest.reading.id == "e2"

    run(scenario)


def test_a_late_reading_does_not_count_and_is_told() -> None:
    async def scenario() -> None:
        node = Node()
        await node.seen("e1", 5_000, "keeper", OUT)
        await node.seen("e2", 1_000, "guest", IN)
        answer = await node.why_not(1_000, A="guest")
        assert not answer.fired
        [note] = [one for one in answer.notes if one.kind == "late"]
        assert (note.event, "too late to count" in note.text) == ("e2", True)

    run(scenario)


def test_what_was_held_back_around_that_time_is_told() -> None:
    async def scenario() -> None:
        node = Node()
        await node.seen("e1", 1_000, "guest", OUT)
        held = make_event(
            source="rapport.mediation",
            id="q1",
            type="rapport.mediation.rejected",
            time=1_100,
            data={"source": "badges", "reason": "x", "message": "tag 9 is unknown"},
        )
        await node.channels.channel("quarantine").append([held])
        answer = await node.why_not(1_000, A="guest")
        assert [one.text for one in answer.notes] == ["held back, badges: tag 9 is unknown"]

    run(scenario)


def test_a_policy_that_was_paused_or_came_later_says_so() -> None:
    async def scenario() -> None:
        node = Node()
        await node.changed("registered", 2_000, ALONE)
        await node.changed("paused", 4_000, number=2)
        await node.seen("e1", 1_000, "guest", IN)
        early = await node.why_not(1_000, A="guest")
        assert early.notes[0].text.startswith("the policy was registered only at")
        paused = await node.why_not(5_000, A="guest")
        assert paused.notes[0].text.startswith("paused since 1970-01-01T00:00:04.000Z by boss")

    run(scenario)


def test_the_version_that_ran_then_is_asked() -> None:
    async def scenario() -> None:
        node = Node()
        await node.changed("registered", 0, ALONE)
        await node.changed("replaced", 9_000, ONCE, number=2)
        await node.seen("e1", 1_000, "guest", OUT)
        answer = await node.why_not(1_000, A="guest")
        assert answer.text == ALONE
        assert "another version is in force" in answer.notes[0].text

    run(scenario)


def test_what_was_told_before_is_left_out_and_counted() -> None:
    async def scenario() -> None:
        node = Node(ONCE)
        for number in range(3):
            await node.seen(f"e{number}", 1_000 + 3_000 * number, "guest", IN)
        await node.go_on(9_000)
        [detection] = await node.detections()
        answer = await node.why_not(7_000, A="guest")
        assert answer.candidates[0].became == "left out"
        explained = await node.asking.why(detection)
        assert (explained.left_out, explained.once_per_ms) == (2, 10_000)

    run(scenario)


def test_an_unknown_policy_is_refused_with_the_nearest() -> None:
    async def scenario() -> None:
        with pytest.raises(UnknownName) as refused:
            await Node().asking.why_not("alnoe", Question(at=0))
        assert list(refused.value.nearest) == ["alone"]

    run(scenario)


def test_of_an_id_the_beginning_is_enough_when_it_is_the_only_one() -> None:
    async def scenario() -> None:
        node = Node()
        await node.seen("reading-one", 1_000, "guest", IN)
        await node.seen("reading-two", 1_001, "guest", IN)
        assert await whole_id(node.channels, "reading-o") == "reading-one"
        with pytest.raises(InvalidInput, match="2 events"):
            await whole_id(node.channels, "reading-")
        with pytest.raises(UnknownName):
            await whole_id(node.channels, "nothing")

    run(scenario)


@pytest.mark.parametrize("at", [2_000_000, 19_000_000])
def test_a_long_log_is_not_read_from_the_beginning(at: int) -> None:
    async def scenario() -> None:
        clock = ManualClock(0)
        channels = open_memory(clock)
        for block in range(200):
            clock.set_ms((block + 1) * 100_000)
            times = range(block * 100_000, (block + 1) * 100_000, 1_000)
            events = [reading(f"e{time}", time, "guest", OUT) for time in times]
            await channels.channel("events").append(events)
        past = await read_past(
            channels,
            ONTOLOGY,
            "alone",
            ["person.position"],
            Reach(at - 10_000, at + 10_000),
            told_since=at,
        )
        assert len(past.readings) == 21
        assert past.looked_at < 6_000

    run(scenario)
