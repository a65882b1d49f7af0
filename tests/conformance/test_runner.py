"""What every runner must do, bound to each: same plans, same readings, same bytes. [PO-8]

A new runner is one more entry in RUNNERS; the scenarios know nothing of how it works.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rapport.core.detection import Cause, Detection, detection_lines
from rapport.core.errors import PolicyError
from rapport.kernel.clock import Chance
from rapport.policy.compiler.compile import CompiledPolicy, compile_policy
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import PullData
from rapport.policy.plan import Plan
from rapport.policy.recordings.files import read_recorded
from rapport.policy.runner.local import LocalRunner
from rapport.site.site import load_site
from support.judge.evaluator import evaluate, judge
from support.varied.policies import varied_policy
from support.varied.sites import varied_site
from support.varied.worlds import ONTOLOGY, WINDOW_MS, random_policy, random_world, readings_batch

CHECKS = Path(__file__).parents[1] / "data" / "checks"
SMALL = load_site(CHECKS / "small-policies")
BUILDING = load_site(CHECKS / "secure-building")

Found = tuple[list[Detection], list[Cause]]
Sources = Mapping[str, PushSource] | None


class Run(Protocol):
    """Readings in arrival order through a runner."""

    def __call__(
        self,
        plans: list[Plan],
        pull: PullData,
        batches: list[pa.RecordBatch],
        lateness_ms: int,
        sources: Sources = None,
    ) -> Found: ...


def run_local(
    plans: list[Plan],
    pull: PullData,
    batches: list[pa.RecordBatch],
    lateness_ms: int,
    sources: Sources = None,
) -> Found:
    """Saved and reloaded in the middle."""
    runner = LocalRunner(plans, pull, lateness_ms=lateness_ms, sources=sources)
    found: list[Detection] = []
    late: list[Cause] = []
    for number, batch in enumerate(batches):
        found += runner.feed(batch)
        late += runner.take_late()
        if number == len(batches) // 2:
            saved = runner.snapshot()
            runner = LocalRunner(plans, pull, lateness_ms=lateness_ms, sources=sources)
            runner.restore(saved)
    return found + runner.finish(), late


def run_on_spark(
    plans: list[Plan],
    pull: PullData,
    batches: list[pa.RecordBatch],
    lateness_ms: int,
    sources: Sources = None,
) -> Found:
    """In three slices of time where the plan allows it."""
    from rapport.pipeline.history.replay import replay_spark
    from rapport.pipeline.session import spark_session
    from support.servers.spark import TEST_SETTINGS

    made = replay_spark(
        spark_session(TEST_SETTINGS),
        plans,
        pull,
        batches,
        lateness_ms=lateness_ms,
        partitions=3,
        sources=sources,
    )
    return made.detections, made.late


def run_over_files(
    plans: list[Plan],
    pull: PullData,
    batches: list[pa.RecordBatch],
    lateness_ms: int,
    sources: Sources = None,
) -> Found:
    """What Spark's workers do with Parquet files, in this process: three slices or buckets."""
    from rapport.pipeline.history.files import readings_files
    from rapport.pipeline.history.runner import PartCounts, evaluate_history
    from support.history_here import Here

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "readings.parquet"
        readings = pa.Table.from_batches(batches)
        pq.write_table(readings, path, row_group_size=max(50, len(readings) // 20))
        found = evaluate_history(
            plans,
            pull,
            readings_files([path]),
            Here(pull),
            lateness_ms=lateness_ms,
            parts=PartCounts(3, 3),
            sources=sources,
        )
        return found.in_order(), found.late


RUNNERS: dict[str, Run] = {"local": run_local, "files": run_over_files, "spark": run_on_spark}


@pytest.fixture(params=["local", "files", pytest.param("spark", marks=pytest.mark.spark)])
def run(request: pytest.FixtureRequest) -> Run:
    if request.param == "spark":
        pytest.importorskip("pyspark")
    return RUNNERS[request.param]


def batches_of(site: Any, name: str, batch: int = 64) -> list[pa.RecordBatch]:
    source = site.ontology.sources["positions"]
    return list(read_recorded(site.directory / name, source, site.ontology, batch=batch))


def by_policy(found: list[Detection], name: str) -> bytes:
    return detection_lines(item for item in found if item.policy == name)


@pytest.mark.parametrize("events", ["events.csv", "events_shuffled.csv"])
def test_the_small_policies_are_exact(run: Run, events: str) -> None:
    plans = [compiled.plan for compiled in SMALL.policies.values()]
    found, late = run(plans, SMALL.tables, batches_of(SMALL, events), 2_000)
    assert late == []
    for name in SMALL.policies:
        assert by_policy(found, name) == (SMALL.directory / f"{name}.expected.jsonl").read_bytes()


def test_secure_building_is_exact(run: Run) -> None:
    plan = BUILDING.policies["secure-building"].plan
    found, _ = run([plan], BUILDING.tables, batches_of(BUILDING, "events.csv", 5_000), 0)
    assert detection_lines(found) == (BUILDING.directory / "expected.jsonl").read_bytes()


def test_late_readings_are_named_and_left_out(run: Run) -> None:
    batches = batches_of(SMALL, "events_shuffled.csv")
    plans = [SMALL.policies["and-not"].plan]
    times = [time for batch in batches for time in batch.column("time").to_pylist()]
    ids = [id for batch in batches for id in batch.column("id").to_pylist()]
    latest, expected = times[0], []
    for time, id in zip(times, ids, strict=True):
        latest = max(latest, time)
        if time < latest - 700:
            expected.append((time, id))
    _, late = run(plans, SMALL.tables, batches, 700)
    assert expected
    assert late == expected


def test_random_worlds_mean_what_the_evaluator_says(run: Run) -> None:
    world = random_world(Chance(11), events=80)
    names = [f"p{number}" for number in range(25)]
    policies = {
        name: compile_policy(
            random_policy(Chance(number)), name=name, ontology=ONTOLOGY, window_ms=WINDOW_MS
        )
        for number, name in enumerate(names)
    }
    plans = [compiled.plan for compiled in policies.values()]
    readings = readings_batch(world.readings)
    batches = [readings.slice(first, 9) for first in range(0, len(readings), 9)]
    found, _ = run(plans, world.pull, batches, 0)
    assert found
    for name, compiled in policies.items():
        judged = evaluate(compiled.tree, ONTOLOGY, world.pull, world.readings, window_ms=WINDOW_MS)
        assert by_policy(found, name) == detection_lines(judged)


@pytest.mark.slow
def test_every_kind_of_policy_means_what_the_evaluator_says(run: Run) -> None:
    """One site with comparisons, durations, silences, own windows, unsure clocks and doubts."""
    site = varied_site(Chance(3), events=80)
    policies: dict[str, CompiledPolicy] = {}
    for seed in range(40):
        text = varied_policy(Chance(seed), site.ontology)
        try:
            policies[f"p{seed}"] = compile_policy(
                text, name=f"p{seed}", ontology=site.ontology, window_ms=WINDOW_MS
            )
        except PolicyError:
            continue
    plans = [compiled.plan for compiled in policies.values()]
    readings = readings_batch(site.readings, site.ontology)
    batches = [readings.slice(first, 9) for first in range(0, len(readings), 9)]
    found, _ = run(plans, site.pull, batches, 0, site.ontology.sources)
    assert len(policies) > 30
    assert len({one.policy for one in found}) > 10
    for name, compiled in policies.items():
        verdict = judge(compiled.tree, site.ontology, site.pull, site.readings, window_ms=WINDOW_MS)
        assert by_policy(found, name) == detection_lines(verdict.detections)


def test_no_readings_give_no_detections(run: Run) -> None:
    empty = readings_batch([])
    plan = SMALL.policies["or"].plan
    assert run([plan], SMALL.tables, [empty], 0) == ([], [])
