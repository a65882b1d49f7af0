"""The source's experiment with brokers as processes: answer times and memory beside the published
ones. [CX-12]

What differs from the source, on purpose: all on one machine, sealed datagrams, a point takes
seconds instead of 15 minutes, clients are spread evenly over their interval instead of started
200 ms apart.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from benchmarks.context.broker_process import resident_kb
from benchmarks.context.load import Asked, Crowd, consume, providing
from benchmarks.context.network import brokers_at_work
from benchmarks.context.published import MAIN_POINT, Configuration
from benchmarks.context.subject import Keys, fresh_keys
from benchmarks.results import Result, limit, share
from rapport.context.broker.broker_settings import BrokerSettings, ReplicationSettings
from rapport.kernel.clock import Chance
from rapport.transport.base import Address
from rapport_lab.curve_plot import Axis, Series, curves_plot

MACHINES = 5
"""For each of providers and consumers, each machine with a broker of its own."""
_SERVE_BOTH = 2
"""Brokers with providers and consumers, the most that the source allows."""
_SEED = 3
_VALID_MS = 10_000
_PAUSE = "import sys; print(flush=True); sys.stdin.read()"


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration, ours; memory is the mean of all brokers."""

    configuration: Configuration
    copies: bool
    """Whether what is found is copied, as in the source; else every such request walks."""
    answers: int
    mean_us: float
    median_us: float
    p99_us: float
    hops: float
    """Mean hops of the answers that came from elsewhere; 0 if none did."""
    elsewhere: float
    """The part of the answers that came from elsewhere."""
    refused: int
    unanswered: int
    resident_kb: float
    grown_kb: float
    """Memory more than before the first client came."""
    processor: float
    """Processors that all brokers together kept busy."""


def measure(
    configuration: Configuration, *, seconds: float, warm_s: float, copies: bool = True
) -> Measured:
    """Starts the brokers, the providers and the consumers; all are gone afterwards. Copies are
    made at one broker of the path, as in the source, or not at all.
    """
    keys = fresh_keys()
    replication = ReplicationSettings(kind="random" if copies else "none", copies=1)
    settings = BrokerSettings(replication=replication)
    topology, count = configuration.topology, configuration.brokers
    with brokers_at_work(count, topology, keys, settings) as brokers:
        before = [broker.look() for broker in brokers]
        asked = _load(configuration, [broker.address for broker in brokers], keys, seconds, warm_s)
        after = [broker.look() for broker in brokers]
    is_kb = _mean(one.resident_kb for one in after)
    used_s = sum(one.processor_s for one in after) - sum(one.processor_s for one in before)
    far = [hops for hops in asked.hops if hops]
    if not asked.took_us:
        raise RuntimeError(f"nobody was answered: {configuration}, {asked.refused} refused")
    return Measured(
        configuration=configuration,
        copies=copies,
        answers=len(asked.took_us),
        mean_us=_mean(asked.took_us),
        median_us=share(asked.took_us, 50),
        p99_us=share(asked.took_us, 99),
        hops=_mean(far) if far else 0.0,
        elsewhere=len(far) / len(asked.hops),
        refused=asked.refused,
        unanswered=asked.unanswered,
        resident_kb=is_kb,
        grown_kb=is_kb - _mean(one.resident_kb for one in before),
        processor=used_s / (seconds + warm_s),
    )


def _load(
    configuration: Configuration, at: Sequence[Address], keys: Keys, seconds: float, warm_s: float
) -> Asked:
    telling, asking = placed(configuration)
    providers = Crowd(
        brokers=tuple(at[number] for number in telling),
        clients=configuration.providers,
        interval_s=configuration.update_s,
    )
    consumers = Crowd(
        brokers=tuple(at[number] for number in asking),
        clients=configuration.consumers,
        interval_s=configuration.request_s,
    )
    valid_ms = _VALID_MS + int(2_000 * configuration.update_s)
    with providing(providers, keys, valid_ms):
        return consume(consumers, keys, seconds, warm_s)


