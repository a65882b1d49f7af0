"""A site's pipeline on a real Spark: once, until it is stopped, and with jobs that fail."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from rapport.core.errors import InvalidInput
from rapport.pipeline.lake.locks import working
from rapport.pipeline.running.holding import ask_to_stop, wait_until
from rapport.pipeline.running.run import RunWanted, run_pipeline
from rapport.site.pipeline import PipelineSettings, RunPlaces, RunStatus, is_held, read_status
from rapport.site.site import load_site
from rapport.testing.servers.spark import TEST_SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

PIPELINE = PipelineSettings(every_ms=500, figures_every_ms=3_600_000, buckets=2)


def wanted(*, once: bool = True, live: bool = True) -> RunWanted:
    pipeline = PIPELINE if once else msgspec.structs.replace(PIPELINE, figures=False)
    return RunWanted(pipeline=pipeline, spark=TEST_SETTINGS, once=once, live=live, must_live=live)


def jobs(told: RunStatus) -> dict[str, tuple[str, int]]:
    return {one.job: (one.state, one.behind_events) for one in told.jobs}


def test_once_everything_is_done_and_nothing_is_left_to_do(
    spark: SparkSession, directory: Path
) -> None:
    told = run_pipeline(directory, wanted())
    assert told.state == "ended"
    assert jobs(told) == {
        "live": ("waiting", 0),
        "export": ("waiting", 0),
        "silver": ("waiting", 0),
        "figures": ("waiting", 0),
    }
    rows = {one.job: one.rows for one in told.jobs}
    assert rows["export"] > 200, "readings, detections and reports"
    assert rows["silver"] > 200
    places = RunPlaces.of(load_site(directory).data_directory)
    assert read_status(places) == told
    assert not is_held(places.lock)


def test_it_runs_on_until_it_is_asked_to_stop_and_a_failing_job_does_not_keep_the_others(
    spark: SparkSession, directory: Path
) -> None:
    site = load_site(directory)
    places, lake = RunPlaces.of(site.data_directory), site.data_directory / "lake"
    lake.mkdir(parents=True)
    seen: list[RunStatus] = []

    def is_so(check: Callable[[RunStatus], bool]) -> Callable[[], bool]:
        def look() -> bool:
            told = read_status(places)
            return told is not None and check(told)

        return look

    def by(told: RunStatus, name: str) -> str:
        return next((one.state for one in told.jobs if one.job == name), "")

    def watch() -> None:
        with working(lake):  # silver cannot be made while another job works on the lake
            assert wait_until(is_so(lambda told: by(told, "silver") == "failed"), 120)
            told = read_status(places)
            assert told is not None
            seen.append(told)
        assert wait_until(
            is_so(lambda told: any(one.job == "live" and one.batches for one in told.jobs)), 120
        )
        ask_to_stop(places)

    watching = threading.Thread(target=watch)
    watching.start()
    told = run_pipeline(directory, wanted(once=False))
    watching.join()
    [failed] = seen
    [silver] = [one for one in failed.jobs if one.job == "silver"]
    assert silver.problem is not None
    assert (silver.problem.code, silver.failures >= 1) == ("lake.job_running", True)
    assert by(failed, "export") in ("waiting", "running"), "again and again"
    assert told.state == "ended"
    assert by(told, "live") == "off"
    assert places.stop.exists(), "a node does not start it again"


def test_live_without_a_policy_for_it_is_refused_only_when_it_was_asked_for(
    spark: SparkSession, directory: Path
) -> None:
    file = directory / "site.toml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('on_spark = ["*"]\n', ""), encoding="utf-8")
    with pytest.raises(InvalidInput, match="lets no policy run on Spark"):
        run_pipeline(directory, wanted())
    places = RunPlaces.of(load_site(directory).data_directory)
    told = read_status(places)
    assert told is not None
    assert (told.state, told.problem is not None) == ("failed", True)
