"""What the pipeline's process says of itself, for Prometheus. [PI-12]"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from rapport.site.pipeline import JobStatus, RunStatus

_JOBS = (
    ("rapport_pipeline_behind_events", "Events that wait for a job.", "behind_events", 1),
    ("rapport_pipeline_behind_seconds", "Age of the oldest that waits.", "behind_ms", 1_000),
    ("rapport_pipeline_rows", "Rows of a job's last batch.", "rows", 1),
    ("rapport_pipeline_rows_per_second", "Rows per second of a job.", "rows_per_s", 1),
    ("rapport_pipeline_failures", "How often in a row a job failed.", "failures", 1),
)


def pipeline_metrics(
    told: RunStatus, *, runs: bool, starts: int | None, now_ms: int
) -> Iterator[Metric]:
    """`starts`: how often the node has started the process; None when it does not."""
    up = GaugeMetricFamily("rapport_pipeline_up", "1 while the pipeline's process runs.")
    up.add_metric([], runs)
    age = GaugeMetricFamily("rapport_pipeline_status_age_seconds", "Since it last said something.")
    age.add_metric([], max(now_ms - told.updated, 0) / 1_000)
    yield from (up, age)
    if starts is not None:
        started = CounterMetricFamily("rapport_pipeline_starts", "Starts by this node.")
        started.add_metric([], starts)
        yield started
    yield from _jobs(told.jobs)


def _jobs(jobs: list[JobStatus]) -> Iterator[Metric]:
    for name, help, field, divisor in _JOBS:
        gauge = GaugeMetricFamily(name, help, labels=["job"])
        for job in jobs:
            gauge.add_metric([job.job], getattr(job, field) / divisor)
        yield gauge
    batches = CounterMetricFamily(
        "rapport_pipeline_batches", "Batches of a job since its process started.", labels=["job"]
    )
    for job in jobs:
        batches.add_metric([job.job], job.batches)
    yield batches
