"""What Spark does by itself and what the operators do: the same detections, rows and pairs."""

from __future__ import annotations

import io
import math
from contextlib import redirect_stdout
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.policy import building
from rapport.core.detection import Detection, detection_lines, detection_order
from rapport.core.errors import PolicyError, SiteError, Unsupported
from rapport.kernel.chance import Chance
from rapport.pipeline.history.detection_columns import detections_from
from rapport.pipeline.history.feeds import GroupFacts
from rapport.pipeline.history.files import readings_files, recorded_files
from rapport.pipeline.history.lateness import groups_of
from rapport.pipeline.history.native.choose import detected, interest_filter, prefiltered
from rapport.pipeline.history.native.enrich import enriched
from rapport.pipeline.history.native.grid import (
    points_in_rectangles,
    points_near_points,
    squared_distance,
)
from rapport.pipeline.history.native.running import detect_natively
from rapport.pipeline.history.native.scanning import Judged
from rapport.pipeline.history.native.whole import why_not_native
from rapport.pipeline.history.run import run_history
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import END_OF_TIME, PullData
from rapport.policy.plan import Plan
from rapport.policy.recordings.files import read_recorded
from rapport.policy.relations import INSIDE, WITHIN
from rapport.policy.runner.local import LocalRunner
from support.judge.trials import Trial, varied_trial
from support.varied.policies import varied_policy
from support.varied.sites import Site as VariedSite
from support.varied.sites import varied_site
from support.varied.worlds import WINDOW_MS, readings_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


def locally(plans: list[Plan], pull: PullData, readings: pa.RecordBatch) -> list[Detection]:
    runner = LocalRunner(plans, pull, lateness_ms=0)
    return sorted(runner.feed(readings) + runner.finish(), key=detection_order)


def native_trials(wanted: int) -> list[tuple[Trial, Plan]]:
    """Random sites with policies that one event at a time decides, named by number."""
    found: list[tuple[Trial, Plan]] = []
    seed = 0
    while len(found) < wanted:
        trial = varied_trial(Chance(seed), events=60)
        plan = compile_policy(
            trial.text, name=f"p{seed}", ontology=trial.ontology, window_ms=trial.window_ms
        ).plan
        seed += 1
        if not why_not_native(plan):
            found.append((trial, plan))
    return found


def test_plans_that_one_event_decides_give_the_detections_of_the_operators(
    spark: SparkSession,
) -> None:
    expected: list[Detection] = []
    frames: list[DataFrame] = []
    for trial, plan in native_trials(10):
        readings = readings_batch(trial.readings, trial.ontology)
        expected += locally([plan], trial.pull, readings)
        rows = spark.createDataFrame(pa.Table.from_batches([readings]))
        frames.append(detected(rows, plan, trial.pull))
    found = detections_from(reduce(lambda one, other: one.unionAll(other), frames).toArrow())
    assert sorted(found, key=detection_order) == sorted(expected, key=detection_order)
    assert len({one.policy for one in expected}) > 6


def some_plans(site: VariedSite, native: int, others: int) -> list[Plan]:
    """Policies that Spark can decide by itself, and some that it cannot."""
    found: list[Plan] = []
    missing = {True: native, False: others}
    for seed in range(400):
        text = varied_policy(Chance(seed), site.ontology)
        try:
            plan = compile_policy(
                text, name=f"p{seed}", ontology=site.ontology, window_ms=WINDOW_MS
            ).plan
        except PolicyError:  # of another site's attributes or units
            continue
        if missing[not why_not_native(plan)]:
            missing[not why_not_native(plan)] -= 1
            found.append(plan)
    assert len(found) == native + others
    return found


@pytest.mark.parametrize("partitions", [1, 2, 7])
def test_native_plans_beside_others_over_files_give_the_bytes_of_the_local_runner(
    spark: SparkSession, tmp_path: Path, partitions: int
) -> None:
    """With readings that are late, that come twice, and in several files."""
    chance = Chance(partitions)
    site = varied_site(chance, events=80)
    plans = some_plans(site, native=4, others=2)
    arrived = sorted(site.readings, key=lambda item: item.time + chance.randint(0, 400))
    arrived += [chance.choice(arrived) for _ in range(5)]
    batch = readings_batch([*site.readings, *arrived], site.ontology)
    runner = LocalRunner(plans, site.pull, lateness_ms=200, sources=site.ontology.sources)
    expected = runner.feed(batch) + runner.finish()
    late = runner.take_late()
    paths = []
    for first in range(0, len(batch), 60):
        paths.append(tmp_path / f"r{first}.parquet")
        pq.write_table(pa.table(batch.slice(first, 60)), paths[-1], row_group_size=11)
    assert late
    found = run_history(
        spark,
        plans,
        site.pull,
        readings_files(paths),
        lateness_ms=200,
        partitions=partitions,
        sources=site.ontology.sources,
        way="native",
    )
    assert sorted(choice.way == "native" for choice in found.choices) == [False] * 2 + [True] * 4
    assert detection_lines(found.detections) == detection_lines(expected)
    assert (found.late, found.undecided) == (late, runner.take_undecided())
    assert (found.events, found.suppressed) == (len(batch), runner.suppressed())
    native = {one.policy for one in found.choices if one.way == "native"}
    assert native & {one.policy for one in expected}


