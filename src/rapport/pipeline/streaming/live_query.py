"""A site that people edit while jobs run: a half-written file stops none of them. [PI-12]

What a checkpoint says of itself beside what Spark keeps there: read before the query starts, so
that one that does not fit is refused in words. [PI-10]

What a live query finds, appended: each micro-batch into the channels, each event once.
[PI-2, PI-5]

The streaming query: rows of channels through buckets to what is found. [PI-5, PO-8]

Few tasks and few values of state, since every one costs in each micro-batch: rows travel to a
bucket as one parcel of Arrow, the state of a bucket is a mark and a list of pieces.

Runs the policies that a site lets run on Spark, for as long as wanted. [PI-5, PO-8, PI-10]

Stopped or killed anywhere it goes on from its checkpoint, and what it appends is the same as
without. When policies or tables change, the query is started anew with them at the next batch.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from rapport.core.codec import decode_block
from rapport.core.detection import DETECTED, UNDECIDED
from rapport.core.errors import Conflict, Corrupt, InvalidInput, RapportError
from rapport.core.event import Event
from rapport.kernel.clock import Clock, SystemClock
from rapport.kernel.files import make_private_directory
from rapport.kernel.telemetry import get_logger
from rapport.pipeline.datasource.append import AppendTarget, open_append, request_batches
from rapport.pipeline.datasource.locations import Location, OpenChannels, location_of
from rapport.pipeline.datasource.offsets import PositionRange, start_offset
from rapport.pipeline.datasource.source import register_datasource
from rapport.pipeline.datasource.source_options import LocationOptions
from rapport.pipeline.errors import short_errors, spark_errors
from rapport.pipeline.streaming.buckets import FORM
from rapport.pipeline.streaming.decoder import DETECTIONS, EVENTS, LIVE_ROWS
from rapport.pipeline.streaming.live_job import LiveJob, make_job, plans_on_spark
from rapport.pipeline.streaming.worker import BATCH_COLUMNS, OUTPUT, QUARANTINE, BucketReport
from rapport.policy.engine.engine import ALLOWED_SKEW_MS
from rapport.policy.engine.spark_policies import CHANNEL, LiveReport, report_event
from rapport.policy.engine.stream_steps import LATE_TYPE, QUARANTINED_TYPE
from rapport.policy.lifecycle.registry import CHANNEL as POLICIES
from rapport.policy.runner.local import SNAPSHOT
from rapport.site.site import Site, load_site

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class ReloadedSite:
    """A site as its files are; as they were last well-formed while they are not."""

    def __init__(self, site: Site) -> None:
        self._site, self._told = site, ""

    def site(self) -> Site:
        """The site now; a fault is told once."""
        try:
            self._site, self._told = load_site(self._site.directory), ""
        except RapportError as error:
            if error.message != self._told:
                self._told = error.message
                _log.warning("the site cannot be read; it is taken as it was", reason=self._told)
        return self._site


FILE = "rapport-live.json"
_NEW = "use a new checkpoint directory; it begins where you say with start"


class LiveCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Settled when the checkpoint is made, and the same as long as it is used."""

    site: str
    buckets: int
    keys: tuple[int, ...]
    """By bucket the number under which Spark keeps its state."""
    after: int
    """The position of `events` behind which it began."""
    began: int
    """The time from which silence counts."""
    start: dict[str, int]
    """The position of each channel behind which it began."""
    form: int = FORM
    snapshot: int = SNAPSHOT
    """The versions of what is saved of buckets and of their runners."""


def read_checkpoint(directory: Path, site: str) -> LiveCheckpoint | None:
    """None when nothing was begun there. Raises Conflict for one of another site, or made by a
    version of this program whose state cannot be read, Corrupt when the file is damaged.
    """
    file = directory / FILE
    try:
        raw = file.read_bytes()
    except FileNotFoundError:
        _check_empty(directory)
        return None
    except OSError as error:
        raise InvalidInput(
            f"cannot read {file}: {error.strerror}", code="live.bad_checkpoint"
        ) from None
    try:
        found = msgspec.json.decode(raw, type=LiveCheckpoint)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"{file} cannot be read: {error}", code="live.bad_checkpoint", hint=_NEW
        ) from None
    _check_fits(found, site, directory)
    return found


