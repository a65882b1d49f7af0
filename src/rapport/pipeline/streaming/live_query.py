"""The live query of a site: its policies on Spark, for as long as wanted. [PI-5, PO-8, PI-10]

A Structured Streaming query: rows of channels become one batch of Arrow for each bucket, buckets
are keys of a stateful operator, executors append the events that buckets find through the sink
`rapport`, each once. Killed anywhere it goes on from its checkpoint with the same results. The
driver reads counts from the query's progress; when policies or tables change it starts the query
anew with them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from rapport.core.detection import DETECTED, ENDED, UNDECIDED
from rapport.core.errors import Conflict, Corrupt, InvalidInput, Problem, RapportError
from rapport.core.event import Event
from rapport.kernel.clock import Clock, SystemClock
from rapport.kernel.files import make_private_directory, write_atomically
from rapport.kernel.telemetry import get_logger
from rapport.pipeline.datasource.append import AppendTarget, open_append
from rapport.pipeline.datasource.locations import Location, OpenChannels, location_of
from rapport.pipeline.datasource.offsets import PositionRange, start_offset
from rapport.pipeline.datasource.source_options import EVERY_CHANNEL, LocationOptions
from rapport.pipeline.errors import connect_unsupported, spark_errors
from rapport.pipeline.session import is_connect, parallelism
from rapport.pipeline.streaming.buckets import FORM
from rapport.pipeline.streaming.decoder import DETECTIONS, EVENTS, LIVE_ROWS
from rapport.pipeline.streaming.live_job import LiveJob, make_job, policies_on_spark
from rapport.pipeline.streaming.worker import BATCH_COLUMNS, BucketReport, JobHandle
from rapport.policy.engine.engine import ALLOWED_SKEW_MS
from rapport.policy.engine.spark_policies import CHANNEL, LiveReport, report_event
from rapport.policy.engine.stream_steps import LATE_TYPE, QUARANTINED_TYPE
from rapport.policy.lifecycle.registry import CHANNEL as POLICIES
from rapport.policy.runner.local import SNAPSHOT
from rapport.site.site import Site, load_site

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CHANNELS = (DETECTIONS, EVENTS)
"""In this order: a tick of the clock has to be known before the events that came after it."""
FILE = "rapport-live.json"
MOST_BUCKETS = 1_000
REPORT_EVERY_MS = 5_000
_ACTION = "policies on Spark"
_METRICS = "rapport"
_LOOK_EVERY_SECONDS = 0.5
_LOOK_AT_TABLES_MS = 30_000
_NEW_CHECKPOINT = "use a new checkpoint directory; it begins where you say with start"
_SESSION_OPTIONS = {
    # Time moves on by rows only: an empty micro-batch decides nothing.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # The state of a batch is a few bytes more than that of the one before.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.minBatchesToRetain": "10",
}
_log = get_logger(__name__)


class LiveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a live query is run."""

    url: str = ""
    """Address of the node, where its log cannot be read as files."""
    key_file: str = ""
    buckets: int = 0
    """Parts in which policies run; 0: one for two cores. Settled by the first start."""
    start: object = "start"
    """Where the first start begins: `start`, `end`, or positions."""
    most_rows: int = 100_000
    """Rows of one micro-batch: more give throughput, fewer latency."""
    patience_ms: int = 30_000


