"""The benchmark of Spark measures results that were checked; timings decide nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.command import NAMES
from benchmarks.policy.building import ONTOLOGY, STREAM, WINDOW_MS, policy, walk
from benchmarks.policy.by_hand import raised_by_hand
from benchmarks.spark import measuring as bench
from benchmarks.spark.cold import main as first_run
from benchmarks.spark.history import Cold, alarms_of, digest_of, work_on
from benchmarks.spark.parts import Goals, Took, cpu_seconds, require, timed
from benchmarks.spark.site_files import expected_in, write_site
from benchmarks.spark.workload import LATENESS_MS, beginning, building, history_of, record
from rapport.cli.main import run
from rapport.core.errors import InvalidInput
from rapport.pipeline.backtest.execution import run_here
from rapport.policy.readings import readings_schema
from rapport.site.site import load_site
from support.servers.spark import spark

__all__ = ["spark"]

METRICS = (
    r"workload: seed \d+, digest [0-9a-f]{16}, .* Spark \d.*, Java \d",
    r"back-test of secure-building, [\d,]+ events, (first run of a session|warm)",
    r"peer: Spark SQL by hand, [\d,]+ events, (first run of a session|warm)",
    r"back-test / Spark SQL by hand, (first run of a session|warm)$",
    r"back-test, [\d,]+ events, stage: ",
    r"live query, steady state, micro-batches of [\d,]+ events",
    r"live query, append to detection at [\d,]+ readings/s .* p95$",
    r"growth: time per event at [\d,]+ / at [\d,]+ events",
    r"100 policies in one pass / one policy, [\d,]+ events, time",
    r"year: back-test on Spark, [1-9][\d,]* detections",
)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_a_quick_run_checks_every_result_and_judges_none(spark: Any) -> None:
    assert "spark" in NAMES
    results = bench.run(quick=True)["results"]
    names = [result["metric"] for result in results]
    assert len(set(names)) == len(names)
    for result in results:
        assert {"metric", "value", "unit", "better", "goal", "ok"} == set(result)
        assert result["goal"] is None
        assert result["ok"] is None
    for wanted in METRICS:
        assert any(re.match(wanted, name) for name in names), wanted


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_a_first_run_tells_what_it_took_and_exactly_what_it_found(
    spark: Any,
    tmp_path: Path,
) -> None:
    made = record(tmp_path / "history", 20_000, per_file=8_000)
    expected = alarms_of(run_here(work_on(made.folder)))
    told = msgspec.json.decode(first_run("ours", made.folder), type=Cold)
    assert (told.found, told.digest) == (len(expected), digest_of(expected))
    assert told.took.wall > 0


def test_a_history_is_a_beginning_of_a_longer_one_and_nothing_of_it_is_late(
    tmp_path: Path,
) -> None:
    short = record(tmp_path / "short", 20_000, per_file=10_000)
    long = record(tmp_path / "long", 25_000, per_file=10_000)
    part = beginning(long, tmp_path / "part", 20_000, per_file=10_000)
    assert pq.read_table(part.folder).equals(pq.read_table(short.folder))
    assert short.digest != long.digest
    assert record(tmp_path / "again", 20_000, per_file=10_000).digest == short.digest
    found = run_here(work_on(long.folder))
    assert (found.events, found.late) == (25_000, 0)
    assert history_of(long.folder).rows() == 25_000


def test_rows_stand_as_they_arrived_less_late_than_a_back_test_waits(tmp_path: Path) -> None:
    made = record(tmp_path / "history", 10_000)
    times = pq.read_table(made.folder).column("time").to_numpy()
    behind = np.maximum.accumulate(times) - times
    assert 0 < behind.max() < LATENESS_MS


def test_what_a_back_test_finds_is_what_the_program_by_hand_raises(tmp_path: Path) -> None:
    made = record(tmp_path / "history", 20_000)
    rows = pq.read_table(made.folder).sort_by([("time", "ascending"), ("id", "ascending")])
    count = len(rows)
    readings = pa.RecordBatch.from_arrays(
        [
            rows.column("time").combine_chunks(),
            rows.column("id").combine_chunks(),
            pa.repeat(pa.scalar(STREAM), count),
            pa.repeat(pa.scalar("positions"), count),
            *(rows.column(name).combine_chunks() for name in ("person", "x", "y")),
        ],
        schema=readings_schema(ONTOLOGY),
    )
    by_hand = raised_by_hand(building(), readings)
    found = alarms_of(run_here(work_on(made.folder)))
    assert sorted(found) == sorted(by_hand)
    assert digest_of(found) == digest_of(by_hand) != digest_of(by_hand[1:])


def test_a_runner_says_after_how_many_readings_each_detection_was_certain(tmp_path: Path) -> None:
    site = load_site(write_site(tmp_path / "site", building(), port=1))
    assert [one.plan.window_ms for one in site.policies.values()] == [policy().window_ms]
    readings = walk(200, 100, 20_000, seed=1).readings
    *parts, (_, rest) = expected_in(site, readings, 100)
    times = readings.column("time").to_numpy()
    assert sum(len(events) for _, events in parts) > 0 < len(rest)
    for had, events in parts:
        for event in events:
            assert event.time <= times[had - 1] - LATENESS_MS
            assert event.time > times[max(had - 100, 1) - 1] - LATENESS_MS - WINDOW_MS


def test_time_is_told_for_the_wall_and_for_the_processors_of_all_who_took_part() -> None:
    spent = cpu_seconds()
    made, took = timed(lambda: sum(number * number for number in range(2_000_000)))
    assert made > 0
    assert took.wall > 0
    assert cpu_seconds() >= spent
    assert Took(2.0, 3.0).text(1_000) == "500 events/s, 2.0 s, processor 3.0 s"


def test_a_quick_run_is_judged_by_no_goal_and_a_wrong_result_has_no_figure() -> None:
    assert Goals(False).rate("a", 1, "b", 2)["ok"] is None
    assert Goals(True).rate("a", 1, "b", 2)["ok"] is False
    assert Goals(True).limit("a", 1, "b", 2)["ok"] is True
    with pytest.raises(RuntimeError, match="not the same: back-test"):
        require(False, "back-test")


def test_too_few_events_and_options_of_other_benchmarks_are_refused() -> None:
    with pytest.raises(InvalidInput, match="too few"):
        bench.run(quick=True, events=10)
    assert run(["bench", "policy", "--events", "5"]) != 0
    assert run(["bench", "policy", "--year"]) != 0
