"""The jobs over a site's history, one after the other: export, silver, figures, expire,
compact, vacuum. [PI-3, PI-6, PI-12, LK-9]
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rapport.channel.backends.stores import open_reading
from rapport.channel.config import channels_from_site
from rapport.core.errors import Corrupt, Problem, RapportError, UnknownName
from rapport.kernel.clock import SystemClock
from rapport.kernel.telemetry import get_logger
from rapport.kernel.toml import TomlFile
from rapport.lake.bronze import export_channels
from rapport.lake.maintenance import CompactionResult, expire, join_files, vacuum
from rapport.pipeline.figures.reports import make_report
from rapport.pipeline.lake.bronze_job import export_by_spark
from rapport.pipeline.lake.silver import silver_positions, update_silver
from rapport.pipeline.running.lag import Lag
from rapport.pipeline.streaming.live_query import ReloadedSite
from rapport.site.pipeline import pipeline_settings
from rapport.site.site import Site

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class JobDone(msgspec.Struct, frozen=True):
    """What a batch of a job did; `problem` is what somebody should look at."""

    rows: int
    problem: Problem | None = None


class JobStopped(RapportError):
    """The job was asked to end, between two steps."""

    code = "pipeline.stopped"


Job = Callable[[], JobDone]
WORTH_A_JOB = 1_000_000
"""Events from which on an export is a job of Spark: before, the job costs more than it saves."""
_log = get_logger(__name__)


def history_jobs(
    spark: SparkSession, site: Site, lake: Path, stop: threading.Event
) -> dict[str, Job]:
    """By name, in the order in which they are done. What the site says is read anew each time."""
    now = ReloadedSite(site)
    return {
        "export": lambda: spark_export_step(spark, site, lake, now.site().file),
        "silver": lambda: silver_step(spark, now.site(), lake, stop),
        "figures": lambda: figures_step(spark, lake),
        "expire": lambda: expire_step(now.site(), lake),
        "compact": lambda: compact_step(lake),
        "vacuum": lambda: vacuum_step(lake),
    }


def spark_export_step(
    spark: SparkSession, site: Site, lake: Path, said: TomlFile | None = None
) -> JobDone:
    """Like `export_step`; a long backlog is a job of Spark, unless positions are damaged: the
    writer of nodes records those.
    """
    if Lag(site.directory, lake).of_export(0).events >= WORTH_A_JOB:
        try:
            return JobDone(export_by_spark(spark, site.directory, lake).rows)
        except Corrupt as error:
            _log.warning("exported without Spark", code=error.code, reason=error.message)
    return export_step(site, lake, said)


def export_step(site: Site, lake: Path, said: TomlFile | None = None) -> JobDone:
    """What the channels hold beyond the last export goes to the lake; nothing when there is no log
    yet. `said`: the site file as it is now; a lake belongs to one log, whatever that says of data.
    """
    declared, _problems = channels_from_site(said or site.file)

    async def work() -> int:
        try:
            channels = open_reading(
                site.data_directory / "log", SystemClock(), declared, site=site.directory
            )
        except UnknownName:
            return 0
        try:
            return (await export_channels(channels, lake)).rows
        finally:
            await channels.close()

    return JobDone(asyncio.run(work()))


def silver_step(spark: SparkSession, site: Site, lake: Path, stop: threading.Event) -> JobDone:
    """What bronze has beyond the last run goes to silver; raises JobStopped between two steps."""

    def progress(_taken: int, _all: int) -> None:
        if stop.is_set():
            raise JobStopped("asked to end")

    done = update_silver(spark, lake, site.ontology, progress=progress)
    rows = done.readings + done.quarantined + done.detections
    return JobDone(rows, done.problems[0] if done.problems else None)


def figures_step(spark: SparkSession, lake: Path) -> JobDone:
    """The report's tables in gold, anew."""
    made = make_report(spark, lake)
    return JobDone(made.readings)


def expire_step(site: Site, lake: Path) -> JobDone:
    """Days of the lake that are older than the site says go; what silver waits for stays."""
    rules = pipeline_settings(site.file)[0].keep
    return JobDone(
        expire(lake, rules, taken=silver_positions(lake)).files if rules and lake.is_dir() else 0
    )


def compact_step(lake: Path) -> JobDone:
    """Joins small files; `rows` counts the files saved. Raises after the last table when one could
    not be compacted.
    """
    done = join_files(lake) if lake.is_dir() else CompactionResult()
    _refuse_waiting(done)
    return JobDone(done.files_before - done.files_after)


def vacuum_step(lake: Path) -> JobDone:
    """Deletes files that no recent version names; `rows` counts them. Raises as `compact_step`."""
    done = vacuum(lake) if lake.is_dir() else CompactionResult()
    _refuse_waiting(done)
    return JobDone(done.deleted)


def _refuse_waiting(done: CompactionResult) -> None:
    if done.waiting:
        reasons = "; ".join(f"{table}: {why}" for table, why in sorted(done.waiting.items()))
        raise RapportError(reasons, code="lake.maintenance_failed")
