"""The live policies of a site beside the other jobs: in a thread, started again when they fail.
[PI-5, PI-12]
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from rapport.core.errors import Problem, RapportError
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.pipeline.running.run_state import error_of
from rapport.pipeline.running.schedule import Pace, begun, failed, pause_after
from rapport.pipeline.session import is_connect
from rapport.pipeline.streaming.live_query import LiveCounts, LiveRun, LiveSettings
from rapport.site.pipeline import JobStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POOL = "live"
"""Its share of the cores is its own, however much history has to do."""
NOTHING_TO_DO = ("live.no_policies", "channel.no_log")
"""The site lets no policy run on Spark, or no node has run yet."""
_RATE_OVER_MS = 10_000
_PACE = Pace(every_ms=0, pause_ms=2_000)
_log = get_logger(__name__)


class LiveThread:
    """Runs the live query until `stop` is set; `status` says how it is."""

    def __init__(
        self,
        spark: SparkSession,
        site: Path,
        checkpoint: Path,
        settings: LiveSettings,
        clock: Clock,
        stop: threading.Event,
        *,
        reached: int = 0,
    ) -> None:
        """`reached`: how far it was when it last ran."""
        self._spark = spark
        self._running = LiveRun(spark, site, checkpoint, settings, clock)
        self._clock, self._stop = clock, stop
        self.status = JobStatus(job="live", checkpoint=str(checkpoint), reached=reached)
        self.fault: RapportError | None = None
        self._seen = LiveCounts()
        self._rated = (0, 0)
        self._thread = threading.Thread(target=self._work, name="live", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, seconds: float) -> bool:
        """Waits for the end; whether it came."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def run_once(self) -> None:
        """Takes what is there now, in this thread; raises what goes wrong."""
        begun(self.status, self._clock.now_ms())
        self._running.run(once=True, stop=self._stop)
        self.look()
        self.status.state = "waiting"

    def look(self) -> None:
        """Brings `status` up to date with what the query has done."""
        now_ms, counts, status = self._clock.now_ms(), self._running.counts, self.status
        status.busy_ms = counts.busy_ms
        if counts.batches != self._seen.batches:
            taken = counts.reached - self._seen.reached if self._seen.batches else 0
            status.batches, status.rows, status.ended = counts.batches, max(taken, 0), now_ms
            status.failures, status.problem = 0, None
            status.reached = max(counts.reached, status.reached)
            self._seen = LiveCounts(batches=counts.batches, reached=counts.reached)
        began_ms, from_position = self._rated
        if not began_ms or not from_position:
            self._rated = (now_ms, counts.reached)
        elif now_ms - began_ms >= _RATE_OVER_MS:
            rows = counts.reached - from_position
            status.rows_per_s = round(rows * 1_000 / (now_ms - began_ms), 1)
            self._rated = (now_ms, counts.reached)

    def _work(self) -> None:
        if not is_connect(self._spark):
            self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", _POOL)
        while not self._stop.is_set():
            begun(self.status, self._clock.now_ms())
            try:
                self._running.run(once=False, stop=self._stop)
            except Exception as found:  # whatever it is, the query is started again
                error = error_of(found, "policies on Spark")
                if error is not found:
                    _log.error("live policies met something new", exc_info=True)
                self._take(error)
        self.status.state = "off"

    def _take(self, error: RapportError) -> None:
        """A site without such policies may get some; everything else is tried again."""
        [problem, *_] = error.problems_found()
        if error.code in NOTHING_TO_DO:
            self.status.state = "off"
            self._stop.wait(_RATE_OVER_MS / 1_000)
            return
        self.fault = error
        failed(self.status, _PACE, self._clock.now_ms(), problem)
        pause_ms = pause_after(self.status.failures, _PACE.pause_ms)
        _log.error("live policies failed", code=error.code, reason=error.message, again=pause_ms)
        self._stop.wait(pause_ms / 1_000)


def problem_of(error: RapportError) -> Problem:
    """The first thing an error tells."""
    return next(iter(error.problems_found()))