class LiveCounts(msgspec.Struct):
    """Results of a query since it started."""

    batches: int = 0
    busy_ms: int = 0
    """What the micro-batches took."""
    reached: int = 0
    """The last position of `events` that all buckets have processed."""
    watermark: int = 0
    detections: int = 0
    undecided: int = 0
    late: int = 0
    quarantined: int = 0


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
    """Runs until `stop` is set, or with `once` until everything that is there now is processed.

    Raises InvalidInput when the site lets no policy run on Spark, Conflict for a checkpoint that
    does not fit, and RapportErrors for errors of Spark.
    """
    chosen, ending = settings or LiveSettings(), stop or threading.Event()
    running = LiveRun(spark, site, checkpoint, chosen, clock or SystemClock())
    while True:
        counts = running.run(once=once, stop=ending)
        if once or ending.is_set():
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
        self._location: Location = location_of(self._options)
        self._starts = 0
        self._site: ReloadedSite | None = None
        self.counts = LiveCounts()

    def run(self, *, once: bool, stop: threading.Event) -> LiveCounts:
        """One query, until it ends, `stop` is set, or policies or tables have changed."""
        with spark_errors(_ACTION):
            last_change = self._last_change()
            site = self._current_site()
            job, made = self._job(site)
            progress = QueryProgress(self.counts, self._report_to(site, job), self._clock)
            query = self._start(job, made, once=once)
            try:
                self._wait(query, progress, site, last_change, once=once, stop=stop)
            finally:
                query.stop()
                progress.read(query)
        return self.counts

    def _job(self, site: Site) -> tuple[LiveJob, LiveCheckpoint]:
        policies = policies_on_spark(site, self._location)
        made = read_checkpoint(self._checkpoint, site.name)
        # Without a policy a checkpoint goes on: it may have situations that end.
        if not (policies.plans or (made is not None and site.on_spark)):
            raise InvalidInput(
                f"the site {site.name!r} lets no policy run on Spark",
                code="live.no_policies",
                hint='add to its site.toml: [policies] on_spark = ["*"], or names',
            )
        if made is None:
            made = self._new_checkpoint(site)
            write_checkpoint(self._checkpoint, made)
        elif self._settings.buckets not in (0, made.buckets):
            _log.warning(
                "the checkpoint keeps its number of buckets",
                buckets=made.buckets,
                asked=self._settings.buckets,
            )
        self._starts += 1
        job = make_job(
            name=site.name,
            policies=policies,
            ontology=site.ontology,
            pull=site.tables,
            location=self._location,
            lateness_ms=site.lateness_ms,
            skew_ms=ALLOWED_SKEW_MS,
            keys=made.keys,
            began=made.began,
            after=made.after,
            kept=made.places,
            stamp=f"{self._checkpoint.resolve()} {self._clock.now_ms()} {self._starts}",
        )
        for line in job.assignment.explain():
            _log.info("policy on Spark", shared=line)
        if (places := job.assignment.places()) != made.places:
            made = msgspec.structs.replace(made, places=places)
            write_checkpoint(self._checkpoint, made)
        return job, made

    def _new_checkpoint(self, site: Site) -> LiveCheckpoint:
        buckets = self._settings.buckets or default_buckets(parallelism(self._spark))
        with self._location.opened() as channels:
            spans = {name: channels.span(name) for name in CHANNELS}
            start = start_offset(self._settings.start, spans)
            began = self._first_time(channels, start[EVENTS], spans[EVENTS].last)
        return LiveCheckpoint(
            site=site.name,
            buckets=buckets,
            keys=bucket_keys(self._spark, buckets),
            after=start[EVENTS],
            began=began,
            start=start,
        )

    def _first_time(self, channels: OpenChannels, after: int, last: int) -> int:
        """The time of the first event, or now when there is none yet."""
        first = PositionRange(EVENTS, after, min(last, after + 1))
        for chunk in channels.chunks(first, (), bare=True, passes_damage=False):
            for event in chunk.events:
                return min(event.time, self._clock.now_ms())
        return self._clock.now_ms()

    def _start(self, job: LiveJob, made: LiveCheckpoint, *, once: bool) -> StreamingQuery:
        session = live_session(self._spark, made.buckets)
        location = self._location_options()
        rows = live_rows(
            session,
            location,
            most_rows=str(self._settings.most_rows),
            **{"from": msgspec.json.encode(made.start).decode()},
        )
        writer = (
            live_events(rows, job)
            .writeStream.format("rapport")
            .options(**location, channel=EVERY_CHANNEL)
            .option("checkpointLocation", self._checkpoint.resolve().as_uri())
        )
        if once:
            writer = writer.trigger(availableNow=True)
        return writer.start()

    def _location_options(self) -> dict[str, str]:
        given = {
            "site": self._options.site,
            "url": self._options.url,
            "key_file": self._options.key_file,
            "patience": f"{self._settings.patience_ms}ms",
        }
        return {name: value for name, value in given.items() if value}

    def _report_to(self, site: Site, job: LiveJob) -> SendReport:
        """Appends reports on the query to the channel `pipeline`."""
        policies = {plan.policy: plan.version() for plan in job.plans()}
        target = AppendTarget(self._location, CHANNEL, self._settings.patience_ms)

        def report(batch: int, counts: LiveCounts, failed: dict[str, Problem]) -> None:
            found = LiveReport(
                query=self._checkpoint.name,
                policies=policies,
                reached=counts.reached,
                watermark=counts.watermark,
                batch=batch,
                failed=failed,
            )
            event: Event = report_event(site.name, found, self._clock.now_ms())
            with open_append(target) as append:
                append([event])

        return report

    def _wait(
        self,
        query: StreamingQuery,
        progress: QueryProgress,
        site: Site,
        last_change: int,
        *,
        once: bool,
        stop: threading.Event,
    ) -> None:
        """Waits until the query ends or should; raises the error that ended it."""
        looked_ns = self._clock.steady_ns()
        while not query.awaitTermination(_LOOK_EVERY_SECONDS):
            progress.read(query)
            if stop.is_set():
                return
            if once:
                continue
            if self._last_change() != last_change:
                return
            if self._clock.steady_ns() - looked_ns >= _LOOK_AT_TABLES_MS * 1_000_000:
                looked_ns = self._clock.steady_ns()
                if self._current_site().tables.version() != site.tables.version():
                    return

    def _current_site(self) -> Site:
        """At first it must be well-formed; an error that comes later ends no query."""
        if self._site is None:
            self._site = ReloadedSite(load_site(self._directory))
        return self._site.site()

    def _last_change(self) -> int:
        """The end of the channel of policy changes."""
        with self._location.opened() as channels:
            return channels.span(POLICIES).last


