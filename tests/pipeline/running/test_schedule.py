"""When jobs are due."""

from __future__ import annotations

from rapport.core.errors import Problem
from rapport.pipeline.running.schedule import Pace, begun, ended, failed, is_due
from rapport.site.pipeline import JobStatus

PACE = Pace(every_ms=60_000, pause_ms=5_000)
FAULT = Problem(code="lake.job_running", message="another job works", severity="error")


def test_a_new_job_is_due_at_once_and_then_an_interval_after_it_began() -> None:
    job = JobStatus(job="silver")
    assert is_due(job, 0)
    begun(job, 1_000)
    ended(job, PACE, 4_000, 600, 3_000)
    assert (job.state, job.batches, job.rows, job.rows_per_s) == ("waiting", 1, 600, 200.0)
    assert not is_due(job, 60_999)
    assert is_due(job, 61_000)
    ended(job, PACE, 64_000, 0, 1_500)
    assert job.busy_ms == 4_500


def test_a_batch_longer_than_the_interval_is_followed_by_the_next_at_once() -> None:
    job = JobStatus(job="silver")
    begun(job, 0)
    ended(job, PACE, 100_000, 1, 100_000)
    assert is_due(job, 100_000)


def test_pauses_after_failures_grow_to_a_bound_and_a_success_ends_them() -> None:
    job, now, pauses = JobStatus(job="silver"), 0, []
    for _again in range(12):
        begun(job, now)
        failed(job, PACE, now, FAULT)
        pauses.append(job.due - now)
        now = job.due
    assert pauses[:3] == [5_000, 10_000, 20_000]
    assert pauses[-1] == 600_000
    assert (job.state, job.failures, job.problem) == ("failed", 12, FAULT)
    begun(job, now)
    ended(job, PACE, now, 0, 10)
    assert (job.state, job.failures, job.problem) == ("waiting", 0, None)


def test_a_job_that_is_off_is_never_due() -> None:
    assert not is_due(JobStatus(job="live", state="off"), 10**15)


def test_a_clock_that_is_set_back_does_not_hold_a_job_up() -> None:
    year = 365 * 86_400_000
    job = JobStatus(job="silver")
    begun(job, 10 * year)
    ended(job, PACE, 10 * year + 1_000, 1, 1_000)
    assert not is_due(job, 10 * year + 2_000)
    assert is_due(job, year)
    begun(job, year)
    ended(job, PACE, year + 1_000, 1, 1_000)
    assert not is_due(job, year + 2_000)
    assert is_due(job, year + 60_000)
