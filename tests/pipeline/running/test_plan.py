"""What a run would do is told without starting anything."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rapport.kernel.clock import ManualClock
from rapport.pipeline.running.jobs import export_step, silver_step
from rapport.pipeline.running.plan import plan_run
from rapport.pipeline.running.run import RunWanted
from rapport.pipeline.session import SparkSettings
from rapport.site.pipeline import PipelineSettings
from rapport.site.site import load_site

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WANTED = RunWanted(
    pipeline=PipelineSettings(buckets=2), spark=SparkSettings(master="local[2]"), once=True
)


def test_the_plan_tells_jobs_rows_tables_and_how_policies_are_parted(directory: Path) -> None:
    site = load_site(directory)
    plan = plan_run(site, WANTED, ManualClock())
    assert {one.job: one.events for one in plan.jobs} == {
        "live": 200,
        "export": 200,
        "silver": 0,
        "figures": 0,
        "compact": 0,
        "vacuum": 0,
    }
    assert len(plan.policies) == len(site.policies)
    assert any("2 buckets by" in line for line in plan.policies)
    assert plan.tables == ()
    assert not (site.data_directory / "pipeline").exists()


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_after_an_export_silver_has_to_do(spark: SparkSession, directory: Path) -> None:
    site = load_site(directory)
    lake = site.data_directory / "lake"
    assert export_step(site, lake).rows == 200
    todo = {one.job: one.events for one in plan_run(site, WANTED, ManualClock()).jobs}
    assert (todo["export"], todo["silver"]) == (0, 200)
    assert silver_step(spark, site, lake, threading.Event()).rows == 200
    plan = plan_run(site, WANTED, ManualClock())
    assert {one.job: one.events for one in plan.jobs}["silver"] == 0
    assert any("person.position" in name for name in plan.tables)


@pytest.mark.slow
def test_a_dry_run_by_the_command_line_starts_no_spark(directory: Path) -> None:
    told = [sys.executable, "-X", "importtime", "-m", "rapport.cli.main"]
    said = subprocess.run(
        [*told, "pipeline", "run", "--dry-run", "--site", str(directory)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert said.stdout.splitlines()[0] == "job\tevery\tevents to do\tinto"
    assert "export\t1min\t200\tbronze" in said.stdout.replace("1 min", "1min")
    assert "pyspark" not in said.stderr


@pytest.mark.slow
def test_status_stop_and_resume_of_what_does_not_run(directory: Path) -> None:
    def rapport(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "rapport.cli.main", "pipeline", *arguments]
        return subprocess.run(
            [*command, "--site", str(directory)],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    status = rapport("status")
    assert (status.returncode, status.stdout) == (1, "what\thow\nstate\tdown\n")
    assert "does not run" in rapport("stop").stderr
    assert '"stopped_by_hand":true' in rapport("status", "--json").stdout