@pytest.mark.parametrize("partitions", [1, 2, 7])
def test_native_plans_over_recorded_files_with_faults_give_the_bytes_of_the_local_replay(
    spark: SparkSession, tmp_path: Path, partitions: int
) -> None:
    """One file as Spark reads it, one with late rows, one with faulty ones, and one whose name
    Spark would pass over.
    """
    source = building.ONTOLOGY.sources["positions"]
    pull = building.Building(40, 9, 1)
    rows = building.walk(40, 9, 2_000, 1).readings
    parts = [f"{building.STREAM}.{part}" for part in ("x", "y")]
    columns = [rows.column(name) for name in ("time", "id", "key", *parts)]
    table = pa.table(columns, names=[source.time, source.id, source.key, *source.value])
    cut = [table.slice(first, 500).to_pylist() for first in range(0, 2_000, 500)]
    cut[1] = cut[1][250:] + cut[1][:250]
    cut[2][7]["x"], cut[2][9]["id"] = math.nan, ""
    cut[3].append(cut[3][100])
    recordings = []
    for name, own in zip(("plain", "late", "faulty", "_hidden"), cut, strict=True):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.Table.from_pylist(own, schema=table.schema), path, row_group_size=200)
        recordings.append(path)
    plans = [
        building.policy("  A is inside R\n", name="inside"),
        building.policy("  A is inside R or B is inside R\n", name="either"),
        building.policy(building.TOGETHER, name="together"),
    ]
    batches = [b for path in recordings for b in read_recorded_leniently(path, source)]
    runner = LocalRunner(plans, pull, lateness_ms=300)
    expected = [one for batch in batches for one in runner.feed(batch)] + runner.finish()
    history = recorded_files(building.ONTOLOGY, [(source, recordings)])
    found = run_history(
        spark, plans, pull, history, lateness_ms=300, partitions=partitions, way="native"
    )
    assert [choice.way for choice in found.choices] == ["native", "native", "operators"]
    assert detection_lines(found.detections) == detection_lines(expected)
    assert (found.late, sum(one.count for one in found.faulty)) == (runner.late_readings, 2)
    assert found.events == 1_999
    assert {one.policy for one in expected} == {"inside", "either", "together"}
    assert runner.late > 100


def read_recorded_leniently(path: Path, source: PushSource) -> list[pa.RecordBatch]:
    return list(read_recorded(path, source, building.ONTOLOGY, report=lambda problem: None))


