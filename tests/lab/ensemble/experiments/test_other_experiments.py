"""Section 8.2 event by event, rounds of rumours, failure detection."""

from __future__ import annotations

from typing import Any

from rapport_lab.ensemble.experiments.membership import (
    MembershipPoint,
    report_membership,
    run_membership,
)
from rapport_lab.ensemble.experiments.published import TABLE_8, TABLE_9
from rapport_lab.ensemble.experiments.rumours import RumourPoint, report_rumours, run_rumour
from rapport_lab.ensemble.experiments.scenario import (
    happened,
    report_scenario,
    run_scenario,
    scenario_points,
)


def test_tables_8_and_9_come_out_to_the_millisecond() -> None:
    rows: list[dict[str, Any]] = []
    for point in scenario_points(False, 1):
        rows += run_scenario(point).to_pylist()
    assert len(rows) == len(TABLE_8) + len(TABLE_9)
    assert [row for row in rows if row["ours_ms"] != row["published_ms"]] == []
    report = report_scenario(rows)
    assert [one.holds for one in report.statements] == [True, True]


def test_knowledge_of_1_reaches_9_every_ten_seconds_and_never_between() -> None:
    times = {event.time_ms for event in happened() if event.what.startswith("9 receives KN 1")}
    assert times == {15_186, 25_186, 35_186, 45_186, 55_186}


def test_a_time_that_differs_is_shown_and_told() -> None:
    row = {"table": 8, "published_ms": 10, "event": "1 sends KN 1", "ours_ms": None}
    report = report_scenario([row])
    assert report.tables[0].rows == (("10", "-", "1 sends KN 1"),)
    assert not report.statements[0].holds


def test_rumours_are_told_beside_what_is_known() -> None:
    rows = [
        row
        for seed in (1, 2)
        for row in run_rumour(RumourPoint(nodes=1_000, seed=seed)).to_pylist()
    ]
    report = report_rumours(rows)
    assert report.tables[0].rows[0][5] == "9"
    assert all(one.holds for one in report.statements)


def test_membership_reports_detection_and_load() -> None:
    points = [
        MembershipPoint(part="detection", nodes=8, deaths=1),
        MembershipPoint(part="load", nodes=8),
        MembershipPoint(part="load", nodes=12),
    ]
    rows = [row for point in points for row in run_membership(point).to_pylist()]
    report = report_membership(rows)
    assert [len(table.rows) for table in report.tables] == [1, 2]
    assert all(one.holds for one in report.statements)
