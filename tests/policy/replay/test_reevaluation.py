"""After a release policies look again: late alarms, alarms that no longer hold, corrections, and
where history is not whole. [PO-7, ME-16]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from rapport.channel.backends.local import open_memory
from rapport.channel.event_lookup import BACKWARDS_MS, position_before
from rapport.channel.log.channels import LoggedChannels
from rapport.core.detection import DETECTED, UNDECIDED
from rapport.core.event import Event, make_event
from rapport.core.release import (
    CORRECTS,
    HISTORY,
    LATE,
    NOTIFY,
    REEVALUATION,
    RELEASE_DONE,
    RELEASES,
    ReevaluationResult,
    ReleaseDone,
)
from rapport.kernel.clock import ManualClock
from rapport.policy import relations
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.engine.engine import PolicyEngine
from rapport.policy.ontology import Ontology, Relationship
from rapport.policy.plan import Plan
from rapport.policy.replay import reevaluation
from rapport.policy.replay.reevaluation import (
    SUPPORTED,
    UNSUPPORTED,
    ReevaluationService,
    remembers_all,
    span_of,
)
from rapport.tables.instances import Instances
from support.varied.worlds import ONTOLOGY, Pull

WINDOW_MS = 1_000
CONCEPTS = """concepts
  person A (status='guest')
  person B (status='employee')
  room R (security='restricted')
