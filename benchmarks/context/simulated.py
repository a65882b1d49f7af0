"""The simulated part of the evaluation of context: the study of rare data, and how fast ten
thousand brokers are simulated. [CX-12, PI-8]
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from benchmarks.results import Result, limit, rate
from rapport.context.broker.broker_settings import ReplicationSettings
from rapport.kernel.clock import SystemClock
from rapport_lab.context.formulas import expected_success
from rapport_lab.context.study import (
    SearchPoint,
    make_load,
    make_network,
    run_load,
    run_point,
    study_points,
)
from rapport_lab.curve_plot import Axis, Series, curves_plot
from rapport_lab.grids import run_grid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STUDY = "context-search-1"
"""A new number for a study that asks something else: its rows are then made anew."""
SCALE_GOAL_S = 60.0

Row = dict[str, Any]

_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "limits": ("copies", "hop_limit", "success", "expected_success", "hops_mean", "messages_mean"),
    "look-ahead": ("copies", "look_ahead", "depth", "success", "hops_mean", "messages_mean"),
    "strategies": (
        *("strategy", "look_ahead", "walkers", "flood_ttl"),
        *("success", "messages_mean", "response_ms_mean"),
    ),
    "replication": (
        *("replication", "replicas", "at_most", "messages_mean", "hops_mean"),
        *("copies_mean", "copies_slope"),
    ),
    "loss": ("loss", "success", "messages_mean", "acknowledgements_mean", "response_ms_mean"),
    "sizes": ("brokers", "copies", "success", "hops_mean", "messages_mean"),
    "topologies": ("topology", "avoid", "success", "expected_success", "hops_mean"),
}


def run_search_study(
    *, quick: bool = False, spark: SparkSession | None = None, lake: Path | None = None
) -> pa.Table:
    """A row for each point of the study; with a session spread over its cores. `lake` keeps the
    rows, so that a run that was ended goes on; without one everything is made anew.
    """
    points = study_points(quick=quick)
    if lake is not None:
        return run_grid(spark, points, run_point, lake=lake, name=STUDY)
    with tempfile.TemporaryDirectory() as directory:
        return run_grid(spark, points, run_point, lake=Path(directory), name=STUDY)


def scale(quick: bool) -> list[Result]:
    """10,000 brokers and 100,000 requests under Zipf, on one core; a tenth of each when quick.

    Once with every hop acknowledged, as brokers do; once without, since these links lose nothing,
    which is what the source's brokers do.
    """
    usual = scale_point(quick)
    bare = msgspec.structs.replace(usual, tries=1)
    return [*_scaled(usual, "hops acknowledged"), *_scaled(bare, "hops not acknowledged")]


def _scaled(point: SearchPoint, how: str) -> list[Result]:
    clock = SystemClock()
    begin = clock.steady_ns()
    network = make_network(point)
    asked = run_load(network, make_load(point))
    seconds = (clock.steady_ns() - begin) / 1e9
    found = asked.table()["found"].to_numpy().mean()
    what = f"simulated, {point.brokers:,} brokers x {point.requests:,} requests, {how}"
    goal = SCALE_GOAL_S if point.requests >= 100_000 else None
    return [
        limit(f"{what}, one core", seconds, "s", goal),
        rate(f"{what}, found", float(found) * 100, "%"),
        limit(f"{what}, messages a request", network.sent / point.requests, "messages"),
        rate(f"{what}, messages of the simulation", network.sent / seconds, "messages/s"),
    ]


def scale_point(quick: bool) -> SearchPoint:
    """Things that some ask for often, in a network of the default settings."""
    brokers, requests = (1_000, 10_000) if quick else (10_000, 100_000)
    return SearchPoint(
        part="scale",
        brokers=brokers,
        requests=requests,
        requests_per_second=1_000.0,
        popularity="zipf",
        keys=1_000,
        copies=brokers // 100,
        look_ahead="probe",
        replication="random",
        at_most=ReplicationSettings().at_most,
    )


# --- what is shown of it ---


def study_lines(rows: pa.Table) -> list[str]:
    """A table for each part of the study."""
    lines: list[str] = []
    for part, names in _COLUMNS.items():
        own = _part(rows, part)
        if own:
            lines += ["", part, "".join(f"{name.replace('_', ' '):>22}" for name in names)]
            lines += ["".join(f"{_shown(row[name]):>22}" for name in names) for row in own]
    return lines


def study_results(rows: pa.Table) -> list[Result]:
    """The main figures in the form of all benchmarks."""
    results: list[Result] = []
    for row in _part(rows, "look-ahead"):
        what = f"{row['brokers']:,} brokers, {row['copies']} copies, look-ahead {_ahead(row)}"
        results.append(limit(f"{what}: hops until found", row["hops_mean"], "hops"))
        results.append(limit(f"{what}: messages", row["messages_mean"], "messages/request"))
    for row in _part(rows, "replication"):
        what = f"{row['brokers']:,} brokers, Zipf, replication {_replication(row)}"
        results.append(limit(f"{what}: messages", row["messages_mean"], "messages/request"))
    for row in _part(rows, "strategies"):
        what = f"{row['brokers']:,} brokers, {row['copies']} copies, {_strategy(row)}"
        results.append(limit(f"{what}: messages", row["messages_mean"], "messages/request"))
        results.append(rate(f"{what}: found", row["success"] * 100, "%"))
    return results


def study_plots(rows: pa.Table) -> dict[str, str]:
    """By name the plots of the study as SVG."""
    limits = _part(rows, "limits")
    copies, messages = Axis("copies", in_tens=True), Axis("messages per request", in_tens=True)
    success: dict[str, list[tuple[float, float]]] = {}
    for row in limits:
        measured = success.setdefault(f"{row['hop_limit']} hops", [])
        measured.append((row["copies"], row["success"]))
        theory = success.setdefault(f"{row['hop_limit']} hops, formula", [])
        formula = expected_success(row["brokers"], row["copies"], row["hop_limit"] + 1)
        theory.append((row["copies"], formula))
    strategies = {
        _strategy(row): [(row["messages_mean"], row["success"])]
        for row in _part(rows, "strategies")
    }
    look_ahead = _by(_part(rows, "look-ahead"), _ahead, "copies", "messages_mean")
    hops = _by(_part(rows, "look-ahead"), _ahead, "copies", "hops_mean")
    return {
        "success": curves_plot("Rare data: found", copies, Axis("share found"), success),
        "look-ahead-hops": curves_plot("Look-ahead: hops", copies, Axis("hops", True), hops),
        "look-ahead-messages": curves_plot("Look-ahead: messages", copies, messages, look_ahead),
        "strategies": curves_plot("Strategies", messages, Axis("share found"), strategies),
        "sizes": curves_plot(
            "1 % copies, networks of any size",
            Axis("brokers", True),
            messages,
            _by(_part(rows, "sizes"), lambda row: "walk, probes", "brokers", "messages_mean"),
        ),
    }


def _by(rows: Iterable[Row], name: Any, across: str, up: str) -> Series:
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row[up] is not None:
            series.setdefault(name(row), []).append((row[across], row[up]))
    return series


def _part(rows: pa.Table, part: str) -> list[Row]:
    return [row for row in rows.to_pylist() if row["part"] == part]


def _ahead(row: Row) -> str:
    return f"probe, depth {row['depth']}" if row["look_ahead"] == "probe" else row["look_ahead"]


def _replication(row: Row) -> str:
    if row["replication"] != "random":
        return str(row["replication"])
    return f"random, {row['replicas'] or 'up to ' + str(row['at_most'])} of the path"


def _strategy(row: Row) -> str:
    more = {
        "walk": "" if row["look_ahead"] == "off" else f" with {row['look_ahead']}",
        "walkers": f" ({row['walkers']})",
    }
    return str(row["strategy"]) + more.get(row["strategy"], f" (ttl {row['flood_ttl']})")


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,.3f}" if isinstance(value, float) else str(value)
