"""Pulling with 256 sets of parameters: figures 33, 34 and 35, table 6. [EN-8, EN-12]"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
import pyarrow as pa

from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport_lab.ensemble.experiments.city_run import city_of, run_and_measure
from rapport_lab.ensemble.experiments.experiment import Experiment, one_row
from rapport_lab.ensemble.experiments.published import (
    AGE_PULLING_S,
    PULLING_THIRD_S,
    TABLE_6,
    PullingRow,
)
from rapport_lab.ensemble.experiments.report import (
    Box,
    Boxes,
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
from rapport_lab.ensemble.simulation.measurements import KnowledgeAges

GRID: Final = "grid"
SELECTED: Final = "table 6"
IMMEDIATE: Final = "immediate answers"
PLAIN: Final = "no pulling"
_ANSWERED_AT_ONCE: Final = (24, 27, 35, 40)
"""Configurations of table 6 that are run in the other mode, too."""
_SHOWN: Final = 25


class PullingPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One run; headers and pulls of 0 ms mean none."""

    part: str
    header_ms: float
    pull_ms: float
    probability: float
    local_ms: float
    global_ms: float
    configuration: int = 0
    """The number in table 6, 0 for none."""
    answers: str = "next"
    nodes: int = 200
    minutes: float = 15.0
    seed: int = 1


def grid_settings() -> list[PullingRow]:
    """The 256 configurations of the source; their numbers there are not published."""
    return [
        PullingRow(
            0,
            5_000 + 2_000 * h,
            5_000 + 2_000 * h + 2_000 * p,
            round(0.3 * i, 1),
            5_000 + 2_000 * t,
            5_000 + 4_000 * t,
        )
        for i in (3, 2, 1, 0)
        for h in range(4)
        for p in range(4)
        for t in (1, 2, 3, 4)
    ]


def pulling_points(quick: bool, seed: int) -> list[PullingPoint]:
    """The 21 configurations of table 6, some of them with immediate answers, and the same gossip
    without pulling for 15 minutes; all 256 for 5.
    """
    if quick:
        some = [row for row in grid_settings() if row.header_ms == row.pull_ms == 5_000]
        quickly = {"nodes": 50, "minutes": 1.0, "seed": seed}
        return [
            *(_point(row, SELECTED, **quickly) for row in TABLE_6[:3]),
            *_at_once(TABLE_6[:1], **quickly),
            _plain(**quickly),
            *(_point(row, GRID, **quickly) for row in some if row.local_ms == 9_000),
        ]
    return [
        *(_point(row, SELECTED, seed=seed) for row in TABLE_6),
        *_at_once([row for row in TABLE_6 if row.configuration in _ANSWERED_AT_ONCE], seed=seed),
        _plain(seed=seed),
        *(_point(row, GRID, minutes=5.0, seed=seed) for row in grid_settings()),
    ]


def _point(row: PullingRow, part: str, **more: float) -> PullingPoint:
    return PullingPoint(part=part, **row._asdict(), **more)  # type: ignore[arg-type]


def _at_once(rows: Iterable[PullingRow], **more: float) -> list[PullingPoint]:
    return [
        msgspec.structs.replace(_point(row, IMMEDIATE, **more), answers="immediate") for row in rows
    ]


def _plain(**more: float) -> PullingPoint:
    return _point(PullingRow(0, 0, 0, 0.9, 9_000, 13_000), PLAIN, **more)


def run_pulling(point: PullingPoint) -> pa.Table:
    """One row; about 1 s for each simulated minute of 200 nodes."""
    city = city_of(point.nodes, point.minutes, point.seed)
    gossip = GossipSettings(
        header_ms=point.header_ms,
        pull_ms=point.pull_ms,
        probability=point.probability,
        local_ms=point.local_ms,
        global_ms=point.global_ms,
        answers="immediate" if point.answers == "immediate" else "next",
    )
    ages = KnowledgeAges()
    world = city.gossip_world(gossip, seed=point.seed, ages=ages)
    return one_row(point, run_and_measure(city, world, ages))


def report_pulling(rows: list[Row]) -> Report:
    """What is good among all, and what the published choice gives."""
    by = (
        *("part", "configuration", "header_ms", "pull_ms", "probability", "local_ms"),
        *("global_ms", "answers", "nodes", "minutes"),
    )
    found = averaged(rows, by)
    grid = sorted(_part(found, GRID), key=lambda row: (row["age_median_ms"], row["age_third_ms"]))
    good = [row for row in grid if row["age_third_ms"] < 1_000 * PULLING_THIRD_S]
    selected = sorted(_part(found, SELECTED), key=lambda row: row["configuration"])
    plain, at_once = _part(found, PLAIN), _part(found, IMMEDIATE)
    return Report(
        tables=(
            _table("The configurations of table 6 (figures 34, 35)", [*plain, *selected]),
            _table("Some of them with immediate answers", at_once),
            _table("The best of the grid, by median and third quartile", good[:_SHOWN]),
            _by_probability(grid),
        ),
        plots=(_boxes(good), _selected_boxes(plain, selected), _messages(selected)),
        statements=tuple(_statements(grid, good, plain, selected)),
    )


