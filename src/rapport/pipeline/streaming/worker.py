"""The work of Spark's Python workers for a live query: rows to bucket batches, bucket batches to
events. No Spark in here. [PI-5, PI-10]

A worker keeps the buckets it has worked on in memory; Spark's state decides whether they may be
used.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa

from rapport.core.codec import decode_block
from rapport.core.errors import Problem
from rapport.core.event import Event
from rapport.pipeline.streaming.buckets import (
    BucketKeeper,
    BucketResult,
    BucketStore,
    CachedBucket,
    decode_batch,
    encode_batch,
)
from rapport.pipeline.streaming.decoder import DETECTIONS, RowDecoder, read_whole
from rapport.pipeline.streaming.live_job import BatchRouter, LiveJob, plan_of_bucket
from rapport.policy.engine.stream_steps import late_event

QUARANTINE = "quarantine"
BATCH_COLUMNS = "bucket INT, parcel BINARY"
"""Columns of batches on their way to their buckets."""
OUTPUT = (
    "channel STRING, source STRING, id STRING, type STRING, subject STRING, time BIGINT, "
    "headers MAP<STRING, STRING>, data BINARY, report STRING"
)
"""Columns of the output of buckets: events for a channel; last, without a channel, a report."""
_BATCH_SCHEMA = pa.schema([("bucket", pa.int32()), ("parcel", pa.binary())])
_MOST_JOBS = 2


class BucketReport(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a bucket."""

    bucket: int
    reached: int
    """The last processed position of `events`."""
    watermark: int
    anew: tuple[str, ...] = ()
    """Policies that begin now because they, or their partition keys, changed."""
    failed: dict[str, Problem] = {}


class BucketWorker:
    """One job in one worker process."""

    def __init__(self, job: LiveJob) -> None:
        self._job, self._plans = job, job.plans()
        self._decoder: RowDecoder | None = None
        self._router: BatchRouter | None = None
        self._keepers: dict[int, BucketKeeper] = {}
        self._cached: dict[int, CachedBucket] = {}
        self._anew: list[str] = []

    def batches(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows of channels to bucket batches, each with the key of its bucket."""
        job = self._job
        decoder = self._decoder = self._decoder or RowDecoder(
            job.name,
            job.ontology,
            job.skew_ms,
            lambda positions: read_whole(job.location, positions),
        )
        router = self._router = self._router or BatchRouter(
            self._plans, job.assignment, job.tables, job.ontology.sources
        )
        for batch in rows:
            raw = [encode_batch(one) for one in router.batches(decoder.decode(batch))]
            keys = job.keys[: len(raw)]
            yield pa.RecordBatch.from_arrays(
                [pa.array(keys, pa.int32()), pa.array(raw, pa.binary())], schema=_BATCH_SCHEMA
            )

    def take(self, key: int, raw: Iterable[bytes], store: BucketStore) -> Iterator[dict[str, Any]]:
        """Gives a bucket its batches; yields rows of OUTPUT, the report last."""
        number = self._job.keys.index(key)
        batches = [decode_batch(one) for one in raw]
        keeper = self._keeper(number)
        # Removed first: after an error the bucket in memory is of no use.
        cached = self._cached.pop(number, None)
        result, self._cached[number] = keeper.step(store, batches, cached)
        for batch in batches:
            if batch.aside:
                yield from (_row(QUARANTINE, event) for event in decode_block(batch.aside))
        yield from (_row(DETECTIONS, event) for event in self._events(result))
        report = msgspec.json.encode(self._report(number)).decode()
        yield _NO_EVENT | {"report": report}

    def _keeper(self, number: int) -> BucketKeeper:
        if number not in self._keepers:
            job = self._job
            plan = plan_of_bucket(
                number,
                self._plans,
                job.assignment,
                lateness_ms=job.lateness_ms,
                sources=job.ontology.sources,
                began=job.began,
                after=job.after,
                stopped=job.stopped,
                needed=job.needed,
            )
            self._keepers[number] = BucketKeeper(plan, job.tables, on_restart=self._anew.extend)
        return self._keepers[number]

    def _events(self, result: BucketResult) -> list[Event]:
        """As the node's engine appends them."""
        name = self._job.name
        return [
            *(detection.to_event(source=name) for detection in result.detections),
            *(undecided.to_event(source=name) for undecided in result.undecided),
            *(late_event(name, cause) for cause in result.late),
        ]

    def _report(self, number: int) -> BucketReport:
        bucket = self._cached[number].bucket
        anew, self._anew[:] = tuple(self._anew), []
        return BucketReport(
            bucket=number,
            reached=bucket.reached,
            watermark=bucket.watermark,
            anew=anew,
            failed=bucket.failed(),
        )


class JobHandle:
    """A job as it travels with Spark's functions: encoded once, decoded once in each worker
    process."""

    def __init__(self, encoded: bytes, stamp: str) -> None:
        self._encoded, self._stamp = encoded, stamp

    @staticmethod
    def of(job: LiveJob) -> JobHandle:
        return JobHandle(pickle.dumps(job, pickle.HIGHEST_PROTOCOL), job.stamp)

    def worker(self) -> BucketWorker:
        """The job's worker in this process. The two newest jobs are kept."""
        worker = _workers.pop(self._stamp, None) or BucketWorker(self._job())
        _workers[self._stamp] = worker
        while len(_workers) > _MOST_JOBS:
            _workers.popitem(last=False)
        return worker

    def _job(self) -> LiveJob:
        return pickle.loads(self._encoded)  # type: ignore[no-any-return]


_workers: OrderedDict[str, BucketWorker] = OrderedDict()
_NO_EVENT = dict.fromkeys(
    ("channel", "source", "id", "type", "subject", "time", "headers", "data", "report")
)


def _row(channel: str, event: Event) -> dict[str, Any]:
    return {
        "channel": channel,
        "source": event.source,
        "id": event.id,
        "type": event.type,
        "subject": event.subject,
        "time": event.time,
        "headers": dict(event.headers),
        "data": event.data,
        "report": None,
    }
