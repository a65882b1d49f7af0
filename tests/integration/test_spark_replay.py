"""Replay on Spark and in the node: the same bytes, also in parts, also over random worlds."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from rapport.core.detection import detection_lines
from rapport.core.errors import Conflict, InvalidInput, PolicyError
from rapport.kernel.clock import Chance
from rapport.pipeline.history.partitions import used_up_terms
from rapport.pipeline.history.replay import replay_recorded, replay_spark
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.operators import check_supported
from rapport.policy.plan import Plan
from rapport.policy.replay.replay import ReplayResult, recordings_of, replay
from rapport.policy.runner.local import LocalRunner
from rapport.site.site import Site, load_site
from support.varied.worlds import (
    ONTOLOGY,
    WINDOW_MS,
    random_policy,
    random_world,
    readings_batch,
    with_periods,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

CHECKS = Path(__file__).parent.parent / "data" / "checks"


def run_on_spark(spark: SparkSession, site: Site, **how: Any) -> ReplayResult:
    plans = [compiled.plan for compiled in site.policies.values()]
    recordings = recordings_of(site.ontology, site.directory)
    how = {"lateness_ms": 2_000, "tables_version": site.tables.version()} | how
    return replay_recorded(spark, site.ontology, site.tables, plans, recordings, **how)


def test_recorded_files_give_the_expected_bytes(spark: SparkSession) -> None:
    site = load_site(CHECKS / "secure-building")
    found = run_on_spark(spark, site, partitions=2, batch=7_001)
    assert detection_lines(found.detections) == (site.directory / "expected.jsonl").read_bytes()
    assert (found.events, found.late, found.problems, found.stopped) == (20_000, [], [], False)


@pytest.mark.parametrize(("name", "stop"), [("secure-building", 9_000), ("small-policies", 133)])
def test_a_stopped_replay_has_what_the_local_one_has_and_goes_on_to_the_whole(
    spark: SparkSession, tmp_path: Path, name: str, stop: int
) -> None:
    site = load_site(CHECKS / name)
    plans = [compiled.plan for compiled in site.policies.values()]
    recordings = recordings_of(site.ontology, site.directory)
    parts = (site.ontology, site.tables, plans, recordings)
    local = replay(*parts, lateness_ms=2_000, stop_after=stop, state_directory=tmp_path / "local")
    stopped = run_on_spark(spark, site, stop_after=stop, state_directory=tmp_path)
    assert (stopped.stopped, stopped.events) == (True, stop)
    assert detection_lines(stopped.detections) == detection_lines(local.detections)
    again = run_on_spark(spark, site, stop_after=1, resume=True, state_directory=tmp_path)
    assert (again.stopped, again.events) == (True, stop + 1)
    whole = run_on_spark(spark, site, resume=True, state_directory=tmp_path)
    assert not whole.stopped
    expected = replay(*parts, lateness_ms=2_000)
    assert detection_lines(whole.detections) == detection_lines(expected.detections)


def test_going_on_with_other_policies_or_from_nothing_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    copy = shutil.copytree(CHECKS / "small-policies", tmp_path / "site")
    site = load_site(copy, policies=["or"])
    with pytest.raises(InvalidInput, match="no stopped replay"):
        run_on_spark(spark, site, resume=True, state_directory=tmp_path)
    run_on_spark(spark, site, stop_after=10, state_directory=tmp_path)
    other = load_site(copy, policies=["and-not"])
    with pytest.raises(Conflict) as caught:
        run_on_spark(spark, other, resume=True, state_directory=tmp_path)
    assert caught.value.code == "replay.changed"
    with pytest.raises(InvalidInput) as wrong:
        run_on_spark(spark, site, stop_after=0, state_directory=tmp_path)
    assert wrong.value.code == "replay.bad_number"


def random_plans(chance: Chance, wanted: int) -> list[Plan]:
    """Different policies that compile and can be run, named by number."""
    plans: list[Plan] = []
    while len(plans) < wanted:
        try:
            name = f"p{len(plans)}"
            compiled = compile_policy(
                random_policy(chance), name=name, ontology=ONTOLOGY, window_ms=WINDOW_MS
            )
        except PolicyError:
            continue
        if not check_supported(compiled.plan):
            plans.append(compiled.plan)
    return plans


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_random_policies_over_random_worlds_agree_with_the_local_runner(
    spark: SparkSession, seed: int
) -> None:
    chance = Chance(seed)
    world = random_world(chance, events=150)
    plans = random_plans(chance, 30)
    assert {bool(used_up_terms(plan)) for plan in plans} == {True, False}
    arrived = list(world.readings)
    chance.shuffle(arrived)  # far out of order: many are late, in both engines the same ones
    batch = readings_batch(arrived)
    runner = LocalRunner(plans, world.pull, lateness_ms=1_500)
    expected = runner.feed(batch) + runner.finish()
    late = runner.take_late()
    assert expected
    assert late
    for partitions in (1, 2, 7):
        found = replay_spark(
            spark, plans, world.pull, [batch], lateness_ms=1_500, partitions=partitions
        )
        assert detection_lines(found.detections) == detection_lines(expected)
        assert found.late == late


def test_what_silent_sources_leave_open_is_the_same_on_spark(spark: SparkSession) -> None:
    chance = Chance(3)
    world, ontology = with_periods(chance, random_world(chance, events=150))
    periods = zip(("badges", "beacons", "carts", "scales"), (300, 0, 400, 150), strict=True)
    sources = {
        name: msgspec.structs.replace(ontology.sources[name], period_ms=period)
        for name, period in periods
    }
    plans = random_plans(chance, 40)
    arrived = sorted(world.readings, key=lambda item: item.time + chance.randint(0, 300))
    batch = readings_batch(arrived, ontology)
    runner = LocalRunner(plans, world.pull, lateness_ms=100, sources=sources)
    expected = runner.feed(batch) + runner.finish()
    undecided = runner.take_undecided()
    assert runner.late
    assert undecided
    assert any(found.policy == unsure.policy for found in expected for unsure in undecided)
    for partitions in (1, 3):
        found = replay_spark(
            spark,
            plans,
            world.pull,
            [batch.slice(0, 70), batch.slice(70)],
            lateness_ms=100,
            partitions=partitions,
            sources=sources,
        )
        assert detection_lines(found.detections) == detection_lines(expected)
        assert found.undecided == undecided
