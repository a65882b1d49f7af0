"""History in Parquet files on the real engine: the same bytes as the local runner's."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rapport.core.detection import detection_lines
from rapport.core.errors import InvalidInput, SiteError
from rapport.kernel.clock import Chance
from rapport.pipeline.history.files import ReadingsFiles, readings_files, recorded_files
from rapport.pipeline.history.replay import replay_recorded
from rapport.pipeline.history.results import SparkReplay
from rapport.pipeline.history.runner import (
    PartCounts,
    evaluate_history,
    explain_history,
    find_in_history,
)
from rapport.pipeline.history.scan import SparkEngine
from rapport.pipeline.history.tables import tables_for_workers
from rapport.policy import relations
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.plan import Plan
from rapport.policy.recordings.files import read_recorded
from rapport.policy.replay.replay import Recording, replay
from rapport.policy.runner.local import LocalRunner
from rapport.site.site import Site, load_site
from support.servers.spark import product_plans
from support.varied.policies import varied_policy
from support.varied.sites import varied_site
from support.varied.worlds import WINDOW_MS, readings_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

CHECKS = Path(__file__).parent.parent / "data" / "checks"
GOLDEN = Path(__file__).parent.parent / "golden" / "spark"


def plans_of(site: Site) -> list[Plan]:
    return [compiled.plan for compiled in site.policies.values()]


def recorded_as_parquet(site: Site, events: str, folder: Path, rows: int) -> Recording:
    """The recorded events of a site, as Parquet under the names of its source."""
    source = site.ontology.sources["positions"]
    batches = read_recorded(site.directory / events, source, site.ontology)
    table = pa.Table.from_batches(batches)
    names = [source.time, source.id, source.key, *source.value]
    columns = ["time", "id", "key", f"{source.stream}.x", f"{source.stream}.y"]
    path = folder / "events.parquet"
    table = pa.table([table[column] for column in columns], names=names)
    pq.write_table(table, path, row_group_size=rows)
    return Recording(source, path)


@pytest.mark.parametrize("partitions", [1, 2, 7])
def test_all_small_policies_give_their_expected_bytes(
    spark: SparkSession, tmp_path: Path, partitions: int
) -> None:
    site = load_site(CHECKS / "small-policies")
    recording = recorded_as_parquet(site, "events_shuffled.csv", tmp_path, 23)
    found = SparkReplay.of(
        find_in_history(
            spark,
            plans_of(site),
            site.tables,
            recorded_files(site.ontology, [(recording.source, recording.path)]),
            lateness_ms=2_000,
            partitions=partitions,
            sources=site.ontology.sources,
        )
    )
    assert (found.events, found.late, found.problems) == (200, [], [])
    for name in site.policies:
        expected = (site.directory / f"{name}.expected.jsonl").read_bytes()
        assert detection_lines(d for d in found.detections if d.policy == name) == expected, name


def test_a_replay_of_parquet_files_is_read_by_workers_and_tells_how_far_it_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    site = load_site(CHECKS / "secure-building")
    recording = recorded_as_parquet(site, "events.csv", tmp_path, 1_000)
    seen: list[int] = []
    found = replay_recorded(
        spark,
        site.ontology,
        site.tables,
        plans_of(site),
        [recording],
        lateness_ms=2_000,
        partitions=4,
        progress=seen.append,
    )
    assert detection_lines(found.detections) == (site.directory / "expected.jsonl").read_bytes()
    local = replay(site.ontology, site.tables, plans_of(site), [recording], lateness_ms=2_000)
    assert (found.events, found.first, found.last) == (local.events, local.first, local.last)
    assert found.suppressed == local.suppressed
    assert (seen, seen[-1]) == (sorted(seen), 20_000)


def test_every_kind_of_policy_over_readings_far_out_of_order(
    spark: SparkSession, tmp_path: Path
) -> None:
    chance = Chance(3)
    site = varied_site(chance, events=80)
    plans = [
        compile_policy(
            varied_policy(Chance(seed), site.ontology),
            name=f"p{seed}",
            ontology=site.ontology,
            window_ms=WINDOW_MS,
        ).plan
        for seed in (1, 2, 4, 6, 7, 8, 9, 10)
    ]
    arrived = sorted(site.readings, key=lambda item: item.time + chance.randint(0, 400))
    batch = readings_batch(arrived, site.ontology)
    pq.write_table(pa.table(batch), tmp_path / "r.parquet", row_group_size=9)
    runner = LocalRunner(plans, site.pull, lateness_ms=200, sources=site.ontology.sources)
    expected = runner.feed(batch) + runner.finish()
    assert runner.late
    history = readings_files([tmp_path / "r.parquet"])
    found = evaluate_history(
        plans,
        site.pull,
        history,
        SparkEngine(spark, tables_for_workers(plans, site.pull)),
        lateness_ms=200,
        parts=PartCounts(3, 2),
        sources=site.ontology.sources,
    )
    made = SparkReplay.of(found)
    assert detection_lines(made.detections) == detection_lines(expected)
    assert made.undecided == runner.take_undecided()
    assert made.suppressed == runner.suppressed()
    assert made.late == runner.take_late()


def test_what_workers_cannot_read_is_named_with_its_code(
    spark: SparkSession, tmp_path: Path
) -> None:
    site = load_site(CHECKS / "small-policies", policies=["or"])
    recording = recorded_as_parquet(site, "events.csv", tmp_path, 50)
    history = recorded_files(site.ontology, [(recording.source, recording.path)])
    recording.path.unlink()
    with pytest.raises(SiteError) as caught:
        SparkReplay.of(find_in_history(spark, plans_of(site), site.tables, history, lateness_ms=0))
    assert caught.value.problems[0].code == "events.unreadable"
    with pytest.raises(InvalidInput) as wrong:
        find_in_history(spark, plans_of(site), site.tables, history, lateness_ms=0, partitions=0)
    assert wrong.value.code == "spark.bad_partitions"


@pytest.fixture
def own_relation(tmp_path: Path) -> Iterator[str]:
    """A module that this process can import and Spark's workers cannot."""
    text = "from rapport.policy.relations import get, relation\nnear = get('inside')\n"
    (tmp_path / "only_at_the_driver.py").write_text(text)
    sys.path.insert(0, str(tmp_path))
    try:
        yield "only_at_the_driver:near"
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("only_at_the_driver", None)


