"""The jobs of the pipeline as functions of a session, and the entry point that `spark-submit` runs.
[LK-7, LK-8]

A notebook calls the functions: `silver(spark, JobSettings(site="site", lake="s3a://bucket/lake"))`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rapport.core.errors import RapportError
from rapport.lake.bronze import ExportResult
from rapport.lake.maintenance import CompactionResult, compact
from rapport.lake.places import Lake
from rapport.pipeline.explain import explain_job
from rapport.pipeline.figures.reports import Report, make_report
from rapport.pipeline.lake.bronze_job import export_by_spark
from rapport.pipeline.lake.silver import SilverResult, update_silver
from rapport.site.site import Site, load_site

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class JobSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a job works on. `lake`: a path or URI, by default that in the site's data directory;
    `options`: those of its object store, as delta-rs names them."""

    site: str
    lake: str = ""
    options: dict[str, str] = {}
    explained: str = "silver"
    """The job whose plan `explain` prints."""

    def loaded_site(self) -> Site:
        return load_site(Path(self.site))

    def place(self) -> Lake:
        if self.lake:
            return Lake.at(self.lake, self.options)
        return Lake.at(self.loaded_site().data_directory / "lake")


def export(spark: SparkSession, settings: JobSettings) -> ExportResult:
    """Takes new events of the site's channels into bronze."""
    return export_by_spark(spark, Path(settings.site), settings.place())


def silver(spark: SparkSession, settings: JobSettings) -> SilverResult:
    """Takes new events of bronze into silver and `gold/detected`."""
    return update_silver(spark, settings.place(), settings.loaded_site().ontology)


def report(spark: SparkSession, settings: JobSettings) -> Report:
    """Makes the report's tables in gold."""
    return make_report(spark, settings.place())


def maintain(_spark: SparkSession, settings: JobSettings) -> CompactionResult:
    """Joins small files and deletes those that nobody needs."""
    return compact(settings.place())


def explain(spark: SparkSession, settings: JobSettings) -> str:
    """The physical plan of a job, and which steps are Python and why."""
    return explain_job(spark, settings.loaded_site(), settings.place(), settings.explained)


JOBS: dict[str, Callable[[SparkSession, JobSettings], Any]] = {
    "export": export,
    "silver": silver,
    "report": report,
    "maintain": maintain,
    "explain": explain,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one job with the session that was submitted; prints its result as JSON."""
    parser = argparse.ArgumentParser(prog="job.py", description="Runs one job of the pipeline.")
    parser.add_argument("job", choices=sorted(JOBS))
    parser.add_argument("--site", required=True, help="folder of the site, on the driver")
    parser.add_argument("--lake", default="", help="path or URI of the lake")
    parser.add_argument("--explained", default="silver", help="the job that explain is about")
    given = parser.parse_args(arguments)

    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName(f"rapport {given.job}").getOrCreate()
    settings = JobSettings(site=given.site, lake=given.lake, explained=given.explained)
    try:
        result = JOBS[given.job](spark, settings)
    except RapportError as error:
        print(f"{error.code}: {error.message}\n{error.hint}", file=sys.stderr)
        return 1
    text = result if isinstance(result, str) else msgspec.json.encode(result).decode()
    print(text)
    return 0
