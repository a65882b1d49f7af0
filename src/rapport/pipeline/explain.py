"""The physical plan of each job of the pipeline, with what of it is Python and why. [LK-5, LK-9]"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rapport.core.errors import InvalidInput, UnknownName
from rapport.lake.places import Lake
from rapport.pipeline.datasource.locations import location_of
from rapport.pipeline.datasource.source_options import LocationOptions
from rapport.pipeline.figures.reports import explain_report
from rapport.pipeline.history.runner import explain_history
from rapport.pipeline.lake.silver import explain_silver
from rapport.pipeline.lake.silver_readings import silver_history
from rapport.pipeline.lake.spark_tables import plan_text
from rapport.pipeline.session import parallelism
from rapport.pipeline.streaming.live_job import make_job, policies_on_spark
from rapport.pipeline.streaming.live_query import (
    bucket_keys,
    default_buckets,
    live_events,
    live_rows,
    live_session,
)
from rapport.policy.engine.engine import ALLOWED_SKEW_MS
from rapport.policy.plan import Plan
from rapport.site.pipeline import pipeline_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rapport.site.site import Site

WITHOUT_SPARK = {
    "export": "The node, or this process, reads the channels in their order and writes Parquet "
    "files; delta-rs commits them with the position reached. From a million waiting events on "
    "tasks of Spark read ranges of the channels (RapportSource) and write the files "
    "(MapInArrow write); both are Python, as the log has no reader in the JVM.",
    "expire": "delta-rs removes files of old days from the tables' logs; no row is read.",
    "compact": "delta-rs joins small files of a day in this process (optimize.compact); rows stay.",
    "vacuum": "delta-rs deletes files that no version of the last week names; no row is read.",
}
"""Jobs that are no jobs of Spark, and what they do."""
_LIVE_STEPS = (
    "RapportSource is Python: the log of a node, or its HTTP API, has no reader in the JVM",
    "MapInArrow batches is Python: events are decoded by the policy engine's decoder, once, into "
    "one Arrow batch for each bucket",
    "TransformWithState is Python: a bucket is a whole local runner of the node's operators",
    "the sink is Python: executors append to the log, each micro-batch once",
)


def explain_job(spark: SparkSession, site: Site, lake: Lake, job: str) -> str:
    """Plans and reasons as text; runs nothing. Raises UnknownName for another job, InvalidInput
    when the site has nothing for it to do.
    """
    if job in WITHOUT_SPARK:
        return WITHOUT_SPARK[job]
    jobs: dict[str, Callable[[], str]] = {
        "silver": lambda: explain_silver(spark, lake, site.ontology),
        "figures": lambda: explain_report(spark, lake),
        "history": lambda: _explain_history(spark, site, lake),
        "live": lambda: explain_live(spark, site),
    }
    if job not in jobs:
        raise UnknownName("job", job, [*jobs, *WITHOUT_SPARK], code="pipeline.unknown_job")
    return jobs[job]()


def _explain_history(spark: SparkSession, site: Site, lake: Lake) -> str:
    """The policies of the site that have conditions, over silver, as a back-test runs them in one
    scan."""
    compiled = [one.plan for _name, one in sorted(site.policies.items())]
    plans = [plan for plan in compiled if isinstance(plan, Plan)]
    streams = {stream for plan in plans for stream in plan.streams()}
    history = silver_history(lake, site.ontology, streams)
    if not plans or not history.rows:
        raise InvalidInput(
            "there is nothing to run over history: "
            + ("silver has no readings of the policies" if plans else "the site has no policies"),
            code="backtest.no_readings",
            hint="rapport pipeline run --once fills silver from the site's log",
        )
    return explain_history(
        spark,
        plans,
        site.tables,
        history,
        lateness_ms=site.lateness_ms,
        sources=site.ontology.sources,
    )


def explain_live(spark: SparkSession, site: Site) -> str:
    """The query of the policies that the site lets run on Spark."""
    location = location_of(LocationOptions(site=str(site.directory)))
    policies = policies_on_spark(site, location)
    if not policies.plans:
        raise InvalidInput(
            f"the site {site.name!r} lets no policy run on Spark",
            code="live.no_policies",
            hint='add to its site.toml: [policies] on_spark = ["*"], or names',
        )
    buckets = pipeline_settings(site.file)[0].buckets or default_buckets(parallelism(spark))
    job = make_job(
        name=site.name,
        policies=policies,
        ontology=site.ontology,
        pull=site.tables,
        location=location,
        lateness_ms=site.lateness_ms,
        skew_ms=ALLOWED_SKEW_MS,
        keys=bucket_keys(spark, buckets),
    )
    rows = live_rows(live_session(spark, buckets), {"site": str(site.directory)})
    lines = [plan_text(live_events(rows, job)).rstrip(), "", *_LIVE_STEPS]
    return "\n".join([*lines, *job.assignment.explain(), ""])
