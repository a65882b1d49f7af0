"""What a node tells Prometheus of its adapters: what waits, what comes in, what is in trouble.
[CO-4, CO-5, UX-5]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from rapport.communication.adapters.inputs import InputStatus
from rapport.communication.adapters.outputs import OutputStatus
from rapport.communication.schedule import LookupCounts


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
        "rapport_output_workers", "Calls of an adapter under way.", labels=["adapter"]
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
    """What waits because nobody can say who a receiver is."""
    counted = CounterMetricFamily(
        "rapport_receiver_lookups_failed",
        "Messages put off because the directory failed, and tries of them that failed again.",
        labels=["what"],
    )
    for what in ("put_off", "tried_again"):
        counted.add_metric([what], getattr(lookups, what))
    yield counted
