"""An Airflow DAG that takes what a site's lake has into silver and gold, and takes care of it.

Put it into the DAG folder of Airflow (2.4 or later), with this package on its workers. `SITE` and
`LAKE` are read from the environment; the master is Spark's own setting (`spark.master`).
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

from airflow.decorators import dag, task


def run_job(name: str) -> dict[str, object]:
    """Runs one job in a session of its own; Airflow keeps what it returns."""
    import msgspec
    from pyspark.sql import SparkSession

    from rapport.pipeline.submit import JOBS, JobSettings

    settings = JobSettings(site=os.environ["SITE"], lake=os.environ.get("LAKE", ""))
    spark = SparkSession.builder.appName(f"rapport {name}").getOrCreate()
    result = JOBS[name](spark, settings)
    kept: dict[str, object] = msgspec.to_builtins(result)
    return kept


@dag(
    schedule=timedelta(minutes=10),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
)
def rapport_lake() -> None:
    """A job that is killed or tried again goes on where its tables are: no row twice."""

    @task
    def silver() -> dict[str, object]:
        done = run_job("silver")
        return {name: done[name] for name in ("readings", "quarantined", "positions")}

    @task
    def figures() -> dict[str, object]:
        done = run_job("report")
        return {name: done[name] for name in ("readings", "late", "answered")}

    @task
    def maintain() -> dict[str, object]:
        return run_job("maintain")

    silver() >> figures() >> maintain()


rapport_lake()
