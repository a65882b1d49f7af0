"""What a node tells Prometheus: counts read off its rooms when asked, nothing kept twice. [CH-14,
UX-5]
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rapport.node.adapter_metrics import adapter_metrics, lookup_metrics
from rapport.node.context_metrics import context_metrics
from rapport.node.ensemble_metrics import ensemble_metrics
from rapport.node.node import Node
from rapport.node.pipeline_metrics import pipeline_metrics
from rapport.site.pipeline import RunPlaces, is_held, read_status


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
            "rapport_mediation_rejected", "Raw events held back.", labels=["source", "reason"]
        )
        for source, counts in self._node.mediation.counts().items():
            read.add_metric([source], counts.read)
            for reason, count in counts.rejected.items():
                rejected.add_metric([source, reason], count)
        yield read
        yield rejected

    def _outgoing(self) -> Iterator[Metric]:
        said = CounterMetricFamily(
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
                said.add_metric([name, what], getattr(counts, what))
            for reason, count in counts.rejected.items():
                rejected.add_metric([name, reason], count)
        yield from (said, rejected)

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
        """What the pipeline's process says of itself; nothing where none has ever run."""
        places = RunPlaces.of(self._node.site.directory / self._node.settings.data)
        told = read_status(places)
        if told is not None:
            watched = self._node.pipeline
            yield from pipeline_metrics(
                told,
                runs=is_held(places.lock),
                starts=watched.starts if watched is not None else None,
                now_ms=self._node.clock.now_ms(),
            )
