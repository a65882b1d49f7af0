"""What the pipeline's process says of itself, as Prometheus reads it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from rapport.node.metrics import pipeline_metrics
from rapport.site.pipeline import JobStatus, RunStatus

TOLD = RunStatus(
    pid=1,
    site="s",
    master="local[2]",
    updated=10_000,
    jobs=[
        JobStatus(
            job="silver",
            behind_events=7,
            behind_ms=1_500,
            rows_per_s=20.5,
            batches=3,
            busy_ms=2_500,
        )
    ],
)


class _Once(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


def lines(**how: object) -> set[str]:
    registry = CollectorRegistry()
    registry.register(_Once(list(pipeline_metrics(TOLD, now_ms=12_000, **how))))  # type: ignore[arg-type]
    return set(generate_latest(registry).decode().splitlines())


def test_every_job_has_its_lag_and_the_process_its_age() -> None:
    said = lines(runs=True, starts=2)
    assert said >= {
        "rapport_pipeline_up 1.0",
        "rapport_pipeline_status_age_seconds 2.0",
        "rapport_pipeline_starts_total 2.0",
        'rapport_pipeline_behind_events{job="silver"} 7.0',
        'rapport_pipeline_behind_seconds{job="silver"} 1.5',
        'rapport_pipeline_rows_per_second{job="silver"} 20.5',
        'rapport_pipeline_batches_total{job="silver"} 3.0',
        'rapport_pipeline_busy_seconds_total{job="silver"} 2.5',
    }


def test_a_process_that_is_down_is_said_so_and_starts_only_where_a_node_watches() -> None:
    said = lines(runs=False, starts=None)
    assert "rapport_pipeline_up 0.0" in said
    assert not any("starts" in line for line in said)
