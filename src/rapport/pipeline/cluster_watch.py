"""Whether a cluster still works for us: Spark itself would wait for ever for a master that has
gone, or for workers that nobody has. [PI-10, PI-11]
"""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

from rapport.kernel.clock import Clock, SystemClock
from rapport.kernel.telemetry import get_logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ANSWER_SECONDS = 3.0
_LOOK_SECONDS = 2.0
_WITHOUT_MASTER_MS, _WITHOUT_WORKERS_MS = 20_000, 90_000
_log = get_logger(__name__)


class Patience:
    """Says why jobs are of no use any more; time is an argument."""

    def __init__(self) -> None:
        self._since_ms: int | None = None

    def look(
        self, now_ms: int, *, jobs: int, executors: int, master_answers: bool
    ) -> tuple[str, str] | None:
        """Code and words once jobs have waited too long for anybody to do them; else None."""
        if not jobs or executors:
            self._since_ms = None
            return None
        if self._since_ms is None:
            self._since_ms = now_ms
        waited_ms = now_ms - self._since_ms
        if not master_answers and waited_ms >= _WITHOUT_MASTER_MS:
            return "spark.cluster_lost", "the cluster has gone: neither master nor workers answer"
        if waited_ms >= _WITHOUT_WORKERS_MS:
            return "spark.no_workers", "no worker of the cluster has taken the work"
        return None


_lost: list[tuple[str, str]] = []


def why_cancelled() -> tuple[str, str] | None:
    """Code and words when jobs of this process were given up because nobody does them."""
    return _lost[-1] if _lost else None


def watch_cluster(spark: SparkSession, master: str, clock: Clock | None = None) -> None:
    """Looks after the jobs of a session on `spark://` as long as it lives: those that nobody can do
    any more are cancelled.
    """
    _lost.clear()
    watching = threading.Thread(
        target=_watch, args=(spark, master, clock or SystemClock()), name="cluster", daemon=True
    )
    watching.start()


def answers(master: str) -> bool:
    """Whether somebody listens at one of the master's addresses; raises ValueError for none."""
    for address in master.partition("://")[2].split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS).close()
            return True
        except OSError:
            continue
    return False


def _watch(spark: SparkSession, master: str, clock: Clock) -> None:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    patience, pause = Patience(), threading.Event()
    context = spark.sparkContext
    while not pause.wait(_LOOK_SECONDS):
        if context._jsc is None:
            return  # the session was stopped
        try:
            jobs = len(context.statusTracker().getActiveJobsIds())
            # The driver is counted, too.
            executors = context._jsc.sc().getExecutorMemoryStatus().size() - 1
            reason = patience.look(
                clock.steady_ns() // 1_000_000,
                jobs=jobs,
                executors=executors,
                master_answers=executors > 0 or not jobs or answers(master),
            )
            if reason is not None:
                _lost.append(reason)
                _log.error("jobs given up", code=reason[0], reason=reason[1])
                context.cancelAllJobs()
        except (Py4JError, OSError, AttributeError):
            return  # Java has gone; whoever waits for an answer is told that