class ReloadedSite:
    """A site that people edit while jobs run: its files as they are, or as they were when they
    were last well-formed."""

    def __init__(self, site: Site) -> None:
        self._site, self._problem = site, ""

    def site(self) -> Site:
        """The site now; a problem is logged once."""
        try:
            self._site, self._problem = load_site(self._site.directory), ""
        except RapportError as error:
            if error.message != self._problem:
                self._problem = error.message
                _log.warning("the site cannot be read; it is taken as it was", reason=error.message)
        return self._site


# --- the query's plan -----------------------------------------------------------------------------


def live_session(spark: SparkSession, buckets: int) -> SparkSession:
    """A new session of the same Spark with the options of live queries; the caller's session keeps
    its own. Raises ConnectUnsupported for a Connect client older than Spark 4.3."""
    if is_connect(spark) and not hasattr(spark, "newSession"):
        raise connect_unsupported(f"{_ACTION} with this version of pyspark")
    if not is_connect(spark):
        # Makes the session the active one of this thread: without one a writer does not find
        # Python data sources.
        spark.createDataFrame([], "nothing INT")
    session = spark.newSession()
    for name, value in _SESSION_OPTIONS.items():
        session.conf.set(name, value)
    session.conf.set("spark.sql.shuffle.partitions", str(buckets))
    return session


def live_rows(session: SparkSession, location: dict[str, str], **options: str) -> DataFrame:
    """The stream of events and detections of a site, in turn."""
    source = session.readStream.format("rapport").schema(LIVE_ROWS)
    source = source.options(**location, channels=",".join(CHANNELS), in_turn="true", **options)
    return source.load()


