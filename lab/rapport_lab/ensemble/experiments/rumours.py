"""Rounds of gossip until every node has a rumour. [EN-12]"""

from __future__ import annotations

from math import log

import msgspec
import pyarrow as pa

from rapport_lab.ensemble.experiments.experiment import Experiment, one_row
from rapport_lab.ensemble.experiments.published import RUMOUR_ROUNDS
from rapport_lab.ensemble.experiments.report import (
    Curves,
    Report,
    Row,
    Statement,
    Table,
    averaged,
    whole,
)
from rapport_lab.ensemble.simulation.rumour_rounds import spread_rumour

_FAN_OUT = 3
_SEEDS = 5


class RumourPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One rumour."""

    nodes: int
    fan_out: int = _FAN_OUT
    loss: float = 0.0
    seed: int = 1


def rumour_points(quick: bool, seed: int) -> list[RumourPoint]:
    """A thousand to a million nodes with fan-out 3; fan-outs 1 to 5 and losses at 100,000."""
    sizes = (10_000, 1_000) if quick else (1_000_000, 100_000, 10_000, 1_000)
    size = 10_000 if quick else 100_000
    seeds = range(seed, seed + (2 if quick else _SEEDS))
    return [
        *(RumourPoint(nodes=nodes, seed=each) for nodes in sizes for each in seeds),
        *(RumourPoint(nodes=size, fan_out=few, seed=each) for few in (1, 2, 5) for each in seeds),
        *(RumourPoint(nodes=size, loss=loss, seed=each) for loss in (0.1, 0.3) for each in seeds),
    ]


def run_rumour(point: RumourPoint) -> pa.Table:
    """One row; about a second for a million nodes."""
    run = spread_rumour(point.nodes, fan_out=point.fan_out, loss=point.loss, seed=point.seed)
    half = next(number for number, knew in enumerate(run.informed) if 2 * knew >= point.nodes)
    found = {"rounds": run.rounds, "half_rounds": half, "messages": run.messages}
    return one_row(point, {**found, "complete": run.is_complete})


def report_rumours(rows: list[Row]) -> Report:
    """Means over the seeds, beside what others measured."""
    found = averaged(rows, ("nodes", "fan_out", "loss"))
    found.sort(key=lambda row: (row["loss"], row["fan_out"], row["nodes"]))
    shown = tuple(
        (
            whole(row["nodes"]),
            str(row["fan_out"]),
            f"{row['loss']:.0%}",
            f"{row['half_rounds']:.1f}",
            f"{row['rounds']:.1f}",
            _known(row),
            f"{_expected(row):.1f}",
            f"{row['messages'] / row['nodes']:.1f}",
        )
        for row in found
    )
    columns = (
        *("nodes", "fan-out", "loss", "rounds until half know", "until all", "known"),
        *("log formula", "messages per node"),
    )
    table = Table("Rounds until everybody knows", columns, shown)
    usual = [row for row in found if row["fan_out"] == _FAN_OUT and not row["loss"]]
    return Report(
        tables=(table,),
        plots=(_plot(usual),),
        statements=(
            Statement("everybody knows in the end", all(row["complete"] for row in rows)),
            Statement(
                "fan-out 3 takes the known rounds, give or take two",
                all(
                    abs(row["rounds"] - RUMOUR_ROUNDS[row["nodes"]]) <= 2
                    for row in _known_of(usual)
                ),
            ),
        ),
    )


def _known_of(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["nodes"] in RUMOUR_ROUNDS]


def _known(row: Row) -> str:
    is_usual = row["fan_out"] == _FAN_OUT and not row["loss"]
    return str(RUMOUR_ROUNDS.get(row["nodes"], "-")) if is_usual else "-"


def _expected(row: Row) -> float:
    """Growth takes log(n)/log(1+f) rounds, the last ones log(n)/f (Pittel); f is what arrives."""
    heard = float(row["fan_out"] * (1 - row["loss"]))
    nodes = float(row["nodes"])
    return log(nodes) / log(1 + heard) + log(nodes) / heard


def _plot(rows: list[Row]) -> Curves:
    return Curves(
        name="rounds",
        title="Rounds until everybody knows, fan-out 3",
        across="nodes, as a power of ten",
        up="rounds",
        series={
            "ours": [(log(row["nodes"], 10), row["rounds"]) for row in rows],
            "known": [
                (log(row["nodes"], 10), RUMOUR_ROUNDS[row["nodes"]]) for row in _known_of(rows)
            ],
        },
    )


RUMOURS = Experiment(
    name="rumours",
    repeats="rounds of gossip (not in the source)",
    points=rumour_points,
    run=run_rumour,
    report=report_rumours,
)
