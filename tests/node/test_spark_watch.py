"""A node that lets policies run on Spark: it says so, and says when nobody reports."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rapport.channel.backends.local import open_memory
from rapport.core.detection import Detection
from rapport.core.errors import Conflict, RapportError, SiteError, Unsupported
from rapport.kernel.clock import ManualClock, SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.found_situations import open_lines
from rapport.node.node import Node
from rapport.node.overview import overview
from rapport.node.policies import SparkWatch
from rapport.node.wiring import make_node
from rapport.policy.engine.spark_policies import (
    CHANNEL,
    SILENT_MS,
    LiveReport,
    SparkPolicies,
    report_event,
)
from rapport.site.site import check_site, load_site


@pytest.fixture
def site(building_site: Path) -> Path:
    return on_spark(building_site, "[policies]", '["*"]')


def on_spark(site: Path, before: str, names: str) -> Path:
    file = site / "site.toml"
    text = file.read_text(encoding="utf-8")
    assert before in text
    file.write_text(text.replace(before, f"[policies]\non_spark = {names}"), encoding="utf-8")
    return site


def with_node(site: Path, story: Any) -> None:
    async def scenario() -> None:
        node = make_node(load_site(site), NodeSettings(), SystemClock())
        await node.start()
        try:
            await story(node)
        finally:
            await node.stop()

    asyncio.run(scenario())


def test_the_node_runs_no_policy_itself_and_says_where_it_runs(site: Path) -> None:
    async def story(node: Node) -> None:
        assert node.policy.policies() == {}
        [shown] = (await overview(node)).policies
        assert (shown.name, shown.state, shown.on_spark) == ("secure-building", "running", True)
        node.policy.on_spark.begin(0)
        [shown] = node.policies.life.policies()
        assert [problem.code for problem in shown.problems] == ["policy.nobody_watches"]
        text = node.policies.life.policy("secure-building").text
        with pytest.raises(Unsupported, match="shadow"):
            await node.policies.life.shadow("secure-building", text)

    with_node(site, story)


INSIDE = """concepts
  person A (status='guest')
  room R (security='restricted')
situation
  A is inside R
actions
  raise alarm
"""


def test_open_situations_that_spark_tells_are_seen_and_acknowledged(site: Path) -> None:
    (site / "inside.dpl").write_text(INSIDE, encoding="utf-8")

    async def story(node: Node) -> None:
        life, detections = node.policies.life, node.channels.channel("detections")
        version = life.versions()["inside"]
        begin = Detection(
            policy="inside", version=version, time=5, bindings={"A": "1", "R": "r"}, causes=()
        )
        other = msgspec.structs.replace(begin, bindings={"A": "2", "R": "r"})
        end = msgspec.structs.replace(other, time=9, began=5)
        alarm = msgspec.structs.replace(begin, policy="secure-building", version="v")
        told = [one.to_event(source=node.site.name) for one in (begin, other, end, alarm)]
        await detections.append(told)
        found = await life.states("inside")
        assert (found.open, [one.state.bindings for one in found.states]) == (1, [begin.bindings])
        assert "Spark" in found.problem
        [line] = await open_lines(node, 10)
        assert (line.policy, line.began, line.detection) == ("inside", 5, begin.id())
        done = await life.acknowledge("inside", {"A": "1"}, by="ana")
        assert done.situations == (begin.bindings,)
        with pytest.raises(Conflict) as caught:
            await life.states("secure-building")
        assert caught.value.code == "policy.no_situation"
        await detections.append(
            [msgspec.structs.replace(begin, time=11, began=5).to_event(source=node.site.name)]
        )
        assert await open_lines(node, 10) == []

    with_node(site, story)


def test_where_policies_run_is_settled_at_the_start(site: Path) -> None:
    async def story(node: Node) -> None:
        on_spark(site, '[policies]\non_spark = ["*"]', "[]")
        with pytest.raises(SiteError) as caught:
            await node.policies.reload()
        assert [problem.code for problem in caught.value.problems] == ["site.other_on_spark"]

    with_node(site, story)


def test_names_nobody_has_are_warned_of_and_policies_that_stop_others_are_refused(
    site: Path,
) -> None:
    on_spark(site, '[policies]\non_spark = ["*"]', '["secure-bilding"]')
    [problem] = [one for one in check_site(site) if one.code == "site.unknown_policy"]
    assert (problem.severity, problem.hint) == ("warning", "did you mean 'secure-building'?")
    on_spark(site, '[policies]\non_spark = ["secure-bilding"]', '["secure-building"]')
    policy = site / "secure-building.dpl"
    text = policy.read_text(encoding="utf-8").replace(
        "actions\n", "actions\n  pause policy secure-building\n"
    )
    policy.write_text(text, encoding="utf-8")
    with pytest.raises(RapportError) as caught:
        load_site(site)
    assert "policy.not_on_spark" in {one.code for one in caught.value.problems_found()}


def test_reports_are_heard_and_silence_is_told_once() -> None:
    async def scenario() -> None:
        clock = ManualClock(1_000_000)
        channels, watched = open_memory(clock), SparkPolicies(["*"])
        watched.begin(clock.now_ms())
        watch = SparkWatch(channels, watched, clock, lambda: {"p": "v1"})
        await watch.look()
        assert watched.problem("p", "v1", clock.now_ms()) is None
        await clock.advance(SILENT_MS)
        assert watched.problem("p", "v1", clock.now_ms()) is not None
        report = LiveReport(query="q", policies={"p": "v1"}, reached=1, watermark=1)
        await channels.channel(CHANNEL).append([report_event("site", report, clock.now_ms())])
        await watch.look()
        assert watched.problem("p", "v1", clock.now_ms()) is None

    asyncio.run(scenario())
