"""Failure detection: time to detect, false positives, and load. [EN-10, EN-12]"""

from __future__ import annotations

from typing import Literal

import msgspec
import pyarrow as pa

from rapport_lab.ensemble.experiments.experiment import Experiment, one_row
from rapport_lab.ensemble.experiments.report import Curves, Report, Row, Statement, Table, averaged
from rapport_lab.swim_study import measure_detection, measure_load

_FIRST_PERIODS, _ALL_PERIODS = 3.0, 10.0
_MORE_LOAD = 1.15


class MembershipPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Networks in which one dies (`detection`), or one in which nothing happens (`load`)."""

    part: Literal["detection", "load"]
    nodes: int = 50
    loss: float = 0.0
    starved: int = 0
    deaths: int = 10
    seed: int = 1


def membership_points(quick: bool, seed: int) -> list[MembershipPoint]:
    """Loss of 0, 10 and 30 %, a starved node; the load of 10 to 200 nodes."""
    nodes, deaths = (12, 2) if quick else (50, 10)
    kinds = [(0.0, 0), (0.1, 0), (0.3, 0), (0.0, 1)]
    sizes = (20, 10) if quick else (200, 100, 50, 20, 10)
    return [
        *(MembershipPoint(part="load", nodes=size, deaths=0, seed=seed) for size in sizes),
        *(
            MembershipPoint(
                part="detection", nodes=nodes, loss=loss, starved=starved, deaths=deaths, seed=seed
            )
            for loss, starved in kinds
        ),
    ]


def run_membership(point: MembershipPoint) -> pa.Table:
    """One row; the columns of the other part are 0."""
    found = dict.fromkeys(("suspected", "declared", "all_know", "longest"), 0.0)
    counts = dict.fromkeys(("missed", "false_positives", "false_of_starved"), 0)
    load = dict.fromkeys(("messages", "bytes"), 0.0)
    if point.part == "load":
        used = measure_load(point.nodes, seed=point.seed)
        load = {"messages": used.messages, "bytes": used.bytes}
    else:
        seen = measure_detection(
            point.nodes,
            loss=point.loss,
            starved=point.starved,
            deaths=point.deaths,
            seed=point.seed,
        )
        found = {name: getattr(seen, name) for name in found}
        counts = {name: getattr(seen, name) for name in counts}
    return one_row(point, {**found, **counts, **load})


def report_membership(rows: list[Row]) -> Report:
    """Times in probe periods."""
    found = averaged(rows, ("part", "nodes", "loss", "starved", "deaths"))
    detection = [row for row in found if row["part"] == "detection"]
    load = sorted((row for row in found if row["part"] == "load"), key=lambda row: row["nodes"])
    return Report(
        tables=(_detection_table(detection), _load_table(load)),
        plots=(
            Curves(
                name="load",
                title="Load of a node while nothing happens",
                across="nodes",
                up="messages per probe period",
                series={"ours": [(row["nodes"], row["messages"]) for row in load]},
            ),
        ),
        statements=tuple(_statements(detection, load)),
    )


def _detection_table(rows: list[Row]) -> Table:
    times = ("suspected", "declared", "all_know", "longest")
    counts = ("missed", "false_positives", "false_of_starved")
    shown = tuple(
        (
            *(f"{row['nodes']:g}", f"{row['loss']:.0%}", f"{row['starved']:g}"),
            *(f"{row[name]:.1f}" for name in times),
            *(f"{row[name]:g}" for name in counts),
        )
        for row in rows
    )
    columns = (
        *("nodes", "loss", "starved", "first suspects", "first declares", "all know"),
        *("longest", "missed", "false", "false of the starved"),
    )
    return Table("After a death, in probe periods", columns, shown)


def _load_table(rows: list[Row]) -> Table:
    shown = tuple(
        (f"{row['nodes']:g}", f"{row['messages']:.2f}", f"{row['bytes']:.0f}") for row in rows
    )
    return Table("Load of a node", ("nodes", "messages per period", "bytes per period"), shown)


def _statements(detection: list[Row], load: list[Row]) -> list[Statement]:
    said = []
    for row in detection:
        if not row["loss"] and not row["starved"]:
            said += [
                Statement(
                    "the first suspects the dead within 3 periods on average",
                    row["suspected"] <= _FIRST_PERIODS,
                ),
                Statement("all know within 10 on average", row["all_know"] <= _ALL_PERIODS),
                Statement(
                    "without loss nobody is called dead who is not", row["false_positives"] == 0
                ),
            ]
    if len(load) > 1:
        least = min(row["messages"] for row in load)
        most = max(row["messages"] for row in load)
        said.append(Statement("the load does not grow with the nodes", most <= _MORE_LOAD * least))
    return said


MEMBERSHIP = Experiment(
    name="membership",
    repeats="failure detection, as SWIM and memberlist measure it",
    points=membership_points,
    run=run_membership,
    report=report_membership,
)
