"""How soon the dead are found, how often the living are called dead, and what that costs: measured
as SWIM, memberlist and Lifeguard were. [EN-10]
"""

from __future__ import annotations

from statistics import fmean

import msgspec

from rapport.core.errors import InvalidInput
from rapport.kernel.simulation import without_collector
from rapport.overlay.swim_network import SwimNetwork
from rapport.overlay.swim_settings import SwimSettings
from rapport.transport.simulated import Link

_SETTLE_PERIODS, _DEATH_PERIODS = 12, 30


class DetectionResult(msgspec.Struct, frozen=True, kw_only=True):
    """Times in probe periods since a member died: mean over the deaths, and the longest."""

    nodes: int
    loss: float
    starved: int
    deaths: int
    suspected: float
    """Until the first suspects it."""
    declared: float
    """Until the first calls it dead."""
    all_know: float
    longest: float
    """Until all others do, in the worst case."""
    missed: int
    """Pairs that did not know it at the end."""
    false_positives: int
    """Living members that any healthy one called dead: pairs."""
    false_of_starved: int
    """Starved members that any healthy one called dead: pairs."""


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one node sends per period while nothing happens."""

    nodes: int
    messages: float
    bytes: float


def measure_detection(
    nodes: int,
    *,
    loss: float = 0.0,
    deaths: int = 10,
    starved: int = 0,
    seed: int = 1,
    settings: SwimSettings | None = None,
) -> DetectionResult:
    """Lets one after the other die in networks of so many; costs about nodes * deaths * 2 ms.

    Raises InvalidInput (`overlay.bad_study`) when nobody dies, or nobody would be left to see it.
    """
    if deaths < 1:
        raise _bad_study(f"there are {deaths} deaths to measure", "one death or more")
    if starved < 0 or nodes < 2 + starved:
        raise _bad_study(
            f"of {nodes} nodes, {starved} starved, nobody sees the one that dies",
            "two nodes or more beside the starved: one that dies and one that notices",
        )
    link = Link(delay_ms=1, jitter_ms=2, loss=loss)
    runs = []
    with without_collector():
        for death in range(deaths):
            network = SwimNetwork(nodes, seed=seed + 100 * death, link=link, settings=settings)
            runs.append(_let_die(network, nodes, starved))
    return DetectionResult(
        nodes=nodes,
        loss=loss,
        starved=starved,
        deaths=deaths,
        suspected=fmean(run.suspected for run in runs),
        declared=fmean(run.declared for run in runs),
        all_know=fmean(run.all_know for run in runs),
        longest=max(run.all_know for run in runs),
        missed=sum(run.missed for run in runs),
        false_positives=sum(run.false_positives for run in runs),
        false_of_starved=sum(run.false_of_starved for run in runs),
    )


def measure_load(nodes: int, *, periods: int = 60, seed: int = 1) -> LoadResult:
    """Counts what is sent once all know each other and nothing happens; raises InvalidInput
    (`overlay.bad_study`) without a node or a period.
    """
    if min(nodes, periods) < 1:
        raise _bad_study(f"{nodes} nodes in {periods} periods send nothing", "one or more of each")
    network = SwimNetwork(nodes, seed=seed)
    network.run_periods(3 * _SETTLE_PERIODS)
    counters = network.medium.counters
    sent, sent_bytes = counters.sent, counters.bytes
    with without_collector():
        network.run_periods(periods)
    per = nodes * periods
    return LoadResult(
        nodes=nodes,
        messages=(counters.sent - sent) / per,
        bytes=(counters.bytes - sent_bytes) / per,
    )


def _bad_study(what: str, hint: str) -> InvalidInput:
    return InvalidInput(what, code="overlay.bad_study", hint=hint)


class _Run(msgspec.Struct, frozen=True, kw_only=True):
    suspected: float
    declared: float
    all_know: float
    missed: int
    false_positives: int
    false_of_starved: int


def _let_die(network: SwimNetwork, nodes: int, starved: int) -> _Run:
    """The last node dies; the first ones are starved."""
    period_ms, dying = network.settings.period_ms, nodes - 1
    network.run_periods(_SETTLE_PERIODS)
    for number in range(starved):
        network.starve(number, asleep_ms=3 * period_ms)
    network.run_periods(network.chance.random() * 2)
    died_ms = network.scheduler.time_ms
    network.kill(dying)
    network.run_periods(_DEATH_PERIODS)
    slow = {network.address(number) for number in range(starved)}
    suspected = network.noticed("suspected", dying, died_ms).values()
    declared = network.noticed("failed", dying, died_ms)
    in_time = [time_ms for by, time_ms in declared.items() if by not in slow]

    def periods(time_ms: float) -> float:
        return (time_ms - died_ms) / period_ms

    wrong = [
        told.change.address in slow
        for told in network.told
        if told.change.kind == "failed"
        and told.by not in slow
        and told.change.address != network.address(dying)
    ]
    return _Run(
        suspected=periods(min(suspected, default=network.scheduler.time_ms)),
        declared=periods(min(in_time, default=network.scheduler.time_ms)),
        all_know=periods(max(in_time, default=network.scheduler.time_ms)),
        missed=nodes - 1 - starved - len(in_time),
        false_positives=wrong.count(False),
        false_of_starved=wrong.count(True),
    )