def write_checkpoint(directory: Path, made: LiveCheckpoint) -> None:
    """Whole or not at all."""
    make_private_directory(directory)
    aside = directory / f".{FILE}.new"
    with aside.open("wb") as file:
        file.write(msgspec.json.encode(made))
        file.flush()
        os.fsync(file.fileno())
    aside.replace(directory / FILE)


def _check_fits(found: LiveCheckpoint, site: str, directory: Path) -> None:
    if found.site != site:
        raise Conflict(
            f"the checkpoint {directory} is of the site {found.site!r}, not {site!r}",
            code="live.other_site",
            hint=_NEW,
        )
    if (found.form, found.snapshot) != (FORM, SNAPSHOT):
        raise Conflict(
            f"the checkpoint {directory} was made by another version of this program "
            f"(state {found.form}.{found.snapshot}, here {FORM}.{SNAPSHOT})",
            code="live.other_version",
            hint="go on with that version, or " + _NEW,
        )


def _check_empty(directory: Path) -> None:
    """A checkpoint of something else is not written into."""
    if (directory / "offsets").is_dir():
        raise Conflict(
            f"{directory} is the checkpoint of another query",
            code="live.other_checkpoint",
            hint="use a directory of its own",
        )


REPORT_EVERY_MS = 5_000
_log = get_logger(__name__)
Append = Callable[[str, list[Event]], None]


class LiveCounts(msgspec.Struct):
    """What a query did since it started."""

    batches: int = 0
    reached: int = 0
    """The last position of `events` that all buckets have taken."""
    watermark: int = 0
    detections: int = 0
    undecided: int = 0
    late: int = 0
    quarantined: int = 0


