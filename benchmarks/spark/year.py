"""A year of readings back-tested once: how long it takes, and that it is right. [PI-9, UX-3]"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.policy.parts import say
from benchmarks.results import Result
from benchmarks.spark.history import same
from benchmarks.spark.parts import Goals, require, timed, told
from rapport.pipeline.backtest.execution import BackTestFound, BackTestWork, run_here, run_on_spark
from rapport.pipeline.backtest.find_history import find_history
from rapport.scenarios.year import Year, write_year
from rapport.scenarios.year_site import FOLDER
from rapport.site.site import load_site

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

YEAR = Year(readings=131_000_000, days=365)
QUICK = Year(readings=200_000, days=2)


def year(spark: SparkSession, directory: Path, made_up: Year, goals: Goals) -> list[Result]:
    """Made up, found on Spark, and found once more in this process to compare."""
    written, making = timed(lambda: write_year(directory, made_up))
    say(f"{written.rows:,} readings of {made_up.days} days made up: {making.text(written.rows)}")

    def work() -> BackTestWork:
        site = load_site(directory)
        plans = [one.plan for one in site.policies.values()]
        return BackTestWork.of(site, plans, find_history(site, str(directory / FOLDER)))

    found, took = timed(lambda: run_on_spark(spark, work()))
    here, alone = timed(lambda: run_here(work()))
    require(same(found, here, work().plans), "the year")
    label = f"{written.rows:,} readings of {made_up.days} days, seed {made_up.seed}"
    return [
        told(f"year: {label}, made up and written", making, written.rows, goals),
        told(f"year: back-test on Spark, {_counts(found)}", took, written.rows, goals),
        told("year: the same in one process without Spark", alone, written.rows, goals),
        goals.limit("year: back-test on Spark", took.wall / 60, "minutes"),
    ]


def _counts(found: BackTestFound) -> str:
    return f"{len(found.columns):,} detections, {found.late:,} late"
