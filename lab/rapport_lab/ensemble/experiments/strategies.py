"""Retransmission strategies of the source and an adaptive one, compared with one probability at
equal delivery. [EN-5, EN-12]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Final, Literal

import msgspec
import pyarrow as pa

from rapport.ensemble.gossip.gossip_machine import GossipMachine
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.gossip.strategies import (
    Adaptive,
    ClusterBased,
    CounterBased,
    DistanceBased,
    LocationBased,
    Probabilistic,
    Strategy,
)
from rapport.kernel.clock import Chance
from rapport.transport.base import Address, Sender
from rapport_lab.ensemble.experiments.city_run import PERIOD_MS, city_of, run_and_measure
from rapport_lab.ensemble.experiments.experiment import Experiment, one_row
from rapport_lab.ensemble.experiments.report import (
    Curves,
    Report,
    Row,
    Statement,
    Table,
    averaged,
    percent,
    seconds,
    whole,
)
from rapport_lab.ensemble.simulation.city import Actor
from rapport_lab.ensemble.simulation.measurements import KnowledgeAges

StrategyName = Literal["probability", "counter", "distance", "location", "cluster", "adaptive"]

_RANGE_METRES: Final = 250.0
_VALUES: Final[dict[StrategyName, tuple[float, ...]]] = {
    "probability": (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1),
    "counter": (6.0, 4.0, 3.0, 2.0),
    "distance": (50.0, 100.0, 150.0, 200.0),
    "location": (0.05, 0.1, 0.2, 0.4),
    "adaptive": (4.0, 3.0, 2.0, 1.5),
    "cluster": (0.0,),
}
"""Of each strategy its one parameter: the probability, how often to hear it, metres, the share of
ground not covered, how often to wish to hear it. Clusters have none.
"""
_QUICK: Final = 2


class StrategyPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one strategy."""

    strategy: StrategyName
    value: float
    nodes: int = 200
    minutes: float = 5.0
    seed: int = 1


def strategy_points(quick: bool, seed: int) -> list[StrategyPoint]:
    """Every strategy at several values."""
    make = partial(StrategyPoint, seed=seed)
    if quick:
        make = partial(make, nodes=50, minutes=1.0)
    return [
        make(strategy=name, value=value)
        for name, values in _VALUES.items()
        for value in (values if not quick or name == "probability" else values[:_QUICK])
    ]


def run_strategy(point: StrategyPoint) -> pa.Table:
    """One row; up to 10 s for 5 minutes of 200 nodes."""
    city = city_of(point.nodes, point.minutes, point.seed)
    actors: dict[Address, Actor] = {}
    # Clusters are told by headers; what these list does not matter here, so they are kept empty.
    header_ms = PERIOD_MS if point.strategy == "cluster" else 0.0
    settings = GossipSettings(header_ms=header_ms, local_ms=0.5, global_ms=1.0)

    def make_node(actor: Actor, chance: Chance) -> GossipMachine:
        actors[actor.address] = actor
        strategy = _strategy(point, actor, actors, chance)
        return GossipMachine(actor.name, settings, chance, source=actor, strategy=strategy)

    ages = KnowledgeAges()
    world = city.world(make_node, seed=point.seed, ages=ages)
    return one_row(point, run_and_measure(city, world, ages))


def _strategy(
    point: StrategyPoint, actor: Actor, actors: dict[Address, Actor], chance: Chance
) -> Strategy:
    def here() -> tuple[float, float]:
        return actor.position

    def where_is(sender: Sender) -> tuple[float, float]:
        return actors[sender.address].position

    value = point.value
    match point.strategy:
        case "probability":
            return Probabilistic(value, chance)
        case "counter":
            return CounterBased(chance, threshold=int(value))
        case "distance":
            return DistanceBased(here, where_is, chance, metres=value)
        case "location":
            return LocationBased(
                here, where_is, chance, range_metres=_RANGE_METRES, uncovered=value
            )
        case "adaptive":
            return Adaptive(chance, wished=value)
        case "cluster":
            return ClusterBased(actor.name, keep_ms=3 * PERIOD_MS)


def report_strategies(rows: list[Row]) -> Report:
    """Beside each strategy what the probability would need to deliver as much."""
    found = averaged(rows, ("strategy", "value", "nodes", "minutes"))
    curve = sorted((row["reach"], row["messages"]) for row in found if _is_plain(row))
    others = [row for row in found if not _is_plain(row)]
    return Report(
        tables=(_table(found, curve),),
        plots=(_plot(found),),
        statements=tuple(_statements(others, curve)),
    )


def _is_plain(row: Row) -> bool:
    return bool(row["strategy"] == "probability")


def _table(rows: Iterable[Row], curve: Sequence[tuple[float, float]]) -> Table:
    shown = []
    for row in rows:
        equal = None if _is_plain(row) else messages_at(curve, row["reach"])
        shown.append(
            (
                row["strategy"],
                f"{row['value']:g}" if row["strategy"] != "cluster" else "-",
                whole(row["messages"]),
                percent(row["reach"]),
                whole(equal),
                "-" if equal is None else percent(1 - row["messages"] / equal),
                seconds(row["age_third_ms"]),
                f"{row['distinct_mean']:.0f}",
            )
        )
    columns = (
        *("strategy", "value", "messages", "reach", "probability needs"),
        *("saved", "age Q3 s", "components per node"),
    )
    return Table("Strategies against one probability at equal reach", columns, tuple(shown))


def messages_at(curve: Sequence[tuple[float, float]], reach: float) -> float | None:
    """The messages at a reach between two measured ones; none outside of what was measured.

    >>> messages_at([(0.25, 100.0), (0.75, 300.0)], 0.5)
    200.0
    """
    for (less, few), (more, many) in pairwise(curve):
        if less <= reach <= more:
            part = (reach - less) / (more - less) if more > less else 0.0
            return few + part * (many - few)
    return None


def _plot(rows: Iterable[Row]) -> Curves:
    series: dict[str, list[tuple[float, float]]] = {}
    for row in sorted(rows, key=lambda row: row["messages"]):
        series.setdefault(row["strategy"], []).append((row["messages"], row["reach"]))
    return Curves(
        name="reach",
        title="What messages buy",
        across="messages",
        up="share of all versions that arrive at a node",
        series=series,
    )


def _statements(rows: Iterable[Row], curve: Sequence[tuple[float, float]]) -> Iterable[Statement]:
    best: dict[str, float] = {}
    for row in rows:
        equal = messages_at(curve, row["reach"])
        if equal is not None:
            saved = 1 - row["messages"] / equal
            best[row["strategy"]] = max(saved, best.get(row["strategy"], saved))
    for name, saved in best.items():
        says = f"{name} needs fewer messages than one probability ({percent(saved)} at best)"
        yield Statement(says, saved > 0)


STRATEGIES = Experiment(
    name="strategies",
    repeats="the strategies that section 2 names",
    points=strategy_points,
    run=run_strategy,
    report=report_strategies,
)
