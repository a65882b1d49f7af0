"""How many events a live query takes, once it is running: from a log on disk to detections appended
to it. [PI-5, PO-8, UX-3]
"""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.policy.building import as_events, walk
from benchmarks.policy.parts import CLOCK, PEOPLE, ROOMS, SEED, say
from benchmarks.results import Result
from benchmarks.spark.parts import CORES, Goals, Took, cpu_seconds, require
from benchmarks.spark.site_files import detections_in, expected_in, log_of, write_site
from benchmarks.spark.workload import building
from rapport.channel.backends.local import open_embedded
from rapport.pipeline.streaming.live_query import LiveRun, LiveSettings, default_buckets
from rapport.site.site import load_site

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_APPENDED = 10_000
_LEFT_OUT = 2
"""Micro-batches before the steady state: the first start Python and make Java's code."""
_LOOK_SECONDS = 0.005


def steady_state(
    spark: SparkSession, directory: Path, batch: int, batches: int, goals: Goals
) -> list[Result]:
    """A log that is there, taken in so many micro-batches of so many events; all but the first few
    are counted.
    """
    readings = walk(PEOPLE, ROOMS, batch * batches, SEED).readings
    site = write_site(directory / "site", building(), port=1)
    asyncio.run(_append(site, readings))
    settings = LiveSettings(most_rows=batch)
    running = LiveRun(spark, site, directory / "checkpoint", settings, CLOCK)
    marks = _run(running)
    found = {one.event.id: one.event for one in detections_in(site)}
    *parts, _rest = expected_in(load_site(site), readings, _APPENDED)
    wanted = {event.id: event for _, events in parts for event in events}
    require(found == wanted, f"live {len(found):,} detections, here {len(wanted):,}")
    (began, spent, first), (ended, all_spent, last) = marks[_LEFT_OUT - 1], marks[-1]
    took = Took((ended - began) / 1e9, all_spent - spent)
    name = (
        f"live query, steady state, micro-batches of {batch:,} events, "
        f"{default_buckets(CORES)} bucket(s), from a log on disk to detections in it"
    )
    say(f"{name}: {took.text(last - first)}; the same {len(found):,} detections")
    slowest = max(b[0] - a[0] for a, b in pairwise(marks[_LEFT_OUT - 1 :])) / 1e9
    return [
        goals.rate(
            f"{name} (processor {took.cpu:.1f} s for {last - first:,} events)",
            (last - first) / took.wall,
            "events/s",
            50_000,
        ),
        goals.limit(f"live query, slowest such micro-batch of {batch:,}", slowest, "s"),
    ]


def _run(running: LiveRun) -> list[tuple[int, float, int]]:
    """Runs until the log is taken; when, after how much processor time, which position was
    reached, once for every micro-batch.
    """
    failed: list[Exception] = []

    def work() -> None:
        try:
            running.run(once=True, stop=threading.Event())
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    marks: list[tuple[int, float, int]] = []
    while thread.is_alive():
        thread.join(_LOOK_SECONDS)
        reached = running.counts.reached
        if reached and (not marks or marks[-1][2] != reached):
            marks.append((CLOCK.steady_ns(), cpu_seconds(), reached))
    if failed:
        raise failed[0]
    return marks


async def _append(site: Path, readings: pa.RecordBatch) -> None:
    channels = open_embedded(log_of(site), CLOCK)
    for first in range(0, len(readings), _APPENDED):
        await channels.channel("events").append(as_events(readings.slice(first, _APPENDED)))
    await channels.close()