def test_files_that_change_under_spark_are_told(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    pq.write_table(pa.table(building.walk(9, 4, 100, 1).readings), path)
    plan, pull = building.policy("  A is inside R\n"), building.Building(9, 4, 1)
    history = readings_files([path])
    (at,) = groups_of(history)
    judged = Judged(
        series=history.series,
        groups=(at,),
        shown={0: GroupFacts(0, 100, at.facts)},
        lateness_ms=0,
        end=END_OF_TIME,
    )
    assert detect_natively(spark, [plan], pull, judged).num_columns == 7
    pq.write_table(pa.table(building.walk(9, 4, 90, 1).readings), path)
    with pytest.raises(SiteError) as caught:
        detect_natively(spark, [plan], pull, judged)
    assert caught.value.code == "history.changed"


def test_a_plan_that_needs_the_operators_is_refused(spark: SparkSession) -> None:
    rows = spark.createDataFrame(pa.Table.from_batches([building.walk(9, 4, 10, 1).readings]))
    with pytest.raises(Unsupported, match="absence"):
        detected(rows, building.policy(building.ALONE), building.Building(9, 4, 1))


def plan_text(rows: DataFrame) -> str:
    told = io.StringIO()
    with redirect_stdout(told):
        rows.explain("formatted")
    return told.getvalue()


def test_a_native_filter_leaves_out_the_same_rows_everywhere_and_reaches_into_the_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    pull = building.Building(900, 100, 1)  # 720 employees: too many to list in a condition
    readings = building.walk(900, 140, 6_000, 1).readings
    path = tmp_path / "readings.parquet"
    pq.write_table(pa.Table.from_batches([readings]), path)
    plans = [
        building.policy("  A is inside R FOLLOWED-BY B is inside R\n", name="order"),
        building.policy(building.LASTING, name="lasting", who="badge='7'"),
    ]
    rows = spark.read.parquet(str(path))
    filtered = prefiltered(rows, plans, pull)
    assert filtered.columns == rows.columns
    condition = interest_filter(plans, pull)
    expected = readings.filter(condition)
    kept = filtered.toArrow()
    assert set(kept["id"].to_pylist()) == set(expected["id"].to_pylist())
    assert 0 < len(kept) < 0.6 * len(readings)
    batch = kept.sort_by([("time", "ascending"), ("id", "ascending")]).combine_chunks()
    found = locally(plans, pull, batch.to_batches()[0])
    assert found == locally(plans, pull, readings)
    told = plan_text(filtered)
    assert "PushedFilters: [IsNotNull(stream), EqualTo(stream,person.position), Or(" in told
    assert "GreaterThanOrEqual(`person.position.x`," in told
    assert "EqualTo(key,7)" in told
    assert "BroadcastHashJoin" in told
    assert "Exchange hashpartitioning" not in told


HUGE = 1e308


def varied(chance: np.random.Generator, count: int) -> np.ndarray:
    points = chance.integers(-8, 9, (count, 2)) / 2.0
    odd = np.array([math.inf, -math.inf, math.nan, HUGE, -HUGE, 1e-320, -0.0])
    chosen = chance.random((count, 2)) < 0.05
    points[chosen] = chance.choice(odd, int(chosen.sum()))
    return points


def as_rows(spark: SparkSession, points: np.ndarray) -> DataFrame:
    columns = {"place": np.arange(len(points)), "x": points[:, 0], "y": points[:, 1]}
    return spark.createDataFrame(pa.table(columns))


def every_pair(first: np.ndarray, second: np.ndarray) -> tuple[Any, Any]:
    return np.repeat(np.arange(len(first)), len(second)), np.tile(
        np.arange(len(second)), len(first)
    )


def pairs_of(frame: DataFrame) -> set[tuple[int, int]]:
    found = frame.select("place", "number").toArrow()
    pairs = list(zip(found["place"].to_pylist(), found["number"].to_pylist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    return set(pairs)


def test_points_in_rectangles_are_those_of_the_relationship(spark: SparkSession) -> None:
    chance = np.random.default_rng(4)
    points, corner = varied(chance, 400), varied(chance, 300)
    size = chance.choice([0.0, 0.5, 1.0, 3.0, 1e9, math.inf], (300, 2))
    size[::7] = -1.0
    with np.errstate(all="ignore"):
        rectangles = np.hstack((corner, corner + size))
    rectangles[::50] = [-HUGE, -math.inf, HUGE, math.inf]
    table = pa.table(
        {f"c{k}": pa.array(rectangles[:, k], from_pandas=True) for k in range(4)}
        | {"number": np.arange(300)}
    )
    joined = points_in_rectangles(
        as_rows(spark, points), "x", "y", table, corners=("c0", "c1", "c2", "c3")
    )
    owners, others = every_pair(points, rectangles)
    mask = INSIDE.holds_many(points[owners], rectangles[others], None)
    expected = set(zip(owners[mask].tolist(), others[mask].tolist(), strict=True))
    assert pairs_of(joined) == expected
    assert len(expected) > 1_000
    nothing = points_in_rectangles(
        as_rows(spark, points), "x", "y", table.slice(0, 0), corners=("c0", "c1", "c2", "c3")
    )
    assert pairs_of(nothing) == set()


@pytest.mark.parametrize("reach", [0.0, 1.5, 1e200])
def test_points_near_points_are_those_of_the_relationship(
    spark: SparkSession, reach: float
) -> None:
    from pyspark.sql import functions as sql

    chance = np.random.default_rng(6)
    points, places = varied(chance, 300), varied(chance, 60)
    table = pa.table({"u": places[:, 0], "v": places[:, 1], "number": np.arange(60)})
    near = points_near_points(as_rows(spark, points), "x", "y", table, reach, at=("u", "v"))
    squared = squared_distance(*(sql.col(name) for name in ("x", "y", "u", "v")))
    exact = near.where(~sql.isnan(squared) & (squared <= sql.lit(reach * reach)))
    owners, others = every_pair(points, places)
    mask = WITHIN.holds_many(points[owners], places[others], reach)
    assert pairs_of(exact) == set(zip(owners[mask].tolist(), others[mask].tolist(), strict=True))


def test_readings_are_enriched_with_what_the_tables_know(spark: SparkSession) -> None:
    rooms = building.Building(5, 9, 1).instances("room")
    rows = spark.createDataFrame(pa.table({"key": ["1", "4", "x"], "n": [1, 2, 3]}))
    frame = enriched(rows, rooms, ["security", "area", "floor"], prefix="room_")
    found = frame.toArrow().sort_by("n").to_pylist()
    assert [one["room_security"] for one in found] == ["restricted", "public", None]
    assert found[1]["room_area_x2"] == rooms.columns["area"][3, 2]
    assert (found[2]["room_area_y1"], found[0]["room_floor"]) == (None, None)
    assert "BroadcastHashJoin" in plan_text(frame)