def placed(configuration: Configuration) -> tuple[list[int], list[int]]:
    """At which brokers the machines of providers and of consumers are; the same in every run."""
    count = configuration.brokers
    if count == 1:
        return [0], [0]
    if count < 2 * MACHINES:
        return [0], [count // 2]  # one machine each, as far apart as can be
    drawn = Chance(_SEED).sample(range(count), count)
    consumers = drawn[:MACHINES]
    both, others = consumers[:_SERVE_BOTH], drawn[MACHINES : 2 * MACHINES - _SERVE_BOTH]
    return [*both, *others], consumers


def idle_python_kb() -> float:
    """Resident memory of a Python that does nothing: what no broker can be below."""
    with subprocess.Popen(
        (sys.executable, "-c", _PAUSE), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = resident_kb(Path(f"/proc/{process.pid}/statm"))
        process.communicate()
    return found


# --- what is shown of it ---


def grid_lines(rows: Sequence[Measured], idle_kb: float) -> list[str]:
    """A table of ours beside the published one."""
    names = (
        *("no.", "mean us", "median", "p99", "published", "elsewhere", "hops"),
        *("kB over idle", "grown kB", "published kB"),
    )
    lines = ["".join(f"{name:>13}" for name in names) + f"   (idle Python: {idle_kb:,.0f} kB)"]
    for row in rows:
        theirs = row.configuration
        shown = (
            f"{theirs.config}",
            *(f"{value:,.0f}" for value in (row.mean_us, row.median_us, row.p99_us)),
            _number(theirs.response_us),
            f"{row.elsewhere:.1%}",
            f"{row.hops:.1f}",
            f"{row.resident_kb - idle_kb:,.0f}",
            f"{row.grown_kb:,.0f}",
            _number(theirs.memory_kb),
        )
        lines.append("".join(f"{text:>13}" for text in shown) + f"   {theirs}")
    return lines


def grid_results(rows: Sequence[Measured], idle_kb: float) -> list[Result]:
    """The figures of each configuration in the form of all benchmarks."""
    results: list[Result] = []
    for row in rows:
        theirs = row.configuration
        what = f"{theirs.config}: {theirs}" + ("" if row.copies else ", no copies")
        goal = theirs.response_us if theirs.config == MAIN_POINT and row.copies else None
        beside = f" (published {_number(theirs.response_us)})"
        results += [
            limit(f"{what}, mean time of an answer{beside}", row.mean_us, "us", goal),
            limit(
                f"{what}, memory of a broker above idle Python "
                f"(published {_number(theirs.memory_kb)})",
                row.resident_kb - idle_kb,
                "kB",
            ),
            limit(f"{what}, not answered or refused", row.unanswered + row.refused, "requests"),
        ]
    return results


def grid_plots(rows: Sequence[Measured], idle_kb: float) -> dict[str, str]:
    """The source's figures 4.3 to 4.6 with ours beside, as SVG."""
    middle = [
        row for row in rows if row.configuration.update_s == row.configuration.request_s == 30
    ]
    by_consumers = [row for row in middle if row.configuration.providers == 50]
    by_providers = [row for row in middle if row.configuration.consumers == 1_000]
    time, memory = Axis("mean time of an answer in us", in_tens=True), Axis("kB per broker", True)
    return {
        "context-consumers": curves_plot(
            "Answers, 50 providers", Axis("consumers"), time, _times(by_consumers, "consumers")
        ),
        "context-providers": curves_plot(
            "Answers, 1,000 consumers", Axis("providers"), time, _times(by_providers, "providers")
        ),
        "context-memory": curves_plot(
            "Memory above idle Python, 1,000 consumers",
            Axis("providers"),
            memory,
            _memory(by_providers, idle_kb),
        ),
    }


def _times(rows: Iterable[Measured], across: str) -> Series:
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        theirs, x = row.configuration, float(getattr(row.configuration, across))
        series.setdefault(theirs.topology, []).append((x, row.mean_us))
        if theirs.response_us is not None:
            series.setdefault(f"{theirs.topology}, published", []).append((x, theirs.response_us))
    return series


def _memory(rows: Iterable[Measured], idle_kb: float) -> Series:
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        theirs, x = row.configuration, float(row.configuration.providers)
        series.setdefault(theirs.topology, []).append((x, row.resident_kb - idle_kb))
        if theirs.memory_kb is not None:
            series.setdefault(f"{theirs.topology}, published", []).append((x, theirs.memory_kb))
    return series


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _mean(values: Iterable[float]) -> float:
    every = list(values)
    return sum(every) / len(every)
