"""What a node tells Prometheus: counts read off its rooms when asked, nothing kept twice. [UX-5]"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from rapport.node.node import Node


def metrics_text(node: Node) -> bytes:
    """The metrics of now in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_NodeCollector(node))
    return generate_latest(registry)


class _NodeCollector(Collector):
    def __init__(self, node: Node) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        yield self._channels()
        yield from self._mediation()
        yield self._policy()

    def _channels(self) -> Metric:
        events = CounterMetricFamily(
            "rapport_channel_events", "Events a channel has taken.", labels=["channel"]
        )
        for name in self._node.channels.names():
            events.add_metric([name], self._node.channels.channel(name).last_position())
        return events

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

    def _policy(self) -> Metric:
        policy = CounterMetricFamily(
            "rapport_policy", "What the policy engine did since the start.", labels=["what"]
        )
        for what, count in msgspec.structs.asdict(self._node.policy.counts).items():
            policy.add_metric([what], count)
        return policy
