"""Prometheus metrics of a node: counts read off its parts at each scrape, nothing stored twice.
[CO-4, CO-5, UX-5, CX-3, CX-12, EN-10, EN-14, PI-12, CH-14]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rapport.communication.adapters.inputs import InputStatus
from rapport.communication.adapters.outputs import OutputStatus
from rapport.communication.records import LookupCounts
from rapport.core.errors import Unavailable
from rapport.node.context_broker import NodeContext
from rapport.node.node import Node
from rapport.site.pipeline import JobStatus, RunPlaces, RunStatus, is_held, read_status

if TYPE_CHECKING:
    from rapport.node.ensemble import NodeEnsemble


def adapter_metrics(
    outputs: Sequence[OutputStatus], inputs: Sequence[InputStatus]
) -> Iterator[Metric]:
    """Of every adapter that there is now."""
    yield from _outputs(outputs)
    yield from _inputs(inputs)
    blocked = CounterMetricFamily(
        "rapport_adapter_blocked",
        "Steps of an adapter that kept the event loop from turning.",
        labels=["direction", "adapter"],
    )
    for out in outputs:
        blocked.add_metric(["output", out.name], out.blocked)
    for one in inputs:
        blocked.add_metric(["input", one.name], one.blocked)
    yield blocked


def _outputs(outputs: Sequence[OutputStatus]) -> Iterator[Metric]:
    waiting = GaugeMetricFamily(
        "rapport_output_waiting", "Deliveries without an outcome yet.", labels=["adapter"]
    )
    workers = GaugeMetricFamily(
        "rapport_output_workers", "Pending calls of an adapter.", labels=["adapter"]
    )
    circuits = GaugeMetricFamily(
        "rapport_output_circuits",
        "Peers' addresses that are left alone since calls to them failed.",
        labels=["adapter", "state"],
    )
    for one in outputs:
        waiting.add_metric([one.name], one.waiting)
        workers.add_metric([one.name], one.workers)
        for state in ("open", "half-open"):
            count = sum(circuit.state == state for circuit in one.circuits)
            circuits.add_metric([one.name, state], count)
    yield from (waiting, workers, circuits)


def _inputs(inputs: Sequence[InputStatus]) -> Iterator[Metric]:
    did = CounterMetricFamily(
        "rapport_input_messages", "What came in since the start.", labels=["input", "what"]
    )
    trouble = GaugeMetricFamily(
        "rapport_input_trouble", "1 while the last attempt failed.", labels=["input"]
    )
    for one in inputs:
        for what in ("received", "refused", "errors"):
            did.add_metric([one.name, what], getattr(one, what))
        trouble.add_metric([one.name], bool(one.trouble))
    yield from (did, trouble)


def lookup_metrics(lookups: LookupCounts) -> Iterator[Metric]:
    """Messages deferred because the directory failed."""
    counted = CounterMetricFamily(
        "rapport_receiver_lookups_failed",
        "Messages put off because the directory failed, and tries of them that failed again.",
        labels=["what"],
    )
    for what in ("put_off", "tried_again"):
        counted.add_metric([what], getattr(lookups, what))
    yield counted


def context_metrics(context: NodeContext | None) -> Iterator[Metric]:
    """Nothing for a node without a broker, or before it is open."""
    if context is None:
        return
    try:
        status = context.status()
    except Unavailable:
        return
    broker = status.broker
    records = GaugeMetricFamily(
        "rapport_context_records", "Records the broker holds.", labels=["kind"]
    )
    records.add_metric(["own"], broker.records)
    records.add_metric(["replica"], broker.replicas)
    yield records
    gauges = {
        "neighbours": (len(broker.neighbours), "Brokers next to this one."),
        "joined": (status.joined, "0 while the network that the site names is not joined."),
        "searches": (broker.searches, "Pending searches."),
        "watches": (broker.watches, "Subscriptions."),
        "load": (broker.load, "How loaded the broker is: 0 idle, 1 full."),
        "known": (status.known, "Entities of which tables know something."),
    }
    for name, (value, help) in gauges.items():
        gauge = GaugeMetricFamily(f"rapport_context_{name}", help)
        gauge.add_metric([], value)
        yield gauge
    counts = CounterMetricFamily(
        "rapport_context", "What the broker did since the start.", labels=["what"]
    )
    for name, count in sorted(broker.counters.items()):
        counts.add_metric([name], count)
    yield counts


def ensemble_metrics(ensemble: NodeEnsemble | None) -> Iterator[Metric]:
    """Nothing for a node without one, or before it is open."""
    if ensemble is None:
        return
    try:
        status = ensemble.status()
    except Unavailable:
        return
    gauges = {
        "components": (len(status.node.components), "Components that live on this node."),
        "replicas": (status.node.replica_count, "Components of other nodes that are known."),
        "members": (
            sum(one.state == "alive" for one in status.node.members),
            "Other nodes that are there.",
        ),
        "withheld": (
            len(status.node.withheld),
            "Components of this node whose knowledge cannot be published now.",
        ),
        "waiting": (status.waiting, "Versions of knowledge that wait to be written down."),
    }
    for name, (value, help) in gauges.items():
        gauge = GaugeMetricFamily(f"rapport_ensemble_{name}", help)
        gauge.add_metric([], value)
        yield gauge
    counts = CounterMetricFamily(
        "rapport_ensemble", "What the ensemble node did since the start.", labels=["what"]
    )
    carried = {
        f"carried_{name}": count for name, count in msgspec.structs.asdict(status.carried).items()
    }
    traffic = {
        **status.node.counters,
        **carried,
        "recorded": status.recorded,
        "refused": status.refused,
        "skipped": status.skipped,
        "second_looks": status.second_looks,
    }
    for name, count in sorted(traffic.items()):
        counts.add_metric([name], count)
    yield counts
    faults = CounterMetricFamily(
        "rapport_ensemble_faults",
        "Faults of components, processes, ensembles and names since the start.",
        labels=["code"],
    )
    for code, count in sorted(status.node.fault_counts.items()):
        faults.add_metric([code], count)
    yield faults


_JOBS = (
    ("rapport_pipeline_behind_events", "Events that wait for a job.", "behind_events", 1),
    ("rapport_pipeline_behind_seconds", "Age of the oldest that waits.", "behind_ms", 1_000),
    ("rapport_pipeline_rows", "Rows of a job's last batch.", "rows", 1),
    ("rapport_pipeline_rows_per_second", "Rows per second of a job.", "rows_per_s", 1),
    ("rapport_pipeline_failures", "How often in a row a job failed.", "failures", 1),
)


def pipeline_metrics(
    status: RunStatus, *, runs: bool, starts: int | None, now_ms: int
) -> Iterator[Metric]:
    """`starts`: how often the node has started the process; None when it does not."""
    up = GaugeMetricFamily("rapport_pipeline_up", "1 while the pipeline's process runs.")
    up.add_metric([], runs)
    age = GaugeMetricFamily("rapport_pipeline_status_age_seconds", "Since it last said something.")
    age.add_metric([], max(now_ms - status.updated, 0) / 1_000)
    yield from (up, age)
    if starts is not None:
        started = CounterMetricFamily("rapport_pipeline_starts", "Starts by this node.")
        started.add_metric([], starts)
        yield started
    yield from _jobs(status.jobs)


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
    busy = CounterMetricFamily(
        "rapport_pipeline_busy_seconds",
        "What the batches of a job took since its process started.",
        labels=["job"],
    )
    for job in jobs:
        busy.add_metric([job.job], job.busy_ms / 1_000)
    yield busy


def metrics_text(node: Node) -> bytes:
    """The metrics of now in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_NodeCollector(node))
    return generate_latest(registry)