def _part(rows: Iterable[Row], part: str) -> list[Row]:
    return [row for row in rows if row["part"] == part]


def _settings(row: Row) -> str:
    if not row["header_ms"]:
        return "no pulling"
    times = "/".join(
        f"{row[name] / 1_000:g}" for name in ("header_ms", "pull_ms", "local_ms", "global_ms")
    )
    return f"{times} P {row['probability']:g}"


def _table(title: str, rows: Iterable[Row]) -> Table:
    shown = [
        (
            str(row["configuration"] or "-"),
            _settings(row),
            seconds(row["age_first_ms"]),
            seconds(row["age_median_ms"]),
            seconds(row["age_third_ms"]),
            whole(row["messages"]),
            whole(row["sent_hd"]),
            whole(row["sent_pl"]),
            percent(row["reach"]),
            f"{row['distinct_mean']:.0f}",
        )
        for row in rows
    ]
    columns = (
        *("no.", "HD/PL/L/G s", "age Q1 s", "median s", "Q3 s", "messages"),
        *("of these headers", "pulls", "reach", "components per node"),
    )
    return Table(title, columns, tuple(shown))


def _by_probability(grid: list[Row]) -> Table:
    shown = []
    for probability in sorted({row["probability"] for row in grid}):
        rows = [row for row in grid if row["probability"] == probability]
        medians = sorted(row["age_median_ms"] for row in rows)
        thirds = sorted(row["age_third_ms"] for row in rows)
        good = sum(third < 1_000 * PULLING_THIRD_S for third in thirds)
        shown.append(
            (
                f"{probability:g}",
                str(len(rows)),
                f"{seconds(medians[0])} to {seconds(medians[-1])}",
                f"{seconds(thirds[0])} to {seconds(thirds[-1])}",
                str(good),
            )
        )
    columns = ("P", "configurations", "medians s", "third quartiles s", "Q3 below 20 s")
    return Table("All configurations of the grid (figure 33)", columns, tuple(shown))


def _box(row: Row, label: str) -> Box:
    ages = (row[f"age_{name}_ms"] / 1_000 for name in ("first", "median", "third"))
    return Box(label, *ages)


def _boxes(good: list[Row]) -> Boxes:
    return Boxes(
        name="grid",
        title="Age of knowledge, configurations with Q3 below 20 s (figure 33)",
        up="seconds",
        boxes=tuple(_box(row, _settings(row)) for row in good),
    )


def _selected_boxes(plain: list[Row], selected: list[Row]) -> Boxes:
    boxes = [_box(row, "no pulling") for row in plain]
    boxes += [_box(row, str(row["configuration"])) for row in selected]
    return Boxes(
        name="selected",
        title="Age of knowledge, configurations of table 6 (figure 34)",
        up="seconds",
        boxes=tuple(boxes),
    )


def _messages(selected: list[Row]) -> Curves:
    series: dict[str, list[tuple[float, float]]] = {}
    for row in sorted(selected, key=lambda row: row["pull_ms"]):
        name = f"HD {row['header_ms'] / 1_000:g} s, L {row['local_ms'] / 1_000:g} s"
        series.setdefault(name, []).append((row["pull_ms"] / 1_000, row["messages"]))
    return Curves(
        name="messages",
        title="Messages of the configurations of table 6 (figure 35)",
        across="pull period in s",
        up="messages",
        series=series,
    )


def _statements(
    grid: list[Row], good: list[Row], plain: list[Row], selected: list[Row]
) -> Iterable[Statement]:
    if selected:
        most = max(row["age_median_ms"] for row in selected)
        says = f"medians of table 6 are about {AGE_PULLING_S:g} s (at most {seconds(most)} here)"
        yield Statement(says, most <= 1_000 * (AGE_PULLING_S + 1))
        thirds = max(row["age_third_ms"] for row in selected)
        says = f"third quartiles of table 6 are below 20 s (at most {seconds(thirds)} here)"
        yield Statement(says, thirds < 1_000 * PULLING_THIRD_S)
    if selected and plain:
        helps = all(row["age_third_ms"] <= plain[0]["age_third_ms"] for row in selected)
        yield Statement("pulling makes the third quartile no worse than without", helps)
        wider = all(row["distinct_mean"] >= plain[0]["distinct_mean"] for row in selected)
        yield Statement("with pulling a node hears of no fewer components", wider)
    if len({row["probability"] for row in grid}) > 1:
        young = [row for row in good if row["age_median_ms"] <= 1_000 * (AGE_PULLING_S + 1)]
        highest = max(row["probability"] for row in grid)
        only = all(row["probability"] == highest for row in young)
        yield Statement("a median of about 6 s needs the highest probability", only)


PULLING = Experiment(
    name="pulling",
    repeats="figures 33, 34, 35, table 6",
    points=pulling_points,
    run=run_pulling,
    report=report_pulling,
)
