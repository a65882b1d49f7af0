"""The streaming query: rows of channels through buckets to what is found. [PI-5, PO-8]

Few tasks and few values of state, since every one costs in each micro-batch: rows travel to a
bucket as one parcel of Arrow, the state of a bucket is a mark and a list of pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from rapport.core.errors import InvalidInput
from rapport.pipeline.live.job import LiveJob
from rapport.pipeline.live.working import OUTPUT, PARCELS
from rapport.pipeline.sources.register import register_sources

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST_BUCKETS = 1_000
LIVE_OPTIONS = {
    # Time moves on by rows only: an empty micro-batch decides nothing.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # The state of a batch is a few bytes more than that of the one before.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.minBatchesToRetain": "10",
}


def live_session(spark: SparkSession, buckets: int) -> SparkSession:
    """A session of the same Spark with the options of live queries, which knows the source of
    channels; the options of others are not touched.
    """
    from pyspark.sql import SparkSession

    # A copy, since a new session can neither see the source that another one has registered nor
    # register it again.
    register_sources(spark)
    session = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    for name, value in LIVE_OPTIONS.items():
        session.conf.set(name, value)
    session.conf.set("spark.sql.shuffle.partitions", str(buckets))
    return session


def usual_buckets(cores: int) -> int:
    """One for two cores: reading, Java and the node work beside them, and every bucket costs in
    each micro-batch. Measured on two cores: as many events a second with one bucket as with two,
    and detections come a third sooner.
    """
    return max(1, cores // 2)


def bucket_keys(spark: SparkSession, buckets: int) -> tuple[int, ...]:
    """Numbers that Spark puts into different tasks, one for each bucket: by their own numbers
    several buckets would share a task while others have none.
    """
    if not 1 <= buckets <= MOST_BUCKETS:
        raise InvalidInput(
            f"{buckets} is not a number of buckets",
            code="live.bad_buckets",
            hint=f"choose 1 to {MOST_BUCKETS}; about one for two cores",
        )
    # With so many tries each task is met, but for a chance of one in millions; then more are made.
    tries = 32 * buckets
    while True:
        rows = (
            spark.range(tries)
            .selectExpr("CAST(id AS INT) AS k")
            .selectExpr("k", f"pmod(hash(k), {buckets}) AS task")
            .groupBy("task")
            .agg({"k": "min"})
            .collect()
        )
        if len(rows) == buckets:
            return tuple(int(row[1]) for row in sorted(rows, key=lambda row: int(row[0])))
        tries *= 4


def found_by(rows: DataFrame, job: LiveJob) -> DataFrame:
    """What the job's policies find in a stream of channel rows: OUTPUT."""
    from rapport.pipeline.live.processor import BucketProcessor, SentJob

    working = SentJob(rows.sparkSession.sparkContext.broadcast(job), job.stamp)

    def parcels(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return working().parcels(batches)

    return (
        rows.mapInArrow(parcels, PARCELS)
        .groupBy("bucket")
        .transformWithState(
            statefulProcessor=BucketProcessor(working),
            outputStructType=OUTPUT,
            outputMode="append",
            timeMode="none",
        )
    )
