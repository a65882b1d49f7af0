"""Runs the policies that a site lets run on Spark, for as long as wanted. [PI-5, PO-8, PI-10]

Stopped or killed anywhere it goes on from its checkpoint, and what it appends is the same as
without. When policies or tables change, the query is started anew with them at the next batch.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rapport.core.errors import InvalidInput
from rapport.kernel.clock import Clock, SystemClock
from rapport.kernel.telemetry import get_logger
from rapport.pipeline.faults import spark_faults
from rapport.pipeline.live.appending import Appending, LiveCounts, append_at
from rapport.pipeline.live.checkpoint import LiveCheckpoint, read_checkpoint, write_checkpoint
from rapport.pipeline.live.decoding import DETECTIONS, EVENTS, LIVE_ROWS
from rapport.pipeline.live.job import LiveJob, make_job
from rapport.pipeline.live.policies import plans_on_spark
from rapport.pipeline.live.query import bucket_keys, found_by, live_session, usual_buckets
from rapport.pipeline.site_now import SiteNow
from rapport.pipeline.sources.options import PlaceOptions
from rapport.pipeline.sources.place import Opened, Place, place_of
from rapport.pipeline.sources.planning import Piece, begin_at
from rapport.policy.engine.engine import ALLOWED_SKEW_MS
from rapport.policy.lifecycle.registry import CHANNEL as POLICIES
from rapport.site.site import Site, load_site

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CHANNELS = (DETECTIONS, EVENTS)
"""In this order: what the clock said has to be known before the events that came after it."""
_DOING = "policies on Spark"
_LOOK_EVERY_SECONDS = 0.5
_LOOK_AT_TABLES_MS = 30_000
_log = get_logger(__name__)


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
        self._options = PlaceOptions(
            site="" if settings.url else str(site),
            url=settings.url,
            key_file=settings.key_file,
            patience_ms=settings.patience_ms,
        )
        self._place: Place = place_of(self._options)
        self._starts = 0
        self._site: SiteNow | None = None
        self.counts = LiveCounts()

    def run(self, *, once: bool, stop: threading.Event) -> LiveCounts:
        """One query, until it ends, `stop` is set, or policies or tables have changed."""
        with spark_faults(_DOING):
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
        buckets = self._settings.buckets or usual_buckets(cores)
        with self._place.opened() as opened:
            spans = {name: opened.span(name) for name in CHANNELS}
            start = begin_at(self._settings.start, spans)
            began = self._began(opened, start[EVENTS], spans[EVENTS].last)
        return LiveCheckpoint(
            site=site.name,
            buckets=buckets,
            keys=bucket_keys(self._spark, buckets),
            after=start[EVENTS],
            began=began,
            start=start,
        )

    def _began(self, opened: Opened, after: int, last: int) -> int:
        """The time of the first event, or now when there is none yet."""
        piece = Piece(EVENTS, after, min(last, after + 1))
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
        taking = Appending(
            site.name,
            append_at(self._place, self._settings.patience_ms),
            self._clock,
            query=self._checkpoint.name,
            policies=versions,
        )
        taking.counts = self.counts
        writer = (
            found_by(rows, job)
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
            self._site = SiteNow(load_site(self._directory))
        return self._site.site()

    def _last_change(self) -> int:
        """How far the record of changes of policies goes."""
        with self._place.opened() as opened:
            return opened.span(POLICIES).last
