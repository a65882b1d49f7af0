"""A site's pipeline in one process: live policies, and history into the lake at intervals. [PI-12]

It ends when it is asked to (`run_lock.ask_to_stop`, or the event given), or when Spark itself has
gone: whoever started it may start it again, and nothing is lost or told twice.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rapport.core.errors import RapportError
from rapport.kernel.clock import Clock, SystemClock
from rapport.kernel.telemetry import get_logger
from rapport.pipeline.errors import FATAL
from rapport.pipeline.running.jobs import Job, JobStopped, history_jobs
from rapport.pipeline.running.lag import Behind, Lag
from rapport.pipeline.running.live_thread import NOTHING_TO_DO, LiveThread, problem_of
from rapport.pipeline.running.run_state import StatusWriter, allow_start, error_of, hold_pipeline
from rapport.pipeline.running.schedule import Pace, begun, ended, failed, is_due
from rapport.pipeline.session import SparkSettings, is_connect, running_spark, web_page_of
from rapport.pipeline.streaming.live_query import LiveSettings
from rapport.site.pipeline import (
    JobStatus,
    PipelineSettings,
    RunPlaces,
    RunStatus,
)
from rapport.site.site import Site, load_site

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_SECONDS = 0.5
_SAY_EVERY_SECONDS = 2.0
_LIVE_ENDS_SECONDS = _GOLD_ENDS_SECONDS = 60
_GOLD_JOBS = ("figures",)
"""Jobs with a thread and a share of the cores of their own."""
_GOLD_POOL = "gold"
EXPIRE_EVERY_MS = COMPACT_EVERY_MS = 3_600_000
VACUUM_EVERY_MS = 24 * 3_600_000
_log = get_logger(__name__)


class RunWanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is to do."""

    pipeline: PipelineSettings
    spark: SparkSettings
    once: bool = False
    live: bool = True
    must_live: bool = False
    """Without a policy that runs on Spark it is refused."""
    by_hand: bool = True
    """A person wants it to run, whatever was said before; a node keeps to what was said."""


def run_pipeline(
    directory: Path,
    wanted: RunWanted,
    *,
    stop: threading.Event | None = None,
    clock: Clock | None = None,
    started: Callable[[], None] = lambda: None,
) -> RunStatus:
    """Runs a site's jobs until asked to end, with `once` until all that is there now is done.

    Raises Conflict while another process does the same for the site, RapportErrors for what ends
    it; jobs that fail while Spark runs are tried again. The status file says the same. `started` is
    called when Spark is up: it takes Ctrl-C for itself, which the caller may take back then.
    """
    clock, asked = clock or SystemClock(), stop or threading.Event()
    site = load_site(directory)
    places = RunPlaces.of(site.data_directory)
    with hold_pipeline(places):
        if wanted.by_hand:
            allow_start(places)
        status = RunStatus(
            pid=os.getpid(),
            site=site.name,
            master=wanted.spark.master,
            started=clock.now_ms(),
            live=wanted.live,
        )
        writer = StatusWriter(places, status, clock)
        writer.write("starting")
        try:
            with running_spark(wanted.spark) as spark:
                status.spark_ui = web_page_of(spark)
                started()
                _Running(spark, site, wanted, writer, asked, clock).run()
        except RapportError as error:
            status.problem = problem_of(error)
            writer.write("failed")
            raise
        writer.write("ended")
        return status


