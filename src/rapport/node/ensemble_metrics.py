"""What a node tells Prometheus of its ensemble node. [EN-10, EN-14, UX-5]"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from rapport.core.errors import Unavailable

if TYPE_CHECKING:
    from rapport.node.ensemble import NodeEnsemble


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
    for name, (value, said) in gauges.items():
        gauge = GaugeMetricFamily(f"rapport_ensemble_{name}", said)
        gauge.add_metric([], value)
        yield gauge
    counts = CounterMetricFamily(
        "rapport_ensemble", "What the ensemble node did since the start.", labels=["what"]
    )
    carried = {
        f"carried_{name}": count for name, count in msgspec.structs.asdict(status.carried).items()
    }
    told = {
        **status.node.counters,
        **carried,
        "recorded": status.recorded,
        "refused": status.refused,
        "skipped": status.skipped,
        "second_looks": status.second_looks,
    }
    for name, count in sorted(told.items()):
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
