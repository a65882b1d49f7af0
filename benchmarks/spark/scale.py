"""What grows with history and what does not: time, tasks and driver memory of each job at several
sizes, each in a fresh process. [LK-10, UX-3]

The heap of Java is that of driver and executors together, since the master is local; after a
collection it holds what the driver keeps.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.policy.parts import say
from benchmarks.results import Result, limit, rate
from benchmarks.spark.history import work_on
from benchmarks.spark.parts import SETTINGS, require, timed
from benchmarks.spark.silver import fill_bronze, ontology
from benchmarks.spark.workload import record
from rapport.lake.places import Lake
from rapport.pipeline.backtest.execution import run_on_spark
from rapport.pipeline.figures.reports import make_report
from rapport.pipeline.lake.silver import update_silver
from rapport.pipeline.session import running_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SIZES = (1_000_000, 10_000_000)
_FULL = (*_SIZES, 100_000_000)
_QUICK = (20_000, 100_000)
_FLAT = 1.1
_MB = 1 << 20


class JobCost(msgspec.Struct, frozen=True):
    """What a job came to at a size."""

    job: str
    events: int
    seconds: float
    cpu: float
    tasks: int
    driver_mb: float
    """The most memory that this Python process has had so far."""
    heap_mb: float
    """What Java keeps after a collection."""
    load: float
    """Of the machine, the mean of a minute."""


def run(*, quick: bool = False, full: bool = False) -> dict[str, list[Result]]:
    """The jobs at each size; driver memory is compared between the smallest and the largest."""
    sizes = _QUICK if quick else _FULL if full else _SIZES
    results: list[Result] = []
    costs: dict[str, list[JobCost]] = {}
    for events in sizes:
        for cost in _fresh(events):
            costs.setdefault(cost.job, []).append(cost)
            name = f"{cost.job}, {events:,} events"
            detail = (
                f"{cost.seconds:.1f} s, processor {cost.cpu:.1f} s, {cost.tasks} tasks, driver "
                f"{cost.driver_mb:.0f} MB, heap {cost.heap_mb:.0f} MB, load {cost.load:.1f}"
            )
            say(f"{name}: {detail}")
            results.append(rate(f"{name} ({detail})", events / cost.seconds, "events/s"))
    for job, found in costs.items():
        goal = None if quick else _FLAT
        for what in ("driver_mb", "heap_mb"):
            grown = getattr(found[-1], what) / getattr(found[0], what)
            metric = f"{job}: {what} at {found[-1].events:,} / at {found[0].events:,}"
            results.append(limit(metric, grown, "times", goal))
    return {"results": results}


def _fresh(events: int) -> list[JobCost]:
    """The data are made here, so that the other process has only what the jobs need."""
    with tempfile.TemporaryDirectory(prefix="rapport-scale-") as place:
        fill_bronze(Lake.at(Path(place) / "lake"), events)
        record(Path(place) / "recorded", events)
        done = subprocess.run(
            (sys.executable, "-m", "benchmarks.spark.scale", str(events), place),
            stdout=subprocess.PIPE,
            check=True,
        )
    return msgspec.json.decode(done.stdout, type=list[JobCost])


def measure(events: int, folder: Path) -> list[JobCost]:
    """Silver, figures, figures again with nothing new, and a back-test."""
    lake = Lake.at(folder / "lake")
    with running_spark(SETTINGS) as spark:
        costs = [
            _cost(spark, "silver", events, lambda: update_silver(spark, lake, ontology())),
            _cost(spark, "figures", events, lambda: make_report(spark, lake)),
            _cost(spark, "figures, nothing new", events, lambda: make_report(spark, lake)),
        ]
        require(lake.open("silver", "room.warmth").rows() == events // 3, "silver")
        work = work_on(folder / "recorded")
        costs.append(_cost(spark, "back-test", events, lambda: run_on_spark(spark, work)))
    return costs


def _cost(spark: SparkSession, job: str, events: int, work: Callable[[], Any]) -> JobCost:
    context: Any = spark.sparkContext
    context.setJobGroup(job, job)
    _made, took = timed(work)
    tracker = context.statusTracker()
    stages = {
        stage
        for number in tracker.getJobIdsForGroup(job)
        if (info := tracker.getJobInfo(number)) is not None
        for stage in info.stageIds
    }
    infos = [tracker.getStageInfo(stage) for stage in stages]
    java: Any = context._jvm.java.lang
    java.System.gc()
    runtime = java.Runtime.getRuntime()
    return JobCost(
        job=job,
        events=events,
        seconds=took.wall,
        cpu=took.cpu,
        tasks=sum(info.numTasks for info in infos if info is not None),
        driver_mb=_peak_kb() / 1024,
        heap_mb=(runtime.totalMemory() - runtime.freeMemory()) / _MB,
        load=os.getloadavg()[0],
    )


def _peak_kb() -> int:
    """Of this program alone: the figure of getrusage begins with that of its parent."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(measure(int(sys.argv[1]), Path(sys.argv[2]))))
