"""When the jobs of a pipeline are due: at their intervals, and after failures later each time.
Pure. [PI-12]
"""

from __future__ import annotations

import msgspec

from rapport.core.errors import Problem
from rapport.site.pipeline import JobStatus

_LONGEST_PAUSE_MS = 600_000


class Pace(msgspec.Struct, frozen=True):
    """How often a job runs, and the first pause after a failure."""

    every_ms: int
    pause_ms: int = 5_000


def begun(status: JobStatus, now_ms: int) -> None:
    status.state, status.began = "running", now_ms


def ended(status: JobStatus, pace: Pace, now_ms: int, rows: int, took_ms: float) -> None:
    """A batch came to its end: the next one is due an interval after this one began."""
    status.state, status.ended, status.rows = "waiting", now_ms, rows
    status.batches += 1
    status.busy_ms += round(took_ms)
    status.rows_per_s = round(rows / max(took_ms / 1_000, 0.001), 1)
    status.failures, status.problem = 0, None
    status.due = max(status.began + pace.every_ms, now_ms)


def failed(status: JobStatus, pace: Pace, now_ms: int, problem: Problem) -> None:
    """A batch failed: tried again after a pause that doubles."""
    status.state, status.ended, status.problem = "failed", now_ms, problem
    status.failures += 1
    status.due = now_ms + pause_after(status.failures, pace.pause_ms)


def pause_after(failures: int, first_ms: int) -> int:
    """How long to wait after so many failures in a row."""
    return int(min(first_ms * 2 ** min(failures - 1, 20), _LONGEST_PAUSE_MS))


def is_due(status: JobStatus, now_ms: int) -> bool:
    """Whether it should begin now; also when the clock was set back to before it last began, else
    it would wait until the clock has come there again.
    """
    return status.state != "off" and (now_ms >= status.due or now_ms < status.began)
