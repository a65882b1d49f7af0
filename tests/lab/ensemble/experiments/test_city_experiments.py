"""Experiments in a city: small ones, so that shapes show; the published ones are run by command."""

from __future__ import annotations

from typing import Any

import pytest

from rapport_lab.ensemble.experiments.broadcasts import (
    BroadcastPoint,
    broadcast_points,
    report_broadcasts,
    run_broadcasts,
)
from rapport_lab.ensemble.experiments.groupers import (
    GrouperPoint,
    grouper_points,
    report_groupers,
    run_groupers,
)
from rapport_lab.ensemble.experiments.published import TABLE_5, TABLE_6
from rapport_lab.ensemble.experiments.pulling import (
    PullingPoint,
    grid_settings,
    pulling_points,
    report_pulling,
    run_pulling,
)
from rapport_lab.ensemble.experiments.strategies import (
    StrategyPoint,
    messages_at,
    report_strategies,
    run_strategy,
    strategy_points,
)


def rows_of(run: Any, points: Any) -> list[dict[str, Any]]:
    return [row for point in points for row in run(point).to_pylist()]


def test_without_passing_on_one_message_is_sent_per_node_and_period() -> None:
    (row,) = run_broadcasts(BroadcastPoint(probability=0.0, nodes=20, minutes=0.5)).to_pylist()
    assert row["messages"] == row["sent_kn"] == 20 * 7
    assert row["arrivals"] >= row["first_arrivals"] > 0


def test_a_point_gives_the_same_row_again_whatever_was_run_before() -> None:
    point = BroadcastPoint(probability=0.6, nodes=30, minutes=0.3, seed=4)
    first = run_broadcasts(point)
    run_broadcasts(BroadcastPoint(probability=1.0, nodes=30, minutes=0.3, seed=5))
    assert run_broadcasts(point).equals(first)


@pytest.mark.slow
def test_the_shape_of_table_5_holds_in_a_small_city() -> None:
    report = report_broadcasts(rows_of(run_broadcasts, broadcast_points(True, 1)))
    assert [one.says for one in report.statements if not one.holds] == []
    assert len(report.statements) == 5
    assert [plot.name for plot in report.plots] == ["messages", "ages", "distinct"]


def test_ours_stand_beside_the_published_counts_only_for_the_published_set_up() -> None:
    row = run_broadcasts(BroadcastPoint(probability=0.5, nodes=20, minutes=0.1)).to_pylist()[0]
    small = report_broadcasts([row]).tables[0].rows[0]
    theirs = report_broadcasts([{**row, "nodes": 200, "minutes": 15.0}]).tables[0].rows[0]
    assert small[3] == "-"
    assert theirs[3] == f"{TABLE_5[0.5][0]:,}" == "120,407"


def test_the_grid_of_pulling_is_the_published_one() -> None:
    grid = grid_settings()
    assert len(set(grid)) == 256
    without_number = {row[1:] for row in grid}
    assert [row for row in TABLE_6 if row[1:] not in without_number] == []
    assert all(row.header_ms <= row.pull_ms for row in grid)
    assert all(5_000 < row.local_ms < row.global_ms for row in grid)
    parts = [point.part for point in pulling_points(False, 1)]
    assert {part: parts.count(part) for part in parts} == {
        "table 6": 21,
        "immediate answers": 4,
        "no pulling": 1,
        "grid": 256,
    }


@pytest.mark.slow
def test_pulling_reports_what_it_costs_and_brings() -> None:
    points = [point for point in pulling_points(True, 1) if point.probability in (0.0, 0.9)]
    rows = rows_of(run_pulling, points)
    assert all(row["sent_hd"] > 0 and row["sent_pl"] > 0 for row in rows if row["header_ms"])
    report = report_pulling(rows)
    assert len(report.tables) == 4
    assert {table.rows != () for table in report.tables} == {True}


def test_pulling_brings_knowledge_further_where_nothing_is_passed_on() -> None:
    times = {"local_ms": 6_000.0, "global_ms": 10_000.0, "probability": 0.0}
    small = {"nodes": 30, "minutes": 1.0, "part": "grid"}
    without = PullingPoint(header_ms=0.0, pull_ms=0.0, **times, **small)  # type: ignore[arg-type]
    pulled = PullingPoint(header_ms=5e3, pull_ms=5e3, **times, **small)  # type: ignore[arg-type]
    less, more = rows_of(run_pulling, [without, pulled])
    assert more["distinct_mean"] > less["distinct_mean"]


def test_groupers_keep_sectors_fresh_with_fewer_messages_than_gossip() -> None:
    few = {"nodes": 40, "minutes": 0.6, "sectors": 9}
    simple = GrouperPoint(probability=0.5, fan_out=3, **few)  # type: ignore[arg-type]
    grouped = GrouperPoint(probability=0.0, fan_out=3, groupers=4, **few)  # type: ignore[arg-type]
    plain, ours = rows_of(run_groupers, [simple, grouped])
    assert ours["messages"] < plain["messages"] / 2
    assert ours["age_median_ms"] <= plain["age_median_ms"]
    assert ours["fresh"] > 0.5
    assert ours["on_air"] == plain["on_air"] == 0


@pytest.mark.slow
def test_the_shape_of_figures_31_and_32_holds_in_a_small_city() -> None:
    report = report_groupers(rows_of(run_groupers, grouper_points(True, 1)))
    assert [one.says for one in report.statements if not one.holds] == []


@pytest.mark.parametrize("name", ["counter", "distance", "location", "adaptive", "cluster"])
def test_every_strategy_can_send_less_than_everybody_always(name: Any) -> None:
    value = [one.value for one in strategy_points(False, 1) if one.strategy == name][-1]
    small = {"nodes": 30, "minutes": 0.4}
    always = StrategyPoint(strategy="probability", value=1.0, **small)  # type: ignore[arg-type]
    other = StrategyPoint(strategy=name, value=value, **small)  # type: ignore[arg-type]
    plain, ours = rows_of(run_strategy, [always, other])
    assert 30 * 5.8 < ours["sent_kn"] < plain["sent_kn"]
    assert (ours["sent_hd"] > 0) == (name == "cluster")


def test_what_a_probability_needs_is_read_between_measured_points() -> None:
    curve = [(0.1, 100.0), (0.3, 300.0), (0.4, 800.0)]
    assert messages_at(curve, 0.35) == pytest.approx(550.0)
    assert messages_at(curve, 0.05) is None
    assert messages_at(curve, 0.5) is None


def test_strategies_are_compared_at_equal_reach() -> None:
    common = {"nodes": 10, "minutes": 1.0, "age_third_ms": 1.0, "distinct_mean": 1.0}
    plain = [
        {"strategy": "probability", "value": p, "reach": p, "messages": 1_000 * p, **common}
        for p in (0.2, 0.8)
    ]
    other = {"strategy": "distance", "value": 9.0, "reach": 0.5, "messages": 400, **common}
    report = report_strategies([*plain, other])
    assert report.tables[0].rows[-1][4:6] == ("500", "20.0 %")
    assert report.statements[0].holds
