"""How fast the pipeline is on Spark: back-tests, live queries; every figure is that
of a result that was checked. [PI-5, PI-9, PO-8, UX-3]
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.policy.parts import PEOPLE, ROOMS, SEED
from benchmarks.results import Result, rate
from benchmarks.spark.history import (
    Cold,
    against_by_hand,
    first_run,
    growth,
    many_policies,
    measure,
    stages,
)
from benchmarks.spark.latency import Offer, latency
from benchmarks.spark.live import steady_state
from benchmarks.spark.parts import SETTINGS, Goals
from benchmarks.spark.silver import silver
from benchmarks.spark.situations import situations
from benchmarks.spark.workload import PER_FILE, Recorded, beginning, record
from benchmarks.spark.year import QUICK, YEAR
from benchmarks.spark.year import year as back_tested_year
from rapport.core.errors import InvalidInput
from rapport.pipeline.session import running_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EVENTS, _FULL = 10_000_000, 100_000_000
_SILVER = 2_000_000
_QUICK_EVENTS, _QUICK_PER_FILE = 40_000, 10_000
_WAYS = ("ours", "by hand")


def run(
    quick: bool, full: bool = False, events: int | None = None, year: bool = False
) -> dict[str, Any]:
    """All measurements; progress goes to stderr. About 10 minutes, with `full` (growth up to 1e8)
    and `year` (131 M readings) a good deal longer.
    """
    count = events or (_QUICK_EVENTS if quick else _EVENTS)
    if count < _QUICK_EVENTS:
        raise InvalidInput(
            f"{count:,} events are too few to measure",
            code="cli.bad_option",
            hint=f"choose {_QUICK_EVENTS:,} or more",
        )
    with tempfile.TemporaryDirectory(prefix="rapport-bench-") as directory:
        results = list(_measured(Path(directory), count, quick=quick, full=full, with_year=year))
    return {"name": "spark", "results": results}


def _measured(
    folder: Path, events: int, *, quick: bool, full: bool, with_year: bool
) -> Iterator[Result]:
    goals, per_file = Goals(not quick), _QUICK_PER_FILE if quick else PER_FILE
    recorded = record(folder / "history", events, per_file)
    # First runs are measured before our own session takes memory and processors.
    cold = {} if quick else {way: first_run(way, recorded.folder) for way in _WAYS}
    with running_spark(SETTINGS) as spark:
        yield _workload(spark, recorded)
        cold = cold or {way: measure(way, spark, recorded.folder) for way in _WAYS}
        yield from _over_history(spark, folder, recorded, goals, cold, per_file)
        yield from silver(spark, folder / "lake", min(recorded.events, _SILVER), goals)
        yield from steady_state(
            spark, folder / "live", *((2_000, 4) if quick else (100_000, 12)), goals
        )
        offer = Offer(500, 9, warm_up_s=0) if quick else Offer(10_000, 45, warm_up_s=15)
        yield from latency(spark, folder / "latency", offer, goals)
        # Growth comes after what is live: a heap that has held 1e8 events makes longer pauses.
        if full:
            recorded = record(folder / "full", _FULL, per_file)
        sizes = _sizes(recorded.events, per_file)
        yield from growth(spark, recorded, sizes, goals, per_file)
        if with_year or quick:
            made_up = QUICK if quick else YEAR
            yield from back_tested_year(spark, folder / "year", made_up, goals)
            yield from situations(spark, folder / "year", folder / "freezers", made_up, goals)


def _over_history(
    spark: SparkSession,
    folder: Path,
    recorded: Recorded,
    goals: Goals,
    cold: dict[str, Cold],
    per_file: int,
) -> Iterator[Result]:
    yield from against_by_hand(spark, recorded, goals, cold)
    yield from stages(spark, recorded, goals)
    some = min(recorded.events, 2 * per_file)
    yield from many_policies(spark, beginning(recorded, folder / "many", some, per_file), goals)


def _sizes(events: int, per_file: int) -> list[int]:
    """Powers of ten of a file up to the whole."""
    sizes = [per_file]
    while sizes[-1] * 10 <= events:
        sizes.append(sizes[-1] * 10)
    return sizes if len(sizes) > 1 else [per_file, events]


def _workload(spark: SparkSession, recorded: Recorded) -> Result:
    java = spark.sparkContext._jvm.System.getProperty("java.version")
    return rate(
        f"workload: seed {SEED}, digest {recorded.digest}, {PEOPLE} people, {ROOMS} rooms; Spark "
        f"{spark.version}, Java {java}, pyarrow {version('pyarrow')}, {spark.sparkContext.master}, "
        f"heap {SETTINGS.memory}",
        recorded.events,
        "events",
    )