def live_events(rows: DataFrame, job: LiveJob) -> DataFrame:
    """The events that the job's policies find in a stream of channel rows; reports and counts go
    into the query's progress."""
    from pyspark.sql import functions as F

    from rapport.pipeline.streaming.processor import bucket_rows

    handle = JobHandle.of(job)

    def batches(given: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return handle.worker().batches(given)

    def count(*kinds: str) -> Any:
        return F.count(F.when(F.col("type").isin(*kinds), 1))

    output = bucket_rows(rows.mapInArrow(batches, BATCH_COLUMNS).groupBy("bucket"), handle)
    # Several buckets may find the same reading late or unusable.
    late, unusable = (
        F.size(F.collect_set(F.when(F.col("type") == kind, F.col("id"))))
        for kind in (LATE_TYPE, QUARANTINED_TYPE)
    )
    observed = output.observe(
        _METRICS,
        F.array_join(F.collect_list("report"), "\n").alias("reports"),
        count(DETECTED, ENDED).alias("detections"),
        count(UNDECIDED).alias("undecided"),
        late.alias("late"),
        unusable.alias("quarantined"),
    )
    return observed.where("channel IS NOT NULL").drop("report")


def default_buckets(cores: int) -> int:
    """One for two cores: reading, Java and the node work beside them, and every bucket costs in
    each micro-batch. Measured on two cores: as many events a second with one bucket as with two,
    and detections come a third sooner.
    """
    return max(1, cores // 2)


def bucket_keys(spark: SparkSession, buckets: int) -> tuple[int, ...]:
    """One key for each bucket, such that Spark puts every key into another task: by their own
    numbers several buckets would share a task while others have none."""
    if not 1 <= buckets <= MOST_BUCKETS:
        raise InvalidInput(
            f"{buckets} is not a number of buckets",
            code="live.bad_buckets",
            hint=f"choose 1 to {MOST_BUCKETS}; about one for two cores",
        )
    # So many tries meet every task but for a chance of one in millions; then more are made.
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


# --- progress -------------------------------------------------------------------------------------


SendReport = Callable[[int, LiveCounts, dict[str, Problem]], None]
"""Called with the number of a batch, counts and failed policies."""


class QueryProgress:
    """Counts of a query from the progress of its micro-batches, and reports about it."""

    def __init__(self, counts: LiveCounts, report: SendReport, clock: Clock) -> None:
        self._counts, self._report, self._clock = counts, report, clock
        self._last_batch = -1
        self._reported_ns: int | None = None
        self._failed: set[str] = set()

    def read(self, query: StreamingQuery) -> None:
        """Adds the micro-batches since the last call."""
        for progress in query.recentProgress:
            metrics = (progress["observedMetrics"] or {}).get(_METRICS)
            if progress["batchId"] > self._last_batch and metrics is not None:
                self._last_batch = progress["batchId"]
                self._counts.busy_ms += progress["batchDuration"]
                self._add(metrics)

    def _add(self, metrics: Any) -> None:
        # A Connect client gets the values of a row in a field of its own.
        values = metrics["values"] if "values" in metrics else tuple(metrics)
        lines, detections, undecided, late, quarantined = values
        counts = self._counts
        counts.detections += detections
        counts.undecided += undecided
        counts.late += late
        counts.quarantined += quarantined
        reports = [msgspec.json.decode(line, type=BucketReport) for line in lines.splitlines()]
        if not reports:
            return
        counts.batches += 1
        counts.reached = min(report.reached for report in reports)
        counts.watermark = min(report.watermark for report in reports)
        anew = sorted({name for report in reports for name in report.anew})
        if anew:
            _log.info("policies begin anew", policies=anew)
        self._send(reports)

    def _send(self, reports: list[BucketReport]) -> None:
        """Reports now and then that the policies are watched; failures at once."""
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
        if is_due:
            self._reported_ns = now_ns
            self._report(self._last_batch, self._counts, failed)


# --- the checkpoint's own file --------------------------------------------------------------------


class LiveCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that stay the same as long as a checkpoint is used (`places` only for policies that
    stay); read before the query starts, so that a checkpoint that does not fit is refused with a
    reason."""

    site: str
    buckets: int
    keys: tuple[int, ...]
    """By bucket the key under which Spark keeps its state."""
    after: int
    """The position of `events` behind which it began."""
    began: int
    """The time from which silence counts."""
    start: dict[str, int]
    """The position of each channel behind which it began."""
    places: dict[str, str | int] = {}
    """Where the policies run, see KeptPlaces."""
    form: int = FORM
    snapshot: int = SNAPSHOT
    """Versions of the state of buckets and of their runners."""


def read_checkpoint(directory: Path, site: str) -> LiveCheckpoint | None:
    """None for a new directory. Raises Conflict for a checkpoint of another site or with the state
    of another version, Corrupt when the file is damaged.
    """
    file = directory / FILE
    try:
        raw = file.read_bytes()
    except FileNotFoundError:
        if (directory / "offsets").is_dir():
            raise Conflict(
                f"{directory} is the checkpoint of another query",
                code="live.other_checkpoint",
                hint="use a directory of its own",
            ) from None
        return None
    except OSError as error:
        raise InvalidInput(
            f"cannot read {file}: {error.strerror}", code="live.bad_checkpoint"
        ) from None
    try:
        found = msgspec.json.decode(raw, type=LiveCheckpoint)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"{file} cannot be read: {error}", code="live.bad_checkpoint", hint=_NEW_CHECKPOINT
        ) from None
    if found.site != site:
        raise Conflict(
            f"the checkpoint {directory} is of the site {found.site!r}, not {site!r}",
            code="live.other_site",
            hint=_NEW_CHECKPOINT,
        )
    if (found.form, found.snapshot) != (FORM, SNAPSHOT):
        raise Conflict(
            f"the checkpoint {directory} was made by another version of this program "
            f"(state {found.form}.{found.snapshot}, here {FORM}.{SNAPSHOT})",
            code="live.other_version",
            hint="go on with that version, or " + _NEW_CHECKPOINT,
        )
    return found


def write_checkpoint(directory: Path, made: LiveCheckpoint) -> None:
    """Writes the file whole or not at all."""
    make_private_directory(directory)
    write_atomically(directory / FILE, msgspec.json.encode(made))
