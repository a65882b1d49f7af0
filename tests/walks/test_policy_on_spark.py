"""The walk with its policy on Spark: sensors, doors and mediation as always; the situation is found
by a live query beside the node, and the same people are told.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rapport.core.event import StoredEvent
from rapport.kernel.clock import Clock, SystemClock
from rapport.node.overview import Overview, overview
from rapport.pipeline.streaming.live_query import LiveSettings, run_live
from rapport.policy.engine.spark_policies import CHANNEL
from rapport.policy.engine.stream_steps import TIME_TYPE
from rapport.scenarios.secure_building import building_play
from rapport.scenarios.secure_building.building_scenes import EXPECTED, EXPECTED_UNDECIDED

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.parametrize("back_end", ["embedded"], indirect=True, scope="module"),
]

_UP_WITHIN_MS = 120_000
POLICY = "secure-building"


class Walk(msgspec.Struct):
    played: building_play.Played
    own: dict[str, str]
    """Policies that ran in the node itself."""
    seen: Overview
    detections: list[StoredEvent]
    last_event: int
    versions: tuple[str, str]
    """That the query runs after the policy was replaced, and that the node has on record."""


@pytest.fixture(scope="module")
def walk(back_end: str, spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Walk:
    """The scenes played once, in real time, after the query has said that it is there."""
    directory = tmp_path_factory.mktemp("walk")
    source = shutil.copytree(building_play.SITE, directory / "source")
    file = source / "site.toml"
    text = file.read_text(encoding="utf-8")
    file.write_text(
        text.replace("[policies]\n", '[policies]\non_spark = ["*"]\n'), encoding="utf-8"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building_play, "SITE", source)
        return asyncio.run(_walked(spark, directory))


async def _walked(spark: Any, directory: Path) -> Walk:
    clock, stop, site = SystemClock(), threading.Event(), directory / "site"
    async with building_play.stage(site, clock, lambda _: None) as scene:
        settings = LiveSettings(url=scene.url, buckets=2)
        live = asyncio.create_task(
            asyncio.to_thread(
                run_live,
                spark,
                site,
                checkpoint=directory / "checkpoint",
                settings=settings,
                stop=stop,
            )
        )
        try:
            await _up(scene, live, clock)
            played = await building_play.play(scene, clock, lambda _: None)
            seen = await overview(scene.node)
            detections = await scene.node.channels.channel("detections").read_after(0, limit=10_000)
            return Walk(
                played,
                scene.node.policy.policies(),
                seen,
                detections,
                scene.node.channels.channel("events").last_position(),
                await _replaced(scene, live, clock),
            )
        finally:
            stop.set()
            await live


async def _up(scene: building_play.Stage, live: asyncio.Task[Any], clock: Clock) -> None:
    """Returns when the query has reported."""
    deadline = clock.now_ms() + _UP_WITHIN_MS
    while not scene.node.channels.channel(CHANNEL).last_position():
        if live.done():
            live.result()
        assert clock.now_ms() < deadline, "the query did not come up"
        await clock.sleep(100)


async def _replaced(
    scene: building_play.Stage, live: asyncio.Task[Any], clock: Clock
) -> tuple[str, str]:
    """Another version in the place of the old one, while the query runs."""
    life = scene.node.policies.life
    text = life.policy(POLICY).text
    done = await life.replace(POLICY, text.replace("5m", "4m"))
    channel, deadline = scene.node.channels.channel(CHANNEL), clock.now_ms() + _UP_WITHIN_MS
    while clock.now_ms() < deadline:
        [newest] = await channel.read_after(channel.last_position() - 1)
        running = str(newest.event.payload()["policies"][POLICY])
        if running == done.version or live.done():
            break
        await clock.sleep(200)
    return running, done.version


def test_exactly_the_deserved_alarms_are_raised_by_the_query(walk: Walk) -> None:
    assert walk.own == {}
    assert sorted(walk.played.alarms) == sorted(EXPECTED)
    unsure = [(one.bindings["A"], one.bindings["R"], one.silent) for one in walk.played.undecided]
    assert sorted(unsure) == sorted(EXPECTED_UNDECIDED)


def test_the_same_people_are_told(walk: Walk) -> None:
    assert walk.played.as_expected()
    states = {(row.peer, row.state) for row in walk.played.ledger if not row.address}
    assert ("ana", "answered") in states
    lead = [row for row in walk.played.ledger if row.peer == "lea" and row.adapter == "webhook"]
    assert [row.state for row in lead] == ["confirmed"]


def test_the_clock_beats_where_no_event_comes_any_more(walk: Walk) -> None:
    beats = [one for one in walk.detections if one.event.type == TIME_TYPE]
    assert len([one for one in beats if one.event.payload()["after"] == walk.last_event]) > 2


def test_the_page_says_where_the_policy_runs_and_that_somebody_watches(walk: Walk) -> None:
    [shown] = walk.seen.policies
    assert (shown.state, shown.on_spark, shown.problems) == ("running", True, ())


def test_a_policy_that_is_replaced_is_replaced_in_the_query(walk: Walk) -> None:
    running, on_record = walk.versions
    assert running == on_record