conditions
"""
ALONE = CONCEPTS + "  A is inside R\n  B is not inside R\nactions\n  look\n"
MET = CONCEPTS + "  A is within 2m of B\nactions\n  look\n"
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
IN, OUT = [1.0, 1.0], [9.0, 9.0]


def plan_of(text: str, name: str = "alone") -> Plan:
    return compile_policy(text, name=name, ontology=ONTOLOGY, window_ms=WINDOW_MS).plan


class Site:
    """Policies on channels; what was released is noted by hand."""

    def __init__(self, *plans: Plan, ontology: Ontology = ONTOLOGY) -> None:
        self.clock = ManualClock(0)
        self.ontology = ontology
        self.channels: LoggedChannels = open_memory(self.clock)
        self.releases = 0
        self.start(*plans)

    def start(self, *plans: Plan) -> None:
        self.engine = PolicyEngine(
            self.channels,
            self.clock,
            name="site",
            ontology=self.ontology,
            pull=PULL,
            plans=plans,
            lateness_ms=0,
            commit_every_ms=0,
        )
        self.looker = ReevaluationService(self.channels, self.engine, self.clock)

    async def seen(
        self, id: str, time_ms: int, who: str, where: list[float], corrects: str = ""
    ) -> Event:
        event = make_event(
            source="badges",
            id=id,
            type="person.position",
            time=time_ms,
            data={"key": who, "value": where},
            headers={CORRECTS: corrects} if corrects else {},
        )
        self.clock.set_ms(max(time_ms, self.clock.now_ms()))
        await self.channels.channel("events").append([event])
        return event

    async def go_on(self, until_ms: int) -> None:
        """Lets time pass, live."""
        while await self.engine.step(timeout_ms=0):
            pass
        self.clock.set_ms(until_ms)
        await self.engine.step(timeout_ms=0)

    async def look(self, *released: Event, also_ms: tuple[int, ...] = ()) -> ReevaluationResult:
        self.releases += 1
        done = ReleaseDone(release=f"r{self.releases}")
        for event in released:
            for time_ms in (event.time, *also_ms):
                done.touch(event.type, time_ms)
        done.through = self.channels.channel("events").last_position()
        note = make_event(source="s", id=done.release, type=RELEASE_DONE, time=0, data=done)
        await self.channels.channel(RELEASES).append([note])
        while await self.engine.step(timeout_ms=0):
            pass
        await self.looker.step(timeout_ms=0)
        stored = await self.channels.channel(RELEASES).read_after(0)
        looked: ReevaluationResult = stored[-1].event.payload_as(ReevaluationResult)
        return looked

    async def said(self, type: str) -> list[Event]:
        stored = await self.channels.channel("detections").read_after(0)
        return [one.event for one in stored if one.event.type == type]


def play(*plans: Plan) -> Callable[[Callable[[Site], Coroutine[Any, Any, None]]], None]:
    def run(scenario: Callable[[Site], Coroutine[Any, Any, None]]) -> None:
        async def whole() -> None:
            site = Site(*plans)
            await scenario(site)
            await site.channels.close()

        asyncio.run(whole())

    return run


def test_an_alarm_that_should_have_been_raised_is_raised_late_and_says_why() -> None:
    async def scenario(site: Site) -> None:
        await site.seen("k1", 1_000, "keeper", OUT)
        await site.seen("k2", 9_000, "keeper", OUT)
        await site.go_on(20_000)
        released = await site.seen("g1", 3_000, "guest", IN)
        looked = await site.look(released)
        assert (looked.late_detections, looked.unsupported, looked.policies) == (1, 0, ["alone"])
        (alarm,) = await site.said(DETECTED)
        assert alarm.time == 4_000
        assert (alarm.headers[LATE], alarm.headers[REEVALUATION]) == ("true", "r1")
        assert alarm.causes() == ("g1",)
        assert (await site.look(released)).late_detections == 0
        assert len(await site.said(DETECTED)) == 1

    play(plan_of(ALONE))(scenario)


def test_an_alarm_that_history_no_longer_supports_is_reported_as_unsupported_and_stays() -> None:
    async def scenario(site: Site) -> None:
        await site.seen("g1", 3_000, "guest", IN)
        await site.seen("k2", 9_000, "keeper", OUT)
        await site.go_on(20_000)
        (alarm,) = await site.said(DETECTED)
        assert LATE not in alarm.headers
        looked = await site.look(await site.seen("k1", 3_500, "keeper", IN))
        assert (looked.late_detections, looked.unsupported) == (0, 1)
        (wrong,) = await site.said(UNSUPPORTED)
        assert wrong.payload()["detection"] == alarm.id
        assert wrong.causes() == (alarm.id,)
        assert await site.said(DETECTED) == [alarm]

    play(plan_of(ALONE))(scenario)


def test_a_corrected_reading_counts_and_the_one_it_corrects_does_not() -> None:
    async def scenario(site: Site) -> None:
        await site.seen("g1", 3_000, "guest", IN)
        await site.seen("k2", 9_000, "keeper", OUT)
        await site.go_on(20_000)
        moved = await site.seen("g1~2", 3_000, "guest", OUT, corrects="g1")
        assert (await site.look(moved)).unsupported == 1
        back = await site.seen("g1~3", 3_000, "guest", IN, corrects="g1")
        looked = await site.look(back)
        assert (looked.late_detections, looked.supported_again) == (0, 1)
        assert len(await site.said(DETECTED)) == 1
        assert len(await site.said(SUPPORTED)) == 1

    play(plan_of(ALONE))(scenario)


def test_an_alarm_of_a_reading_that_was_corrected_a_little_is_not_raised_twice() -> None:
    async def scenario(site: Site) -> None:
        await site.seen("g1", 3_000, "guest", IN)
        await site.go_on(20_000)
        looked = await site.look(await site.seen("g1~2", 3_000, "guest", [1.5, 1.0], corrects="g1"))
        assert (looked.late_detections, looked.unsupported) == (0, 0)

    play(plan_of(ALONE))(scenario)


def test_after_a_look_live_goes_on_with_what_history_says() -> None:
    """A released reading in the window of what is still to come: live must know of it."""

    async def scenario(site: Site) -> None:
        await site.seen("k1", 10_000, "keeper", OUT)
        await site.go_on(10_000)
        released = await site.seen("g1", 9_500, "guest", [3.0, 3.0])
        assert (await site.look(released)).late_detections == 0
        await site.seen("k2", 10_200, "keeper", [3.0, 4.0])
        await site.go_on(20_000)
        (alarm,) = await site.said(DETECTED)
        assert alarm.causes() == ("g1", "k2")
        assert LATE not in alarm.headers

    play(plan_of(MET, "met"))(scenario)


def test_tables_that_change_during_a_look_count_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    everybody_works_here = Pull(
        {
            "person": Instances(
                "person", ["guest", "keeper"], {"status": np.array(["employee"] * 2, object)}
            ),
            "room": PULL.instances("room"),
        }
    )
    run_until_near = reevaluation._Reevaluation._run_until_near

    async def scenario(site: Site) -> None:
        async def with_news(look: Any, *given: Any) -> None:
            await run_until_near(look, *given)
            await site.engine.refresh_pull(everybody_works_here)

        monkeypatch.setattr(reevaluation._Reevaluation, "_run_until_near", with_news)
        await site.seen("k1", 1_000, "keeper", OUT)
        await site.go_on(10_000)
        looked = await site.look(await site.seen("k2", 3_000, "keeper", OUT))
        assert looked.policies == ["alone"]
        await site.seen("g1", 11_000, "guest", IN)  # no longer a guest
        await site.go_on(20_000)
        assert not await site.said(DETECTED)

    play(plan_of(ALONE))(scenario)


def test_a_policy_is_not_blamed_for_what_was_before_it() -> None:
    async def scenario(site: Site) -> None:
        await site.seen("k1", 1_000, "keeper", OUT)
        await site.seen("k2", 9_000, "keeper", OUT)
        await site.go_on(20_000)
        await site.engine.commit()
        site.start(plan_of(ALONE), plan_of(ALONE, "later"))
        await site.seen("k3", 21_000, "keeper", OUT)
        await site.go_on(22_000)
        released = [
            await site.seen("g1", 3_000, "guest", IN),
            await site.seen("g2", 15_000, "guest", IN),
        ]
        looked = await site.look(*released)
        assert looked.policies == ["alone", "later"]
        found = {(event.subject, event.time) for event in await site.said(DETECTED)}
        assert found == {
            ("policy/alone", 4_000),
            ("policy/alone", 16_000),
            ("policy/later", 16_000),
        }

    play(plan_of(ALONE))(scenario)


def test_where_the_log_was_trimmed_nothing_near_its_beginning_is_judged() -> None:
    async def scenario(site: Site) -> None:
        await site.seen("k1", 3_100, "keeper", IN)
        await site.seen("k2", 200_000, "keeper", OUT)
        await site.seen("k3", 400_000, "keeper", OUT)
        await site.go_on(500_000)
        site.channels.parts.log.trim("events", 2)
        site.channels.decoded.drop_before("events", 2)
        released = [
            await site.seen("g1", 3_000, "guest", IN),
            await site.seen("g2", 390_000, "guest", IN),
        ]
        looked = await site.look(*released)
        assert looked.incomplete == ["alone"]
        (alarm,) = await site.said(DETECTED)
        assert alarm.causes() == ("g2",)

    play(plan_of(ALONE))(scenario)


def test_what_was_undecided_because_a_source_was_held_back_is_decided() -> None:
    async def scenario() -> None:
        sources = {
            name: msgspec.structs.replace(source, period_ms=500 if name == "badges" else 0)
            for name, source in ONTOLOGY.sources.items()
        }
        site = Site(plan_of(ALONE), ontology=msgspec.structs.replace(ONTOLOGY, sources=sources))
        await site.seen("g1", 3_000, "guest", IN)
        await site.seen("k9", 9_000, "keeper", OUT)
        await site.go_on(20_000)
        assert len(await site.said(UNDECIDED)) == 1
        heard = [
            await site.seen(f"k{number}", 2_500 + 400 * number, "keeper", OUT)
            for number in range(5)
        ]
        assert (await site.look(*heard)).late_detections == 1
        await site.channels.close()

    asyncio.run(scenario())


def test_how_far_back_a_plan_reaches() -> None:
    alone, met = plan_of(ALONE), plan_of(MET, "met")
    assert (remembers_all(alone), remembers_all(met)) == (False, True)
    times = {"first_ms": 50_000, "last_ms": 60_000, "known_from": None}
    span = span_of(alone, {}, began=None, **times)
    assert span is not None
    assert (span.start, span.judged_from) == (41_999, 48_000)
    whole = span_of(met, {}, began=None, **times)
    assert whole is not None
    assert whole.start is None
    assert span_of(alone, {}, began=60_001, **times) is None
    late = span_of(alone, {}, began=55_000, **times)
    assert late is not None
    assert (late.start, late.judged_from) == (53_999, 55_000)


def test_a_place_is_found_by_the_time_of_receiving() -> None:
    async def scenario() -> None:
        site = Site()
        for number in range(50):
            await site.seen(f"e{number}", number * 100_000, "guest", OUT)
        channel = site.channels.channel("events")
        for number in range(50):
            place = await position_before(channel, number * 100_000 + BACKWARDS_MS)
            assert place == number
        assert await position_before(channel, 2**50) == 50
        assert await position_before(site.channels.channel("empty"), 5) == 0
        await site.channels.close()

    asyncio.run(scenario())


def test_a_policy_paused_and_resumed_during_a_look_forgets_what_the_look_found() -> None:
    async def scenario(site: Site) -> None:
        await site.seen("k1", 1_000, "keeper", OUT)
        await site.seen("k2", 9_000, "keeper", OUT)
        await site.go_on(20_000)
        released = await site.seen("g1", 3_000, "guest", IN)
        finish = reevaluation._Reevaluation._finish

        async def meanwhile(look: reevaluation._Reevaluation) -> ReevaluationResult:
            site.engine.withdraw("alone")
            site.engine.deploy(plan_of(ALONE))
            return await finish(look)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reevaluation._Reevaluation, "_finish", meanwhile)
            looked = await site.look(released)
        assert (looked.late_detections, looked.policies, looked.first_ms) == (0, [], None)
        assert await site.said(DETECTED) == []
        assert (await site.look(released)).policies == []

    play(plan_of(ALONE))(scenario)


@relations.relation(first="point", second="rectangle")
def brittle(first: Sequence[float], second: Sequence[float], parameter: float | None) -> bool:
    """Cannot stand the number 6."""
    if first[0] == 6:
        raise ValueError("six")
    return first[0] < 5


def test_a_policy_that_fails_while_it_looks_again_blames_no_alarm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(relations._loaded, "tests:brittle", brittle)
    ends = ("person", "position"), ("room", "area")
    names = {"touching": Relationship("touching", *ends, "tests:brittle")}
    names |= dict(ONTOLOGY.relationships)
    ontology = msgspec.structs.replace(ONTOLOGY, relationships=names)
    text = CONCEPTS.replace("  person B (status='employee')\n", "")
    text += "  A is touching R\nactions\n  look\n"
    plan = compile_policy(text, name="brittle", ontology=ontology, window_ms=WINDOW_MS).plan

    async def whole() -> None:
        site = Site(plan, plan_of(ALONE), ontology=ontology)
        await site.seen("a", 10_000, "guest", IN)
        await site.seen("b", 11_500, "guest", IN)
        await site.go_on(20_000)
        assert {event.payload()["policy"] for event in await site.said(DETECTED)} == {
            "alone",
            "brittle",
        }
        released = await site.seen("c", 10_500, "guest", [6.0, 9.0])
        looked = await site.look(released)
        assert await site.said(UNSUPPORTED) == []
        assert (looked.policies, looked.incomplete) == (["alone", "brittle"], ["brittle"])
        assert sorted(site.engine.policies()) == ["alone", "brittle"]  # live saw nothing of it
        await site.channels.close()

    asyncio.run(whole())


# --- imported history ---


async def imported(
    site: Site, *rows: tuple[str, int, str, list[float]], **headers: str
) -> ReevaluationResult:
    """A file of readings, evaluated once the import has paused."""
    events = [
        make_event(
            source="badges",
            id=id,
            type="person.position",
            time=time_ms,
            data={"key": who, "value": where},
            headers={HISTORY: "true", **headers},
        )
        for id, time_ms, who, where in rows
    ]
    await site.channels.channel("events").append(events)
    await site.go_on(site.clock.now_ms() + 5_000)
    await site.looker.step(timeout_ms=0)
    stored = await site.channels.channel(RELEASES).read_after(0)
    looked: ReevaluationResult = stored[-1].event.payload_as(ReevaluationResult)
    return looked


def test_an_imported_file_is_found_marked_and_leaves_live_policies_as_they_were() -> None:
    async def scenario(site: Site) -> None:
        await site.seen("k1", 101_000, "keeper", OUT)
        await site.go_on(200_000)
        before = (await site.engine.progress()).watermark
        looked = await imported(site, ("g2", 9_000, "guest", OUT), ("g1", 3_000, "guest", IN))
        assert (looked.history_detections, looked.late_detections) == (1, 0)
        (found,) = await site.said(DETECTED)
        assert (found.time, found.headers[HISTORY]) == (4_000, "true")
        assert not {LATE, NOTIFY} & found.headers.keys()
        assert (await site.engine.progress()).watermark == before
        assert (site.engine.counts.late, site.engine.counts.history) == (0, 2)

    play(plan_of(ALONE))(scenario)


def test_whom_an_import_should_notify_is_marked_on_what_it_finds() -> None:
    async def scenario(site: Site) -> None:
        site.clock.set_ms(200_000)
        await imported(site, ("g1", 3_000, "guest", IN), **{NOTIFY: "true"})
        (found,) = await site.said(DETECTED)
        assert {HISTORY, LATE, NOTIFY} <= found.headers.keys()

    play(plan_of(ALONE))(scenario)


def test_a_second_file_takes_back_what_no_longer_holds_and_finds_nothing_twice() -> None:
    async def scenario(site: Site) -> None:
        site.clock.set_ms(200_000)
        await imported(site, ("g1", 3_000, "guest", IN), ("g2", 33_000, "guest", IN))
        first, _second = await site.said(DETECTED)
        looked = await imported(site, ("k1", 3_500, "keeper", IN))
        assert (looked.history_detections, looked.unsupported) == (0, 1)
        (wrong,) = await site.said(UNSUPPORTED)
        assert wrong.payload()["detection"] == first.id
        assert len(await site.said(DETECTED)) == 2

    play(plan_of(ALONE))(scenario)


def test_the_time_before_a_policy_was_deployed_is_judged_where_it_was_imported_only() -> None:
    async def scenario(site: Site) -> None:
        await site.seen("l1", 100_000, "guest", IN)
        await site.go_on(110_000)
        site.engine.deploy(plan_of(ALONE))
        await site.seen("k1", 120_000, "keeper", OUT)
        await site.go_on(200_000)
        looked = await imported(site, ("g1", 3_000, "guest", IN))
        assert looked.history_detections == 1
        assert [one.causes() for one in await site.said(DETECTED)] == [("g1",)]

    play()(scenario)


def test_what_live_policies_have_yet_to_decide_is_left_to_them() -> None:
    async def scenario(site: Site) -> None:
        await site.seen("l1", 100_000, "guest", IN)
        while await site.engine.step(timeout_ms=0):
            pass
        event = make_event(
            source="badges",
            id="g1",
            type="person.position",
            time=3_000,
            data={"key": "guest", "value": IN},
            headers={HISTORY: "true"},
        )
        await site.channels.channel("events").append([event])
        await site.engine.step(timeout_ms=0)
        site.clock.set_ms(100_500)  # what the live reading leads to is due half a second later
        done = ReleaseDone(release="h", history=True, since=2, through=2)
        done.touch("person.position", 3_000)
        done.touch("person.position", 100_000)
        note = make_event(source="s", id="h", type=RELEASE_DONE, time=0, data=done)
        await site.looker.look(note)
        assert [one.causes() for one in await site.said(DETECTED)] == [("g1",)]
        await site.go_on(200_000)
        found = await site.said(DETECTED)
        assert [one.causes() for one in found] == [("g1",), ("l1",)]
        assert HISTORY not in found[1].headers

    play(plan_of(ALONE))(scenario)


def test_a_release_after_an_import_judges_live_and_imported_detections_apart() -> None:
    async def scenario(site: Site) -> None:
        await site.seen("k0", 1_000, "keeper", OUT)
        await site.seen("k9", 60_000, "keeper", OUT)
        await site.go_on(200_000)
        await imported(site, ("g1", 3_000, "guest", IN))
        (found,) = await site.said(DETECTED)
        looked = await site.look(await site.seen("k1", 3_500, "keeper", IN))
        assert (looked.late_detections, looked.unsupported) == (0, 1)
        (wrong,) = await site.said(UNSUPPORTED)
        assert wrong.payload()["detection"] == found.id

    play(plan_of(ALONE))(scenario)