class _NodeCollector(Collector):
    def __init__(self, node: Node) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        yield self._degraded()
        yield self._channels()
        yield from self._retention()
        yield from self._interceptors()
        yield from self._mediation()
        yield from self._outgoing()
        yield self._policy()
        yield from self._late()
        yield from self._policies()
        yield from self._load()
        yield from self._tables()
        yield from self._pipeline()
        yield from adapter_metrics(self._node.outputs.status(), self._node.inputs.status())
        yield from lookup_metrics(self._node.lookups)
        yield from context_metrics(self._node.context)
        yield from ensemble_metrics(self._node.ensemble)

    def _degraded(self) -> Metric:
        degraded = GaugeMetricFamily(
            "rapport_degraded", "1 for each condition that degrades the node.", labels=["condition"]
        )
        for condition in self._node.conditions.current():
            degraded.add_metric([condition.name], 1)
        return degraded

    def _channels(self) -> Metric:
        events = CounterMetricFamily(
            "rapport_channel_events", "Events a channel has taken.", labels=["channel"]
        )
        for name in self._node.channels.names():
            events.add_metric([name], self._node.channels.channel(name).last_position())
        return events

    def _retention(self) -> Iterator[Metric]:
        kept = GaugeMetricFamily(
            "rapport_channel_kept_bytes", "Bytes of log with a limit.", labels=["channel"]
        )
        held = GaugeMetricFamily(
            "rapport_channel_held_by_readers",
            "1 when readers keep what is past its limit, 2 when past twice its limit.",
            labels=["channel"],
        )
        skipped = CounterMetricFamily(
            "rapport_reader_skipped",
            "Events a reader passed over: let go, past their time to live, or damaged.",
            labels=["channel", "reader"],
        )
        for name, swept in sorted(self._node.channels.sweeper.last.items()):
            kept.add_metric([name], swept.kept_bytes)
            held.add_metric([name], 0 if not swept.held_by else 2 if swept.overdue else 1)
        for (name, reader), count in sorted(self._node.channels.skipped.items()):
            skipped.add_metric([name, reader], count)
        yield from (kept, held, skipped)

    def _interceptors(self) -> Iterator[Metric]:
        events = CounterMetricFamily(
            "rapport_interceptor_events",
            "What an interceptor did since the start.",
            labels=["interceptor", "what"],
        )
        is_on = GaugeMetricFamily(
            "rapport_interceptor_on", "0 when it was switched off.", labels=["interceptor"]
        )
        for one in self._node.channels.interceptors.listed():
            for what in ("seen", "changed", "dropped", "faults"):
                events.add_metric([one.name, what], getattr(one, what))
            is_on.add_metric([one.name], one.state == "on")
        yield from (events, is_on)

    def _mediation(self) -> Iterator[Metric]:
        read = CounterMetricFamily(
            "rapport_mediation_read", "Raw events read since the start.", labels=["source"]
        )
        rejected = CounterMetricFamily(
            "rapport_mediation_rejected", "Raw events quarantined.", labels=["source", "reason"]
        )
        for source, counts in self._node.mediation.counts().items():
            read.add_metric([source], counts.read)
            for reason, count in counts.rejected.items():
                rejected.add_metric([source, reason], count)
        yield read
        yield rejected

    def _outgoing(self) -> Iterator[Metric]:
        help = CounterMetricFamily(
            "rapport_outgoing_events",
            "Events said in an interpretation: transformed, from_cache (again, for another "
            "reader), originals (as received).",
            labels=["interpretation", "what"],
        )
        rejected = CounterMetricFamily(
            "rapport_outgoing_rejected",
            "Events that cannot be said in an interpretation.",
            labels=["interpretation", "reason"],
        )
        for name, counts in sorted(self._node.outgoing.statistics.counts.items()):
            for what in ("transformed", "from_cache", "originals"):
                help.add_metric([name, what], getattr(counts, what))
            for reason, count in counts.rejected.items():
                rejected.add_metric([name, reason], count)
        yield from (help, rejected)

    def _policy(self) -> Metric:
        policy = CounterMetricFamily(
            "rapport_policy", "What the policy engine did since the start.", labels=["what"]
        )
        for what, count in msgspec.structs.asdict(self._node.policy.counts).items():
            policy.add_metric([what], count)
        return policy

    def _late(self) -> Iterator[Metric]:
        late = CounterMetricFamily(
            "rapport_policy_late", "Readings that came too late for policies.", labels=["source"]
        )
        share = GaugeMetricFamily(
            "rapport_policy_late_ratio",
            "Share of late readings among those of the last 10 minutes.",
            labels=["source"],
        )
        for source, count in sorted(self._node.policy.late().items()):
            late.add_metric([source], count)
        for source, recent in sorted(self._node.policy.recently_late().items()):
            share.add_metric([source], recent.share)
        yield from (late, share)

    def _tables(self) -> Iterator[Metric]:
        age = GaugeMetricFamily(
            "rapport_table_age_seconds",
            "Since the source of a table last gave its rows, or said they are the same.",
            labels=["table"],
        )
        failures = GaugeMetricFamily(
            "rapport_table_failures", "How often in a row a source failed.", labels=["table"]
        )
        for status in self._node.fresh_tables.status():
            age.add_metric([status.table], status.age_ms / 1_000)
            failures.add_metric([status.table], status.failures)
        yield from (age, failures)

    def _load(self) -> Iterator[Metric]:
        report = self._node.load.report()
        busy = GaugeMetricFamily(
            "rapport_policy_busy_ratio", "Share of the last minute spent on policies."
        )
        behind = GaugeMetricFamily(
            "rapport_policy_behind", "Events that wait for the policy engine."
        )
        busy.add_metric([], report.busy)
        behind.add_metric([], report.behind)
        yield from (busy, behind)

    def _policies(self) -> Iterator[Metric]:
        did = CounterMetricFamily(
            "rapport_policy_events",
            "What one policy did since the start.",
            labels=["policy", "what"],
        )
        cost = CounterMetricFamily(
            "rapport_policy_seconds", "Time spent on one policy.", labels=["policy"]
        )
        for name, counts in sorted(self._node.policy.counts_by_policy().items()):
            for what in ("read", "detections", "undecided", "suppressed", "errors"):
                did.add_metric([name, what], getattr(counts, what))
            cost.add_metric([name], counts.cost_ms / 1_000)
        yield from (did, cost)

    def _pipeline(self) -> Iterator[Metric]:
        """Metrics of the pipeline's process; none where it has never run."""
        places = RunPlaces.of(self._node.site.directory / self._node.settings.data)
        status = read_status(places)
        if status is not None:
            watched = self._node.pipeline
            yield from pipeline_metrics(
                status,
                runs=is_held(places.lock),
                starts=watched.starts if watched is not None else None,
                now_ms=self._node.clock.now_ms(),
            )
