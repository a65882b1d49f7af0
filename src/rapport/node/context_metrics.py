"""What a node tells Prometheus of its context broker. [CX-3, CX-12, UX-5]"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from rapport.core.errors import Unavailable
from rapport.node.context import NodeContext


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
        "searches": (broker.searches, "Searches under way."),
        "watches": (broker.watches, "Subscriptions."),
        "load": (broker.load, "How loaded the broker is: 0 idle, 1 full."),
        "known": (status.known, "Entities of which tables know something."),
    }
    for name, (value, said) in gauges.items():
        gauge = GaugeMetricFamily(f"rapport_context_{name}", said)
        gauge.add_metric([], value)
        yield gauge
    counts = CounterMetricFamily(
        "rapport_context", "What the broker did since the start.", labels=["what"]
    )
    for name, count in sorted(broker.counters.items()):
        counts.add_metric([name], count)
    yield counts
