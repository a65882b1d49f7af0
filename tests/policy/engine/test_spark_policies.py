"""Policies on Spark as the node sees them: not run here, beats of the clock instead, and whether
somebody watches.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

from rapport.channel.backends.local import open_memory
from rapport.channel.channel import Channels
from rapport.core.detection import DETECTED
from rapport.core.errors import Problem
from rapport.core.event import Event, make_event
from rapport.kernel.clock import ManualClock
from rapport.policy.engine.engine import PolicyEngine
from rapport.policy.engine.spark_policies import SILENT_MS, LiveReport, SparkPolicies
from rapport.policy.engine.stream_steps import TIME_TYPE
from rapport.site.site import load_site

SITE = load_site(Path(__file__).parents[2] / "data" / "checks" / "small-policies")
NOW_MS = 100_000


def engine(channels: Channels, clock: ManualClock, *on_spark: str) -> PolicyEngine:
    return PolicyEngine(
        channels,
        clock,
        name="site",
        ontology=SITE.ontology,
        pull=SITE.tables,
        lateness_ms=2_000,
        on_spark=SparkPolicies(on_spark),
    )


def position(id: str, time: int) -> Event:
    data = {"key": "g1", "value": [1.0, 1.0]}
    kind = "person.position"
    return make_event(source="positions", id=id, type=kind, time=time, data=data)


async def told(channels: Channels, kind: str) -> list[Event]:
    stored = await channels.channel("detections").read_after(0)
    return [one.event for one in stored if one.event.type == kind]


def test_only_the_other_policies_run_in_the_node() -> None:
    running = engine(open_memory(ManualClock()), ManualClock(), "within", "chain")
    for name in ("within", "chain", "or"):
        running.deploy(SITE.policies[name].plan)
    assert list(running.policies()) == ["or"]
    everything = engine(open_memory(ManualClock()), ManualClock(), "*")
    everything.deploy(SITE.policies["or"].plan)
    assert everything.policies() == {}


def test_the_clock_beats_about_once_a_second_while_nothing_comes() -> None:
    async def scenario() -> None:
        clock = ManualClock(NOW_MS)
        channels = open_memory(clock)
        running = engine(channels, clock, "*")
        await channels.channel("events").append([position("e1", NOW_MS)])
        await running.step(timeout_ms=0)
        for _ in range(50):
            await clock.advance(100)
            await running.step(timeout_ms=0)
        beats = [one.payload() for one in await told(channels, TIME_TYPE)]
        assert [one["after"] for one in beats] == [1] * len(beats)
        times = [NOW_MS, *(one["time"] for one in beats)]
        assert max(later - earlier for earlier, later in pairwise(times)) < 1_000
        assert len(beats) == 6  # one of them because the reading's turn had come

    asyncio.run(scenario())


def test_without_policies_on_spark_the_clock_is_silent() -> None:
    async def scenario() -> None:
        clock = ManualClock(NOW_MS)
        channels = open_memory(clock)
        running = engine(channels, clock)
        for _ in range(5):
            await clock.advance(1_000)
            await running.step(timeout_ms=0)
        assert await told(channels, TIME_TYPE) == []

    asyncio.run(scenario())


def test_after_a_restart_the_beats_are_repeated_and_nothing_is_emitted_twice() -> None:
    async def scenario() -> None:
        clock = ManualClock(NOW_MS)
        channels = open_memory(clock)
        running = engine(channels, clock, "chain")
        for name in ("or", "chain"):
            running.deploy(SITE.policies[name].plan)
        await channels.channel("events").append([position("e1", NOW_MS)])
        for _ in range(20):
            await running.step(timeout_ms=0)
            await clock.advance(500)
        found, beats = await told(channels, DETECTED), await told(channels, TIME_TYPE)
        again = engine(channels, clock, "chain")
        for name in ("or", "chain"):
            again.deploy(SITE.policies[name].plan)
        await again.step(timeout_ms=0)
        assert await told(channels, DETECTED) == found
        assert (await told(channels, TIME_TYPE))[: len(beats)] == beats
        assert len(beats) >= 8

    asyncio.run(scenario())


def test_nobody_watches_when_no_report_comes_for_a_while() -> None:
    watched = SparkPolicies(["a", "b"], since_ms=1_000)
    assert watched.problem("a", "v1", 1_000 + SILENT_MS - 1) is None
    assert watched.problems({"a": "v1", "c": "v1"}, 1_000 + SILENT_MS).keys() == {"a"}
    report = LiveReport(query="q", policies={"a": "v1"}, reached=1, watermark=1)
    watched.note_report(report, 50_000)
    assert watched.problems({"a": "v1", "b": "v1"}, 50_001).keys() == {"b"}
    silent = watched.problem("a", "v2", 50_000 + SILENT_MS)
    assert silent is not None
    assert "of version v1" in silent.message


def test_a_policy_that_failed_there_says_why_until_it_runs_again() -> None:
    watched, problem = (
        SparkPolicies(["*"]),
        Problem(code="policy.failed", message="division by zero"),
    )
    running = {"query": "q", "policies": {"a": "v1"}, "reached": 1, "watermark": 1}
    watched.note_report(LiveReport(**running, failed={"a": problem}), 1_000)  # type: ignore[arg-type]
    assert watched.problem("a", "v1", 1_001) == problem
    watched.note_report(LiveReport(**running), 2_000)  # type: ignore[arg-type]
    assert watched.problem("a", "v1", 2_001) is None
