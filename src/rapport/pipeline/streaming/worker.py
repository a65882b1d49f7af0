"""What Spark's Python workers do for a live query: rows to parcels, and parcels to events. No Spark
in here. [PI-5, PI-10]

A worker keeps the buckets it has worked on in memory; what Spark keeps decides whether they may be
used.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
import pyarrow as pa

from rapport.core.codec import encode_block
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
"""Columns of parcels on their way to their buckets."""
OUTPUT = "channel STRING, block BINARY"
"""Columns of what buckets say: events for a channel as blocks; without a channel, a report."""
_BATCH_SCHEMA = pa.schema([("bucket", pa.int32()), ("parcel", pa.binary())])
_MOST_JOBS = 2
_MOST_EVENTS = 1_000


class BucketReport(msgspec.Struct, frozen=True, kw_only=True):
    """How far a bucket is."""

    bucket: int
    reached: int
    """The last position of `events` taken."""
    watermark: int
    anew: tuple[str, ...] = ()
    """Policies that begin now because they, or how they are parted, changed."""
    failed: dict[str, Problem] = {}


class BucketWorker:
    """One job in one worker."""

    def __init__(self, job: LiveJob) -> None:
        self._job, self._plans = job, job.plans()
        self._decoder: RowDecoder | None = None
        self._sharing: BatchRouter | None = None
        self._keepers: dict[int, BucketKeeper] = {}
        self._held: dict[int, CachedBucket] = {}
        self._anew: list[str] = []

    def parcels(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows of channels to parcels, each with the key of its bucket."""
        job = self._job
        decoder = self._decoder = self._decoder or RowDecoder(
            job.name, job.ontology, job.skew_ms, lambda positions: read_whole(job.place, positions)
        )
        sharing = self._sharing = self._sharing or BatchRouter(
            self._plans, job.shares, job.tables, job.ontology.sources
        )
        for batch in batches:
            made = sharing.parcels(decoder.decode(batch))
            raw = [encode_batch(parcel) for parcel in made]
            keys = job.keys[: len(raw)]
            yield pa.RecordBatch.from_arrays(
                [pa.array(keys, pa.int32()), pa.array(raw, pa.binary())], schema=_BATCH_SCHEMA
            )

    def take(
        self, key: int, raw: Iterable[bytes], shelf: BucketStore
    ) -> Iterator[tuple[str, bytes]]:
        """Lets a bucket take its parcels; what it says as channel and block, a report last."""
        number = self._job.keys.index(key)
        parcels = [decode_batch(one) for one in raw]
        keeper = self._keeper(number)
        # Taken out: should something fail, what is in memory is of no use.
        held = self._held.pop(number, None)
        found, self._held[number] = keeper.step(shelf, parcels, held)
        yield from ((QUARANTINE, parcel.aside) for parcel in parcels if parcel.aside)
        for block in _blocks(self._events(found)):
            yield DETECTIONS, block
        yield "", msgspec.json.encode(self._report(number))

    def _keeper(self, number: int) -> BucketKeeper:
        if number not in self._keepers:
            job = self._job
            plan = plan_of_bucket(
                number,
                self._plans,
                job.shares,
                lateness_ms=job.lateness_ms,
                sources=job.ontology.sources,
                began=job.began,
                after=job.after,
            )
            self._keepers[number] = BucketKeeper(plan, job.tables, told=self._anew.extend)
        return self._keepers[number]

    def _events(self, found: BucketResult) -> list[Event]:
        """As the node's engine appends them."""
        name = self._job.name
        return [
            *(detection.to_event(source=name) for detection in found.detections),
            *(unsure.to_event(source=name) for unsure in found.undecided),
            *(late_event(name, cause) for cause in found.late),
        ]

    def _report(self, number: int) -> BucketReport:
        bucket = self._held[number].bucket
        anew, self._anew[:] = tuple(self._anew), []
        return BucketReport(
            bucket=number,
            reached=bucket.reached,
            watermark=bucket.watermark,
            anew=anew,
            failed=bucket.failed(),
        )


_jobs: OrderedDict[str, BucketWorker] = OrderedDict()


def worker_for(stamp: str, job: Callable[[], LiveJob]) -> BucketWorker:
    """The job in this process; `job` is asked for it the first time. Older ones are forgotten."""
    working = _jobs.pop(stamp, None) or BucketWorker(job())
    _jobs[stamp] = working
    while len(_jobs) > _MOST_JOBS:
        _jobs.popitem(last=False)
    return working


def _blocks(events: Sequence[Event]) -> Iterator[bytes]:
    for first in range(0, len(events), _MOST_EVENTS):
        yield encode_block(events[first : first + _MOST_EVENTS])
