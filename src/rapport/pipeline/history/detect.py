"""Policies over readings that come one batch after the other, on Spark. [PI-5, PO-8]

They are written to Parquet once and then decided as history in files is (`run.py`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from rapport.pipeline.errors import spark_errors
from rapport.pipeline.history.files import ReadingsFiles, readings_files
from rapport.pipeline.history.ingest import Ingestion
from rapport.pipeline.history.result import SparkReplay
from rapport.pipeline.history.run import check_plans, find_in_history, parts_of
from rapport.pipeline.history.switching import Pull
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import END_OF_TIME
from rapport.policy.plan import Plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkReplay", "replay_spark"]


def replay_spark(
    spark: SparkSession,
    plans: Sequence[Plan],
    pull: Pull,
    readings: Iterable[pa.RecordBatch],
    *,
    lateness_ms: int,
    partitions: int | None = None,
    directory: Path | None = None,
    goes_on: Callable[[], bool] = lambda: False,
    sources: Mapping[str, PushSource] | None = None,
) -> SparkReplay:
    """Runs the plans over readings given in arrival order, as one Spark job.

    `partitions` (default: as fits rows and cores) is the number of parts. `directory` is where the
    readings are kept while the job runs, a temporary one by default; on a cluster every worker must
    see it. `goes_on` is asked when all readings are read: if more are to come another time, only
    what is certain already is decided, as a local runner would have it. `sources` are those of the
    site: periods, clock uncertainties and staleness matter. Raises what `make_operator` raises, and
    RapportErrors for whatever goes wrong on Spark.
    """
    check_plans(plans, pull, sources)
    parts_of(partitions, 0, 1)
    with tempfile.TemporaryDirectory(prefix="rapport-replay-", dir=directory) as folder:
        path = Path(folder) / "readings.parquet"
        ingestion = Ingestion(lateness_ms)
        history = ReadingsFiles(())
        if ingestion.write(readings, path):
            history = readings_files([path])
        with spark_errors("replaying on Spark"):
            found = find_in_history(
                spark,
                plans,
                pull,
                history,
                lateness_ms=lateness_ms,
                partitions=partitions,
                sources=sources,
                end=ingestion.watermark() if goes_on() else END_OF_TIME,
            )
        return SparkReplay.of(found)