class _Running:
    """One run on a session."""

    def __init__(
        self,
        spark: SparkSession,
        site: Site,
        wanted: RunWanted,
        writer: StatusWriter,
        stop: threading.Event,
        clock: Clock,
    ) -> None:
        self._spark, self._site, self._wanted, self._writer = spark, site, wanted, writer
        self._fatal: RapportError | None = None
        self._stop, self._clock = stop, clock
        lake = site.data_directory / "lake"
        self._lag = Lag(site.directory, lake)
        self._jobs = history_jobs(spark, site, lake, stop)
        how = wanted.pipeline
        self._paces = {
            "export": Pace(how.every_ms),
            "silver": Pace(how.every_ms),
            "figures": Pace(how.figures_every_ms),
            "expire": Pace(EXPIRE_EVERY_MS),
            "compact": Pace(COMPACT_EVERY_MS),
            "vacuum": Pace(VACUUM_EVERY_MS),
        }
        for name, is_wanted in (("figures", how.figures), ("expire", bool(how.keep))):
            if not is_wanted:
                del self._jobs[name]
        marks = {"silver": lake / "silver", "figures": lake / "gold"}
        self._told = {
            name: JobStatus(job=name, checkpoint=str(marks.get(name, lake))) for name in self._jobs
        }
        self._counted, self._unmeasured = 0, ""
        self._live = self._make_live(spark) if wanted.live else None
        live = [self._live.status] if self._live else []
        writer.status.jobs = [*live, *self._told.values()]

    def _make_live(self, spark: SparkSession) -> LiveThread:
        checkpoint = self._writer.places.live_checkpoint
        settings = LiveSettings(buckets=self._wanted.pipeline.buckets)
        directory = self._site.directory
        return LiveThread(
            spark,
            directory,
            checkpoint,
            settings,
            self._clock,
            self._stop,
            reached=self._writer.reached,
        )

    def run(self) -> None:
        self._writer.write("running")
        over = threading.Event()
        telling = threading.Thread(target=self._tell_on, args=(over,), name="status", daemon=True)
        telling.start()
        try:
            if self._wanted.once:
                self._run_once()
            else:
                self._run_on()
        finally:
            over.set()
            telling.join()
        self._measure()

    def _tell_on(self, over: threading.Event) -> None:
        """Says now and then how things are, however long a job takes."""
        while not over.wait(_SAY_EVERY_SECONDS):
            self._measure()
            self._writer.write()

    def _run_once(self) -> None:
        """What live policies find goes into the lake with the rest."""
        if self._live is not None:
            try:
                self._live.run_once()
            except RapportError as error:
                if error.code not in NOTHING_TO_DO or self._wanted.must_live:
                    raise
                self._live.status.state = "off"
        for name, job in self._jobs.items():
            if self._is_asked_to_end():
                return
            self._run_job(name, job)
            problem = self._told[name].problem
            if self._told[name].state == "failed" and problem is not None:
                raise RapportError(problem.message, code=problem.code, hint=problem.hint)

    def _run_on(self) -> None:
        if self._live is not None:
            self._live.start()
        gold = threading.Thread(target=self._run_gold, name="gold", daemon=True)
        gold.start()
        try:
            while not self._is_asked_to_end():
                self._run_due(name for name in self._jobs if name not in _GOLD_JOBS)
                if self._live is not None and self._live.fault is not None:
                    self._refuse_fatal(self._live.fault)
                self._stop.wait(_LOOK_SECONDS)
        finally:
            self._stop.set()
            gold.join(_GOLD_ENDS_SECONDS)
        if self._fatal is not None:
            raise self._fatal
        self._writer.write("stopping")
        if self._live is not None and not self._live.join(_LIVE_ENDS_SECONDS):
            _log.warning("the live query did not end in time; it goes on from its checkpoint")

    def _run_gold(self) -> None:
        """Figures beside export and silver, which do not wait for them."""
        if not is_connect(self._spark):
            self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", _GOLD_POOL)
        try:
            while not self._is_asked_to_end():
                self._run_due(_GOLD_JOBS)
                self._stop.wait(_LOOK_SECONDS)
        except RapportError as error:
            self._fatal = error

    def _run_due(self, names: Iterable[str]) -> None:
        for name in names:
            is_wanted = name in self._jobs and is_due(self._told[name], self._clock.now_ms())
            if is_wanted and not self._is_asked_to_end():
                self._run_job(name, self._jobs[name])

    def _is_asked_to_end(self) -> bool:
        if not self._stop.is_set() and self._writer.places.stop.exists():
            self._stop.set()
        return self._stop.is_set()

    def _run_job(self, name: str, job: Job) -> None:
        told, pace, began_ns = self._told[name], self._paces[name], self._clock.steady_ns()
        begun(told, self._clock.now_ms())
        self._writer.write()
        try:
            done = job()
        except JobStopped:
            told.state = "waiting"
            return
        except Exception as found:  # the other jobs go on, and this one is tried again
            error = error_of(found, name)
            self._refuse_fatal(error)
            failed(told, pace, self._clock.now_ms(), problem_of(error))
            _log.error(
                "job failed",
                job=name,
                code=error.code,
                reason=error.message,
                exc_info=error is not found,
            )
            return
        took_ms = (self._clock.steady_ns() - began_ns) / 1_000_000
        ended(told, pace, self._clock.now_ms(), done.rows, took_ms)
        told.problem = done.problem
        if name == "figures":
            self._counted = self._lag.exported()
        _log.info("job done", job=name, rows=done.rows, ms=round(took_ms))

    def _refuse_fatal(self, error: RapportError) -> None:
        """Without Spark nothing can be done here: the process ends, to be started again."""
        if error.code in FATAL:
            self._stop.set()
            raise error

    def _measure(self) -> None:
        """How far every job is, and how far behind."""
        now_ms = self._clock.now_ms()
        if self._live is not None:
            self._live.look()
        try:
            behind = self._behind(now_ms)
        except (RapportError, OSError) as found:  # files may go while they are looked at
            error = error_of(found, "looking at the lake")
            if error.message != self._unmeasured:
                self._unmeasured = error.message
                _log.warning("cannot tell how far jobs are", code=error.code, reason=error.message)
            return
        for told in self._writer.status.jobs:
            job = behind.get(told.job, Behind())
            told.behind_events, told.behind_ms = job.events, job.ms

    def _behind(self, now_ms: int) -> dict[str, Behind]:
        behind = {
            "export": self._lag.of_export(now_ms),
            "silver": self._lag.of_silver(now_ms),
            "figures": self._figures_behind(now_ms),
        }
        if self._live is not None and self._live.status.state != "off":
            behind["live"] = self._lag.of_live(self._live.status.reached, now_ms)
        return behind

    def _figures_behind(self, now_ms: int) -> Behind:
        """What was exported since figures were made, and since when they are old."""
        figures = self._told.get("figures")
        if figures is None:
            return Behind()
        waiting = max(self._lag.exported() - self._counted, 0)
        return Behind(waiting, now_ms - figures.ended if figures.ended and waiting else 0)