def test_a_function_that_only_the_driver_has_is_refused_with_what_to_do(
    spark: SparkSession, tmp_path: Path, own_relation: str
) -> None:
    site = load_site(CHECKS / "small-policies", policies=["or"])
    recording = recorded_as_parquet(site, "events.csv", tmp_path, 50)
    history = recorded_files(site.ontology, [(recording.source, recording.path)])
    assert relations.get(own_relation).first_type == "point"
    plan = site.policies["or"].plan
    terms = tuple(msgspec.structs.replace(term, function=own_relation) for term in plan.terms)
    plan = msgspec.structs.replace(plan, terms=terms)
    with pytest.raises(SiteError) as caught:
        SparkReplay.of(find_in_history(spark, [plan], site.tables, history, lateness_ms=0))
    (problem,) = caught.value.problems
    assert problem.code == "history.not_on_workers"
    assert "only_at_the_driver" in problem.message
    assert "PYTHONPATH" in problem.hint


def normalised(plan: str) -> str:
    """A plan without what differs from run to run: numbers of expressions, paths."""
    plan = re.sub(r"#\d+L?", "", plan)
    plan = re.sub(r"file:/\S*/", "file:/", plan)
    return re.sub(r"plan_id=\d+", "plan_id", plan)


def test_spark_plans_the_scan_with_columns_and_time_range_pushed_down(
    spark: SparkSession, tmp_path: Path
) -> None:
    if not spark.version.startswith("4.3"):
        pytest.skip("the golden plan is that of Spark 4.3")
    site = load_site(CHECKS / "secure-building")
    recording = recorded_as_parquet(site, "events.csv", tmp_path, 1_000)
    recorded = recorded_files(site.ontology, [(recording.source, recording.path)])
    history = ReadingsFiles(recorded.series, (1_000_000, 2_000_000))
    with product_plans(spark):
        plan = explain_history(
            spark,
            plans_of(site),
            site.tables,
            history,
            lateness_ms=2_000,
            partitions=2,
            sources=site.ontology.sources,
        )
    golden = GOLDEN / "history_plan.txt"
    assert normalised(plan) == golden.read_text()


def test_executors_write_the_detections_and_the_driver_is_told_their_number(
    spark: SparkSession, tmp_path: Path
) -> None:
    site = load_site(CHECKS / "secure-building")
    recording = recorded_as_parquet(site, "events.csv", tmp_path, 1_000)
    found = find_in_history(
        spark,
        plans_of(site),
        site.tables,
        recorded_files(site.ontology, [(recording.source, recording.path)]),
        lateness_ms=2_000,
        sources=site.ontology.sources,
        output=str(tmp_path / "output"),
    )
    expected = (site.directory / "expected.jsonl").read_bytes()
    rows = [
        len(pq.read_table(file))
        for file in sorted(Path(found.output.directory).glob("kind=detection/*.parquet"))
    ]
    assert sum(rows) == sum(found.counts.values()) == len(expected.splitlines())
    assert detection_lines(found.in_order()) == expected
    assert spark.read.parquet(found.output.directory).where("kind = 'detection'").count() == sum(
        rows
    )


@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("us", "UTC")])
def test_times_may_be_integers_or_timestamps_and_ids_numbers(
    spark: SparkSession, tmp_path: Path, kind: pa.DataType
) -> None:
    site = load_site(CHECKS / "small-policies")
    recording = recorded_as_parquet(site, "events_shuffled.csv", tmp_path, 23)
    table = pq.read_table(recording.path)
    source = recording.source
    times = table[source.time].cast(pa.timestamp("ms", "UTC")).cast(kind, safe=False)
    if kind == pa.int64():
        times = table[source.time]
    table = table.set_column(table.column_names.index(source.time), source.time, times)
    keys = table[source.key].cast(pa.int64())
    table = table.set_column(table.column_names.index(source.key), source.key, keys)
    pq.write_table(table, recording.path, row_group_size=23)
    history = recorded_files(site.ontology, [(source, recording.path)])
    window = (history.series[0].files[0].groups[0].first or 0, 2**60)
    found = SparkReplay.of(
        find_in_history(
            spark,
            plans_of(site),
            site.tables,
            ReadingsFiles(history.series, (window[0] - 10_000, window[1])),
            lateness_ms=2_000,
            sources=site.ontology.sources,
        )
    )
    for name in site.policies:
        expected = (site.directory / f"{name}.expected.jsonl").read_bytes()
        assert detection_lines(d for d in found.detections if d.policy == name) == expected, name