class BatchAppender:
    """Takes micro-batches; called by Spark one after the other."""

    def __init__(
        self, name: str, append: Append, clock: Clock, *, query: str, policies: dict[str, str]
    ) -> None:
        """`name`: of the site. `query`, `policies`: what reports say of the query."""
        self._name, self._append, self._clock = name, append, clock
        self._query, self._policies = query, policies
        self._reported_ns: int | None = None
        self._failed: set[str] = set()
        self.counts = LiveCounts()

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Appends what a micro-batch found. A batch that comes again has the same events, which
        the channels know by their ids.
        """
        with short_errors():
            rows = frame.toArrow().to_pylist()
        reports = [
            msgspec.json.decode(row["block"], type=BucketReport)
            for row in rows
            if not row["channel"]
        ]
        for channel in (QUARANTINE, DETECTIONS):
            blocks = [row["block"] for row in rows if row["channel"] == channel]
            events = _each_once(event for raw in blocks for event in decode_block(raw))
            if events:
                self._append(channel, events)
                self._count(events)
        if reports:
            self._note(reports)
            self._report(reports, batch)

    def _count(self, events: list[Event]) -> None:
        kinds, counts = Counter(event.type for event in events), self.counts
        counts.detections += kinds[DETECTED]
        counts.undecided += kinds[UNDECIDED]
        counts.late += kinds[LATE_TYPE]
        counts.quarantined += kinds[QUARANTINED_TYPE]

    def _note(self, reports: list[BucketReport]) -> None:
        self.counts.batches += 1
        self.counts.reached = min(report.reached for report in reports)
        self.counts.watermark = min(report.watermark for report in reports)
        anew = sorted({name for report in reports for name in report.anew})
        if anew:
            _log.info("policies begin anew", policies=anew)

    def _report(self, reports: list[BucketReport], batch: int) -> None:
        """Tells now and then that somebody watches; failures at once."""
        failed = {name: one for report in reports for name, one in report.failed.items()}
        for name in sorted(failed.keys() - self._failed):
            _log.error("policy set aside", policy=name, reason=failed[name].message)
        now_ns = self._clock.steady_ns()
        is_due = (
            self._reported_ns is None
            or now_ns - self._reported_ns >= REPORT_EVERY_MS * 1_000_000
            or failed.keys() != self._failed
        )
        self._failed = set(failed)
        if not is_due:
            return
        self._reported_ns = now_ns
        report = LiveReport(
            query=self._query,
            policies=self._policies,
            reached=self.counts.reached,
            watermark=self.counts.watermark,
            batch=batch,
            failed=failed,
        )
        self._append(CHANNEL, [report_event(self._name, report, self._clock.now_ms())])


def appender_for(place: Location, patience_ms: int) -> Append:
    """Appends to the channels of a place, through its node when one runs."""

    def append(channel: str, events: list[Event]) -> None:
        with open_append(AppendTarget(place, channel, patience_ms)) as into:
            for portion in request_batches(events):
                into(portion)

    return append


def _each_once(events: Iterable[Event]) -> list[Event]:
    """Several buckets may know of the same late reading."""
    return list({(event.source, event.id): event for event in events}.values())


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
    register_datasource(spark)
    session = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    for name, value in LIVE_OPTIONS.items():
        session.conf.set(name, value)
    session.conf.set("spark.sql.shuffle.partitions", str(buckets))
    return session


def default_buckets(cores: int) -> int:
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


def bucket_output(rows: DataFrame, job: LiveJob) -> DataFrame:
    """What the job's policies find in a stream of channel rows: OUTPUT."""
    from rapport.pipeline.streaming.processor import BucketProcessor, JobHandle

    working = JobHandle(rows.sparkSession.sparkContext.broadcast(job), job.stamp)

    def parcels(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return working().parcels(batches)

    return (
        rows.mapInArrow(parcels, BATCH_COLUMNS)
        .groupBy("bucket")
        .transformWithState(
            statefulProcessor=BucketProcessor(working),
            outputStructType=OUTPUT,
            outputMode="append",
            timeMode="none",
        )
    )


CHANNELS = (DETECTIONS, EVENTS)
"""In this order: what the clock said has to be known before the events that came after it."""
_DOING = "policies on Spark"
_LOOK_EVERY_SECONDS = 0.5
_LOOK_AT_TABLES_MS = 30_000


class LiveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a live query is run."""

    url: str = ""
    """The node's door, where its log cannot be read as files."""
    key_file: str = ""
    buckets: int = 0
    """In how many parts policies are run; 0: one for two cores. Settled by the first start."""
    start: object = "start"
    """Where the first start begins: `start`, `end`, or positions."""
    most_rows: int = 100_000
    """Of one micro-batch: more is faster, fewer are told sooner."""
    patience_ms: int = 30_000


def run_live(
    spark: SparkSession,
    site: Path,
    *,
    checkpoint: Path,
    once: bool = False,
    settings: LiveSettings | None = None,
    stop: threading.Event | None = None,
    clock: Clock | None = None,
) -> LiveCounts:
    """Runs until `stop` is set, or with `once` until everything that is there now is taken.

    Raises InvalidInput when the site lets no policy run on Spark, Conflict for a checkpoint that
    does not fit, and RapportErrors for what goes wrong on Spark.
    """
    how, wanted = settings or LiveSettings(), stop or threading.Event()
    running = LiveRun(spark, site, checkpoint, how, clock or SystemClock())
    while True:
        counts = running.run(once=once, stop=wanted)
        if once or wanted.is_set():
            return counts
        _log.info("policies or tables changed: the query starts anew", site=str(site))


class LiveRun:
    """A site's live query, started as often as its policies or tables change."""

    def __init__(
        self,
        spark: SparkSession,
        site: Path,
        checkpoint: Path,
        settings: LiveSettings,
        clock: Clock,
    ) -> None:
        self._spark, self._directory, self._checkpoint = spark, site, checkpoint
        self._settings, self._clock = settings, clock
        self._options = LocationOptions(
            site="" if settings.url else str(site),
            url=settings.url,
            key_file=settings.key_file,
            patience_ms=settings.patience_ms,
        )
        self._place: Location = location_of(self._options)
        self._starts = 0
        self._site: ReloadedSite | None = None
        self.counts = LiveCounts()

    def run(self, *, once: bool, stop: threading.Event) -> LiveCounts:
        """One query, until it ends, `stop` is set, or policies or tables have changed."""
        with spark_errors(_DOING):
            looked_at = self._last_change()
            site = self._site_now()
            job, made = self._prepared(site)
            query = self._started(site, job, made, once=once)
            try:
                self._wait(query, site, looked_at, once=once, stop=stop)
            finally:
                query.stop()
        return self.counts

    def _prepared(self, site: Site) -> tuple[LiveJob, LiveCheckpoint]:
        plans = plans_on_spark(site, self._place)
        if not plans:
            raise InvalidInput(
                f"the site {site.name!r} lets no policy run on Spark",
                code="live.no_policies",
                hint='add to its site.toml: [policies] on_spark = ["*"], or names',
            )
        made = read_checkpoint(self._checkpoint, site.name)
        if made is None:
            made = self._begun(site)
            write_checkpoint(self._checkpoint, made)
        self._starts += 1
        job = make_job(
            name=site.name,
            plans=plans,
            ontology=site.ontology,
            pull=site.tables,
            place=self._place,
            lateness_ms=site.lateness_ms,
            skew_ms=ALLOWED_SKEW_MS,
            keys=made.keys,
            began=made.began,
            after=made.after,
            stamp=f"{self._checkpoint.resolve()} {self._clock.now_ms()} {self._starts}",
        )
        for line in job.shares.explain():
            _log.info("policy on Spark", shared=line)
        return job, made

    def _begun(self, site: Site) -> LiveCheckpoint:
        """A new checkpoint: where it begins is settled now."""
        cores = int(self._spark.sparkContext.defaultParallelism)
        buckets = self._settings.buckets or default_buckets(cores)
        with self._place.opened() as opened:
            spans = {name: opened.span(name) for name in CHANNELS}
            start = start_offset(self._settings.start, spans)
            began = self._began(opened, start[EVENTS], spans[EVENTS].last)
        return LiveCheckpoint(
            site=site.name,
            buckets=buckets,
            keys=bucket_keys(self._spark, buckets),
            after=start[EVENTS],
            began=began,
            start=start,
        )

    def _began(self, opened: OpenChannels, after: int, last: int) -> int:
        """The time of the first event, or now when there is none yet."""
        piece = PositionRange(EVENTS, after, min(last, after + 1))
        for chunk in opened.chunks(piece, (), bare=True, passes_damage=False):
            for event in chunk.events:
                return min(event.time, self._clock.now_ms())
        return self._clock.now_ms()

    def _started(
        self, site: Site, job: LiveJob, made: LiveCheckpoint, *, once: bool
    ) -> StreamingQuery:
        session = live_session(self._spark, made.buckets)
        source = session.readStream.format("rapport").schema(LIVE_ROWS)
        rows = source.options(**self._read_from(made)).load()
        versions = {plan.policy: plan.version() for plan in job.plans()}
        taking = BatchAppender(
            site.name,
            appender_for(self._place, self._settings.patience_ms),
            self._clock,
            query=self._checkpoint.name,
            policies=versions,
        )
        taking.counts = self.counts
        writer = (
            bucket_output(rows, job)
            .writeStream.foreachBatch(taking)
            .option("checkpointLocation", self._checkpoint.resolve().as_uri())
        )
        if once:
            writer = writer.trigger(availableNow=True)
        return writer.start()

    def _read_from(self, made: LiveCheckpoint) -> dict[str, Any]:
        place = self._options
        where = (
            {"url": place.url, "key_file": place.key_file} if place.url else {"site": place.site}
        )
        return {
            **{name: value for name, value in where.items() if value},
            "channels": ",".join(CHANNELS),
            "in_turn": "true",
            "from": msgspec.json.encode(made.start).decode(),
            "most_rows": str(self._settings.most_rows),
            "patience": f"{self._settings.patience_ms}ms",
        }

    def _wait(
        self,
        query: StreamingQuery,
        site: Site,
        looked_at: int,
        *,
        once: bool,
        stop: threading.Event,
    ) -> None:
        """Until the query ends or should; raises what ended it."""
        seen_ns = self._clock.steady_ns()
        while not query.awaitTermination(_LOOK_EVERY_SECONDS):
            if stop.is_set():
                return
            if once:
                continue
            if self._last_change() != looked_at:
                return
            if self._clock.steady_ns() - seen_ns >= _LOOK_AT_TABLES_MS * 1_000_000:
                seen_ns = self._clock.steady_ns()
                if self._site_now().tables.version() != site.tables.version():
                    return

    def _site_now(self) -> Site:
        """At first it must be well-formed; a fault that comes later ends no query."""
        if self._site is None:
            self._site = ReloadedSite(load_site(self._directory))
        return self._site.site()

    def _last_change(self) -> int:
        """How far the record of changes of policies goes."""
        with self._place.opened() as opened:
            return opened.span(POLICIES).last
