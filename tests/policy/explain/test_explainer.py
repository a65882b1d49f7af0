"""Questions to a node's history: late and held-back readings, versions, pauses, throttling, and a
long log of which only a little is read. [PO-11]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from rapport.channel.backends.local import open_memory
from rapport.channel.event_lookup import resolve_id_prefix
from rapport.channel.log.channels import LoggedChannels
from rapport.core.detection import DETECTED, Detection
from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.event import Event, make_event
from rapport.core.release import (
    BATCH_RELEASED,
    CARRIED,
    CORRECTS,
    RELEASED,
    RELEASES,
    ReleasedBatch,
)
from rapport.kernel.clock import ManualClock
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.engine.engine import PolicyEngine
from rapport.policy.explain.answer import WhyNotAnswer
from rapport.policy.explain.evidence import NeededRange
from rapport.policy.explain.explainer import Explainer
from rapport.policy.explain.past_readings import read_past
from rapport.policy.explain.why_not import WhyNotQuestion
from rapport.policy.plan import Plan
from rapport.policy.situation_plan import SituationPlan
from rapport.tables.instances import Instances
from support.varied.worlds import ONTOLOGY, Pull

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
HOUR_MS = 3_600_000


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
        self.asking = Explainer(
            self.channels, ONTOLOGY, PULL, {"alone": text}, plan_of, lateness_ms=0
        )

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

    async def detections(self) -> list[Detection]:
        kept = await self.channels.channel("detections").read_after(0)
        return [Detection.from_event(one.event) for one in kept if one.event.type == DETECTED]

    async def why_not(self, at: int, **given: str) -> WhyNotAnswer:
        return await self.asking.why_not("alone", WhyNotQuestion(at=at, given=given))


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


def test_a_refuted_absence_names_the_identity_that_refuted_it() -> None:
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


LASTING = ALONE.replace("A is inside R\n  B is not inside R", "A is inside R for 2 s")


@pytest.mark.parametrize("text", [ALONE, LASTING])
def test_a_reading_that_came_hours_late_is_the_reason_although_others_came(text: str) -> None:
    async def scenario() -> None:
        node = Node(text)
        await node.seen("e1", HOUR_MS, "keeper", OUT)
        await node.seen("e2", HOUR_MS + 5_000, "keeper", OUT)
        await node.seen("e3", 4 * HOUR_MS, "keeper", OUT)
        node.clock.set_ms(4 * HOUR_MS + 2_000)
        await node.seen("e4", HOUR_MS + 1_000, "guest", IN)
        answer = await node.why_not(HOUR_MS + 1_000, A="guest")
        node_of_guest = answer.candidates[0].clauses[0]
        assert node_of_guest.truth == "unknown"
        assert node_of_guest.because.startswith("the position of guest was received 04:00:02")
        assert node_of_guest.because.endswith(", 3 h late: too late to count")
        [note] = [one for one in answer.notes if one.kind == "late"]
        assert note.text == (
            "the position of person/guest was received 1970-01-01T04:00:02.000Z, 3 h late: "
            "too late to count"
        )

    run(scenario)


@pytest.mark.parametrize("text", [ALONE, LASTING])
def test_an_unknown_identity_is_reported_with_the_nearest_names(
    text: str,
) -> None:
    async def scenario() -> None:
        node = Node(text)
        await node.seen("e1", 1_000, "keeper", IN)
        await node.seen("e2", 1_500, "visitor", IN)  # in no table, but heard of
        await node.go_on(5_000)
        unknown = (await node.why_not(1_000, A="gest")).candidates[0].clauses[0]
        assert unknown.truth == "unknown"
        assert unknown.because == (
            "gest is unknown: no person has that name; the nearest known: guest"
        )
        other = (await node.why_not(1_000, A="zzz")).candidates[0].clauses[0]
        assert other.because.endswith("the nearest known: guest, keeper, visitor")
        room = (await node.why_not(1_000, R="lap")).candidates[0].clauses[0]
        assert room.because == "lap is unknown: no room has that name; the nearest known: lab"
        heard = (await node.why_not(1_000, A="visitor")).candidates[0].clauses[0]
        assert "unknown" not in heard.because

    run(scenario)


def test_a_carried_reading_counts_however_late_it_came() -> None:
    async def scenario() -> None:
        node = Node()
        await node.seen("e1", 5_000, "keeper", OUT)
        late = reading("e2", 1_000, "guest", IN)
        late = structs.replace(late, headers={**late.headers, CARRIED: "reader-1"})
        await node.channels.channel("events").append([late])
        while await node.engine.step(timeout_ms=0):
            pass
        answer = await node.why_not(1_000, A="guest")
        assert [one for one in answer.notes if one.kind == "late"] == []
        assert answer.fired  # by what the second look at it finds

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
        assert [one.text for one in answer.notes] == ["quarantined, badges: tag 9 is unknown"]

    run(scenario)


def test_what_came_after_an_outage_counts_while_nothing_newer_came() -> None:
    async def scenario() -> None:
        node = Node()
        await node.seen("e1", 1_000, "guest", OUT)
        node.clock.set_ms(3 * HOUR_MS)
        await node.seen("e2", 1_500, "guest", IN)
        await node.seen("e3", 3 * HOUR_MS, "guest", OUT)
        assert len(await node.detections()) == 1
        answer = await node.why_not(1_500, A="guest")
        assert (len(answer.fired), answer.notes) == (1, ())

    run(scenario)


def test_a_detection_emitted_long_after_its_readings_is_found() -> None:
    """By a node that was down, or by Spark."""

    async def scenario() -> None:
        node = Node(ONCE)
        events = node.channels.channel("events")
        node.clock.set_ms(10_000)
        await events.append([reading("e1", 1_000, "guest", IN), reading("e2", 4_000, "guest", IN)])
        node.clock.set_ms(50 * HOUR_MS)
        await node.go_on(50 * HOUR_MS)
        assert len(await node.detections()) == 1
        first = await node.why_not(1_000, A="guest")
        assert (len(first.fired), first.notes) == (1, ())
        second = await node.why_not(4_000, A="guest")
        assert second.candidates[0].became == "left out"

    run(scenario)


INSIDE = "  A is inside R\n"
SOON = {
    "absence": ALONE.replace("actions", "  within 1 h\nactions"),
    "state": ONCE.replace(INSIDE, "  A is inside R for 1 h\n"),
    "silence": ONCE.replace(INSIDE, "  no position of A for 1 h\n").replace(
        "  room R (security='restricted')\n", ""
    ),
}


@pytest.mark.parametrize("text", SOON.values(), ids=SOON)
def test_what_the_clock_has_not_come_to_has_not_fired(text: str) -> None:
    async def scenario() -> None:
        node = Node(text)
        await node.seen("e1", 0, "guest", IN)
        await node.seen("e2", HOUR_MS // 3, "keeper", OUT)
        await node.go_on(HOUR_MS // 2)
        early = await node.why_not(HOUR_MS // 3, A="guest")
        assert (early.fired, early.candidates[0].became) == ((), "pending")
        [note] = early.notes
        assert note.text.startswith("not decided yet: that comes at 1970-01-01T01:00:00.000Z, and")
        await node.go_on(2 * HOUR_MS)
        assert len(await node.detections()) == 1
        answer = await node.why_not(HOUR_MS // 3, A="guest")
        assert (len(answer.fired), answer.notes) == (1, ())

    run(scenario)


def test_what_was_held_back_of_old_readings_is_told() -> None:
    async def scenario() -> None:
        node = Node()
        node.clock.set_ms(50 * HOUR_MS)
        held = make_event(
            source="rapport.mediation",
            id="q1",
            type="rapport.mediation.rejected",
            time=1_100,
            data={"source": "badges", "reason": "x", "message": "tag 9 is unknown"},
        )
        await node.channels.channel("quarantine").append([held])
        for asked_with_readings in (False, True):
            if asked_with_readings:
                await node.seen("e1", 1_000, "guest", OUT)
            answer = await node.why_not(1_000, A="guest")
            assert [one.text for one in answer.notes] == ["quarantined, badges: tag 9 is unknown"]

    run(scenario)


def test_a_correction_counts_however_late_it_came() -> None:
    async def scenario() -> None:
        node = Node()
        await node.seen("e1", 1_000, "guest", IN)
        await node.go_on(50 * HOUR_MS)
        [detection] = await node.detections()
        for number in range(6_000):  # what came in between is not read
            await node.channels.channel("events").append([reading(f"o{number}", 1, "guest", OUT)])
        corrected = reading("c1", 1_000, "guest", OUT)
        corrected = structs.replace(corrected, headers={CORRECTS: "e1", RELEASED: "r1"})
        await node.channels.channel("events").append([corrected])
        done = ReleasedBatch(
            release="r1",
            channel="raw.badges",
            upto=1,
            corrected={"e1": "c1"},
            first_ms=1_000,
            last_ms=1_000,
            streams=["person.position"],
        )
        record = make_event(source="site", id="d1", type=BATCH_RELEASED, time=0, data=done)
        await node.channels.channel(RELEASES).append([record])
        answer = await node.why_not(1_000, A="guest")
        assert not answer.fired
        assert answer.candidates[0].clauses[0].readings[0].id == "c1"
        explained = await node.asking.why(detection)  # as the reading was then
        assert explained.held is not None
        assert explained.held.clauses[0].readings[0].id == "e1"

    run(scenario)


def test_what_another_engine_found_is_explained_alike() -> None:
    """Such as Spark: a detection is an event, whoever appended it."""

    async def scenario() -> None:
        node = Node()
        await node.channels.channel("events").append([reading("e1", 1_000, "guest", IN)])
        detection = Detection(
            policy="alone",
            time=2_000,
            bindings={"A": "guest", "R": "lab"},
            causes=((1_000, "e1"),),
            version=plan_of("alone", ALONE).version(),
        )
        node.clock.set_ms(9 * HOUR_MS)
        found = detection.to_event(source="site.on-spark")
        await node.channels.channel("detections").append([found])
        explained = await node.asking.why(detection)
        assert explained.held is not None
        assert explained.held.became == "detected"
        answer = await node.why_not(1_000, A="guest")
        assert (len(answer.fired), answer.notes) == (1, ())

    run(scenario)


def test_a_repeated_detection_is_suppressed_and_counted() -> None:
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


def test_a_match_that_the_guard_stopped_is_explained_by_the_guard() -> None:
    """No keeper is inside when the guest comes, and one is when the guest moves."""
    text = ALONE.replace("  B is not inside R\n", "  within 100 ms\n").replace(
        "actions",
        "while\n  no person K (status='employee') with (K is inside R)\nactions",
    )

    async def scenario() -> None:
        node = Node(text)
        await node.seen("e1", 1_000, "guest", IN)
        await node.seen("e2", 5_000, "keeper", IN)
        await node.seen("e3", 9_000, "guest", IN)
        await node.go_on(20_000)
        assert [one.time for one in await node.detections()] == [1_000]
        stopped = await node.asking.why_not("alone", WhyNotQuestion(at=9_000, within_ms=500))
        assert not stopped.fired
        assert stopped.candidates[0].became == "not while"
        failed = stopped.candidates[0].first_failed
        assert failed is not None
        assert failed.text.startswith("while at most 0 of K: person")
        [atom] = failed.children
        assert atom.truth == "false"
        assert atom.because.startswith("1 counted (keeper), since ")
        assert [child.text for child in atom.children] == ["keeper"]
        assert [note for note in stopped.notes if note.kind == "told"] == []
        passed = await node.asking.why_not("alone", WhyNotQuestion(at=1_000, within_ms=500))
        assert [one.became for one in passed.fired] == ["detected"]
        [detection] = await node.detections()
        explained = await node.asking.why(detection)
        assert explained.held is not None
        guard = explained.held.clauses[-1]
        assert (guard.truth, guard.text[:5]) == ("true", "while")
        [atom] = guard.children
        assert (atom.truth, atom.because[:9]) == ("true", "0 counted")

    run(scenario)


def test_what_has_lasted_longer_than_a_day_says_since_when() -> None:
    text = "concepts\n  person A\nsituation\n  no position of A for 1 min\nactions\n  look\n"
    situation = compile_policy(text, name="alone", ontology=ONTOLOGY, window_ms=WINDOW_MS).plan
    assert isinstance(situation, SituationPlan)
    day = 24 * HOUR_MS

    async def scenario() -> None:
        node = Node()
        for number in range(3):
            await node.seen(f"e{number}", number * 30_000, "guest", IN)
        await node.seen("k1", 40 * day, "keeper", IN)
        asking = Explainer(
            *(node.channels, ONTOLOGY, PULL, {"alone": text}, plan_of),
            lateness_ms=0,
            situation_of=lambda _name, _text: situation,
        )
        question = WhyNotQuestion(at=40 * day, given={"A": "guest"}, within_ms=0)
        answer = await asking.why_not("alone", question)
        assert answer.situation is not None
        [silent] = answer.situation.atoms
        assert (silent.atom.truth, silent.since) == ("true", 120_000)

    run(scenario)


def test_an_unknown_policy_is_refused_with_the_nearest() -> None:
    async def scenario() -> None:
        with pytest.raises(UnknownName) as refused:
            await Node().asking.why_not("alnoe", WhyNotQuestion(at=0))
        assert list(refused.value.nearest) == ["alone"]

    run(scenario)


def test_of_an_id_the_beginning_is_enough_when_it_is_the_only_one() -> None:
    async def scenario() -> None:
        node = Node()
        await node.seen("reading-one", 1_000, "guest", IN)
        await node.seen("reading-two", 1_001, "guest", IN)
        assert await resolve_id_prefix(node.channels, "reading-o") == "reading-one"
        with pytest.raises(InvalidInput, match="2 events"):
            await resolve_id_prefix(node.channels, "reading-")
        with pytest.raises(UnknownName):
            await resolve_id_prefix(node.channels, "nothing")

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
            NeededRange(at - 10_000, at + 10_000),
            emitted_since=at,
        )
        assert len(past.readings) == 21
        assert past.looked_at < 6_000

    run(scenario)
