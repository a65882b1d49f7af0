"""Gossip on the radio with and without a boundary: table 5, figures 28, 29 and 30. [EN-6, EN-12]"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pyarrow as pa

from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport_lab.ensemble.experiments.city_run import PERIOD_MS, city_of, run_and_measure
from rapport_lab.ensemble.experiments.experiment import Experiment, one_row
from rapport_lab.ensemble.experiments.published import TABLE_5
from rapport_lab.ensemble.experiments.report import (
    Box,
    Boxes,
    Curves,
    Report,
    Row,
    Statement,
    Table,
    averaged,
    is_rising,
    percent,
    seconds,
    whole,
)
from rapport_lab.ensemble.simulation.measurements import KnowledgeAges

_SIMPLE, _BOUNDED = "simple", "boundary"
_SHOWN_FROM = 0.5
"""Figure 29 shows probabilities above this one."""


class BroadcastPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One run: all nodes publish every 5 s and pass on with one probability."""

    probability: float
    boundary_metres: float | None = None
    nodes: int = 200
    minutes: float = 15.0
    seed: int = 1


def broadcast_points(quick: bool, seed: int) -> list[BroadcastPoint]:
    """P = 0..1, without and with the boundary of 0.5 km."""
    if quick:
        return [
            BroadcastPoint(
                probability=tenths / 10, boundary_metres=metres, nodes=50, minutes=1.0, seed=seed
            )
            for tenths in (10, 5, 0)
            for metres in (None, 300.0)
        ]
    return [
        BroadcastPoint(probability=tenths / 10, boundary_metres=metres, seed=seed)
        for tenths in range(10, -1, -1)
        for metres in (None, 500.0)
    ]


def run_broadcasts(point: BroadcastPoint) -> pa.Table:
    """One row; 15 minutes of 200 nodes take 1 to 8 s, by the probability."""
    city = city_of(point.nodes, point.minutes, point.seed)
    ages = KnowledgeAges()
    world = city.gossip_world(
        GossipSettings(probability=point.probability),
        boundary_metres=point.boundary_metres,
        seed=point.seed,
        ages=ages,
    )
    return one_row(point, run_and_measure(city, world, ages))


def report_broadcasts(rows: list[Row]) -> Report:
    """Beside the published counts."""
    by = ("probability", "boundary_metres", "nodes", "minutes")
    found = sorted(averaged(rows, by), key=lambda row: row["probability"])
    return Report(
        tables=(_messages_table(found), _ages_table(found)),
        plots=(_messages_plot(found), _ages_plot(found), _distinct_plot(found)),
        statements=tuple(_statements(found)),
    )


def _way(row: Row) -> str:
    return _SIMPLE if row["boundary_metres"] is None else _BOUNDED


def _theirs(row: Row) -> float | None:
    """The published count, where the set-up is the published one."""
    counts = TABLE_5.get(round(row["probability"], 3))
    is_theirs = (row["nodes"], row["minutes"]) == (200, 15.0)
    if counts is None or not is_theirs or row["boundary_metres"] not in (None, 500.0):
        return None
    return counts[0 if row["boundary_metres"] is None else 1]


def _messages_table(rows: Iterable[Row]) -> Table:
    shown = []
    for row in rows:
        theirs = _theirs(row)
        ratio = "-" if theirs is None else f"{row['messages'] / theirs:.2f}"
        shown.append(
            (
                f"{row['probability']:g}",
                _way(row),
                whole(row["messages"]),
                whole(theirs),
                ratio,
                percent(row["gave_up"] / max(row["messages"], 1)),
                percent(row["collided"] / max(row["collided"] + row["delivered"], 1)),
            )
        )
    columns = ("P", "way", "messages", "table 5", "ratio", "air never free", "collided")
    return Table("Messages sent (table 5, figure 28)", columns, tuple(shown))


def _ages_table(rows: Iterable[Row]) -> Table:
    shown = [
        (
            f"{row['probability']:g}",
            _way(row),
            seconds(row["age_first_ms"]),
            seconds(row["age_median_ms"]),
            seconds(row["age_third_ms"]),
            whole(row["arrivals"]),
            percent(row["first_arrivals"] / max(row["arrivals"], 1)),
            f"{row['distinct_mean']:.0f}",
        )
        for row in rows
    ]
    columns = (
        *("P", "way", "age Q1 s", "median s", "Q3 s"),
        *("arrivals", "of these first ones", "components per node"),
    )
    return Table("Age of knowledge and distinct components (figures 29, 30)", columns, tuple(shown))


def _messages_plot(rows: Iterable[Row]) -> Curves:
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        series.setdefault(_way(row), []).append((row["probability"], row["messages"]))
        theirs = _theirs(row)
        if theirs is not None:
            published = series.setdefault(f"{_way(row)}, published", [])
            published.append((row["probability"], theirs))
    return Curves(
        name="messages",
        title="Messages sent (figure 28)",
        across="rebroadcast probability",
        up="messages",
        series=series,
    )


def _ages_plot(rows: Iterable[Row]) -> Boxes:
    boxes = tuple(
        Box(
            f"{_way(row)} {row['probability']:g}",
            row["age_first_ms"] / 1_000,
            row["age_median_ms"] / 1_000,
            row["age_third_ms"] / 1_000,
        )
        for row in rows
        if row["probability"] > _SHOWN_FROM
    )
    return Boxes(name="ages", title="Age of knowledge (figure 29)", up="seconds", boxes=boxes)


def _distinct_plot(rows: Iterable[Row]) -> Curves:
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        series.setdefault(_way(row), []).append((row["probability"], row["distinct_mean"]))
    return Curves(
        name="distinct",
        title="Components that a node heard of (figure 30)",
        across="rebroadcast probability",
        up="components per node",
        series=series,
    )


def _statements(rows: list[Row]) -> Iterable[Statement]:
    simple = [row for row in rows if _way(row) == _SIMPLE]
    bounded = {row["probability"]: row for row in rows if _way(row) == _BOUNDED}
    for row in simple[:1]:
        if row["probability"] == 0:
            exact = row["nodes"] * (row["minutes"] * 60_000 + PERIOD_MS) / PERIOD_MS
            says = "P = 0 sends exactly one message per node and period"
            yield Statement(f"{says}: {whole(exact)}", row["messages"] == exact)
    counts = [row["messages"] for row in simple]
    yield Statement("messages grow with P", is_rising(counts))
    pairs = [(row, bounded[row["probability"]]) for row in simple if row["probability"] in bounded]
    gaps = [row["messages"] - other["messages"] for row, other in pairs]
    yield Statement("with the boundary never more are sent", all(gap >= 0 for gap in gaps))
    yield Statement("what the boundary saves grows with P", is_rising(gaps))
    high = [pair for pair in pairs if pair[0]["probability"] > _SHOWN_FROM]
    older = all(row["age_median_ms"] >= other["age_median_ms"] for row, other in high)
    yield Statement("for P > 0.5 knowledge is younger with the boundary (median)", older)


BROADCASTS = Experiment(
    name="broadcasts",
    repeats="table 5, figures 28, 29, 30",
    points=broadcast_points,
    run=run_broadcasts,
    report=report_broadcasts,
)
